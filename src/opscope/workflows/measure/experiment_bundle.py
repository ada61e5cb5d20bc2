"""The bundle of one experiment of a file: made, opened again, grown by more rounds; and where it runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.bundle import Bundle, check_free
from opscope.bundle.manifest import LeftOut, Manifest, Plan, Status, Tensor, Variant
from opscope.core.errors import BundleError
from opscope.core.version import __version__
from opscope.experiment.schedule import interleaved
from opscope.experiment.target_names import kind_named, parse_target
from opscope.experiment.variant_targets import VariantPlacement, VariantTargets
from opscope.hosts.target_kinds import ADB
from opscope.machine import isa
from opscope.machine.emulation import marked
from opscope.measurements.method_calls import planned_calls
from opscope.program.structure.plan import PlannedTensor as ProgramTensor
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from opscope.workflows.measure.model_files import bundled_files
from opscope.workflows.measure.phones import phone_runner
from opscope.workflows.measure.profiling import (
    PlannedVariants,
    Settings,
    described_model,
    exported_files,
    given_files,
    planned_variants,
    program_source,
    resumed_bundle,
    untraceable_reason,
    with_calls,
)
from opscope.workflows.measure.targets import target_named
from opscope.workflows.measure.threads import check_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.planned import Effort, Experiment, PlannedVariant
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.runtimes.executorch.runners.adb_runner import AdbRunnerTarget


def runs_builds(experiment: Experiment) -> bool:
    """Whether it runs builds of executor_runner, whose features are fixed and which always trace or never do."""
    kind = kind_named(experiment.target)
    return kind.only_builds or (kind.builds and any(variant.runner for variant in experiment.variants))


def target_of(experiment: Experiment, program: Path | None = None, given: RunTarget | None = None) -> RunTarget:
    """Where an experiment runs.

    Args:
        experiment: with its target, and the runners and CPUs of its variants.
        program: the .pte, by which runners' output values are read; None while it is not there yet.
        given: to run there instead of where the file says; runners apart.

    Raises:
        NotFoundError: there is no such runner.
        MissingDependencyError: the target's runtime, or a compiler for it, is missing.
        UsageError: the target is not available, or a runner cannot be used.
    """
    if runs_builds(experiment):
        inputs, outputs = _tensors(program) if program else ([], [])
        return VariantTargets(
            {
                v.name: VariantPlacement(build_of(experiment, v, inputs, outputs), v.affinity)
                for v in experiment.variants
            }
        )
    return given or target_named(experiment.target)


def pinned(target: RunTarget, experiment: Experiment, variants: list[Variant]) -> RunTarget:
    """The target, with every variant on the CPUs that the file gives it."""
    cpus = {variant.name: variant.affinity for variant in experiment.variants}
    places = {variant.name: cpus.get(variant.name, experiment.affinity) for variant in variants}
    if runs_builds(experiment) or not any(places.values()):
        return target
    return VariantTargets({name: VariantPlacement(target, affinity) for name, affinity in places.items()})


def build_of(
    experiment: Experiment, variant: PlannedVariant, inputs: Sequence[Tensor] = (), outputs: Sequence[Tensor] = ()
) -> ExecutorRunnerTarget | AdbRunnerTarget:
    """The build of executor_runner that runs a variant, where the experiment runs.

    Args:
        experiment: that runs builds.
        variant: of it.
        inputs: of the program's method.
        outputs: likewise.

    Raises:
        NotFoundError: there is no such runner.
        UsageError: it cannot be used.
        DeviceError: an Android device does not answer.
    """
    kind, address = parse_target(experiment.target, builds_named=True)
    if kind is ADB:
        return phone_runner(address, variant.runner or Path(), variant.arguments, inputs, outputs)
    return ExecutorRunnerTarget(variant.runner or Path(address), variant.arguments, inputs=inputs, outputs=outputs)


def _tensors(program: Path) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of the first method of a program; none where one is no tensor."""
    plan = read_executable(program).plans[0]
    sides = [[plan.values[number] for number in numbers] for numbers in (plan.inputs, plan.outputs)]
    inputs, outputs = ([Tensor(list(v.sizes), v.dtype.name) for v in s if isinstance(v, ProgramTensor)] for s in sides)
    return inputs, outputs if len(outputs) == len(sides[1]) else []


def check_source(experiment: Experiment) -> None:
    """Make sure that the model is there.

    Raises:
        NotFoundError: it is neither registered nor a file.
        TraceFormatError: the .pte is damaged.
    """
    program_source(experiment.model)


def new_bundle(path: Path, experiment: Experiment, target: RunTarget, clock: TimeSource) -> Bundle:
    """The bundle of an experiment that has not run yet, with its model exported where needed.

    Raises:
        OpscopeError: of the kind that fits; nothing is left behind.
    """
    variants, not_switched = planned_of(experiment, target)
    environment = target.environment()
    check_threads(variants, environment, oversubscribe=experiment.effort.oversubscribe)
    untraceable = untraceable_reason(target, untraced=experiment.effort.untraced)
    source = program_source(experiment.model)
    check_free(path)
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        model, environment = experiment.model, target.environment()
        given = exported_files(model, experiment.dtype, Path(work), path) if source is None else given_files(source)
        files = bundled_files(given, Path(work))
        calls = [] if runs_builds(experiment) else planned_calls(files[0], ())
        manifest = Manifest(
            opscope=__version__,
            created=clock.now().isoformat(timespec="seconds"),
            status=Status.RUNNING,
            model=described_model(model, source, files),
            plan=with_calls(_plan(experiment, variants, traced=untraceable is None), calls),
            variants=variants,
            target=marked(target.describe(), environment),
            environment=environment,
            repetitions=[],
            left_out=LeftOut(switch=not_switched, trace=untraceable),
        )
        return Bundle.create(path, manifest, files)


