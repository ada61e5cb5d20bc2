"""Regressions of ONNX Runtime that others reported: confirmed by a stopwatch, then looked for by `opscope bisect`.

    python bench/reported.py [ISSUE...]     writes bench/data/reported.json, which docs/design/bisect.md is made of

The stopwatch is a process without opscope for each release and round, in an environment with nothing else; a report is
confirmed where the least times of one release and the next differ by 4 % at least. Each operator stands between two
others that copy as much data, so that the answer has to name it. Half an hour on a machine that does nothing else.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from onnx_models import body, model, node
from opscope.api import Settings, bisect
from opscope.core.files import text_of
from opscope.machine.environment import cpu_name
from opscope.workflows.bisect.releases import GIB, between, environment_of, installed_pythons, releases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = Path(__file__).resolve().parents[1] / "bench" / "data" / "reported.json"
PACKAGE = "onnxruntime"
OLDEST, NEWEST = "1.15.1", "1.24.4"
LEAST = 1.04
"""From which ratio of neighbours on a report is confirmed."""
ROUNDS = 4
_STOPWATCH = """
import json, sys, time, numpy as np, onnxruntime as runtime
runtime.set_default_logger_severity(3)
options = runtime.SessionOptions()
options.intra_op_num_threads = 1
session = runtime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
binding, values = session.io_binding(), np.load(sys.argv[2])
for one in session.get_inputs():
    binding.bind_cpu_input(one.name, values[one.name])
for one in session.get_outputs():
    binding.bind_output(one.name)
for _ in range(20):
    session.run_with_iobinding(binding)
taken, end = [], time.perf_counter_ns() + 250_000_000
while time.perf_counter_ns() < end or len(taken) < 20:
    began = time.perf_counter_ns()
    session.run_with_iobinding(binding)
    taken.append(time.perf_counter_ns() - began)
