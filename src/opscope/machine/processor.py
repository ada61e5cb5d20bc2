"""Asks the processor of this machine, as the runtime's cpuinfo does: see ``opscope.machine.cpu_reading``."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from pathlib import Path

from opscope.core.files import text_of
from opscope.machine.cpu_reading import SYSCTL_NAMES, CpuReading
from opscope.machine.cpuid import read_cpuid

_AT_HWCAP, _AT_HWCAP2 = 16, 26


def read_processor() -> CpuReading:
    """What the processor says; empty where it cannot be asked."""
    if sys.platform == "darwin":
        return _apple()
    if platform.machine().lower() in {"x86_64", "amd64"}:
        return read_cpuid() or CpuReading()
    return _linux()


def _linux() -> CpuReading:
    libc = ctypes.CDLL(None)
    libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    hwcaps = [int(libc.getauxval(kind)) for kind in (_AT_HWCAP, _AT_HWCAP2)]
    return CpuReading(hwcaps=hwcaps, midrs=midrs_of(text_of(Path("/proc/cpuinfo"))))


_CORE = re.compile(r"^CPU (implementer|variant|part)[ \t]*:[ \t]*(0x[0-9a-fA-F]+|[0-9]+)", re.MULTILINE)
_SHIFTS = {"implementer": 24, "variant": 20, "part": 4}


def midrs_of(cpuinfo: str) -> list[int]:
    """Every kind of core in the text of Linux's ``/proc/cpuinfo`` on Arm: implementer, variant and part as in MIDR_EL1.

    The lines of a core begin with its implementer.
    """
    found: list[int] = []
    for name, value in _CORE.findall(cpuinfo):
        if name == "implementer":
            found.append(0)
        if found:
            found[-1] |= int(value, 0) << _SHIFTS[name]
    return sorted(set(found))


def _apple() -> CpuReading:
    libc = ctypes.CDLL(None)
    values = {name: _sysctl(libc, f"hw.optional.arm.{name}") for name in SYSCTL_NAMES}
    return CpuReading(sysctls={name: value for name, value in values.items() if value is not None})


def _sysctl(libc: ctypes.CDLL, name: str) -> int | None:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    found = libc.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value if found == 0 else None
