"""Decoding an ETDump: opscope against ExecuTorch's Inspector and against reading the bytes, on one file in one run.

The file is a real dump of MobileNetV3-Small: exported and run here, 200 inferences.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import FailureKind
from opscope.export.process import export_model
from opscope.read.registry import read_trace
from opscope.run.local import TRACE, LocalTarget
from opscope.run.target import Job

if TYPE_CHECKING:
    from collections.abc import Callable

_INFERENCES = 200
_RUNS = 7


def real_trace(directory: Path) -> Path:
    """A dump of MobileNetV3-Small, written by the runtime."""
    program, _ = export_model("mobilenet_v3_small", "fp32", directory)
    job = Job(str(program), [], 1, _INFERENCES, 0, timeout_seconds=300)
    outcome = LocalTarget().execute(job, directory)
    if outcome.failure:
        raise SystemExit(f"{FailureKind(outcome.failure.kind).value}: {outcome.failure.message}")
    return directory / TRACE


def median_seconds(work: Callable[[], object], runs: int) -> float:
    """Median wall time of a piece of work."""
    times = []
    for _ in range(runs):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def main() -> None:
    """Print events a second of each, and how far apart they are."""
    with tempfile.TemporaryDirectory() as directory:
        trace = real_trace(Path(directory))
        events = read_trace(trace)[0].frame.height

        def inspect() -> object:
            from executorch.devtools import Inspector  # noqa: PLC0415 - imported once, outside of what is timed

            return Inspector(etdump_path=str(trace)).to_dataframe()

        inspect()
        rows = {
            "read the bytes": median_seconds(trace.read_bytes, _RUNS),
            "opscope read": median_seconds(lambda: read_trace(trace), _RUNS),
            "Inspector.to_dataframe": median_seconds(inspect, 3),
        }
        ours = rows["opscope read"]
        print(f"{events:,} events, {trace.stat().st_size / 1e6:.1f} MB")
        for name, seconds in rows.items():
            ratio = f"{seconds / ours:8.2f} x opscope's time"
            print(f"{name:<24} {seconds * 1e3:9.1f} ms   {events / seconds / 1e6:8.2f} million events/s   {ratio}")


if __name__ == "__main__":
    main()
