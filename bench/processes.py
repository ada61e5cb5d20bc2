"""Whole processes, measured: wall time, processor time and largest resident memory.

Linux counts for a new process the memory of the one that started it, so a benchmark must stay small itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Process(NamedTuple):
    """One process: its wall time, processor time, largest resident memory and output."""

    seconds: float
    cpu_seconds: float
    kilobytes: int
    output: str


def run(command: list[str]) -> Process:
    """Run a process to its end. Python may keep compiled modules meanwhile, as it has those of installed packages.

    Raises:
        SystemExit: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[:3]} ended with {process.returncode}")
    return Process(time.perf_counter() - before, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, output)


def median_seconds(way: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median time of a call in this process, wall time unless another clock is given."""
    times = []
    for _ in range(runs):
        before = clock()
        way()
        times.append(clock() - before)
    return statistics.median(times)
