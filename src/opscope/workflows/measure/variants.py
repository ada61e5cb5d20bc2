"""The variants of an experiment as they run on a target's CPU, and whether there are CPUs for their threads.

With the mechanism that switches features, and whether it has to be shown that it changes nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from opscope.analysis.compare.compare import changes_nothing
from opscope.bundle.manifest import Mechanism, Role, Variant
from opscope.bundle.settings import NOTHING_OFF, WEIGHT_BITS
from opscope.core.errors import FeatureError, MissingDependencyError, OpscopeError, UsageError
from opscope.core.units import counted_text
from opscope.machine import isa
from opscope.machine.switch.switch import is_shown, keep_shown
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.program_inputs import program_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.bundle.manifest import Environment, Manifest
    from opscope.bundle.settings import DelegateName
    from opscope.experiment.planned import Experiment, PlannedVariant
    from opscope.experiment.target import RunTarget, SwitchOffer


AUTO = "auto"
"""The first mechanism that can be proved: ``cpuinfo``, else the one of the architecture."""
UNTOUCHED = "untouched"
"""Name of the variant that runs without the mechanism."""


def chosen_switch(target: RunTarget, asked: str = AUTO) -> SwitchOffer:
    """The mechanism to switch features with on a target."""
    if asked != AUTO:
        return target.offer(Mechanism(asked))
    try:
        return target.offer(Mechanism.CPUINFO)
    except FeatureError as error:
        others = [mechanism for mechanism in target.mechanisms if mechanism is not Mechanism.CPUINFO]
        if not others:
            raise
        tried = [_tried(target, mechanism) for mechanism in others]
        offer = next((one for one in tried if not isinstance(one, str)), None)
        if offer is None:
            problem = "; ".join([error.problem, *(one for one in tried if isinstance(one, str))])
            raise FeatureError(problem, where=error.where, hint=error.hint) from error
        return offer


def _tried(target: RunTarget, mechanism: Mechanism) -> SwitchOffer | str:
    """A mechanism that needs no layout, or why it cannot be used."""
    try:
        return target.offer(mechanism)
    except (FeatureError, MissingDependencyError) as error:
        return error.problem


class MechanismState(msgspec.Struct, frozen=True):
    """Whether a mechanism can switch features.

    Attributes:
        name: as ``--switch`` takes it.
        available: whether it can be used.
        reason: why it cannot; null where it can.
    """

    name: str
    available: bool
    reason: str | None = None


def mechanism_states(target: RunTarget) -> list[MechanismState]:
    """Whether each mechanism can be used on a target, the one that is preferred first."""
    return [_state(target, mechanism) for mechanism in Mechanism]


def _state(target: RunTarget, mechanism: Mechanism) -> MechanismState:
    try:
        target.offer(mechanism)
    except OpscopeError as error:
        return MechanismState(mechanism.value, available=False, reason=error.problem)
    return MechanismState(mechanism.value, available=True)


def needs_control(experiment: Experiment, chosen: SwitchOffer) -> bool:
    """Whether an experiment has a variant that runs without its mechanism.

    It has where the user asks for it, and where no earlier bundle on these libraries has shown that the mechanism
    itself changes nothing. ``cpuinfo`` runs no code of its own while a model runs.
    """
    if chosen.mechanism is Mechanism.CPUINFO:
        return False
    return not is_shown(chosen.libraries) if experiment.untouched is None else experiment.untouched


def keep_control(target: RunTarget, manifest: Manifest, controls: Sequence[Comparison]) -> None:
    """Keep for later experiments that a mechanism changes nothing in these libraries, where this bundle shows it."""
    mechanism = next((variant.switch for variant in manifest.variants if variant.switch), None)
    shown = bool(controls) and all(map(changes_nothing, controls))
    if shown and mechanism in target.mechanisms:
        keep_shown(target.offer(mechanism).libraries)


def variants_of(experiment: Experiment, target: RunTarget) -> tuple[list[Variant], str | None]:
    """The variants of an experiment on the CPU of a target, and why none has a feature switched off; None when one has.

    They are those that it lists, else what it asks to switch off.

    A second model makes it two variants, one of each. Without a list it is for each thread count the accelerated one,
    the steps, and the baseline. Where no feature can be switched off, and the user did not ask for one, it is the
    accelerated variant alone. Nothing can be switched off in a build of the user's: it is one variant, of which nothing
    tells what it uses.
    """
    variants, not_switched = _variants_of(experiment, target)
    return [_with_runtime_options(experiment, one) for one in variants], not_switched


def _with_runtime_options(experiment: Experiment, variant: Variant) -> Variant:
    """The same variant with what its runtime is asked for; a control is asked for the same as what it stands beside."""
    planned = next(
        (one for one in experiment.variants if variant.name in {one.name, control_name(experiment, one.name)}), None
    )
    model = experiment.models_by_variant[planned.name] if planned else experiment.first_model
    runtime = runtime_of(*model)
    if any(one.runtime for one in experiment.all_models):
        variant = msgspec.structs.replace(variant, runtime=runtime.name)
    if runtime.chooses_delegate:
        return msgspec.structs.replace(variant, delegate=_delegate(experiment, variant, planned))
    if runtime.has_options:
        own = planned.options if planned else None
        options = runtime.options(experiment.session_options if own is None else own)
        return msgspec.structs.replace(variant, options=dict(options) or None)
    return variant


def _delegate(experiment: Experiment, variant: Variant, planned: PlannedVariant | None) -> DelegateName:
    if planned is not None and planned.delegate is not None:
        return planned.delegate
    if experiment.delegate == BOTH:
        return "none" if variant.role is Role.BASELINE else "xnnpack"
    return "none" if experiment.delegate == "none" else "xnnpack"


def _variants_of(experiment: Experiment, target: RunTarget) -> tuple[list[Variant], str | None]:
    if experiment.variants or experiment.against is not None:
        return _listed(experiment, target) if experiment.variants else _two_programs(experiment), None
    if target.capabilities().is_build:
        return _as_it_is(experiment), None
    if experiment.delegate == BOTH:
        return _with_and_without_delegate(experiment), "--delegate both compares the delegate instead"
    if experiment.ablate == (NOTHING_OFF,):
        return _against_baseline(experiment, []), "--ablate none was given"
    try:
        switch = chosen_switch(target, experiment.switch)
        steps = _steps(experiment, switch)
    except FeatureError as error:
        if experiment.ablate or experiment.ladder or experiment.switch != AUTO:
            raise
        return _against_baseline(experiment, []), str(error)
    variants = _against_baseline(experiment, steps, switch.recorded)
    return [*variants, *_controls(experiment, switch, variants)], None


def _listed(experiment: Experiment, target: RunTarget) -> list[Variant]:
    """The variants that are listed, and behind those of each program the control that it needs."""
    found: dict[str, Variant] = {}
    controls: list[Variant] = []
    for model in experiment.all_models:
        planned_variants = [v for v in experiment.variants if experiment.models_by_variant[v.name] == model]
        variants, control = _listed_of(experiment, target.of(planned_variants[0].name), planned_variants)
        found |= {variant.name: variant for variant in variants}
        controls += control
    return [*(found[variant.name] for variant in experiment.variants), *controls]


def _listed_of(
    experiment: Experiment, target: RunTarget, planned: Sequence[PlannedVariant]
) -> tuple[list[Variant], list[Variant]]:
    """The variants of one program, and its control."""
    cleared: dict[tuple[str, ...], list[str]] = {(): []}
    wanted = dict.fromkeys(tuple(variant.ablated) for variant in planned if variant.ablated)
    switch = chosen_switch(target, experiment.switch) if wanted else None
    if switch:
        arch, fields, fixed = switch.probe.arch, frozenset(switch.probe.fields), switch.fixed
        cleared |= {groups: isa.cleared_fields(arch, list(groups), fields, fixed) for groups in wanted}
    recorded = switch.recorded if switch else None
    variants = [
        Variant(v.name, v.role, _off(v, target), cleared[tuple(v.ablated or ())], v.threads, v.affinity, recorded)
        for v in planned
    ]
    return variants, _controls(experiment, switch, variants) if switch else []


def _off(planned: PlannedVariant, target: RunTarget) -> list[str] | None:
    """What is switched off; of a build of the user's nobody knows what it was built with."""
    built = planned.runner is not None or target.of(planned.name).capabilities().is_build
    return None if built else planned.ablated


