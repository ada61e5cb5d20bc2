"""What an Android device tells of itself and of its state, read in one command each. What it does not tell is null.

The formats are those of Android's ``dumpsys battery`` (BatteryService.dump), ``dumpsys thermalservice``
(ThermalManagerService.dump, Temperature.toString), ``getprop`` and of the kernel's cpufreq files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Conditions, Environment, Phone, PhoneState
from opscope.hosts.adb.power import NAMES
from opscope.hosts.facts import conditions_of, environment_of, parts
from opscope.hosts.scripts import CONDITIONS, FACTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.hosts.shell import RemoteShell

_SECONDS = 30.0
_KHZ_PER_MHZ, _TENTHS = 1000, 10
_CPU_TYPE = "0"
STATE = rf"""{CONDITIONS}
part battery; dumpsys battery </dev/null
part thermal; dumpsys thermalservice </dev/null
part online; cat /sys/devices/system/cpu/online
part cpufreq
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  echo "${{cpu##*/cpu}} $(cat "$cpu/cpufreq/scaling_cur_freq") $(cat "$cpu/cpufreq/scaling_max_freq")"
done
part end
"""
"""What :func:`read_state` runs."""
DEVICE = rf"""{FACTS}
part properties; getprop
part present; cat /sys/devices/system/cpu/present
part online; cat /sys/devices/system/cpu/online
part settings
for name; do echo "$name $(settings get global "$name" </dev/null)"; done
part end
"""
"""What :func:`read_device` runs; its words are the names of settings."""
_PROPERTY = re.compile(r"^\[([\w.\-]+)\]: \[(.*)\]\r?$", re.MULTILINE)
_TEMPERATURE = re.compile(r"Temperature\{mValue=(-?\d{1,3}(?:\.\d{1,9})?), mType=(\d{1,3}),")
_CPUFREQ = re.compile(r"^(\d{1,4}) (\d{0,9}) (\d{0,9})$", re.MULTILINE)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?\Z")
_LONGEST = 200


def read_state(shell: RemoteShell) -> Conditions:
    """The state of a device now."""
    return state_of(parts(shell.run(["sh", "-c", STATE], _SECONDS).stdout))


def read_device(
    shell: RemoteShell, power: str | None, features: list[str] | None, versions: Mapping[str, str]
) -> Environment:
    """A device and its software."""
    told = parts(shell.run(["sh", "-c", DEVICE, "sh", *NAMES], _SECONDS).stdout)
    return device_of(told, power, environment_of(told, features, versions))


def state_of(told: Mapping[str, str]) -> Conditions:
    """The state of a device."""
    common = conditions_of(told)
    battery, thermal = told.get("battery", ""), told.get("thermal", "")
    frequencies, limits = _frequencies(told.get("cpufreq", ""))
    tenths = _integer(r"^\s*temperature: (-?\d{1,4})$", battery)
    return msgspec.structs.replace(
        common,
        temperature_celsius=_temperature(thermal) or common.temperature_celsius,
        usable_cpus=_count(told.get("online", "")) or common.usable_cpus,
        phone=PhoneState(
            thermal_status=_integer(r"^Thermal Status: (\d)$", thermal),
            battery_percent=_integer(r"^\s*level: (\d{1,3})$", battery),
            battery_celsius=None if tenths is None else tenths / _TENTHS,
            plugged=_plugged(battery),
            frequencies_mhz=frequencies,
            limits_mhz=limits,
        ),
    )


def device_of(told: Mapping[str, str], power: str | None, common: Environment) -> Environment:
    """A device."""
    properties = {name: value[:_LONGEST] for name, value in _PROPERTY.findall(told.get("properties", ""))}
    soc = " ".join(filter(None, (properties.get("ro.soc.manufacturer"), properties.get("ro.soc.model"))))
    return msgspec.structs.replace(
        common,
        system="Android" if properties else common.system,
        cpu=soc or properties.get("ro.board.platform") or common.cpu,
        logical_cpus=_count(told.get("present", "")) or common.logical_cpus,
        usable_cpus=_count(told.get("online", "")) or common.usable_cpus,
        phone=Phone(
            manufacturer=properties.get("ro.product.manufacturer") or None,
            model=properties.get("ro.product.model") or None,
            soc=soc or None,
            android=properties.get("ro.build.version.release") or None,
            build=properties.get("ro.build.fingerprint") or None,
            power=power,
            settings=_settings(told.get("settings", "")),
        ),
    )


def _settings(text: str) -> dict[str, str | None]:
    words = (line.split() for line in text.splitlines())
    found = {row[0]: row[1] for row in words if len(row) == 2}  # noqa: PLR2004 - a name and its value
    return {name: None if found[name] == "null" else found[name] for name in NAMES if name in found}


def _frequencies(text: str) -> tuple[list[float | None], list[float | None]]:
    """Current and highest frequency of each CPU, in the order of their numbers."""
    rows = sorted((int(number), now, highest) for number, now, highest in _CPUFREQ.findall(text))
    return [_mhz(now) for _, now, _ in rows], [_mhz(highest) for _, _, highest in rows]


def _mhz(kilohertz: str) -> float | None:
    return int(kilohertz) / _KHZ_PER_MHZ if kilohertz else None


def _temperature(text: str) -> float | None:
    """The highest of the CPUs, else of all sensors; what the HAL tells now goes before what was cached."""
    cached, _, now = text.partition("Current temperatures from HAL:")
    for part in (now, cached):
        found = _TEMPERATURE.findall(part)
        values = [float(value) for value, kind in found if kind == _CPU_TYPE] or [float(value) for value, _ in found]
        if values:
            return max(values)
    return None


def _plugged(text: str) -> bool | None:
    sources = re.findall(r"^\s*(?:AC|USB|Wireless|Dock) powered: (true|false)", text, re.MULTILINE)
    return "true" in sources if sources else None


def _count(text: str) -> int | None:
    """How many CPUs a list such as ``0-3,7`` names."""
    ranges = [_RANGE.match(part) for part in text.strip().split(",")]
    counts = [int(part[2] or part[1]) - int(part[1]) + 1 if part else 0 for part in ranges]
    return sum(counts) if min(counts) > 0 else None


def _integer(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else None
