"""Facts that macOS tells of a machine: its values by ``sysctlbyname``, its identity, and the state of its power.

Names of values: ``sysctl(3)`` and ``sys/sysctl.h`` of Darwin; the identity: ``gethostuuid(2)``; power:
``pmset(1)``.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import uuid
from typing import NamedTuple

_SECONDS = 10.0
_WAIT_SECONDS = 1
_SPEED = re.compile(r"^\s*CPU_Speed_Limit\s*=\s*(\d{1,3})\s*$", re.MULTILINE)
_LOW_POWER = re.compile(r"^\s*(?:lowpowermode|powermode)\s+([012])\s*$", re.MULTILINE)
_LOW = "1"
"""Of ``lowpowermode``, and of ``powermode``, whose 2 is the high one."""


def read_sysctl_bytes(name: str) -> bytes | None:
    """Return the value of a name as the kernel stores it. None if the kernel does not know the name."""
    libc, size = ctypes.CDLL(None), ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    value = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    return value.raw[: size.value]


def read_sysctl_number(name: str) -> int | None:
    """Return a number of 4 or 8 bytes. None if the kernel does not know the name."""
    value = read_sysctl_bytes(name)
    return int.from_bytes(value, "little", signed=True) if value else None


def read_sysctl_text(name: str) -> str | None:
    """Return a text. None if the kernel does not know the name, or its value is empty."""
    value = read_sysctl_bytes(name)
    return (value or b"").rstrip(b"\0").decode("utf-8", "replace").strip() or None


def read_host_uuid() -> str | None:
    """Return the identity that ``ioreg`` calls IOPlatformUUID, in its form. None if the system does not tell."""

    class Wait(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    value = ctypes.create_string_buffer(16)
    if ctypes.CDLL(None).gethostuuid(value, ctypes.byref(Wait(_WAIT_SECONDS, 0))):
        return None
    return str(uuid.UUID(bytes=value.raw)).upper()


class PowerState(NamedTuple):
    """Limits that the system sets to the processor; None where it does not tell."""

    speed_limit: float | None  # of the CPUs, as a share of their speed from 0 to 1
    is_low_power: bool | None


def read_power() -> PowerState:
    """Ask ``pmset`` for the thermal limit and for the low power mode."""
    texts = []
    for words in (("-g", "therm"), ("-g",)):
        try:
            completed = subprocess.run(
                ["/usr/bin/pmset", *words], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return PowerState(None, None)
        texts.append(completed.stdout)
    return parse_power(*texts)


def parse_power(thermal: str, settings: str) -> PowerState:
    """Parse the output of ``pmset -g therm`` and ``pmset -g``. Apple silicon states a limit only while there is one."""
    limit, mode = _SPEED.search(thermal), _LOW_POWER.search(settings)
    return PowerState(int(limit[1]) / 100 if limit else None, mode[1] == _LOW if mode else None)