def _controls(experiment: Experiment, switch: SwitchOffer, variants: Sequence[Variant]) -> list[Variant]:
    """The variant without the mechanism, beside the first with all features; none where it is not needed."""
    whole = next((variant for variant in variants if not variant.cleared), None)
    if whole is None or not needs_control(experiment, switch):
        return []
    name = control_name(experiment, whole.name)
    return [Variant(name, Role.CONTROL, [], [], whole.threads, whole.affinity)]


def control_name(experiment: Experiment, variant: str) -> str:
    """Name of the control beside a variant: of several models, each may have one."""
    return f"{variant}-{UNTOUCHED}" if len(experiment.all_models) > 1 and experiment.variants else UNTOUCHED


_Step: TypeAlias = "tuple[list[str], list[str]]"
"""Groups that are switched off, and the fields that are cleared for it."""


def _steps(experiment: Experiment, switch: SwitchOffer) -> list[_Step]:
    """What is switched off, step by step; the last one is the baseline."""
    arch, fields, fixed = switch.probe.arch, frozenset(switch.probe.fields), switch.fixed
    asked = list(experiment.ablate)
    if experiment.ladder:
        groups = isa.ladder(arch, fields - fixed)
    else:
        groups = [asked or [isa.default_ablation(arch, fields - fixed, _weight_bits(experiment)).name]]
    return [(names, isa.cleared_fields(arch, names, fields, fixed)) for names in groups]


