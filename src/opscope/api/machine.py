"""This machine: is it ready, and what can its CPU switch."""

from __future__ import annotations

import enum
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.errors import OpscopeError
from opscope.run import environment, isa
from opscope.run.cpuinfo import INSTALL_HINT
from opscope.run.local import LocalTarget

if TYPE_CHECKING:
    from opscope.bundle.manifest import Conditions, Environment

_LOAD_LIMIT = 0.5
_SPACE_LIMIT = 1 << 30
_EXECUTORCH = "1.5.1"
_TORCH = "2.13"


class FeatureGroup(msgspec.Struct, frozen=True):
    """A group of CPU features.

    Attributes:
        name: as in ``--ablate``.
        meaning: for people.
        present: whether this CPU has it.
        clears: fields of ``cpuinfo_isa`` that switching it off clears on this CPU.
    """

    name: str
    meaning: str
    present: bool
    clears: list[str]


class FeatureReport(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.features/1"):
    """The features of this CPU as the runtime sees them.

    Attributes:
        arch: architecture.
        fields: all fields of ``cpuinfo_isa`` that are set.
        groups: what can be switched, strongest first.
        default: the group that `opscope profile` switches off when nothing else is asked; null when there is none.
        ladder: the groups that ``--ladder`` switches off, one after the other.
    """

    arch: str
    fields: list[str]
    groups: list[FeatureGroup]
    default: str | None
    ladder: list[str]


def features() -> FeatureReport:
    """What this CPU can switch.

    Raises:
        MissingDependencyError: executorch is not installed.
        FeatureError: the CPU or the library is not one whose features can be switched.
    """
    probed = LocalTarget().probe()
    fields = frozenset(probed.fields)
    have = {group.name for group in isa.present(probed.arch, fields)}
    groups = [
        FeatureGroup(
            group.name,
            group.meaning,
            group.name in have,
            isa.cleared_fields(probed.arch, [group.name], fields) if group.name in have else [],
        )
        for group in isa.GROUPS[probed.arch]
    ]
    default = isa.strongest(probed.arch, fields)
    steps = [names[-1] for names in isa.ladder(probed.arch, fields)]
    return FeatureReport(probed.arch, probed.fields, groups, default.name if default else None, steps)


class State(str, enum.Enum):
    """Outcome of a check."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """One check of this machine: what was looked at, what was found, and what to type when it is not well."""

    name: str
    state: State
    found: str
    action: str = ""


_HERE = (None, "auto", "local", "native")


def doctor(directory: Path | None = None, *, target: str | None = None) -> list[Check]:
    """Whether this machine can profile, and what would disturb a measurement; or a target elsewhere.

    Args:
        directory: where bundles will be written; None: the current one.
        target: as for ``--target``; None: this machine.
    """
    if target not in _HERE:
        from opscope.api.target_checks import target_checks

        return target_checks(str(target))
    here = environment.capture([])
    return [
        _python(),
        _package("torch", _TORCH),
        _package("executorch", _EXECUTORCH),
        _switching(),
        _space(directory or Path()),
        load_check(environment.conditions()),
        governor_check(here),
        virtual_check(here),
    ]


def _python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", State.OK, found)


def _package(name: str, wanted: str) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, State.PROBLEM, "not installed; traces can be analysed, models not run", INSTALL_HINT)
    if not found.startswith(wanted):
        return Check(name, State.PROBLEM, f"{found}; opscope is tested with {wanted}", INSTALL_HINT)
    return Check(name, State.OK, found)


def _switching() -> Check:
    try:
        report = features()
    except OpscopeError as error:
        return Check("acceleration switch", State.PROBLEM, error.problem, error.hint or "")
    have = ", ".join(group.name for group in report.groups if group.present)
    if report.default is None:
        return Check("acceleration switch", State.NOTE, "this CPU has no feature to switch off")
    return Check("acceleration switch", State.OK, f"{have}; --ablate {report.default} is the default")


def _space(directory: Path) -> Check:
    free = shutil.disk_usage(directory).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < _SPACE_LIMIT:
        return Check("disk", State.PROBLEM, text, "free some space: a bundle takes 10 MB to 1 GB")
    return Check("disk", State.OK, text)


def load_check(now: Conditions) -> Check:
    """What else runs on a machine."""
    load, cpus = now.load_average, now.usable_cpus
    if load is None or cpus is None:
        return Check("load", State.NOTE, "cannot be read")
    text = f"{load:.2f} on {cpus} CPUs"
    if load > _LOAD_LIMIT * cpus:
        return Check("load", State.NOTE, text, "close other programs before measuring")
    return Check("load", State.OK, text)


def governor_check(machine: Environment) -> Check:
    """Whether the clock of a machine follows its load."""
    governor = machine.governor
    if governor is None:
        return Check("clock governor", State.NOTE, "cannot be read here: throttling would not be seen")
    if governor != "performance":
        action = "for steadier figures: sudo cpupower frequency-set -g performance"
        return Check("clock governor", State.NOTE, governor, action)
    return Check("clock governor", State.OK, governor)


def virtual_check(machine: Environment) -> Check:
    """Whether others share the processor of a machine."""
    hypervisor = machine.hypervisor
    if hypervisor:
        return Check("machine", State.NOTE, "virtual: other guests can disturb a measurement", "use more rounds")
    return Check("machine", State.OK, "no hypervisor seen" if hypervisor is False else "not known to be virtual")
