"""What a device is and the state it is in, from what its shell told; what it did not tell is null."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Conditions, Environment
from opscope.machine import environment
from opscope.machine.environment import reported_emulator
from opscope.machine.processor import quota_of, within

if TYPE_CHECKING:
    from collections.abc import Mapping

_PART = re.compile(r"^@@(\w+)$", re.MULTILINE)
_LONGEST = 200


def parts(output: bytes) -> dict[str, str]:
    """The parts of what ``opscope.hosts.scripts`` printed, by their headings."""
    pieces = _PART.split(output.decode("utf-8", "replace"))
    return {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def environment_of(told: Mapping[str, str], features: list[str] | None, versions: Mapping[str, str]) -> Environment:
    """A device and its software."""
    cpuinfo = told.get("cpuinfo", "")
    found = {"os": _line(told, "os"), "libc": _line(told, "libc")}
    return Environment(
        system=_line(told, "system"),
        machine=_line(told, "machine"),
        kernel=_line(told, "kernel"),
        cpu=environment.cpu_name(cpuinfo) or _line(told, "model"),
        logical_cpus=_whole(told, "cpus"),
        usable_cpus=_usable(told),
        memory_bytes=environment.memory_bytes(told.get("meminfo", "")) or _whole(told, "memory"),
        hypervisor=environment.hypervisor(cpuinfo),
        governor=_line(told, "governor"),
        features=features,
        versions={**versions, **{name: text for name, text in found.items() if text}},
        cpu_quota=quota_of(told.get("quota", "")),
        emulator=reported_emulator(told.get("stat", ""), _line(told, "runs") or "", cpuinfo),
        revision=environment.cpu_revision(cpuinfo),
        host=environment.host_digest(told.get("host", "")),
        firmware=" ".join(told.get("firmware", "").replace("\0", "").split())[:_LONGEST] or None,
    )


def _usable(told: Mapping[str, str]) -> int | None:
    return within(_whole(told, "usable"), quota_of(told.get("quota", "")))


def conditions_of(told: Mapping[str, str]) -> Conditions:
    """The state of a device."""
    load = re.search(r"\d+\.\d+", told.get("load", ""))
    kilohertz, millicelsius = _numbers(told, "khz"), _numbers(told, "millicelsius")
    return Conditions(
        load_average=float(load[0]) if load else None,
        frequency_mhz=max(kilohertz) / 1000 if kilohertz else None,
        temperature_celsius=max(millicelsius) / 1000 if millicelsius else None,
        usable_cpus=_usable(told),
    )


def _line(told: Mapping[str, str], name: str) -> str | None:
    lines = told.get(name, "").splitlines()
    return lines[0].strip()[:_LONGEST] or None if lines else None


def _whole(told: Mapping[str, str], name: str) -> int | None:
    match = re.fullmatch(r"\d{1,18}", _line(told, name) or "")
    return int(match[0]) if match else None


def _numbers(told: Mapping[str, str], name: str) -> list[int]:
    return [int(word) for word in told.get(name, "").split() if re.fullmatch(r"-?\d{1,9}", word)]
