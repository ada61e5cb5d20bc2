"""Power settings of Android devices: two profiles of the Arm kit, set before a measurement and put back after it.

The values are those of the kit's instructions (ArmDeveloperEcosystem/sme-executorch-profiling,
``agent_skill_ml_profiling/04_run_profiling.md``: "unconstrained boost mode" and "app developer mode"), the meanings
those of Android's ``Settings.Global`` and ``BatteryManager``. The kit says that 15 for ``stay_on_while_plugged_in``
removes limits of the CPU's frequency; Android documents that it keeps the screen on, no more. The limits that the
kernel tells before and after each repetition stand in the manifest (``PhoneState.limits_mhz``), so that what a profile
did on a device can be seen there.
"""

from __future__ import annotations

from typing import NamedTuple

from opscope.core.errors import UsageError, did_you_mean


class Setting(NamedTuple):
    """A global setting."""

    name: str  # as `settings put global` has it
    value: str  # that is set
    meaning: str  # for people


class Power(NamedTuple):
    """A profile."""

    name: str  # that the user gives
    settings: tuple[Setting, ...]  # in the order in which they are set
    # whether the screen is switched on too, by `svc power stayon true`; that sets `stay_on_while_plugged_in` for
    # every source of power that the device knows
    wake: bool

    def words(self) -> list[str]:
        """As arguments of ``guard.sh``."""
        return [f"{one.name}={one.value}" for one in self.settings] + (["stayon"] if self.wake else [])


_SAVER = Setting("low_power", "0", "battery saver off: it lowers clocks and defers work")
_ANIMATIONS = (
    ("window_animation_scale", "windows opening and closing"),
    ("transition_animation_scale", "changes between screens"),
    ("animator_duration_scale", "animations of apps"),
)


def _animations(value: str, how: str) -> tuple[Setting, ...]:
    return tuple(Setting(name, value, f"{what}: {how}") for name, what in _ANIMATIONS)


PROFILES = {
    profile.name: profile
    for profile in (
        Power(
            "boost",
            (
                _SAVER,
                Setting(
                    "stay_on_while_plugged_in", "15", "screen on with any power: mains 1, USB 2, wireless 4, dock 8"
                ),
                *_animations("0", "off"),
            ),
            wake=True,
        ),
        Power(
            "app-developer",
            (
                Setting(
                    "stay_on_while_plugged_in",
                    "1",
                    "screen on with mains power only, so off on a computer's USB",
                ),
                *_animations("1", "at their usual speed"),
                _SAVER,
            ),
            wake=False,
        ),
    )
}
NAMES = tuple(dict.fromkeys(one.name for profile in PROFILES.values() for one in profile.settings))
"""Every setting that a profile touches; they are read into the manifest with or without a profile."""


def power_named(name: str) -> Power:
    """The profile of a name."""
    if name not in PROFILES:
        raise UsageError(f"no power profile {name!r}", where="--power", hint=did_you_mean(name, PROFILES))
    return PROFILES[name]
