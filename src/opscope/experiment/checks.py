"""Checks of a machine or a device: what was examined, what was found, and what to type if it is not well."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import FeatureError, MissingDependencyError, OpscopeError
from opscope.machine import isa

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.bundle.manifest import Conditions, Environment
    from opscope.experiment.protocol import ProbeAnswer


_LOAD_LIMIT = 0.5


class State(str, enum.Enum):
    """Outcome of a check."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """Check of a machine: what was examined, what was found, and what to type if it is not well.

    A ``problem`` prevents profiling, a ``note`` limits it.
    """

    name: str
    state: State
    found: str
    action: str = ""


_USUAL_BITS = 32


def problem_check(name: str, error: OpscopeError) -> Check:
    """Return an error as a check that prevents profiling."""
    return Check(name, State.PROBLEM, error.problem, error.hint or "")


def switching_check(probe: Callable[[], ProbeAnswer]) -> Check:
    """Check which feature groups can be switched off on a CPU."""
    name = "acceleration switch"
    try:
        probed = probe()
    except FeatureError as error:
        return Check(name, State.NOTE, f"not available: {error.problem}", error.hint or "")
    except MissingDependencyError as error:
        return problem_check(name, error)
    fields = frozenset(probed.fields)
    default = isa.strongest(probed.arch, fields)
    if default is None:
        return Check(name, State.NOTE, "this CPU has no feature to switch off")
    have = ", ".join(group.name for group in isa.present(probed.arch, fields))
    usual = f"--ablate {default.name} is the default"
    if default.bits is not None:
        usual_group = isa.strongest(probed.arch, fields, {_USUAL_BITS})
        usual += (
            f" for {default.bits}-bit weights, {usual_group.name if usual_group else 'none'} for {_USUAL_BITS}-bit ones"
        )
    return Check(name, State.OK, f"{have}; {usual}")


def load_check(now: Conditions) -> Check:
    """Check what else runs on a machine."""
    load, cpus = now.load_average, now.usable_cpus
    if load is None or cpus is None:
        return Check("load", State.NOTE, "cannot be read")
    text = f"{load:.2f} on {cpus} CPUs"
    if load > _LOAD_LIMIT * cpus:
        return Check("load", State.NOTE, text, "close other programs before measuring")
    return Check("load", State.OK, text)


def governor_check(machine: Environment) -> Check:
    """Check whether the clock of a machine follows its load."""
    governor = machine.governor
    if governor is None:
        return Check("clock governor", State.NOTE, "cannot be read here: throttling would go unnoticed")
    if governor != "performance":
        action = "for more stable figures: sudo cpupower frequency-set -g performance"
        return Check("clock governor", State.NOTE, governor, action)
    return Check("clock governor", State.OK, governor)


def virtual_check(machine: Environment) -> Check:
    """Check whether the CPU of a machine is emulated or shared with other guests."""
    if machine.emulator:
        text = f"the CPU is emulated by {machine.emulator}: results are valid, timings are not"
        return Check("machine", State.NOTE, text, "measure latency on a real device")
    hypervisor = machine.hypervisor
    if hypervisor:
        return Check("machine", State.NOTE, "virtual: other guests can disturb a measurement", "use more rounds")
    return Check("machine", State.OK, "no hypervisor seen" if hypervisor is False else "unknown whether virtual")
