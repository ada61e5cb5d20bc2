"""This machine: is it ready for a model, what can its CPU switch, and what limits it although it works."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import OpscopeError, UsageError
from opscope.core.install import install_command
from opscope.core.system.c_library import other_c_library
from opscope.core.system.cache import VARIABLE, find_cache
from opscope.core.units import size_text
from opscope.experiment.checks import (
    Check,
    State,
    governor_check,
    load_check,
    problem_check,
    switching_check,
    virtual_check,
)
from opscope.experiment.planned import Experiment
from opscope.experiment.target_names import parse_target
from opscope.hosts.target_kinds import AUTO
from opscope.machine import environment, isa
from opscope.runtimes.registry import EXPORTER, RUNTIMES, runtime_of
from opscope.workflows.measure.experiment_bundle import tried_once
from opscope.workflows.measure.program_inputs import inputs_in_words, program_source
from opscope.workflows.measure.targets import target_running
from opscope.workflows.measure.variants import MechanismState, chosen_switch, mechanism_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.runtimes.runtime import Runtime


_SECONDS = 120.0


def runtime_for(model: str, runtime: str | None = None) -> Runtime:
    """Return the runtime that a model needs, which may be named; the exporting one for a model that is no program.

    Raises:
        OpscopeError: there is no such model, or its runtime does not take it.
    """
    source = program_source(model, runtime)
    return EXPORTER if source is None else runtime_of(source, runtime)


def model_checks(model: str, target: str, named: str | None = None) -> list[Check]:
    """Check what stands in the way of measuring a model, and what has to be said about its inputs.

    Args:
        model: a program, or a model to export.
        target: where it is to run, as for ``--target``.
        named: the runtime that is to run it; None: that of its format.

    Raises:
        OpscopeError: there is no such model, its runtime does not take it, or not on this target.
    """
    source = program_source(model, named)
    if source is None:
        return [Check("model", State.OK, f"{model} is exported by {EXPORTER.title} first")]
    runtime = runtime_of(source, named)
    about = f"{source.name}, {size_text(source.stat().st_size)}, needs {runtime.title} ({runtime.name})"
    check = Check("model", State.OK, about)
    if not runtime.is_installed() and parse_target(target).kind.here:
        missing = f"{runtime.title} is not installed"
        return [check, Check("one inference", State.PROBLEM, missing, install_command(runtime.name))]
    run_target = target_running(str(source), target, runtime=named)
    experiment = Experiment(
        name="doctor", model=model, target=target, runtime=named, guess_inputs=True, timeout=_SECONDS
    )
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
        try:
            plan, failure = tried_once(experiment, run_target, source, Path(directory))
        except UsageError as error:
            return [check, problem_check("one inference", error)]
    declared, line = inputs_in_words(source, plan)
    hint = f"add --guess-inputs, or give your own: {line}"
    inputs = Check("inputs", State.NOTE if line else State.OK, declared, hint if line else "")
    if failure is None:
        return [check, inputs, Check("one inference", State.OK, "runs, all CPU features on, 1 thread")]
    hint = "give inputs that the model accepts with --input" if line else ""
    return [check, inputs, Check("one inference", State.PROBLEM, failure.message, hint)]


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
        mechanisms: that can switch them here, and why others cannot, as ``--switch`` names them.
    """

    arch: str
    fields: list[str]
    groups: list[FeatureGroup]
    default: str | None
    ladder: list[str]
    mechanisms: list[MechanismState] = []


def features(*, mechanisms: bool = True) -> FeatureReport:
    """Return which feature groups this CPU has and can switch.

    Args:
        mechanisms: ask which mechanisms there are, too, which runs the compiler.

    Raises:
        MissingDependencyError: executorch is not installed.
        FeatureError: the CPU or the library is not one whose features can be switched.
    """
    target = EXPORTER.target_here()
    probed = chosen_switch(target).probe
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
    default_name = default.name if default else None
    return FeatureReport(
        probed.arch, probed.fields, groups, default_name, steps, mechanism_states(target) if mechanisms else []
    )


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


