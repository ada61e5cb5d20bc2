"""This machine: is it ready, and what can its CPU switch."""

from __future__ import annotations

import enum
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.experiment.target_names import parse_target
from opscope.machine import environment, isa
from opscope.runtimes.executorch.installed import (
    RUNTIME_HINT,
    TRACES_SINCE,
    TRIED,
    installed_runtime,
    library_directory,
)
from opscope.runtimes.executorch.runners.local import NO_RUNNER_HINT, LocalTarget, local_obstacle
from opscope.runtimes.executorch.runners.native_build import find_compiler

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.bundle.manifest import Conditions, Environment
    from opscope.experiment.protocol import ProbeAnswer

_LOAD_LIMIT = 0.5
_SPACE_LIMIT = 1 << 30


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
    """One check of a machine: what was looked at, what was found, and what to type when it is not well.

    A ``problem`` prevents profiling, a ``note`` limits it.
    """

    name: str
    state: State
    found: str
    action: str = ""


class Readiness(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.doctor/1"):
    """Whether a machine can profile, check by check.

    Attributes:
        ready: whether no check found a problem.
        target: that was looked at, as for ``--target``; null for this machine.
        checks: in the order in which they were made.
    """

    ready: bool
    target: str | None
    checks: list[Check]


def doctor(directory: Path | None = None, *, target: str | None = None) -> list[Check]:
    """Whether this machine can profile, and what would disturb a measurement; or a target elsewhere.

    Args:
        directory: where bundles will be written; None: the current one.
        target: as for ``--target``; None: this machine.
    """
    if target is not None and not parse_target(target).kind.here:
        from opscope.workflows.measure.target_checks import target_checks

        return target_checks(target)
    from opscope.workflows.measure.surroundings import surroundings_checks

    here = environment.capture([])
    return [
        _python(),
        _executorch(),
        _torch(),
        _runner(),
        switching_check(LocalTarget().probe),
        _space(directory or Path()),
        *surroundings_checks(),
        load_check(environment.conditions()),
        governor_check(here),
        virtual_check(here),
    ]


def _python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", State.OK, found)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _executorch() -> Check:
    name, found = "executorch", _installed("executorch")
    if found is None:
        return Check(name, State.PROBLEM, "not installed: traces can be analysed, models cannot be run", RUNTIME_HINT)
    try:
        runtime = installed_runtime()
    except MissingDependencyError as error:
        return Check(name, State.PROBLEM, error.problem, error.hint or "")
    if not runtime.traces:
        limit = f"{found}: it writes no traces, so latency is measured and not split into operators"
        return Check(name, State.NOTE, limit, f"executorch {TRACES_SINCE} and later trace")
    return _tried(name, found)


def _tried(name: str, found: str) -> Check:
    """A version as it is, and whether it is one of those that were tried."""
    tried = TRIED[name]
    if found.partition("+")[0] in tried:
        return Check(name, State.OK, found)
    return Check(name, State.NOTE, f"{found}: not tried with opscope; tried: {', '.join(tried)}")


def _torch() -> Check:
    found = _installed("torch")
    if found is None:
        hint = "to export models: pip install 'opscope[executorch]'"
        return Check("torch", State.NOTE, "not installed: programs (.pte) can be profiled, models not exported", hint)
    return _tried("torch", found)


def _runner() -> Check:
    """What runs programs here: the native runner, else the Python bindings."""
    name = "runner"
    try:
        library_directory()
        compiler = find_compiler()
    except MissingDependencyError as error:
        if local_obstacle():
            return Check(name, State.PROBLEM, f"nothing runs programs here: {error.problem}", NO_RUNNER_HINT)
        limit = f"Python bindings: {error.problem}; each process takes over a second to start"
        return Check(name, State.NOTE, limit, error.hint or "")
    return Check(name, State.OK, f"native, built with {compiler.version}")


def switching_check(probe: Callable[[], ProbeAnswer]) -> Check:
    """What can be switched off on a CPU.

    Args:
        probe: asks for its features.
    """
    name = "acceleration switch"
    try:
        probed = probe()
    except FeatureError as error:
        return Check(name, State.NOTE, f"not available: {error.problem}", error.hint or "")
    except MissingDependencyError as error:
        return Check(name, State.PROBLEM, error.problem, error.hint or "")
    fields = frozenset(probed.fields)
    default = isa.strongest(probed.arch, fields)
    if default is None:
        return Check(name, State.NOTE, "this CPU has no feature to switch off")
    have = ", ".join(group.name for group in isa.present(probed.arch, fields))
    return Check(name, State.OK, f"{have}; --ablate {default.name} is the default")


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
    """Whether others share the processor of a machine, or it is none at all."""
    if machine.emulator:
        found = f"the CPU is emulated by {machine.emulator}: what it computes counts, how long that takes does not"
        return Check("machine", State.NOTE, found, "measure times on a real device")
    hypervisor = machine.hypervisor
    if hypervisor:
        return Check("machine", State.NOTE, "virtual: other guests can disturb a measurement", "use more rounds")
    return Check("machine", State.OK, "no hypervisor seen" if hypervisor is False else "not known to be virtual")
