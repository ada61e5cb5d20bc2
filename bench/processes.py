"""Whole processes, measured: wall time, processor time and largest resident memory.

Linux counts for a new process the memory of the one that started it, so a benchmark must stay small itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Process(NamedTuple):
    """What a process took: seconds on the clock and of the processor, peak memory in MB; and what it printed."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    output: str


def run_python(*words: object) -> Process:
    """Run Python with these arguments to its end. Compiled modules are kept, as those of installed packages are.

    Raises:
        SystemExit: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *map(str, words)]
    before = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, KiB on Linux
    peak_bytes = usage.ru_maxrss * unit
    return Process(time.perf_counter() - before, usage.ru_utime + usage.ru_stime, peak_bytes / 1e6, output)


def run_opscope(*words: object) -> Process:
    """Run an opscope command to its end, as :func:`run_python` does."""
    return run_python("-m", "opscope", *words)


def median_process(processes: Sequence[Process]) -> Process:
    """Return the median of each figure, with the output of the last process."""
    seconds, cpu_seconds, megabytes = (statistics.median(column) for column in list(zip(*processes, strict=True))[:3])
    return Process(seconds, cpu_seconds, megabytes, processes[-1].output)


def median_seconds(call: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median time of a call in this process: wall time unless another clock is given."""
    times = []
    for _ in range(runs):
        before = clock()
        call()
        times.append(clock() - before)
    return statistics.median(times)
