"""A device and the state it is in, from the output of its shell; facts that it did not tell are null."""

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
    """Return the parts of the output of ``opscope.hosts.scripts``, by their headings."""
    pieces = _PART.split(output.decode("utf-8", "replace"))
    return {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def environment_of(reported: Mapping[str, str], features: list[str] | None, versions: Mapping[str, str]) -> Environment:
    """Return a device and its software."""
    cpuinfo = reported.get("cpuinfo", "")
    own_versions = {"os": _first_line(reported, "os"), "libc": _first_line(reported, "libc")}
    return Environment(
        system=_first_line(reported, "system"),
        machine=_first_line(reported, "machine"),
        kernel=_first_line(reported, "kernel"),
        cpu=environment.cpu_name(cpuinfo) or _first_line(reported, "model"),
        logical_cpus=_whole_number(reported, "cpus"),
        usable_cpus=_usable_cpus(reported),
        memory_bytes=environment.memory_bytes(reported.get("meminfo", "")) or _whole_number(reported, "memory"),
        hypervisor=environment.hypervisor(cpuinfo),
        governor=_first_line(reported, "governor"),
        features=features,
        versions={**versions, **{name: text for name, text in own_versions.items() if text}},
        cpu_quota=quota_of(reported.get("quota", "")),
        emulator=reported_emulator(reported.get("stat", ""), _first_line(reported, "runs") or "", cpuinfo),
        revision=environment.cpu_revision(cpuinfo),
        host=environment.host_digest(reported.get("host", "")),
        firmware=" ".join(reported.get("firmware", "").replace("\0", "").split())[:_LONGEST] or None,
    )


def _usable_cpus(reported: Mapping[str, str]) -> int | None:
    """Return how many CPUs may be used, within the quota."""
    return within(_whole_number(reported, "usable"), quota_of(reported.get("quota", "")))


def conditions_of(reported: Mapping[str, str]) -> Conditions:
    """Return the state of a device."""
    load = re.search(r"\d+\.\d+", reported.get("load", ""))
    kilohertz, millicelsius = _list_numbers(reported, "khz"), _list_numbers(reported, "millicelsius")
    return Conditions(
        load_average=float(load[0]) if load else None,
        frequency_mhz=max(kilohertz) / 1000 if kilohertz else None,
        temperature_celsius=max(millicelsius) / 1000 if millicelsius else None,
        usable_cpus=_usable_cpus(reported),
    )


def _first_line(reported: Mapping[str, str], name: str) -> str | None:
    """Return the first line of a part, if it has one."""
    lines = reported.get(name, "").splitlines()
    return lines[0].strip()[:_LONGEST] or None if lines else None


def _whole_number(reported: Mapping[str, str], name: str) -> int | None:
    """Return a part that is a whole number, if it is one."""
    match = re.fullmatch(r"\d{1,18}", _first_line(reported, name) or "")
    return int(match[0]) if match else None


def _list_numbers(reported: Mapping[str, str], name: str) -> list[int]:
    """Return the whole numbers of a part."""
    return [int(word) for word in reported.get(name, "").split() if re.fullmatch(r"-?\d{1,9}", word)]
