"""How near the times of a split come to those of untraced runs, by a clock that neither the runtime nor opscope reads.

``python bench/scaling_truth.py`` exports six models, profiles each with ``scaling_truth.c`` in its processes, and
prints a table: per operator of XNNPACK, the time that the split gives it against the time that the preloaded clock saw
in the untraced processes of the same run. Three scalings are compared: what opscope does (the cost of tracing is taken
from the framework's own time, what remains is spread), times as they were traced, and all rows in proportion to the
call. x86-64 or 64-bit Arm Linux, executorch 1.5.1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from calibration_shares import print_table

from opscope.analysis.operators.delegates import is_delegated
from opscope.api import Settings, export, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import TracingMode
from opscope.measurements.analyses import analysis_of
from opscope.measurements.sides import bundle_side

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from opscope.analysis.analysis import Analysis

MODELS = (
    *("mobilenet_v3_small", "bert_mini", "edgetam_standin"),
    *("executorch:resnet8", "executorch:ds_cnn", "executorch:mobilenet_v1_025"),
)
"""Names of the registry: depthwise and dense convolutions, attention, large and many short operators."""
_ROUNDS, _RUNS, _WARMUP = 6, 30, 5
_WEIGHTY = 0.01
_SOURCE = Path(__file__).with_suffix(".c")


class Errors(NamedTuple):
    """How far times of operators are from the clock's, relative: half and nine of ten of them, and all together."""

    median: float
    most: float
    together: float


def errors(times: NDArray[np.float64], truth: NDArray[np.float64], headline: float) -> Errors:
    """Of the operators that take at least one percent of the latency; the sum is of all."""
    weighty = truth >= _WEIGHTY * headline
    off = np.abs(times[weighty] / truth[weighty] - 1)
    return Errors(float(np.median(off)), float(np.quantile(off, 0.9)), float(times.sum() / truth.sum() - 1))


def scalings(analysis: Analysis) -> dict[str, NDArray[np.float64]]:
    """Times of the delegated operators in program order, by how they are scaled."""
    shown = np.array([row.time_ns for row in analysis.operators if is_delegated(row)], np.float64)
    traced = shown / analysis.scale
    return {"opscope": shown, "as traced": traced, "in proportion": traced / analysis.factor}


def true_times(directory: Path, bundle: Bundle, counts: list[int]) -> NDArray[np.float64]:
    """Mean of the middle half of each untraced process's inferences, and of these the median: ns by operator."""
    ran = sorted(bundle.manifest.repetitions, key=lambda one: one.started or "")
    files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    found = [
        _typical(_inferences(np.fromfile(path, np.int64).reshape(-1, 2), counts)[_WARMUP:])
        for path, one in zip(files, ran, strict=True)
        if one.arm is TracingMode.TIMED
    ]
    median: NDArray[np.float64] = np.median(found, axis=0)
    return median


def _inferences(pairs: NDArray[np.int64], counts: list[int]) -> NDArray[np.float64]:
    """Time of each operator in each inference, of calls of delegates with so many operators.

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


def _typical(inferences: NDArray[np.float64]) -> NDArray[np.float64]:
    order = np.argsort(inferences.sum(axis=1))
    quarter = len(order) // 4
    return inferences[order[quarter : len(order) - quarter]].mean(axis=0)


def measure(model: str, work: Path, clock: Path) -> list[tuple[str, ...]]:
    """A row for each scaling of one model."""
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
    truth = true_times(seen, bundle, [call.events for call in analysis.delegates])
    rows = []
    for scaling, times in scalings(analysis).items():
        found = errors(times, truth, analysis.headline_ns)
        told = (f"{value:.1%}" for value in (found.median, found.most))
        rows.append((name, f"{analysis.factor:.3f}", scaling, *told, f"{found.together:+.1%}"))
    return rows


def scaling(models: Iterable[str] = MODELS) -> None:
    """Print the table of models."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        clock = work / "clock.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(clock), str(_SOURCE), "-ldl"], check=True)
        rows = (row for model in models for row in measure(model, work, clock))
        print_table(("model", "traced call / latency", "scaling", "half are within", "90 % within", "together"), rows)


if __name__ == "__main__":
    scaling(sys.argv[1:] or MODELS)
