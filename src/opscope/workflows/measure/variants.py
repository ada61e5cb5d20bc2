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


def chosen_switch(target: RunTarget, requested: str = AUTO) -> SwitchOffer:
    """Return the mechanism that switches features on a target: the requested one, or the first that works.

    Raises:
        FeatureError: no mechanism works there.
    """
    if requested != AUTO:
        return target.offer(Mechanism(requested))
    try:
        return target.offer(Mechanism.CPUINFO)
    except FeatureError as error:
        mechanisms = [mechanism for mechanism in target.mechanisms if mechanism is not Mechanism.CPUINFO]
        if not mechanisms:
            raise
        offers = [_try_mechanism(target, mechanism) for mechanism in mechanisms]
        offer = next((attempt for attempt in offers if not isinstance(attempt, str)), None)
        if offer is None:
            problem = "; ".join([error.problem, *(attempt for attempt in offers if isinstance(attempt, str))])
            raise FeatureError(problem, where=error.where, hint=error.hint) from error
        return offer


def _try_mechanism(target: RunTarget, mechanism: Mechanism) -> SwitchOffer | str:
    """Return the offer of a mechanism, or why it cannot be used."""
    try:
        return target.offer(mechanism)
    except (FeatureError, MissingDependencyError) as error:
        return error.problem


class MechanismState(msgspec.Struct, frozen=True):
    """A mechanism that switches features, and whether it can be used.

    Attributes:
        name: as ``--switch`` takes it.
        available: whether it can be used.
        reason: why it cannot; null where it can.
    """

    name: str
    available: bool
    reason: str | None = None


def mechanism_states(target: RunTarget) -> list[MechanismState]:
    """Return whether each mechanism can be used on a target, the preferred one first."""
    return [_check_mechanism(target, mechanism) for mechanism in Mechanism]


def _check_mechanism(target: RunTarget, mechanism: Mechanism) -> MechanismState:
    try:
        target.offer(mechanism)
    except OpscopeError as error:
        return MechanismState(mechanism.value, available=False, reason=error.problem)
    return MechanismState(mechanism.value, available=True)


def needs_control(experiment: Experiment, chosen: SwitchOffer) -> bool:
    """Return whether an experiment has a variant that runs without its mechanism.

    It has one if the user asks for it, or if no earlier bundle on these libraries has shown that the mechanism itself
    changes nothing. ``cpuinfo`` runs no code of its own while a model runs.
    """
    if chosen.mechanism is Mechanism.CPUINFO:
        return False
    return not is_shown(chosen.libraries) if experiment.untouched is None else experiment.untouched


def keep_control(target: RunTarget, manifest: Manifest, controls: Sequence[Comparison]) -> None:
    """Record for later experiments that a mechanism changes nothing in these libraries, if a bundle shows it."""
    mechanism = next((variant.switch for variant in manifest.variants if variant.switch), None)
    changed_nothing = bool(controls) and all(map(changes_nothing, controls))
    if changed_nothing and mechanism in target.mechanisms:
        keep_shown(target.offer(mechanism).libraries)


def variants_of(experiment: Experiment, target: RunTarget) -> tuple[list[Variant], str | None]:
    """Return the variants of an experiment on the CPU of a target, and why no feature is switched off.

    The reason is None if a feature is switched off. Variants are those that the experiment lists. Without a list, two
    programs give one variant each; a model gives for each thread count the accelerated variant, the steps and the
    baseline. Where no feature can be switched off, and the user asked for none, only the accelerated variant is left. A
    user's own build is one variant, of which nothing says which features it uses.
    """
    variants, not_switched = _plan_variants(experiment, target)
    return [_with_runtime_options(experiment, variant) for variant in variants], not_switched


def _with_runtime_options(experiment: Experiment, variant: Variant) -> Variant:
    """Return a variant with the options of its runtime; a control has those of the variant it stands beside."""
    planned = next(
        (
            candidate
            for candidate in experiment.variants
            if variant.name in {candidate.name, control_name(experiment, candidate.name)}
        ),
        None,
    )
    model = experiment.models_by_variant[planned.name] if planned else experiment.first_model
    runtime = runtime_of(*model)
    if any(candidate.runtime for candidate in experiment.all_models):
        variant = msgspec.structs.replace(variant, runtime=runtime.name)
    if runtime.chooses_delegate:
        return msgspec.structs.replace(variant, delegate=_choose_delegate(experiment, variant, planned))
    if runtime.has_options:
        explicit_options = planned.options if planned else None
        options = runtime.options(experiment.session_options if explicit_options is None else explicit_options)
        return msgspec.structs.replace(variant, options=dict(options) or None)
    return variant


