"""What the system gave to a process, and what it took: counters between two moments."""

from __future__ import annotations

import mmap
import os
import sys
import time

import pytest

from opscope.machine.usage import cpu_times, usage_between, usage_now

STAT = """cpu  30 0 30 500 7 1 1 9 0 0
cpu0 10 1 10 300 3 1 0 4 0 0
cpu1 20 0 20 200 4 0 1 5 0 0
intr 1
"""
TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_work_of_this_process_is_counted() -> None:
    """CPU time, faults and switches between two readings; nothing falls."""
    before = usage_now()
    held = mmap.mmap(-1, 8 << 20)
    held.write(bytes(8 << 20))
    while time.thread_time_ns() < before.thread_cpu_ns + 20_000_000:
        pass
    time.sleep(0.01)
    found = usage_between(before, usage_now())
    held.close()
    assert found.thread_cpu_ns is not None
    # The clocks are read one after the other, so that a thread's may be ahead of its process's by what lies between.
    assert found.cpu_ns > 19_000_000
    assert found.thread_cpu_ns >= 20_000_000
    assert found.wall_ns > 29_000_000
    assert found.minor_faults > 0
    assert found.voluntary_switches > 0
    assert not found.whole_process


def test_busy_and_stolen_time_is_that_of_the_cpus_that_may_be_used() -> None:
    """Columns of /proc/stat: user, nice, system, irq and softirq are busy; idle and iowait are not."""
    assert cpu_times(STAT, [0]) == (22 * TICK, 4 * TICK)
    assert cpu_times(STAT, [0, 1]) == (63 * TICK, 9 * TICK)


@pytest.mark.parametrize(("stat", "cpus"), [("", [0]), (STAT, [7]), ("cpu0 1 2 3\n", [0]), (STAT, [])])
def test_what_is_not_listed_is_not_known(stat: str, cpus: list[int]) -> None:
    """No file, no such CPU, columns of an old kernel, or a system without CPUs to choose."""
    assert cpu_times(stat, cpus) == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_linux_tells_of_waiting_and_of_its_cpus() -> None:
    """How long threads waited, and how busy the CPUs were."""
    found = usage_between(usage_now(), usage_now())
    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.busy_ns is not None
    assert found.steal_ns is not None