def doctor(
    directory: Path | None = None,
    *,
    target: str | None = None,
    model: str | Path | None = None,
    runtime: str | None = None,
) -> list[Check]:
    """Check whether this machine, or a target elsewhere, can profile, and what would disturb a measurement.

    Args:
        directory: where bundles will be written; None: the current one.
        target: as for ``--target``; None: this machine.
        model: check what this one needs, too: other runtimes are left out, and one inference is tried.
        runtime: that is to run the model, by its name; None: that of its format.
    """
    checks_of_model = [] if model is None else model_checks(str(model), target or AUTO.name, runtime)
    if target is not None and not parse_target(target).kind.here:
        from opscope.workflows.measure.targets import target_checks

        return [*target_checks(target), *checks_of_model]
    machine = environment.capture([])
    python_version = ".".join(str(part) for part in sys.version_info[:3])
    runtimes = RUNTIMES if model is None else [runtime_for(str(model), runtime)]
    checks_by_runtime = [(candidate, candidate.checks()) for candidate in runtimes]
    usable = [candidate for candidate, checks in checks_by_runtime if candidate.runs_here(checks)]
    return [
        Check("python", State.OK, python_version),
        *(check for _, checks in checks_by_runtime for check in checks),
        *([_check_models(usable)] if model is None else checks_of_model),
        *([_check_switching(usable[0])] if usable else []),
        _check_space(directory or Path()),
        *environment_checks(),
        load_check(environment.conditions()),
        governor_check(machine),
        virtual_check(machine),
    ]


def _check_models(usable: Sequence[Runtime]) -> Check:
    """Check which models can run here."""
    if not usable:
        others = ", ".join(runtime.name for runtime in RUNTIMES[1:])
        hint = f"{install_command('executorch')}; for others: {others} in its place"
        return Check("models", State.PROBLEM, "no runtime can run models here; opscope can still analyse traces", hint)
    return Check(
        "models", State.OK, f"ready for {', '.join(f'{runtime.suffix} ({runtime.title})' for runtime in usable)}"
    )


def _check_switching(runtime: Runtime) -> Check:
    """Check what can be switched off here, and by which mechanisms."""
    target = runtime.target_here()
    check = switching_check(lambda: chosen_switch(target).probe)
    if check.state is not State.OK:
        return check
    by = ", ".join(state.name for state in mechanism_states(target) if state.available)
    return msgspec.structs.replace(check, found=f"{check.found}; switched by {by}")


def _check_space(directory: Path) -> Check:
    free = shutil.disk_usage(directory).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < _SPACE_LIMIT:
        return Check("disk", State.PROBLEM, text, "free some space: a bundle needs 10 MB to 1 GB")
    return Check("disk", State.OK, text)


def environment_checks() -> list[Check]:
    """Return the checks of what limits it here; empty if nothing does."""
    return [*_check_cache(), *_check_c_library()]


def temporary_cache() -> str | None:
    """Return that builds will not be kept, and why; None for a cache that lasts or does not exist."""
    try:
        directory, temporary = find_cache()
    except OpscopeError:
        return None
    return temporary and f"{temporary}: the cache is {directory} until this machine restarts; {_ACTION}"


_ACTION = f"set {VARIABLE} to a persistent directory"


def _check_cache() -> list[Check]:
    try:
        directory, temporary = find_cache()
    except OpscopeError as error:
        return [Check("cache", State.PROBLEM, str(error), error.hint or "")]
    if temporary is None:
        return []
    return [Check("cache", State.NOTE, f"{directory}, a temporary one: {temporary}", _ACTION)]


def _check_c_library() -> list[Check]:
    other = other_c_library()
    if other is None:
        return []
    limitation = (
        f"this Python {other}: the runtime's wheels need glibc, so opscope can analyse traces but not run models"
    )
    return [Check("C library", State.NOTE, limitation, "use Python on a system with glibc")]
