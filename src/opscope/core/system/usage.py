"""What the system gave to a process and what it took from it, as it is kept and as it is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class ThreadCount(msgspec.Struct, frozen=True, kw_only=True):
    """In how many threads something ran.

    Attributes:
        threads: size of the thread pool; of a process, read back; null where nothing tells it.
    """

    threads: int | None = None


class ProcessUsage(msgspec.Struct, frozen=True):
    """What the system gave to a process and took from it, over its measured calls; null is what it does not tell.

    Attributes:
        wall_ns: from before the first measured call to behind the last one.
        cpu_ns: CPU time of all threads of the process.
        involuntary_switches: how often one of its threads was taken off a CPU that it still wanted.
        voluntary_switches: how often one of its threads waited for something.
        minor_faults: page faults that were served from memory.
        major_faults: page faults that waited for storage.
        thread_cpu_ns: CPU time of the thread that calls the methods.
        run_delay_ns: how long its threads were ready and waited for a CPU, all of them together.
        cpus: CPUs that it may use.
        busy_ns: how long these were busy, for whatever process; all of them together.
        steal_ns: how long a hypervisor kept these from running; likewise.
        frequency_mhz: highest clock of these before and after; empty where it cannot be read.
        whole_process: whether all this is from the start of the process to its end, since nothing in it could be asked
            for its measured calls alone.
    """

    wall_ns: int
    cpu_ns: int
    involuntary_switches: int
    voluntary_switches: int
    minor_faults: int
    major_faults: int
    thread_cpu_ns: int | None = None
    run_delay_ns: int | None = None
    cpus: int | None = None
    busy_ns: int | None = None
    steal_ns: int | None = None
    frequency_mhz: list[float] = []
    whole_process: bool = False


def stolen_share(usages: Iterable[ProcessUsage]) -> float | None:
    """Part of the time of their CPUs that a hypervisor took from some processes; None where that is not known."""
    told = [(one.steal_ns, one.wall_ns * one.cpus) for one in usages if one.steal_ns is not None and one.cpus]
    time = sum(own for _, own in told)
    return sum(stolen for stolen, _ in told) / time if time else None