def old_bundle(path: Path, experiment: Experiment, target: RunTarget) -> Bundle:
    """The bundle of an experiment that has run before.

    Raises:
        BundleError: it is of other variants, or measured otherwise, than the file asks for now.
        OpscopeError: of the kind that fits.
    """
    bundle = resumed_bundle(path, experiment.model)
    manifest = bundle.manifest
    if manifest.variants != planned_of(experiment, target).variants:
        names = ", ".join(variant.name for variant in manifest.variants)
        hint = "name the same variants with --only, undo the change of the file, or choose another --out"
        raise BundleError(f"the bundle has other variants than the file asks for: {names}", where=path, hint=hint)
    asked = with_calls(_plan(experiment, manifest.variants, traced=True), manifest.plan.calls)
    for name in ("runs", "warmup", "seed"):
        if getattr(manifest.plan, name) != getattr(asked, name):
            problem = (
                f"the bundle was measured with {name} = {getattr(manifest.plan, name)}, not {getattr(asked, name)}"
            )
            raise BundleError(problem, where=path, hint="undo the change of the file, or choose another --out")
    return bundle


def planned_of(experiment: Experiment, target: RunTarget) -> PlannedVariants:
    """The variants as they run on the CPU of the target, with the CPUs they stay on.

    Raises:
        FeatureError: a feature group that the file names cannot be switched off.
    """
    cpus = {variant.name: variant.affinity for variant in experiment.variants}
    found = _unpinned(experiment, target)
    pinned_variants = [
        msgspec.structs.replace(variant, affinity=list(cpus.get(variant.name, experiment.affinity)))
        for variant in found.variants
    ]
    return found._replace(variants=pinned_variants)


def _unpinned(experiment: Experiment, target: RunTarget) -> PlannedVariants:
    if not experiment.variants:
        settings = Settings(ablate=experiment.ablate, ladder=experiment.ladder, threads=experiment.threads)
        return planned_variants(settings, target)
    listed = experiment.variants
    if runs_builds(experiment) or not any(variant.ablate for variant in listed):
        return PlannedVariants([Variant(v.name, v.role, [], [], v.threads) for v in listed])
    probed = target.probe()
    fields = frozenset(probed.fields)
    return PlannedVariants(
        [
            Variant(v.name, v.role, list(v.ablate), isa.cleared_fields(probed.arch, list(v.ablate), fields), v.threads)
            for v in listed
        ]
    )


def _plan(experiment: Experiment, variants: list[Variant], *, traced: bool) -> Plan:
    effort = experiment.effort
    names = [variant.name for variant in variants]
    empty = Plan(
        rounds=0,
        runs=effort.runs,
        warmup=effort.warmup,
        seed=effort.seed,
        order=[],
        timeout_seconds=effort.timeout_seconds,
    )
    untraced = effort.untraced and not runs_builds(experiment)
    return _with_rounds(empty, names, effort.rounds, arms=_Arms(traced, untraced))


def grow(bundle: Bundle, rounds: int) -> None:
    """Plan more rounds; the order of those that were planned before stays as it is.

    The plan is written with the next status of the bundle.
    """
    manifest = bundle.manifest
    names = [variant.name for variant in manifest.variants]
    arms = _Arms(manifest.left_out.trace is None, bool(manifest.plan.timed_order))
    plan = _with_rounds(manifest.plan, names, rounds, arms=arms)
    bundle.manifest = msgspec.structs.replace(manifest, plan=plan)


class _Arms(NamedTuple):
    """Whether repetitions with event tracing are planned, and whether those without are."""

    traced: bool
    untraced: bool


def _with_rounds(plan: Plan, names: list[str], rounds: int, *, arms: _Arms) -> Plan:
    """A plan of that many rounds, which begins like the one given: a seed's order of more rounds only goes on."""
    seed = plan.seed or 0
    traced = interleaved(names, rounds, seed) if arms.traced else [[] for _ in range(rounds)]
    timed = interleaved(names, rounds, seed + 1) if arms.untraced else []
    return msgspec.structs.replace(
        plan,
        rounds=rounds,
        order=[*plan.order, *traced[len(plan.order) :]],
        timed_order=[*plan.timed_order, *timed[len(plan.timed_order) :]],
    )


def rounds_wanted(bundle: Bundle, effort: Effort, *, enough: bool) -> int:
    """Rounds that a bundle should have: half as many more while it is not enough, up to the most that are allowed."""
    planned = bundle.manifest.plan.rounds
    if planned < effort.rounds:
        return effort.rounds
    if enough or not all(bundle.manifest.completed(variant.name) for variant in bundle.manifest.variants):
        return planned
    return max(planned, min(effort.most_rounds, planned + max(1, planned // 2)))