def _choose_delegate(experiment: Experiment, variant: Variant, planned: PlannedVariant | None) -> DelegateName:
    if planned is not None and planned.delegate is not None:
        return planned.delegate
    if experiment.delegate == BOTH:
        return "none" if variant.role is Role.BASELINE else "xnnpack"
    return "none" if experiment.delegate == "none" else "xnnpack"


def _plan_variants(experiment: Experiment, target: RunTarget) -> tuple[list[Variant], str | None]:
    if experiment.variants or experiment.against is not None:
        return _plan_listed_variants(experiment, target) if experiment.variants else _plan_two_programs(
            experiment
        ), None
    if target.capabilities().is_build:
        return _plan_build_variants(experiment), None
    if experiment.delegate == BOTH:
        return _plan_delegate_on_and_off(experiment), "--delegate both compares the delegate instead"
    if experiment.ablate == (NOTHING_OFF,):
        return _plan_on_and_off(experiment, []), "--ablate none was given"
    try:
        switch = chosen_switch(target, experiment.switch)
        steps = _plan_steps(experiment, switch)
    except FeatureError as error:
        if experiment.ablate or experiment.ladder or experiment.switch != AUTO:
            raise
        return _plan_on_and_off(experiment, []), str(error)
    variants = _plan_on_and_off(experiment, steps, switch.recorded)
    return [*variants, *_plan_control(experiment, switch, variants)], None


def _plan_listed_variants(experiment: Experiment, target: RunTarget) -> list[Variant]:
    """Return the listed variants, followed by the control that each program needs."""
    by_name: dict[str, Variant] = {}
    controls: list[Variant] = []
    for model in experiment.all_models:
        planned_variants = [v for v in experiment.variants if experiment.models_by_variant[v.name] == model]
        variants, control = _plan_program_variants(experiment, target.of(planned_variants[0].name), planned_variants)
        by_name |= {variant.name: variant for variant in variants}
        controls += control
    return [*(by_name[variant.name] for variant in experiment.variants), *controls]


def _plan_program_variants(
    experiment: Experiment, target: RunTarget, planned: Sequence[PlannedVariant]
) -> tuple[list[Variant], list[Variant]]:
    """Return the variants of one program, and its control."""
    cleared: dict[tuple[str, ...], list[str]] = {(): []}
    switched_off = dict.fromkeys(tuple(variant.ablated) for variant in planned if variant.ablated)
    switch = chosen_switch(target, experiment.switch) if switched_off else None
    if switch:
        arch, fields, fixed = switch.probe.arch, frozenset(switch.probe.fields), switch.fixed
        cleared |= {groups: isa.cleared_fields(arch, list(groups), fields, fixed) for groups in switched_off}
    recorded = switch.recorded if switch else None
    variants = [
        Variant(
            v.name,
            v.role,
            _switched_off_groups(v, target),
            cleared[tuple(v.ablated or ())],
            v.threads,
            v.affinity,
            recorded,
        )
        for v in planned
    ]
    return variants, _plan_control(experiment, switch, variants) if switch else []


def _switched_off_groups(planned: PlannedVariant, target: RunTarget) -> list[str] | None:
    """Return the groups that are switched off; None for a user's own build, whose features are unknown."""
    built = planned.runner is not None or target.of(planned.name).capabilities().is_build
    return None if built else planned.ablated


def _plan_control(experiment: Experiment, switch: SwitchOffer, variants: Sequence[Variant]) -> list[Variant]:
    """Return the variant without the mechanism, beside the first with all features; empty if it is not needed."""
    unchanged = next((variant for variant in variants if not variant.cleared), None)
    if unchanged is None or not needs_control(experiment, switch):
        return []
    name = control_name(experiment, unchanged.name)
    return [Variant(name, Role.CONTROL, [], [], unchanged.threads, unchanged.affinity)]


def control_name(experiment: Experiment, variant: str) -> str:
    """Return the name of the control beside a variant; with several models each may have one."""
    return f"{variant}-{UNTOUCHED}" if len(experiment.all_models) > 1 and experiment.variants else UNTOUCHED


_Step: TypeAlias = "tuple[list[str], list[str]]"
"""Groups that are switched off, and the fields that are cleared for it."""


