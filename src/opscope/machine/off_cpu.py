"""How long calls were kept off the CPU, from the kernel's own clocks.

With one thread it is what a call took less the CPU time of the calling thread: this holds whatever another process, an
interrupt or a hypervisor took. With several threads the caller also waits for the others, which is no disturbance, so
it is the longest that one of the process's threads was ready and waited for a CPU (its ``schedstat`` in ``/proc``).

Reading such a clock is a system call, 0.3 to 1 us. So that it costs at most :data:`SHARE` of the calls, short calls
share a reading; what they lost together belongs to the longest of them, since the system takes a CPU away for far
longer than such a call takes.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

SHARE = 0.008
"""Largest part of the time of the calls that reading the clocks may take."""
_TRIES = 5
_LINE = 64
_NOTHING: tuple[int, ...] = ()


class _Clock(Protocol):
    """What a reading tells of the time between it and the one before."""

    def read(self) -> tuple[int, ...]:
        """One figure for each thread that is watched, in ns."""
        ...

    def lost(self, before: Sequence[int], after: Sequence[int], wall: int) -> int:
        """Time off the CPU in ns between two readings around calls that took ``wall`` together."""
        ...

    def end(self) -> None:
        """Let go of what it holds."""
        ...


class OffCpuMeter:
    """Watches calls between :meth:`open` and :meth:`close`; a context that lets go of its files.

    Args:
        threads: size of the thread pool, which must be there already.
    """

    def __init__(self, threads: int) -> None:
        self._clock: _Clock | None = _ThreadCpu() if threads == 1 else _run_delays()
        self._groups: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
        self._first, self._opened = 0, _NOTHING
        self._rest = int(self._cost() / SHARE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._clock is not None:
            self._clock.end()

    def open(self, first: int) -> int:
        """Begin to watch with this call.

        Returns:
            The moment, of ``time.perf_counter_ns``, from which on the calls since then may be closed.
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
        """Of every call its time off the CPU in ns; None where the system does not tell."""
        if self._clock is None:
            return None
        found = [0] * len(wall)
        for first, end, before, after in self._groups:
            longest = max(range(first, end), key=wall.__getitem__)
            lost = self._clock.lost(before, after, sum(wall[first:end]))
            found[longest] = min(max(lost, 0), wall[longest])
        return found

    def _cost(self) -> int:
        """Of beginning and ending to watch in ns, the least of some."""
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
    """How long each thread of this process has waited for a CPU.

    Args:
        files: descriptors of their ``schedstat``, open.
    """

    def __init__(self, files: Sequence[int]) -> None:
        self._files, self._told = files, (0,) * len(files)

    def read(self) -> tuple[int, ...]:
        self._told = tuple(map(_run_delay, self._files, self._told))
        return self._told

    def lost(self, before: Sequence[int], after: Sequence[int], wall: int) -> int:  # noqa: ARG002 - of the protocol
        return max(late - early for early, late in zip(before, after, strict=True))

    def end(self) -> None:
        for file in self._files:
            os.close(file)


def _run_delay(file: int, before: int) -> int:
    """That of a thread; of one that has ended, what it was before."""
    try:
        return int(os.pread(file, _LINE, 0).split()[1])
    except ProcessLookupError:
        return before


def _run_delays() -> _RunDelays | None:
    """Those of all threads there are now; None where the system does not tell."""
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
            told = clock.read()
        except (OSError, ValueError, IndexError):
            return None
        if not told:
            return None
        opened.pop_all()
        return clock
