"""The machine: what it is, and the state it is in. What cannot be read is null, never a guess."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from opscope.bundle.manifest import Conditions, Environment
from opscope.version import __version__

_PACKAGES = ("executorch", "torch", "numpy", "polars")
_CPU = Path("/sys/devices/system/cpu")
_KIB = 1024


def capture(features: list[str]) -> Environment:
    """The machine and its software.

    Args:
        features: feature groups that the runtime sees.
    """
    cpuinfo = _text(Path("/proc/cpuinfo")) or ""
    return Environment(
        system=platform.system(),
        machine=platform.machine(),
        kernel=platform.release(),
        cpu=cpu_name(cpuinfo) or platform.processor() or None,
        logical_cpus=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        memory_bytes=memory_bytes(_text(Path("/proc/meminfo")) or ""),
        hypervisor=hypervisor(cpuinfo),
        governor=_text(_CPU / "cpu0/cpufreq/scaling_governor"),
        features=features,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of the packages that matter, as installed here."""
    found = {"opscope": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def usable_cpus() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def conditions() -> Conditions:
    """The load, clock frequency and temperature now, and the processors that may be used."""
    return Conditions(_load(), _frequency(), _temperature(), usable_cpus())


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _frequency() -> float | None:
    """Highest current frequency of all processors, in MHz."""
    values = [_number(path) for path in _CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    known = [value for value in values if value is not None]
    return max(known) / 1000 if known else None


def _temperature() -> float | None:
    """Highest temperature of all thermal zones, in degrees Celsius."""
    values = [_number(path) for path in Path("/sys/class/thermal").glob("thermal_zone*/temp")]
    known = [value for value in values if value is not None]
    return max(known) / 1000 if known else None


def cpu_name(cpuinfo: str) -> str | None:
    """The processor's name in the text of Linux's ``/proc/cpuinfo``; None where it tells none."""
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def memory_bytes(meminfo: str) -> int | None:
    """All memory, by the text of Linux's ``/proc/meminfo``; None where it tells nothing."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * _KIB if match else None


def hypervisor(cpuinfo: str) -> bool | None:
    """Whether the text of Linux's ``/proc/cpuinfo`` tells of a hypervisor; None where it lists no x86 features."""
    if not re.search(r"^flags\s*:", cpuinfo, re.MULTILINE):
        return None
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text is not None and re.fullmatch(r"-?\d+", text) else None
