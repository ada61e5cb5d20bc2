"""How near the times of a split come to those of untraced runs, by a clock that neither the runtime nor opscope reads.

Six models are exported, and each is profiled with ``scaling.c`` preloaded into its processes: per operator of XNNPACK,
the time that the split gives it stands against the time that the clock saw in the untraced processes of the same run.
x86-64 or 64-bit Arm Linux, executorch 1.5.1.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.shares import print_table
from opscope.analysis.operators.delegates import is_delegated
from opscope.api import Settings, export, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import TracingMode
from opscope.measurements.analyses import analysis_of
from opscope.measurements.sides import bundle_side

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MODELS = (
    *("mobilenet_v3_small", "bert_mini", "edgetam_standin"),
    *("executorch:resnet8", "executorch:ds_cnn", "executorch:mobilenet_v1_025"),
)
"""Names of the registry: depthwise and dense convolutions, attention, large and many short operators."""
_ROUNDS, _RUNS, _WARMUP = 6, 30, 5
_WEIGHTY = 0.01
_SOURCE = Path(__file__).with_suffix(".c")


def compare_times() -> None:
    """Print for each model how far the times of the operators that take 1 % of the latency or more are off."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        clock = work / "clock.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(clock), str(_SOURCE), "-ldl"], check=True)
        rows = [_compare_model(model, work, clock) for model in _MODELS]
    print_table(("model", "traced call / latency", "half are within", "90 % within", "together"), rows)


def _compare_model(model: str, work: Path, clock: Path) -> tuple[str, ...]:
    name = model.rpartition(":")[2]
    (program,) = export(model, out=work / name).path.glob("*.pte")
    seen = work / f"{name}-clock"
    seen.mkdir()
    os.environ |= {"LD_PRELOAD": str(clock), "OPSCOPE_CLOCK": str(seen)}
    settings = Settings(ablate=("none",), rounds=_ROUNDS, runs=_RUNS, warmup=_WARMUP, ceilings=False)
    try:
        profile(str(program), settings=settings, out=work / f"{name}-bundle")
    finally:
        del os.environ["LD_PRELOAD"]
    bundle = Bundle.open(work / f"{name}-bundle")
    analysis = analysis_of(bundle_side(bundle, bundle.manifest.variants[0].name, None))
    truth = _read_clock(seen, bundle, [call.events for call in analysis.delegates])
    delegated = [row.time_ns for row in analysis.operators if is_delegated(row)]
    if None in delegated:  # tracing slowed the call so much that there are shares alone
        return (name, f"{analysis.factor:.3f}", *["withheld"] * 3)
    times = np.array(delegated, np.float64)
    weighty = truth >= _WEIGHTY * analysis.headline_ns
    errors = np.abs(times[weighty] / truth[weighty] - 1)
    figures = (f"{np.quantile(errors, share):.1%}" for share in (0.5, 0.9))
    return (name, f"{analysis.factor:.3f}", *figures, f"{times.sum() / truth.sum() - 1:+.1%}")


def _read_clock(directory: Path, bundle: Bundle, counts: list[int]) -> NDArray[np.float64]:
    """Return ns by operator: the median over untraced processes of the mean of the middle half of their inferences."""
    ran = sorted(bundle.manifest.repetitions, key=lambda one: one.started or "")
    files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    found = [
        _middle_mean(_operator_times(np.fromfile(path, np.int64).reshape(-1, 2), counts)[_WARMUP:])
        for path, one in zip(files, ran, strict=True)
        if one.arm is TracingMode.TIMED
    ]
    median: NDArray[np.float64] = np.median(found, axis=0)
    return median


def _operator_times(pairs: NDArray[np.int64], counts: list[int]) -> NDArray[np.float64]:
    """Return the time of each operator in each inference, of calls of delegates with so many operators.

    XNNPACK asks for the time when a call begins and behind each of its operators. The very first question comes before
    the clock knows the library, so an operator stands before each question, and nothing behind the last one of a call.
    """
    asked = pairs[:, 0] == pairs[:, 1]
    spent = np.bincount(np.cumsum(asked), weights=np.where(asked, 0, pairs[:, 1] - pairs[:, 0]))
    each = sum(counts) + len(counts)
    if len(spent) % each:
        raise SystemExit(f"{len(spent):,} questions of XNNPACK are no whole number of inferences with {each} of them")
    rows = spent.reshape(-1, each)
    behind = np.cumsum([count + 1 for count in counts]) - 1
    if rows[:, behind].any():
        raise SystemExit("the questions of XNNPACK are not where they are expected")
    return np.delete(rows, behind, axis=1)


def _middle_mean(inferences: NDArray[np.float64]) -> NDArray[np.float64]:
    order = np.argsort(inferences.sum(axis=1))
    quarter = len(order) // 4
    return inferences[order[quarter : len(order) - quarter]].mean(axis=0)
