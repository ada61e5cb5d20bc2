"""What a measuring process costs beside the inferences: the native runner and Python, in turn, in the same run."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.runtimes.executorch.export.process import export_model
from opscope.runtimes.executorch.runners.native import native_here
from opscope.runtimes.executorch.runners.python import python_here

if TYPE_CHECKING:
    from opscope.experiment.target import RunTarget

_INFERENCES = 20
_LIMIT_SECONDS = {"native": 0.05, "python": 1.5}


def run(*, full: bool) -> bool:
    """Print the medians beside the limits of the design; one that is missed does not fail on a slow machine."""
    targets: dict[str, RunTarget] = {"native": native_here(), "python": python_here()}
    overheads: dict[str, list[tuple[float, float]]] = {name: [] for name in targets}
    with tempfile.TemporaryDirectory() as work:
        program, _ = export_model("toy_cnn", "fp32", Path(work))
        for number in range(25 if full else 7):
            for name, target in targets.items():
                overheads[name].append(measure_overhead(target, program, Path(work) / f"{name}-{number}"))
    for name, rows in overheads.items():
        whole, start = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{name:<8} {whole * 1e3:8.1f} ms a process beside its inferences, {start * 1e3:8.1f} ms of it until the "
            f"runtime is loaded (limit {_LIMIT_SECONDS[name] * 1e3:.0f} ms, n = {len(rows)})"
        )
    return True


def measure_overhead(target: RunTarget, program: Path, directory: Path) -> tuple[float, float]:
    """Return the seconds of an untraced process without its inferences, and the part that starting the runtime took."""
    directory.mkdir()
    job = Job(str(program), AS_IT_IS, _INFERENCES, 0, timeout_seconds=120.0, traced=False)
    before = time.perf_counter()
    outcome = target.execute(job, directory)
    whole = time.perf_counter() - before
    if outcome.measurement is None:
        raise SystemExit(f"it did not run: {outcome.failure}")
    return whole - sum(outcome.measurement.wall_ns) / 1e9, (outcome.measurement.start_ns or 0) / 1e9
