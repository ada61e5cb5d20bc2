"""The processor of this machine: its features, as cpuinfo reads them, and how many CPUs this process may use.

A quota of 1.5 processors keeps threads waiting as soon as two of them compute; so it counts as one. See
``opscope.machine.cpu_reading``.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import RunError
from opscope.core.files import text_of
from opscope.machine.cpu_reading import SYSCTL_NAMES, CpuReading, read_cpuid
from opscope.machine.macos import read_sysctl_number

if TYPE_CHECKING:
    from collections.abc import Sequence


_AT_HWCAP, _AT_HWCAP2 = 16, 26
# Of the second and of the first version of control groups.
_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def read_processor() -> CpuReading:
    """Return the processor's answers; empty where it cannot be asked."""
    if sys.platform == "darwin":
        values = {name: read_sysctl_number(f"hw.optional.arm.{name}") for name in SYSCTL_NAMES}
        return CpuReading(sysctls={name: value for name, value in values.items() if value is not None})
    if platform.machine().lower() in {"x86_64", "amd64"}:
        return read_cpuid() or CpuReading()
    libc = ctypes.CDLL(None)
    libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    hwcaps = [int(libc.getauxval(kind)) for kind in (_AT_HWCAP, _AT_HWCAP2)]
    return CpuReading(hwcaps=hwcaps, midrs=midrs_of(text_of(Path("/proc/cpuinfo"))))


_CORE = re.compile(r"^CPU (implementer|variant|part)[ \t]*:[ \t]*(0x[0-9a-fA-F]+|[0-9]+)", re.MULTILINE)
_SHIFTS = {"implementer": 24, "variant": 20, "part": 4}


def midrs_of(cpuinfo: str) -> list[int]:
    """Return the kinds of core in Linux's ``/proc/cpuinfo`` on Arm: implementer, variant and part as in MIDR_EL1.

    The lines of a core begin with its implementer.
    """
    midrs: list[int] = []
    for name, value in _CORE.findall(cpuinfo):
        if name == "implementer":
            midrs.append(0)
        if midrs:
            midrs[-1] |= int(value, 0) << _SHIFTS[name]
    return sorted(set(midrs))


def stay_on(cpus: Sequence[int]) -> None:
    """Keep this process on some CPUs; none means all."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RunError("this system cannot pin a process to CPUs")
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, OverflowError) as error:
        raise RunError(f"the CPUs {', '.join(map(str, cpus))} cannot be used: {error}") from error


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of processors that this process may use, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return within(allowed, cpu_quota(root)) or 1


def within(cpus: int | None, quota: float | None) -> int | None:
    """Return the number of processors that a quota leaves; None where they are not known."""
    return cpus if cpus is None or quota is None else max(1, min(cpus, math.floor(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the processors' time that control groups grant this process, in processors.

    None where none is known to.
    """
    text = text_of(root / "proc/self/cgroup")
    directories = [
        directory for line in text.splitlines() for directory in _group_directories(line, root / "sys/fs/cgroup")
    ]
    lines = (" ".join(text_of(directory / name) for name in names) for directory in directories for names in _QUOTAS)
    return quota_of("\n".join(lines))


def _group_directories(line: str, mounts: Path) -> list[Path]:
    """Return the directories of a control group and of those that it lies in, if it can have a quota.

    In a container the group's own place may not be visible; the limit then stands where the mount begins.
    """
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return []
    inner = Path(path.lstrip("/"))
    bases = [mounts / controllers, mounts / "cpu"] if controllers else [mounts, mounts / "unified"]
    return [base / part for base in bases for part in (inner, *inner.parents)]


def quota_of(text: str) -> float | None:
    """Return the smallest quota of several control groups, in processors; None when none has one."""
    pairs = re.findall(r"^(\d{1,18}) (\d{1,18})$", text, re.MULTILINE)
    return min((int(time) / int(period) for time, period in pairs if int(time) and int(period)), default=None)
