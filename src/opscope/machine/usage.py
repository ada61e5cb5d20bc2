"""What the system gave to this process and took from it, between two moments."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.files import text_of
from opscope.core.system.usage import ProcessUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

_CPU = "/sys/devices/system/cpu"
# Columns of a CPU in /proc/stat, proc_stat(5): user nice system idle iowait irq softirq steal.
_BUSY, _STEAL = (1, 2, 3, 6, 7), 8


class UsageReading(NamedTuple):
    """Counters of this process and of its CPUs at one moment; the fields are those of ProcessUsage."""

    wall_ns: int
    cpu_ns: int
    involuntary_switches: int
    voluntary_switches: int
    minor_faults: int
    major_faults: int
    thread_cpu_ns: int
    run_delay_ns: int | None
    cpus: int | None
    busy_ns: int | None
    steal_ns: int | None
    frequency_mhz: float | None


def usage_now() -> UsageReading:
    """The counters now, of the calling thread too."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    busy, steal = cpu_times(text_of(Path("/proc/stat")), cpus)
    # The three clocks next to each other, so that what passes between two readings is the same time for all.
    wall_ns, cpu_ns, thread_cpu_ns = time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns()
    texts = [text_of(Path(f"{_CPU}/cpu{number}/cpufreq/scaling_cur_freq")) for number in cpus]
    return UsageReading(
        wall_ns=wall_ns,
        cpu_ns=cpu_ns,
        involuntary_switches=own.ru_nivcsw,
        voluntary_switches=own.ru_nvcsw,
        minor_faults=own.ru_minflt,
        major_faults=own.ru_majflt,
        thread_cpu_ns=thread_cpu_ns,
        run_delay_ns=_run_delay(),
        cpus=len(cpus) or None,
        busy_ns=busy,
        steal_ns=steal,
        frequency_mhz=max((int(text) / 1000 for text in texts if text.isdecimal()), default=None),
    )


def usage_between(before: UsageReading, after: UsageReading) -> ProcessUsage:
    """What passed between two readings."""

    def counted(name: str) -> int:
        return int(getattr(after, name) - getattr(before, name))

    def told(name: str) -> int | None:
        values = getattr(before, name), getattr(after, name)
        return None if None in values else max(values[1] - values[0], 0)

    return ProcessUsage(
        wall_ns=counted("wall_ns"),
        cpu_ns=counted("cpu_ns"),
        involuntary_switches=counted("involuntary_switches"),
        voluntary_switches=counted("voluntary_switches"),
        minor_faults=counted("minor_faults"),
        major_faults=counted("major_faults"),
        thread_cpu_ns=counted("thread_cpu_ns"),
        run_delay_ns=told("run_delay_ns"),
        cpus=after.cpus,
        busy_ns=told("busy_ns"),
        steal_ns=told("steal_ns"),
        frequency_mhz=[mhz for mhz in (before.frequency_mhz, after.frequency_mhz) if mhz is not None],
    )


def cpu_times(stat: str, cpus: Iterable[int]) -> tuple[int | None, int | None]:
    """How long some CPUs were busy, and how long a hypervisor kept them from running, in ns together.

    Returns:
        None for both where a CPU is not listed, or with fewer columns than Linux has had since 2.6.11.
    """
    rows = {words[0]: words for words in (line.split() for line in stat.splitlines() if line.startswith("cpu"))}
    wanted = [rows.get(f"cpu{number}", []) for number in cpus]
    if not wanted or any(len(words) <= _STEAL for words in wanted):
        return None, None
    unit = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    busy = sum(int(words[column]) for words in wanted for column in _BUSY)
    return busy * unit, sum(int(words[_STEAL]) for words in wanted) * unit


def _run_delay() -> int | None:
    """How long the threads of this process have waited for a CPU, all together; None where Linux does not tell."""
    if sys.platform != "linux":
        return None
    texts = [text_of(file) for file in Path("/proc/self/task").glob("*/schedstat")]
    waited = [int(words[1]) for words in map(str.split, texts) if len(words) > 1]
    return sum(waited) if waited else None