def _plan_steps(experiment: Experiment, switch: SwitchOffer) -> list[_Step]:
    """Return the groups to switch off, step by step; the last step is the baseline."""
    arch, fields, fixed = switch.probe.arch, frozenset(switch.probe.fields), switch.fixed
    requested = list(experiment.ablate)
    if experiment.ladder:
        groups = isa.ladder(arch, fields - fixed)
    else:
        groups = [requested or [isa.default_ablation(arch, fields - fixed, _weight_bits(experiment)).name]]
    return [(names, isa.cleared_fields(arch, names, fields, fixed)) for names in groups]


def _weight_bits(experiment: Experiment) -> frozenset[int]:
    """Return the widths of the model's weights in bits; empty if they are unknown."""
    program = program_source(*experiment.first_model, experiment.models)
    if program is None:
        return WEIGHT_BITS[experiment.dtype]
    try:
        return runtime_of(program, experiment.first_model.runtime).weight_bits(program)
    except OpscopeError:
        return frozenset()  # who runs it says what is wrong with it


def _plan_on_and_off(experiment: Experiment, steps: Sequence[_Step], switch: Mechanism | None = None) -> list[Variant]:
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


def _plan_delegate_on_and_off(experiment: Experiment) -> list[Variant]:
    if experiment.ladder or experiment.ablate not in {(), (NOTHING_OFF,)}:
        hint = "leave out --ablate and --ladder, or choose --delegate xnnpack or none"
        raise UsageError("one comparison at a time: the delegate is switched already", where="--delegate", hint=hint)
    return _plan_on_and_off(experiment, [([], [])])


NEW, OLD = "new", "old"
"""Names of the variants of two programs."""


def _plan_two_programs(experiment: Experiment) -> list[Variant]:
    """Return the variants of a model and of the program that it is compared with, on the CPU as it is."""
    (threads,), cpus = experiment.thread_counts, experiment.cpus
    roles = {NEW: Role.CANDIDATE, OLD: Role.BASELINE}
    return [Variant(name, role, [], [], threads, cpus) for name, role in roles.items()]


def _plan_build_variants(experiment: Experiment) -> list[Variant]:
    if experiment.ladder or experiment.ablate not in {(), (NOTHING_OFF,)}:
        hint = "leave out --ablate and --ladder; compare two runners with `opscope run`"
        raise UsageError("features cannot be switched off in a foreign runner", where="--target", hint=hint)
    return [
        Variant(f"runner{suffix}", Role.CANDIDATE, None, [], threads, experiment.cpus)
        for threads, suffix in _thread_counts(experiment)
    ]


def _thread_counts(experiment: Experiment) -> list[tuple[int, str]]:
    """Return every thread count once, with its suffix for names of variants; empty for the only one."""
    counts = list(dict.fromkeys(experiment.thread_counts))
    return [(count, f"-t{count}" if len(counts) > 1 else "") for count in counts]


def check_threads(variants: Sequence[Variant], environment: Environment, *, oversubscribe: bool) -> None:
    """Refuse more threads than the target has usable CPUs, since they would wait for each other.

    One thread always fits; any number does where the number of usable CPUs is unknown.

    Raises:
        UsageError: a variant has too many threads.
    """
    if oversubscribe:
        return
    for variant in variants:
        check_thread_count(variant.threads, variant.affinity, environment)


def check_thread_count(threads: int | None, affinity: Sequence[int], environment: Environment) -> None:
    """Refuse a size of the thread pool; see :func:`check_threads`."""
    usable, reason = _count_usable_cpus(affinity, environment)
    if usable is not None and threads is not None and threads > max(1, usable):
        hint = f"at most {usable} here; --oversubscribe (in a file: oversubscribe = true) allows more"
        problem = f"{counted_text(threads, 'thread')} on {counted_text(usable, 'usable CPU')}{reason}"
        raise UsageError(f"{problem}: they would compete for CPUs", where="--threads", hint=hint)


def _count_usable_cpus(affinity: Sequence[int], environment: Environment) -> tuple[int | None, str]:
    """Return the number of CPUs that a process may use, and why there are no more; None if it is unknown."""
    usable, quota = environment.usable_cpus, environment.cpu_quota
    if affinity and (usable is None or len(affinity) < usable):
        return len(affinity), f" (affinity {', '.join(map(str, affinity))})"
    if usable is not None and quota is not None and quota < usable + 1:
        return usable, f" (cgroups limit it to {quota:g})"
    if usable is not None and environment.logical_cpus is not None and usable < environment.logical_cpus:
        return usable, f" (of {environment.logical_cpus}; this process cannot use the others)"
    return usable, ""