print(sorted(taken)[len(taken) // 10])
"""


class Report(NamedTuple):
    """A regression as it was reported."""

    issue: int  # of microsoft/onnxruntime
    op: str
    claim: str  # which releases it names, and how much
    sizes: tuple[int, ...]  # of its input
    dtype: str = "float32"
    attributes: Mapping[str, Any] = MappingProxyType({})
    second: tuple[int, ...] = ()  # sizes of a second input; empty for none
    made: tuple[int, ...] = ()  # of its output; empty: those of the input
    made_dtype: str = ""  # likewise
    largest: float = 1.0  # of the numbers of its inputs
    good: str = "1.19.2"
    bad: str = "1.23.2"


_WIDE, _LARGE = (2, 64, 28, 28), (2, 64, 56, 56)
REPORTS = (
    Report(26293, "LRN", "1.21.0, 3.8x", (1, 96, 55, 55), attributes={"size": 5}, good="1.17.0", bad=NEWEST),
    Report(26962, "Selu", "1.21.0, 3.8x", _WIDE, good="1.17.0", bad=NEWEST),
    Report(27153, "MatMul", "1.21.0, 2.4x (int64)", (3, 128, 256), "int64", second=(256, 64), made=(3, 128, 64)),
    Report(
        26940,
        "ArgMin",
        "1.21.0, 1.30x",
        _LARGE,
        attributes={"axis": 1, "keepdims": 0, "select_last_index": 1},
        made=(2, 56, 56),
        made_dtype="int64",
    ),
    Report(
        27076,
        "ReduceMean",
        "1.21.0, 1.39x (int64)",
        _LARGE,
        "int64",
        {"axes": [1], "keepdims": 1},
        made=(2, 1, 56, 56),
        good="1.20.0",
    ),
    Report(27093, "ReduceL1", "1.21.0, 1.25x", _LARGE, attributes={"axes": [0], "keepdims": 1}, made=(1, 64, 56, 56)),
    Report(27117, "Softplus", "1.21.0, 1.25x", (1024,), largest=10.0),
    Report(27138, "ThresholdedRelu", "1.21.0, 1.20x", _WIDE),
    Report(27115, "Sign", "1.21.0, 1.23 to 1.26x (int64)", (16, 64, 64), "int64"),
    Report(20562, "Celu", "1.15 to 1.17, 1.3x", (160_000,), good="1.15.1", bad="1.20.1"),
    Report(
        27155,
        "GridSample",
        "1.23.0, 1.07 to 1.15x",
        (2, 3, 32, 32),
        attributes={"mode": "bilinear"},
        second=(2, 32, 32, 2),
    ),
    Report(27173, "Hardmax", "1.19.0, 1.09x", _LARGE, attributes={"axis": 1}, good="1.17.3", bad="1.20.1"),
    Report(27119, "Sin", "1.21.0, 1.09 to 1.13x", (2, 3, 32, 32)),
    Report(27074, "Sigmoid", "1.21.0, 2.0x (float64)", _WIDE, "float64"),
    Report(27152, "Mod", "1.21.0, 1.21 to 2.5x", (2, 16, 32, 32), attributes={"fmod": 1}, second=(2, 16, 32, 32)),
    Report(26979, "Div", "1.22.0, 1.41x (int32)", _LARGE, "int32", second=_LARGE),
    Report(27188, "GRU", "1.21.0, 1.07 to 1.21x", (1, 4, 64), attributes={"hidden_size": 128}),
    Report(
        27186,
        "LessOrEqual",
        "1.19.0, 1.08x (int64)",
        (2, 3, 32, 32),
        "int64",
        second=(2, 3, 32, 32),
        good="1.17.3",
        bad="1.20.1",
    ),
)


def file_of(report: Report) -> bytes:
    """A model with the operator between two that copy."""
    inputs: dict[str, tuple[str, Sequence[int]]] = {"x": (report.dtype, report.sizes)}
    weights: dict[str, np.ndarray] = {}
    made, dtype = report.made or report.sizes, report.made_dtype or report.dtype
    read = "copied"
    if report.op == "GRU":
        hidden, random = 128, np.random.default_rng(0)
        weights["w"] = random.normal(size=(1, 3 * hidden, 64)).astype(np.float32)
        weights["r"] = random.normal(size=(1, 3 * hidden, hidden)).astype(np.float32)
        read, made = "copied w r", (1, 1, 4, hidden)
    elif report.second:
        inputs["b"] = (report.dtype, report.second)
        read = "copied b"
    dtype = "bool" if report.op == "LessOrEqual" else dtype
    nodes = [
        node("Concat", "x", "copied", "before", axis=0),
        node(report.op, read, "found", report.op, **report.attributes),
        node("Concat", "found found", "y", "after", axis=0),
    ]
    return model(body(nodes, inputs, {"y": (dtype, (2 * made[0], *made[1:]))}, weights))


def _values(report: Report) -> dict[str, np.ndarray]:
    """Inputs: numbers from 0 to 1, whole ones from 1 to 99."""
    random, found = np.random.default_rng(0), {}
    for name, sizes in (("x", report.sizes), ("b", report.second)):
        if sizes:
            drawn = (
                random.integers(1, 100, sizes)
                if report.dtype.startswith("int")
                else report.largest * random.random(sizes)
            )
            found[name] = drawn.astype(report.dtype)
    return found


class Watched(NamedTuple):
    """What the stopwatch tells."""

    medians: dict[str, float]  # ns of each release that runs the model
    first: str | None  # release with the largest step; None where none is large enough
    ratio: float  # of that release to the one before it


def watched(file: Path, values: Path, pythons: dict[str, str]) -> Watched:
    """The least of each release, in rounds; and the largest step between two that follow each other."""
    taken: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(ROUNDS):
        for name, python in pythons.items():
            words = [python, "-c", _STOPWATCH, str(file), str(values)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if not done.returncode:
                taken[name].append(float(done.stdout))
    medians = {name: statistics.median(own) for name, own in taken.items() if own}
    names = list(medians)
    steps = {after: medians[after] / medians[before] for before, after in pairwise(names)}
    first = max(steps, key=lambda name: steps[name])
    return Watched(medians, first if steps[first] >= LEAST else None, steps[first])


def tried(report: Report, every: dict[str, str], work: Path) -> dict[str, Any]:
    """One report: what the stopwatch says, and what the bisection answers."""
    file = work / f"{report.op}.onnx"
    file.write_bytes(file_of(report))
    names = list(every)
    inside = {name: every[name] for name in names[names.index(report.good) : names.index(report.bad) + 1]}
    values = work / f"{report.op}.npz"
    np.savez(values, **_values(report))
    watch = watched(file, values, inside)
    row: dict[str, Any] = {"issue": report.issue, "operator": report.op, "claim": report.claim}
    row |= {"first": watch.first, "ratio": watch.ratio, "releases": len(inside)}
    if watch.first is None:
        return row
    settings = Settings(rounds=8, runs=60, inputs=str(values))
    found = bisect(file, good=report.good, bad=report.bad, settings=settings, out=work / report.op)
    moved = sorted(found.step.operators, key=lambda one: one.saved_ns) if found.step else []
    speedup = found.step.end_to_end.speedup if found.step else None
    ends = found.ends.speedup
    return row | {
        "answer": found.first_bad if found.is_found else None,
        "step": None if speedup is None else 1 / speedup,
        "ends": None if ends is None else 1 / ends,
        "named": moved[0].name if moved else None,
        "by": found.by,
        "measured": found.measured,
        "notes": found.notes,
    }


def main() -> None:
    """Try them, and keep the results of those that are not tried now."""
    wanted = set(map(int, sys.argv[1:]))
    listed = releases(PACKAGE, installed_pythons())
    inside = between(PACKAGE, listed, OLDEST, NEWEST)
    every = {}
    for one in inside:
        every[one.version] = environment_of(PACKAGE, one, PACKAGE, 100 * GIB).python.executable
        print(f"{one.version} is ready", flush=True)
    with tempfile.TemporaryDirectory() as place:
        for report in REPORTS:
            if not wanted or report.issue in wanted:
                row = tried(report, every, Path(place))
                print(json.dumps(row), flush=True)
                keep(row)


def keep(row: dict[str, Any]) -> None:
    """Write a result among the others, in the place of an earlier one of the same report."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    rows = [*(one for one in kept if _key(one) != _key(row)), row]
    order = {(one.issue, one.op): number for number, one in enumerate(REPORTS)}
    rows.sort(key=lambda one: order.get(_key(one), math.inf))
    told = {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "machine": cpu_name(text_of(Path("/proc/cpuinfo"))),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _key(row: dict[str, Any]) -> tuple[int, str]:
    return row["issue"], row["operator"]


if __name__ == "__main__":
    main()
