"""Usage of the system by this process, and its delays, between two moments or during calls.

How long calls were kept off the CPU comes from the kernel's own clocks. With one thread it is what a call took
less the
CPU time of the calling thread: this holds whatever another process, an interrupt or a hypervisor took. With
several
threads the caller also waits for the others, which is no disturbance, so it is the longest that one of the
process's
threads was ready and waited for a CPU (its ``schedstat`` in ``/proc``).

Reading such a clock is a system call, 0.3 to 1 us. So that it costs at most :data:`SHARE` of the calls, short
calls
share a reading; what they lost together belongs to the longest of them, since the system takes a CPU away for
far
longer than such a call takes.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from opscope.core.files import text_of
from opscope.core.system.usage import ProcessUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self


_CPU = "/sys/devices/system/cpu"
# Columns of a CPU in /proc/stat, proc_stat(5): user nice system idle iowait irq softirq steal.
_BUSY, _STEAL = (1, 2, 3, 6, 7), 8


_COUNTERS = (
    "wall_ns cpu_ns involuntary_switches voluntary_switches minor_faults major_faults thread_cpu_ns run_delay_ns "
    "busy_ns steal_ns"
).split()


def usage_now() -> ProcessUsage:
    """Return the counters of this process, of the calling thread and of its CPUs, as they stand now."""
    process = resource.getrusage(resource.RUSAGE_SELF)
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    busy, steal = cpu_times(text_of(Path("/proc/stat")), cpus)
    # The three clocks next to each other, so that what passes between two readings is the same time for all.
    wall_ns, cpu_ns, thread_cpu_ns = time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns()
    texts = [text_of(Path(f"{_CPU}/cpu{number}/cpufreq/scaling_cur_freq")) for number in cpus]
    return ProcessUsage(
        wall_ns=wall_ns,
        cpu_ns=cpu_ns,
        involuntary_switches=process.ru_nivcsw,
        voluntary_switches=process.ru_nvcsw,
        minor_faults=process.ru_minflt,
        major_faults=process.ru_majflt,
        thread_cpu_ns=thread_cpu_ns,
        run_delay_ns=_run_delay(),
        cpus=len(cpus) or None,
        busy_ns=busy,
        steal_ns=steal,
        frequency_mhz=sorted(int(text) / 1000 for text in texts if text.isdecimal())[-1:],
    )


def usage_between(before: ProcessUsage, after: ProcessUsage) -> ProcessUsage:
    """Return the usage between two readings."""

    def passed(name: str) -> int | None:
        values = getattr(before, name), getattr(after, name)
        return None if None in values else max(values[1] - values[0], 0)

    changes = {name: passed(name) for name in _COUNTERS}
    return msgspec.structs.replace(after, **changes, frequency_mhz=before.frequency_mhz + after.frequency_mhz)


def cpu_times(stat: str, cpus: Iterable[int]) -> tuple[int | None, int | None]:
    """Return for how long some CPUs were busy, and for how long a hypervisor kept them waiting, in ns together.

    Returns None for both where a CPU is not listed, or with fewer columns than Linux has had since 2.6.11.
    """
    rows = {words[0]: words for words in (line.split() for line in stat.splitlines() if line.startswith("cpu"))}
    selected = [rows.get(f"cpu{number}", []) for number in cpus]
    if not selected or any(len(words) <= _STEAL for words in selected):
        return None, None
    unit = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    busy = sum(int(words[column]) for words in selected for column in _BUSY)
    return busy * unit, sum(int(words[_STEAL]) for words in selected) * unit


def _run_delay() -> int | None:
    """Return how long all threads of this process together have waited for a CPU; None where Linux does not tell."""
    if sys.platform != "linux":
        return None
    texts = [text_of(file) for file in Path("/proc/self/task").glob("*/schedstat")]
    waited = [int(words[1]) for words in map(str.split, texts) if len(words) > 1]
    return sum(waited) if waited else None


SHARE = 0.008
"""Largest part of the time of the calls that reading the clocks may take."""
_TRIES = 5
_LINE = 64
_NOTHING: tuple[int, ...] = ()


class _Clock(Protocol):
    """Clock of the time that threads spend off the CPU."""

    def read(self) -> tuple[int, ...]:
        """Return one figure for each thread that is watched, in ns."""

    def lost(self, before: Sequence[int], after: Sequence[int], wall: int) -> int:
        """Return the time off the CPU in ns between two readings around calls that took ``wall`` together."""

    def end(self) -> None:
        """Let go of its resources."""


class OffCpuMeter:
    """Watches calls between :meth:`open` and :meth:`close`; a context that lets go of its files.

    ``threads``: size of the thread pool, which must be there already.
    """

    def __init__(self, threads: int) -> None:
        self._clock: _Clock | None = _ThreadCpu() if threads == 1 else _open_run_delays()
        self._groups: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
        self._first, self._opened = 0, _NOTHING
        self._rest = int(self._measure_cost() / SHARE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._clock is not None:
            self._clock.end()

    def open(self, first: int) -> int:
        """Begin to watch with this call.

        Returns the moment, of ``time.perf_counter_ns``, from which on the calls since then may be closed.
        """
        self._first = first
        if self._clock is None:
            return 1 << 62
        self._opened = self._clock.read()
        return time.perf_counter_ns() + self._rest

    def close(self, end: int) -> None:
        """End to watch, before this call."""
        if self._clock is not None and end > self._first:
            self._groups.append((self._first, end, self._opened, self._clock.read()))

    def off_cpu_ns(self, wall: Sequence[int]) -> list[int] | None:
        """Return the time off the CPU of every call in ns; None where the system does not tell."""
        if self._clock is None:
            return None
        off_cpu = [0] * len(wall)
        for first, end, before, after in self._groups:
            longest = max(range(first, end), key=wall.__getitem__)
            lost = self._clock.lost(before, after, sum(wall[first:end]))
            off_cpu[longest] = min(max(lost, 0), wall[longest])
        return off_cpu

    def _measure_cost(self) -> int:
        """Return the cost of beginning and ending to watch in ns, the least of some."""
        self._rest, least = 0, 1 << 62
        for _ in range(_TRIES):
            began = time.perf_counter_ns()
            self.open(0)
            self.close(1)
            least = min(least, time.perf_counter_ns() - began)
        self._groups.clear()
        return least


class _ThreadCpu:
    """CPU time of the calling thread."""

    def read(self) -> tuple[int, ...]:
        return (time.thread_time_ns(),)

    def lost(self, before: Sequence[int], after: Sequence[int], wall: int) -> int:
        return wall - (after[0] - before[0])

    def end(self) -> None:
        pass


class _RunDelays:
    """Waiting time for a CPU of each thread of this process."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files, self._told = files, (0,) * len(files)

    def read(self) -> tuple[int, ...]:
        self._told = tuple(map(_thread_delay, self._files, self._told))
        return self._told

    def lost(self, before: Sequence[int], after: Sequence[int], wall: int) -> int:  # noqa: ARG002 - of the protocol
        return max(late - early for early, late in zip(before, after, strict=True))

    def end(self) -> None:
        for file in self._files:
            os.close(file)


def _thread_delay(file: int, before: int) -> int:
    """Return the figure of a thread; of one that has ended, its last one."""
    try:
        return int(os.pread(file, _LINE, 0).split()[1])
    except ProcessLookupError:
        return before


def _open_run_delays() -> _RunDelays | None:
    """Return the clock of all threads there are now; None where the system does not tell."""
    with ExitStack() as opened:
        files = []
        for task in sorted(Path("/proc/self/task").glob("*/schedstat")):
            try:
                files.append(os.open(task, os.O_RDONLY))
            except OSError:
                return None
            opened.callback(os.close, files[-1])
        clock = _RunDelays(files)
        try:
            figures = clock.read()
        except (OSError, ValueError, IndexError):
            return None
        if not figures:
            return None
        opened.pop_all()
        return clock
