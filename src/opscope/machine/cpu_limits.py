"""How many processors may be used: those of the scheduler's mask, and what control groups grant of their time.

A quota of 1.5 processors keeps threads waiting as soon as two of them compute; so it counts as one.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from opscope.core.files import text_of

# Of the second and of the first version of control groups.
_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def usable_cpus(root: Path = Path("/")) -> int:
    """Processors that this process may use, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return within(allowed, cpu_quota(root)) or 1


def within(cpus: int | None, quota: float | None) -> int | None:
    """Processors that are left of some by a quota; None where they are not known."""
    return cpus if cpus is None or quota is None else max(1, min(cpus, math.floor(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The time of processors that control groups grant this process, in processors; None where nothing is known to."""
    told = text_of(root / "proc/self/cgroup")
    places = [place for line in told.splitlines() for place in _places(line, root / "sys/fs/cgroup")]
    lines = (" ".join(text_of(place / name) for name in names) for place in places for names in _QUOTAS)
    return quota_of("\n".join(lines))


def _places(line: str, mounts: Path) -> list[Path]:
    """The directories of a control group and of those that it lies in, if it can have a quota.

    In a container the group's own place may not be visible; the limit then stands where the mount begins.
    """
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return []
    inner = Path(path.lstrip("/"))
    bases = [mounts / controllers, mounts / "cpu"] if controllers else [mounts, mounts / "unified"]
    return [base / part for base in bases for part in (inner, *inner.parents)]


def quota_of(told: str) -> float | None:
    """The smallest quota of several control groups, in processors; None when none has one."""
    pairs = re.findall(r"^(\d{1,18}) (\d{1,18})$", told, re.MULTILINE)
    return min((int(time) / int(period) for time, period in pairs if int(time) and int(period)), default=None)