def _weight_bits(experiment: Experiment) -> frozenset[int]:
    """Widths of the weights of the model; empty where they are not known."""
    program = program_source(*experiment.first_model, experiment.models)
    if program is None:
        return WEIGHT_BITS[experiment.dtype]
    try:
        return runtime_of(program, experiment.first_model.runtime).weight_bits(program)
    except OpscopeError:
        return frozenset()  # who runs it says what is wrong with it


def _against_baseline(experiment: Experiment, steps: Sequence[_Step], switch: Mechanism | None = None) -> list[Variant]:
    variants = []
    for threads, suffix in _thread_counts(experiment):
        cpus = experiment.cpus
        variants.append(Variant(f"accelerated{suffix}", Role.ACCELERATED, [], [], threads, cpus, switch))
        for number, (names, cleared) in enumerate(steps, 1):
            last = number == len(steps)
            name = "baseline" if last else f"without-{names[-1]}"
            role = Role.BASELINE if last else Role.INTERMEDIATE
            variants.append(Variant(f"{name}{suffix}", role, names, cleared, threads, cpus, switch))
    return variants


BOTH = "both"
"""Compare a LiteRT model with its delegate and without."""


def _with_and_without_delegate(experiment: Experiment) -> list[Variant]:
    if experiment.ladder or experiment.ablate not in {(), (NOTHING_OFF,)}:
        hint = "leave out --ablate and --ladder, or choose --delegate xnnpack or none"
        raise UsageError("one comparison at a time: the delegate is switched already", where="--delegate", hint=hint)
    return _against_baseline(experiment, [([], [])])


NEW, OLD = "new", "old"
"""Names of the variants of two programs."""


def _two_programs(experiment: Experiment) -> list[Variant]:
    """The model and the one that it is measured by, on the CPU as it is."""
    (threads,), cpus = experiment.thread_counts, experiment.cpus
    roles = {NEW: Role.CANDIDATE, OLD: Role.BASELINE}
    return [Variant(name, role, [], [], threads, cpus) for name, role in roles.items()]


def _as_it_is(experiment: Experiment) -> list[Variant]:
    if experiment.ladder or experiment.ablate not in {(), (NOTHING_OFF,)}:
        hint = "leave out --ablate and --ladder; compare two runners with `opscope run`"
        raise UsageError("features cannot be switched off in a foreign runner", where="--target", hint=hint)
    return [
        Variant(f"runner{suffix}", Role.CANDIDATE, None, [], threads, experiment.cpus)
        for threads, suffix in _thread_counts(experiment)
    ]


def _thread_counts(experiment: Experiment) -> list[tuple[int, str]]:
    """Every thread count once, and what it adds to names of variants: nothing where it is the only one."""
    counts = list(dict.fromkeys(experiment.thread_counts))
    return [(count, f"-t{count}" if len(counts) > 1 else "") for count in counts]


def check_threads(variants: Sequence[Variant], there: Environment, *, oversubscribe: bool) -> None:
    """Refuse more threads than the target has usable CPUs: they wait for each other, and that is what is measured.

    One thread always fits, and where the number of usable CPUs is not known any number does.
    """
    if oversubscribe:
        return
    for variant in variants:
        check_thread_count(variant.threads, variant.affinity, there)


def check_thread_count(threads: int | None, affinity: Sequence[int], there: Environment) -> None:
    """Refuse a size of the thread pool; see :func:`check_threads`."""
    usable, reason = _usable(affinity, there)
    if usable is not None and threads is not None and threads > max(1, usable):
        hint = f"at most {usable} here; --oversubscribe (in a file: oversubscribe = true) allows more"
        problem = f"{counted_text(threads, 'thread')} on {counted_text(usable, 'usable CPU')}{reason}"
        raise UsageError(f"{problem}: they would compete for CPUs", where="--threads", hint=hint)


def _usable(affinity: Sequence[int], there: Environment) -> tuple[int | None, str]:
    """CPUs that a process may use, and why there are no more."""
    usable, quota = there.usable_cpus, there.cpu_quota
    if affinity and (usable is None or len(affinity) < usable):
        return len(affinity), f" (affinity {', '.join(map(str, affinity))})"
    if usable is not None and quota is not None and quota < usable + 1:
        return usable, f" (cgroups limit it to {quota:g})"
    if usable is not None and there.logical_cpus is not None and usable < there.logical_cpus:
        return usable, f" (of {there.logical_cpus}; this process cannot use the others)"
    return usable, ""
