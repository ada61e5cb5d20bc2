"""Whether inferences during which the process did not run are marked: beside a busy process, and in quiet rounds.

Half of the rounds share their CPU with a busy loop. The marks come from the thread's CPU clock; the truth from another
counter of the kernel, how long the thread waited for a CPU (``schedstat``), read as the first and the last thing of
every call: a call was preempted when the thread waited in it for more than a twentieth of its duration.

With ``cost`` as argument: the CPU time that marking adds to a call, with and without in blocks that alternate.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.latency.latency import OFF_CPU, preempted
from opscope.machine.usage import OffCpuMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDS = 10
_SECONDS = 1.0
_SIZES_US = (100, 300, 1_000, 10_000, 50_000)
_NS = 1_000
_BLOCKS, _BLOCK_NS = 60, 50_000_000
_WANTED, _FALSE = 0.90, 0.01


class Marked(NamedTuple):
    """Calls of one round.

    Attributes:
        calls: how many.
        true: how many were preempted.
        found: how many of these were marked.
        false: how many others were marked.
    """

    calls: int
    true: int
    found: int
    false: int


class Work(NamedTuple):
    """A call without system calls.

    Attributes:
        turns: of an empty loop.
        alone_ns: how long it takes when nothing is in its way.
    """

    turns: int
    alone_ns: int

    def __call__(self) -> None:
        """Do it."""
        for _ in range(self.turns):
            pass


def work_of(microseconds: int) -> Work:
    """A call that takes about that long alone."""
    sample = Work(1_000, 0)
    least = min(timed(sample) for _ in range(2_000))
    return Work(max(1, sample.turns * _NS * microseconds // least), _NS * microseconds)


def measured(call: Work, seconds: float) -> tuple[list[int], list[int], list[int]]:
    """Durations of calls, how much of each was off the CPU, and how long the thread waited in it for a CPU."""
    wall: list[int] = []
    waits: list[int] = []
    stat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    try:
        with OffCpuMeter(1) as meter:
            end = time.perf_counter() + seconds
            due = meter.open(0)
            while time.perf_counter() < end:
                before = time.perf_counter_ns()
                early = waited_in(stat)
                call()
                late = waited_in(stat)
                after = time.perf_counter_ns()
                waits.append(late - early)
                wall.append(after - before)
                if after >= due:
                    meter.close(len(wall))
                    due = meter.open(len(wall))
            meter.close(len(wall))
            return wall, meter.off_cpu_ns(wall) or [], waits
    finally:
        os.close(stat)


def waited_in(stat: int) -> int:
    """How long the calling thread has waited for a CPU, in ns."""
    return int(os.pread(stat, 64, 0).split()[1])


def counted(wall: Sequence[int], off_cpu: Sequence[int], waits: Sequence[int]) -> Marked:
    """How the marks of calls stand to the truth.

    Args:
        wall: durations of the calls.
        off_cpu: how much of each was off the CPU.
        waits: how long the thread waited for a CPU in each.
    """
    marks = preempted(wall, off_cpu)
    true = [wait > OFF_CPU * took for wait, took in zip(waits, wall, strict=True)]
    found = sum(mark and real for mark, real in zip(marks, true, strict=True))
    return Marked(len(wall), sum(true), found, sum(marks) - found)


def rounds(call: Work, number: int, seconds: float) -> tuple[Marked, Marked]:
    """Quiet rounds and, in turns with them, as many beside a busy process on the CPU of this one."""
    sides: list[list[tuple[list[int], list[int], list[int]]]] = [[], []]
    for _ in range(number):
        for busy in (0, 1):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
            try:
                if loop:
                    time.sleep(0.2)
                sides[busy].append(measured(call, seconds))
            finally:
                if loop:
                    loop.kill()
                    loop.wait()
    quiet, shared = ([counted(*row) for row in side] for side in sides)
    return together(quiet), together(shared)


def together(rows: Sequence[Marked]) -> Marked:
    """The sum of rounds."""
    return Marked(*(sum(column) for column in zip(*rows, strict=True)))


def detection() -> bool:
    """Print how many preempted calls are marked, and how many others; whether all is as it should be."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    good = True
    print(f"{'call':>9} {'rounds':>7} {'calls':>7} {'preempted':>10} {'marked of these':>16} {'marked of others':>17}")
    for microseconds in _SIZES_US:
        for name, row in zip(("quiet", "shared"), rounds(work_of(microseconds), _ROUNDS, _SECONDS), strict=True):
            hit = row.found / row.true if row.true else 1.0
            false = row.false / max(row.calls - row.true, 1)
            print(f"{microseconds:>6} us {name:>7} {row.calls:>7} {row.true:>10} {hit:>16.1%} {false:>17.2%}")
            good &= (hit >= _WANTED or name == "quiet") and (false <= _FALSE or name == "shared")
    return good


def cost() -> bool:
    """Print what marking adds to the CPU time of a call, from blocks with and without that alternate."""
    good = True
    for microseconds in (10, *_SIZES_US[:3]):
        call = work_of(microseconds)
        ratios, added = [], []
        for _ in range(_BLOCKS):
            without, marking = block(call, marked=False), block(call, marked=True)
            ratios.append(marking / without)
            added.append(marking - without)
        ratio, more = statistics.median(ratios), statistics.median(added)
        spread = statistics.quantiles(ratios, n=4)
        print(
            f"{microseconds:>6} us a call: {ratio - 1:+.2%} ({more:+.0f} ns), "
            f"quartiles of {_BLOCKS} pairs {spread[0] - 1:+.2%} to {spread[2] - 1:+.2%}"
        )
        good &= ratio - 1 < _FALSE or more < 200  # noqa: PLR2004 - the limit that was set
    return good


def block(call: Work, *, marked: bool) -> float:
    """CPU time of one call in ns with all that the loop of a runner does around it; the least of a block's parts."""
    calls = max(20, _BLOCK_NS // 10 // call.alone_ns)
    parts = []
    for _ in range(5):
        wall: list[int] = []
        with OffCpuMeter(1) as meter:
            before = time.thread_time_ns()
            due = meter.open(0) if marked else 1 << 62
            for _ in range(calls):
                began = time.perf_counter_ns()
                call()
                after = time.perf_counter_ns()
                wall.append(after - began)
                if after >= due:
                    meter.close(len(wall))
                    due = meter.open(len(wall))
            if marked:
                meter.close(len(wall))
            parts.append((time.thread_time_ns() - before) / calls)
    return min(parts)


def timed(call: Work) -> int:
    """How long one call takes in ns."""
    before = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - before


if __name__ == "__main__":
    sys.exit(0 if (cost() if sys.argv[1:] == ["cost"] else detection()) else 1)
