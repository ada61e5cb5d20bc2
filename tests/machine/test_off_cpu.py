"""Time off the CPU of calls: found where it is, whatever kept the process from running, and cheap for short calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from opscope.machine.usage import OffCpuMeter
from waiting import eventually

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def spin(milliseconds: float) -> None:
    """Use that much CPU time of this thread."""
    end = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end:
        pass


def watched(calls: list[Callable[[], None]], threads: int = 1) -> tuple[list[int], list[int] | None]:
    """Durations of calls and how much of each was off the CPU, read as a runner reads it."""
    wall: list[int] = []
    with OffCpuMeter(threads) as meter:
        due = meter.open(0)
        for call in calls:
            before = time.perf_counter_ns()
            call()
            after = time.perf_counter_ns()
            wall.append(after - before)
            if after >= due:
                meter.close(len(wall))
                due = meter.open(len(wall))
        meter.close(len(wall))
        return wall, meter.off_cpu_ns(wall)


@contextmanager
def neighbour(cpu: int) -> Iterator[None]:
    """Keep this process, and a busy loop that it competes with, on one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.send_signal(signal.SIGKILL)
        loop.wait()
        os.sched_setaffinity(0, allowed)


def test_a_call_that_waits_is_off_the_cpu() -> None:
    """Of three calls the one in the middle sleeps for 20 ms: these are its own, and not the others'."""
    wall, lost = watched([lambda: spin(3), lambda: time.sleep(0.02), lambda: spin(3)])
    assert lost is not None
    assert 19_000_000 < lost[1] <= wall[1]


def test_calls_are_never_off_the_cpu_for_longer_than_they_take() -> None:
    """Nor for less than nothing, though the clocks are read a little apart."""
    wall, lost = watched([lambda: spin(0.5)] * 50)
    assert lost is not None
    assert all(0 <= off <= duration for off, duration in zip(lost, wall, strict=True))


def test_short_calls_share_a_reading_and_the_longest_has_the_time() -> None:
    """A hundred calls of nothing with one that sleeps: it alone is marked, and most calls read no clock."""
    calls: list[Callable[[], None]] = [lambda: None] * 100
    calls[40] = lambda: time.sleep(0.02)
    _, lost = watched(calls)
    assert lost is not None
    assert max(range(100), key=lost.__getitem__) == 40
    assert sum(map(bool, lost)) < 50


@LINUX
def test_calls_beside_a_busy_process_on_their_cpu_lose_what_the_kernel_counted() -> None:
    """The kernel's own count of how long the thread waited for the CPU is the truth, call by call."""
    truth: list[int] = []

    def call() -> None:
        before = waited()
        spin(20)
        truth.append(waited() - before)

    with neighbour(min(os.sched_getaffinity(0))):
        wall, lost = watched([call] * 20)
    assert lost is not None
    preempted = [number for number, delay in enumerate(truth) if delay > 0.05 * wall[number]]
    assert preempted
    marked = [number for number in preempted if lost[number] > 0.05 * wall[number]]
    assert len(marked) >= 0.9 * len(preempted)


def waited() -> int:
    """How long the calling thread has waited for a CPU."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - read for every call
        return int(file.read().split()[1])


@LINUX
def test_waiting_for_another_thread_is_no_time_off_the_cpu() -> None:
    """With several threads a caller that waits for the others is not disturbed."""
    wall, lost = watched([lambda: time.sleep(0.03)] * 3, threads=2)
    assert lost is not None
    assert sum(lost) < 0.5 * sum(wall)


@LINUX
def test_a_pool_thread_that_waits_for_a_cpu_counts() -> None:
    """Two threads of this process that share one CPU: each waits for the other, and the longest wait counts."""
    stop = threading.Event()
    worker = threading.Thread(target=lambda: [sum(range(20_000)) for _ in iter(lambda: not stop.is_set(), 0)])
    allowed = os.sched_getaffinity(0)
    worker.start()
    try:
        with neighbour(min(allowed)):
            for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - names of threads
                os.sched_setaffinity(int(task), {min(allowed)})
            _, lost = watched([lambda: time.sleep(0.1)] * 3, threads=2)
    finally:
        stop.set()
        worker.join()
    assert lost is not None
    assert sum(lost) > 0


@LINUX
def test_a_thread_that_ends_meanwhile_ends_no_measurement() -> None:
    """What it waited until then stays known."""
    stop = threading.Event()
    worker = threading.Thread(target=stop.wait)
    worker.start()
    with OffCpuMeter(threads=2) as meter:
        meter.open(0)
        stop.set()
        worker.join()
        assert eventually(lambda: not os.path.exists(f"/proc/self/task/{worker.native_id}"))  # noqa: PTH110 - no file
        meter.close(1)
        assert meter.off_cpu_ns([1_000_000]) is not None
