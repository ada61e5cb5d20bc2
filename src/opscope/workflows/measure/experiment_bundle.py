"""The bundle of one experiment: made, opened again, grown by more rounds; and where it runs."""

from __future__ import annotations

import platform
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.bundle.bundle import MODEL, Bundle, check_free, program_home
from opscope.bundle.manifest import FailureKind, LeftOut, Manifest, Plan, Role, Status, VariantInputs
from opscope.bundle.settings import COMPARED, NOTHING_OFF, PACING
from opscope.core.errors import BundleError, MissingDependencyError, RunError, UsageError
from opscope.core.files import sha256_of
from opscope.core.printable import shell_command
from opscope.core.version import __version__
from opscope.experiment.engine import interleave_rounds, planned_job
from opscope.experiment.guesses import USUAL_INPUTS
from opscope.experiment.protocol import AS_IT_IS, OUTPUTS, Job
from opscope.experiment.target_names import parse_target
from opscope.hosts.target_kinds import AUTO
from opscope.machine import isa
from opscope.machine.environment import capture, marked
from opscope.machine.isa import check_name
from opscope.readers.outputs import read_arrays
from opscope.runtimes.registry import EXPORTER, RUNTIMES, runtime_of
from opscope.workflows.measure.program_inputs import (
    INPUTS,
    ProgramPlace,
    asked_calls,
    asked_inputs,
    called_methods,
    check_inputs,
    check_no_inputs,
    check_same_inputs,
    exported_files,
    guessed_inputs,
    inputs_in_words,
    program_source,
    shared_inputs,
    with_inputs,
)
from opscope.workflows.measure.resuming import (
    Contradiction,
    calls_contradiction,
    data_contradiction,
    dtype_contradiction,
    input_contradiction,
    setting_contradiction,
    target_contradiction,
)
from opscope.workflows.measure.targets import VariantTargets, target_running, targets_running
from opscope.workflows.measure.variants import OLD, check_thread_count, check_threads, control_name, variants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.manifest import Failure, Model, Target, Variant
    from opscope.bundle.settings import ExperimentSettings
    from opscope.experiment.guesses import UsualInputs
    from opscope.experiment.inputs import InputValue
    from opscope.experiment.planned import Experiment, PlannedModel, PlannedVariant
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array
    from opscope.machine.clock import TimeSource
    from opscope.runtimes.runtime import Runtime


_DATA = ".ptd"


def runs_builds(experiment: Experiment) -> bool:
    """Return whether the variants are builds of executor_runner, whose features are fixed."""
    target_name = parse_target(experiment.target, builds_named=True)
    are_builds = target_name.kind.only_builds or target_name.runner
    return target_name.kind.builds and any(are_builds or variant.runner for variant in experiment.variants)


def target_of(experiment: Experiment, program: Path | None = None, given: RunTarget | None = None) -> RunTarget:
    """Return where an experiment runs; ``given`` replaces what the experiment says, unless it runs builds."""
    check_runtime(experiment)
    if runs_builds(experiment):
        return VariantTargets({v.name: build_of(experiment, v, program) for v in experiment.variants})
    if given is not None:
        return given
    if not experiment.variants:
        other_models = [variant.model for variant in experiment.all_models[1:]]
        return target_running(
            experiment.model,
            experiment.target,
            *other_models,
            runtime=experiment.runtime,
            asked=partial(asked_calls, experiment),
        )
    models = experiment.models_by_variant
    # What is added to the variants of a file runs where the variant runs that it stands beside.
    models_of_all = {
        variant: model for name, model in models.items() for variant in (name, control_name(experiment, name))
    }
    target_by_variant = {name: (model, experiment.target) for name, model in models_of_all.items()}
    return targets_running(target_by_variant, partial(asked_calls, experiment))


def check_runtime(experiment: Experiment) -> None:
    """Refuse settings that the runtime of a model does not support."""
    used = [runtime_of(*planned) for planned in experiment.all_models]
    if experiment.against is not None and len(set(used)) > 1:
        problem = "the two models run in different runtimes"
        hint = "measure both in one file (see the page compare-two-runtimes), or profile each and compare the bundles"
        raise UsageError(problem, where=experiment.model, hint=hint)
    _check_options(experiment, used)
    if experiment.data is not None and not used[0].takes_data:
        problem = f"a {used[0].suffix} names its own weights file"
        raise UsageError(problem, where="--data", hint="leave it out")
    listed = experiment.variants or experiment.against is not None
    if used[0].chooses_delegate and experiment.delegate == "both" and listed:
        problem = "--delegate both makes the variants itself"
        raise UsageError(problem, where="--delegate", hint="choose xnnpack or none")


def _check_options(experiment: Experiment, used: Sequence[Runtime]) -> None:
    """Refuse options that no runtime of the experiment's models takes."""
    runtimes = {name: runtime_of(*planned) for name, planned in experiment.models_by_variant.items()}
    with_delegate = [v.name for v in experiment.variants if v.delegate is not None]
    variant_name = next((name for name in with_delegate if not runtimes[name].chooses_delegate), None)
    if variant_name or (experiment.delegate is not None and not any(runtime.chooses_delegate for runtime in used)):
        supporting = " or ".join(
            f"a {runtime.title} model ({runtime.suffix})" for runtime in RUNTIMES if runtime.chooses_delegate
        )
        problem = f"only {supporting} runs with and without a delegate"
        raise UsageError(
            problem, where=f"delegate of {variant_name}" if variant_name else "--delegate", hint="leave it out"
        )
    delegates = [
        (planned_variant.model or experiment.model, planned_variant.delegate or experiment.delegate)
        for planned_variant in experiment.variants
    ]
    for model, delegate in delegates or [(experiment.model, experiment.delegate)]:
        if delegate in {"none", "both"}:
            runtime_of(model).check_without_delegate(Path(model))
    variant_name = next((v.name for v in experiment.variants if v.options and not runtimes[v.name].has_options), None)
    if variant_name or (experiment.session_options and not any(runtime.has_options for runtime in used)):
        supporting = " or ".join(
            f"a model of {runtime.title} ({runtime.suffix})" for runtime in RUNTIMES if runtime.has_options
        )
        problem = f"only {supporting} has session options"
        where = f"session_options of {variant_name}" if variant_name else "session_options"
        raise UsageError(problem, where=where, hint="leave them out")
    for runtime in used:
        runtime.check_options(experiment.session_options)
    for variant in experiment.variants:
        runtimes[variant.name].check_options(variant.options)


def build_of(experiment: Experiment, variant: PlannedVariant, program: Path | None = None) -> RunTarget:
    """Return the build of executor_runner that runs a variant."""
    target_name = parse_target(experiment.target, builds_named=True)
    runtime = runtime_of(*experiment.models_by_variant[variant.name])
    return runtime.build(target_name, variant.runner, variant.arguments, program)


def check_request(path: Path, experiment: Experiment, given: RunTarget | None = None) -> None:
    """Refuse a request that is wrong whatever the machine says, before the machine is waited for."""
    check_free(path)
    asked_inputs(experiment)
    sources = [program_source(*planned, experiment.models) for planned in experiment.all_models]
    _check_sources(experiment, sources)
    if None in sources:
        EXPORTER.check_exporter()
    if not runs_builds(experiment):
        _check_inputs(experiment, sources)
    switched_off = (*experiment.ablate, *(name for variant in experiment.variants for name in variant.ablated or ()))
    kind = parse_target(experiment.target, builds_named=True).kind
    here_alone = given is None and not (kind.remote or kind.emulated)
    for name in switched_off:
        if name != NOTHING_OFF:
            check_name(name)
            if here_alone:
                isa.group(isa.architecture(platform.machine()), name)
    if here_alone and not experiment.oversubscribe:
        machine = capture(None)
        for threads in experiment.thread_counts:
            check_thread_count(threads, experiment.cpus, machine)


def _check_sources(experiment: Experiment, sources: Sequence[Path | None]) -> None:
    if sources[0] is None and experiment.data is not None:
        hint = "leave it out: opscope exports programs that contain their weights"
        raise UsageError("only a .pte has separate weights", where="--data", hint=hint)


def _check_inputs(experiment: Experiment, sources: Sequence[Path | None]) -> None:
    """Refuse inputs and methods that programs do not take, as far as can be known before a model is exported."""
    if sources[0] is None:
        return
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        check_inputs(
            experiment,
            [runtime_of(source).unpacked(source, Path(tempfile.mkdtemp(dir=work)))[0] for source in sources if source],
        )


def new_bundle(path: Path, experiment: Experiment, target: RunTarget, clock: TimeSource) -> tuple[Bundle, RunTarget]:
    """Create the bundle of an experiment that :func:`check_request` let through; return it and where it runs.

    A model is exported where needed. The target is another one if only that runs the exported program, unless the user
    named one.
    """
    variants, not_switched = variants_of(experiment, target)
    check_threads(variants, target.environment(), oversubscribe=experiment.oversubscribe)
    untraceable = _find_untraceable_reason(target, experiment)
    models = experiment.all_models
    sources = [program_source(*planned, experiment.models) for planned in models]
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        programs = [
            _obtain_program(experiment, planned, source, Path(tempfile.mkdtemp(dir=work)), path)
            for planned, source in zip(models, sources, strict=True)
        ]
        if experiment.against is None:
            _check_unlike(programs)
        first, owners = programs[0], _map_variants_by_model(experiment, variants)
        # The files of a program lie under the name of the first variant that runs it.
        program_by_home = {owners[program.planned][0]: program for program in programs[1:]}
        try:
            _check_operators_of_all(programs, owners, target, variants[0].name)
        except MissingDependencyError:
            if not _chosen_for_us(experiment, programs):
                raise
            model, *rest = (str(program.files[0]) for program in programs)
            target = target_running(model, experiment.target, *rest)
            _check_operators_of_all(programs, owners, target, variants[0].name)
            variants, not_switched = variants_of(experiment, target)
            untraceable = _find_untraceable_reason(target, experiment)
        plan = _make_plan(experiment, variants, target, _choose_calls(experiment, target, first.files[0]))
        plan = _with_inputs(plan, experiment, target.of(variants[0].name), first, Path(work))
        if experiment.against is not None:
            for program in program_by_home.values():
                calls = _choose_calls(experiment, target, program.files[0])
                check_same_inputs(plan, experiment, (first.files[0], program.files[0]), calls)
        shared = {} if experiment.against is not None else _plan_other_calls(experiment, plan, programs, Path(work))
        plan = msgspec.structs.replace(plan, inputs_of=_list_differing_inputs(plan, shared, owners))
        environment = target.environment()
        manifest = Manifest(
            opscope=__version__,
            created=clock.now().isoformat(timespec="seconds"),
            status=Status.RUNNING,
            model=first.described(MODEL),
            plan=plan,
            variants=variants,
            target=marked(target.describe(), environment),
            environment=environment,
            repetitions=[],
            left_out=LeftOut(not_switched, untraceable, target.capabilities().stand_in),
            programs={
                name: program.described(program_home(home))
                for home, program in program_by_home.items()
                for name in owners[program.planned]
            },
            request=experiment.request,
            device=experiment.device,
            targets=_find_differing_targets(target, variants),
        )
        for variant in variants:
            target.of(variant.name).check_honoured(planned_job(manifest, path, variant, traced=False))
        own_files = {
            home: [*program.files, *(shared[program.planned][1] if program.planned in shared else [])]
            for home, program in program_by_home.items()
        }
        files = [*first.files, Path(work) / INPUTS] if plan.values else first.files
        return Bundle.create(path, manifest, files, own_files), target


def _chosen_for_us(experiment: Experiment, programs: Sequence[_Program]) -> bool:
    """Return whether the target of all variants was left to opscope, and a model was exported after it was chosen."""
    free = parse_target(experiment.target, builds_named=True).kind is AUTO and not experiment.variants
    return free and any(program.source is None for program in programs)


def _with_inputs(plan: Plan, experiment: Experiment, target: RunTarget, program: _Program, work: Path) -> Plan:
    """Return a plan with its inputs, whose values are left in ``work``.

    Of several guesses it has the first with which the program runs once and computes finite numbers, else the first
    with which it runs.

    Raises UsageError: the program runs with none of the guesses.
    """
    if target.capabilities().is_build:
        check_no_inputs(experiment)
        return plan
    path = program.files[0]

    def plan_with(guess: UsualInputs) -> Plan:
        return with_inputs(plan, experiment, path, work, program.inputs, guess)

    first = plan_with(USUAL_INPUTS[0])
    if not (experiment.guess_inputs and guessed_inputs(path, first, experiment.input)):
        return first
    trials = _try_guesses(plan_with, target, program, work)
    ran = [trial for trial in trials if trial.failure is None]
    if not ran:
        failure = trials[0].failure
        if failure is not None and failure.kind in {FailureKind.EXIT, FailureKind.SIGNAL}:
            raise _refused_guess(path, trials[0].plan, failure, experiment.input)
        return plan_with(trials[0].guess)  # the machine is at fault, and the run says how
    chosen = next((trial for trial in ran if trial.is_finite), ran[0])
    guesses = guessed_inputs(path, chosen.plan, experiment.input)
    words_that_ran = [word for trial in ran for word in guessed_inputs(path, trial.plan, experiment.input)]
    refused_guesses = [word for word in words_that_ran if word not in guesses]
    return msgspec.structs.replace(plan_with(chosen.guess), guesses=guesses, refused_guesses=refused_guesses)


class _Trial(NamedTuple):
    """One run of a program with guessed inputs."""

    guess: UsualInputs
    plan: Plan
    failure: Failure | None  # why it did not run
    is_finite: bool  # whether it ran, and all numbers that it computed are finite


def _try_guesses(
    plan_with: Callable[[UsualInputs], Plan], target: RunTarget, program: _Program, work: Path
) -> list[_Trial]:
    """Run a program with one guess after the other until it computes finite numbers.

    The opposite masks are tried only where these sizes ran: what a mask hides does not change whether sizes fit.
    """
    trials: list[_Trial] = []
    for usual in USUAL_INPUTS:
        for guess in (usual, usual.with_opposite_masks()):
            plan = plan_with(guess)
            if any(plan == trial.plan for trial in trials):
                continue
            failure, outputs = _run_once(plan, target, program, work)
            trials.append(_Trial(guess, plan, failure, failure is None and all(map(_is_finite, outputs))))
            if trials[-1].is_finite:
                return trials
            if failure is not None:
                break
    return trials


def _is_finite(array: Array) -> bool:
    return not np.issubdtype(array.dtype, np.floating) or bool(np.isfinite(array).all())


def _refused_guess(program: Path, plan: Plan, failure: Failure, asked: Sequence[str]) -> UsageError:
    """Return the error that begins with what was guessed."""
    guess = ", ".join(guessed_inputs(program, plan, asked))
    line = inputs_in_words(program, plan)[1]
    problem = f"the inputs were guessed as {guess}, and the model does not run with them: {failure.message}"
    return UsageError(problem, where=program.name, hint=f"give inputs that it accepts, by editing these: {line}")


def tried_once(experiment: Experiment, target: RunTarget, source: Path, work: Path) -> tuple[Plan, Failure | None]:
    """Run a program once with all CPU features and the inputs that an experiment asks for.

    Returns:
        The plan of that run, and why it failed; None if it succeeded.

    Raises:
        UsageError: what is asked for does not fit the program, or its operators are not there.
    """
    program, plan = _single_plan(experiment, target, source, work)
    return plan, _run_once(plan, target, program, work)[0]


def counting_job(experiment: Experiment, target: RunTarget, work: Path) -> tuple[list[Path], Job]:
    """Return the files of a model, its program first, and a traced job of two inferences with the first as warm-up.

    Raises:
        UsageError: what is asked for does not fit the program, or its operators are not there.
    """
    source = program_source(*experiment.first_model, experiment.models)
    program, plan = _single_plan(experiment, target, source, work)
    call_count = len(plan.calls) or 1
    job = _single_job(plan, program, work)
    return program.files, msgspec.structs.replace(job, traced=True, inferences=2 * call_count, warmup=call_count)


def _single_plan(experiment: Experiment, target: RunTarget, source: Path | None, work: Path) -> tuple[_Program, Plan]:
    """Return a program and the plan of a single run of it, with the inputs that an experiment asks for."""
    program = _obtain_program(experiment, experiment.first_model, source, work, work)
    _check_operators(program.files[0], target)
    calls = _choose_calls(experiment, target, program.files[0])
    empty = Plan(rounds=0, runs=1, warmup=0, seed=0, order=[], timeout_seconds=experiment.timeout, calls=calls)
    return program, _with_inputs(empty, experiment, target, program, work)


def _single_job(plan: Plan, program: _Program, work: Path) -> Job:
    """Return the job that calls every method once with the inputs of a plan."""
    return Job(
        program=str(program.files[0]),
        variant=AS_IT_IS,
        inferences=len(plan.calls) or 1,
        seed=plan.seed or 0,
        timeout_seconds=plan.timeout_seconds or 0.0,
        traced=False,
        calls=tuple(plan.calls),
        inputs=tuple(plan.inputs),
        values=str(work / INPUTS) if plan.values else None,
        data=next((str(file) for file in program.files[1:] if file.suffix == _DATA), None),
    )


def _run_once(plan: Plan, target: RunTarget, program: _Program, work: Path) -> tuple[Failure | None, Sequence[Array]]:
    """Run a program once with the inputs of a plan; return why it failed, None if it ran, and its outputs."""
    job = _single_job(plan, program, work)
    with tempfile.TemporaryDirectory(dir=work) as directory:
        failure = target.execute(job, Path(directory)).failure
        outputs = Path(directory) / OUTPUTS
        has_outputs = failure is None and outputs.is_file()
        return failure, list(read_arrays(outputs).values()) if has_outputs else []


class _Program(NamedTuple):
    """A program to run, with the files that a bundle keeps of it."""

    planned: PlannedModel  # as it was named, and what runs it
    source: Path | None  # the file that was named; None for a model that was exported
    files: list[Path]  # the program first
    inputs: Mapping[str, Sequence[InputValue]]  # that came with it, by method

    def described(self, home: str) -> Model:
        """Describe the program for a manifest whose files lie in the directory ``home`` of the bundle."""
        return runtime_of(self.files[0]).described(self.planned.model, self.source, self.files, home)


def _check_unlike(programs: Sequence[_Program]) -> None:
    """Refuse one program under two names in one runtime."""
    models: dict[tuple[str, str], PlannedModel] = {}
    for program in programs:
        name = program.planned.model
        runs = sha256_of(program.files[0]), runtime_of(program.files[0], program.planned.runtime).name
        earlier = models.setdefault(runs, program.planned)
        if earlier != program.planned:
            hint = "name two different programs, or measure this one with `opscope profile`"
            raise UsageError(f"{name} is the same program as {earlier.model}", where=name, hint=hint)


def _map_variants_by_model(experiment: Experiment, variants: Sequence[Variant]) -> dict[PlannedModel, list[str]]:
    """Return the names of the variants that run each model, for all models but the experiment's first."""
    if experiment.against is not None:
        return {experiment.all_models[-1]: [OLD]}
    owners: dict[PlannedModel, list[str]] = {}
    variant_names = {variant.name for variant in variants}
    for name, model in experiment.models_by_variant.items():
        if model != experiment.first_model:
            owners.setdefault(model, []).extend(
                planned_name for planned_name in (name, control_name(experiment, name)) if planned_name in variant_names
            )
    return owners


def _find_differing_targets(target: RunTarget, variants: Sequence[Variant]) -> dict[str, Target]:
    """Describe the targets of the variants that do not run where the first variant runs."""
    targets = {variant.name: target.of(variant.name).describe() for variant in variants}
    return {
        name: target_description
        for name, target_description in targets.items()
        if target_description != targets[variants[0].name]
    }


def _plan_other_calls(
    experiment: Experiment, plan: Plan, programs: Sequence[_Program], work: Path
) -> dict[PlannedModel, tuple[VariantInputs, list[Path]]]:
    """Return calls, inputs and files of the programs after the first, by their models."""
    calls = {}
    for number, program in enumerate(programs[1:], 1):
        program_place = ProgramPlace(
            program.files[0],
            work / f"inputs-{number}",
            program_home(
                next(name for name, model in experiment.models_by_variant.items() if model == program.planned)
            ),
        )
        program_place.work.mkdir()
        values = work / INPUTS if plan.values else None
        calls[program.planned] = shared_inputs(plan, experiment, programs[0].files[0], program_place, values)
    return calls


def _list_differing_inputs(
    plan: Plan,
    shared: Mapping[PlannedModel, tuple[VariantInputs, list[Path]]],
    owners: Mapping[PlannedModel, Sequence[str]],
) -> dict[str, VariantInputs]:
    """Return calls and inputs of the variants whose calls or inputs are not those of the plan."""
    usual = VariantInputs(plan.inputs, plan.values, plan.values_sha256, plan.calls)
    return {name: calls for model, (calls, _) in shared.items() if calls != usual for name in owners[model]}


def _obtain_program(
    experiment: Experiment, planned: PlannedModel, source: Path | None, work: Path, out: Path
) -> _Program:
    """Return a program, exported if it has to be; files that differ from the given ones are written to ``work``."""
    runtime, model = runtime_of(*planned), planned.model
    inputs: Mapping[str, Sequence[InputValue]] = {}
    if source is None:
        files = exported_files(msgspec.structs.replace(experiment, model=model), work, out)
    else:
        source_runtime, runtime = runtime_of(source), runtime_of(source, planned.runtime)
        source, inputs = source_runtime.unpacked(source, work)
        data = experiment.data if model == experiment.model else None
        files = runtime.files(source, Path(data) if data else None)
    return _Program(planned, source, runtime.kept_files(files, work), inputs)


def _check_operators_of_all(
    programs: Sequence[_Program], owners: Mapping[PlannedModel, Sequence[str]], target: RunTarget, default_variant: str
) -> None:
    """Refuse programs with operators that the runtime of their first variant does not have."""
    for program in programs:
        _check_operators(program.files[0], target.of(owners.get(program.planned, [default_variant])[0]))


def _check_operators(program: Path, target: RunTarget) -> None:
    """Refuse a program that calls operators which the target's runtime lacks, as far as that is known."""
    libraries = target.capabilities().libraries
    if libraries is not None:
        runtime_of(program).check_registered(program, libraries(), f"the target {target.describe().kind}")


def _find_untraceable_reason(target: RunTarget, settings: ExperimentSettings) -> str | None:
    """Return in a sentence why the target traces nothing; None if it does."""
    reason = target.capabilities().untraceable
    if reason and not settings.untraced:
        raise MissingDependencyError(reason, hint="leave out --traced-only: it can only run untraced here")
    return reason


def _choose_calls(experiment: Experiment, target: RunTarget, program: Path) -> list[str]:
    """Return the methods that each process calls; empty for a user's own build, unless methods are named."""
    chooses = target.capabilities().is_build and not experiment.methods
    return [] if chooses else called_methods(experiment, program)


def _make_plan(experiment: Experiment, variants: list[Variant], target: RunTarget, calls: list[str]) -> Plan:
    """Return the plan of all rounds; its runs and warm-up count single calls."""
    call_count = len(calls) or 1
    empty = Plan(
        rounds=0,
        runs=experiment.runs * call_count,
        warmup=experiment.warmup * call_count,
        seed=experiment.seed,
        order=[],
        timeout_seconds=experiment.timeout,
        calls=calls,
    )
    names = [variant.name for variant in variants]
    traced = target.capabilities().untraceable is None
    return _with_rounds(empty, names, experiment.rounds, traced=traced, timed=_timed_untraced(experiment, target))


def resumed_bundle(path: Path, model: str, against: str | None = None) -> Bundle:
    """Open the bundle to finish.

    Raises:
        UsageError: it is of another model.
        BundleError: its plan names a variant that it does not have.
        RunError: its program was changed.
    """
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    if model not in (manifest.model.source, manifest.model.name):
        again = ["--out", str(path), *manifest.words_of_target, "--resume"]
        if against is None:
            hint = shell_command(["opscope", "profile", manifest.model.source, *again])
        else:
            hint = shell_command(["opscope", "check", manifest.model.source, "--against", against, *again])
        raise UsageError(f"the bundle is for {manifest.model.source}, not for {model}", where=path, hint=hint)
    other_sources = [program_model.source for program_model in manifest.programs.values()]
    if against is not None and against not in other_sources:
        problem = f"the bundle is for {manifest.model.source} against {' and '.join(other_sources) or 'nothing'}"
        raise UsageError(f"{problem}, not against {against}", where=path, hint="choose another --out")
    for program_model in manifest.models.values():
        _check_unchanged(bundle, program_model)
    names = {variant.name for variant in manifest.variants}
    if unknown := sorted(
        {name for order in (*manifest.plan.order, *manifest.plan.timed_order) for name in order} - names
    ):
        problem = f"the plan of the bundle names {unknown[0]!r}, which is not one of its variants"
        raise BundleError(problem, where=path, hint="profile into a new --out; `opscope validate` shows what is wrong")
    return bundle


def _check_unchanged(bundle: Bundle, model: Model) -> None:
    """Refuse a program, or separate weights, that are missing or changed."""
    program = bundle.path / model.program
    if not program.exists() or sha256_of(program) != model.sha256:
        raise RunError("the bundle's program is missing or changed", where=program, hint="profile into a new --out")
    data = bundle.path / model.data if model.data else None
    if data is not None and (not data.exists() or sha256_of(data) != model.data_sha256):
        problem = "the weights of the bundle's program are missing or changed"
        raise RunError(problem, where=data, hint="profile into a new --out")


def old_bundle(path: Path, experiment: Experiment, target: RunTarget) -> Bundle:
    """Open the bundle of an experiment that has run before.

    Raises:
        BundleError: its file asks for something else now.
    """
    bundle = resumed_bundle(path, experiment.model)
    manifest = bundle.manifest
    # Whether there is a variant without the mechanism depends on what earlier bundles have shown.
    wanted, _ = variants_of(experiment, target)
    recorded, variants = ([v for v in side if v.role is not Role.CONTROL] for side in (manifest.variants, wanted))
    _check_models(manifest, experiment, path)
    if recorded != variants:
        names, now = (", ".join(map(_variant_text, some)) for some in (recorded, variants))
        hint = "name the same variants with --only, undo the change of the file, or choose another --out"
        problem = f"the bundle's variants differ from the file's: {names}; requested: {now}"
        raise BundleError(problem, where=path, hint=hint)
    plan, call_count = manifest.plan, len(manifest.plan.calls) or 1
    requested = {
        "runs": experiment.runs * call_count,
        "warmup": experiment.warmup * call_count,
        "seed": experiment.seed,
        "timeout_seconds": experiment.timeout,
    }
    for name, value in requested.items():
        if getattr(plan, name) != value:
            label = name.removesuffix("_seconds")  # as the key of a file
            problem = f"the bundle was measured with {label} = {getattr(plan, name)}, not {value}"
            raise BundleError(problem, where=path, hint=_UNDO)
    contradictions = {
        "target": target_contradiction(manifest, target.describe().name),
        "dtype": dtype_contradiction(manifest, experiment),
        "inputs": input_contradiction(bundle, experiment),
        "data": data_contradiction(manifest, experiment),
        "methods": calls_contradiction(
            manifest, _choose_calls(experiment, target, bundle.path / manifest.model.program)
        ),
        **{name: setting_contradiction(manifest, experiment, name) for name in COMPARED},
        "untraced": _arms_contradiction(manifest, experiment, target),
    }
    for name, contradiction in contradictions.items():
        if contradiction is not None:
            problem = f"{name}: the bundle was measured with {contradiction.recorded}, not with {contradiction.asked}"
            raise BundleError(problem, where=path, hint=_UNDO)
    return bundle


def _check_models(manifest: Manifest, experiment: Experiment, path: Path) -> None:
    """Refuse a file whose variants run other models than those of the bundle."""
    for name, model in experiment.models_by_variant.items():
        recorded = manifest.model_of(name)
        if model.model not in (recorded.source, recorded.name):
            raise BundleError(
                f"{name} was measured with {recorded.source}, not with {model.model}", where=path, hint=_UNDO
            )


def remember(bundle: Bundle, settings: ExperimentSettings) -> None:
    """Record in the bundle how this run is paced; it is written with the next status of the bundle."""
    request = bundle.manifest.request
    if request is None:
        return
    request = msgspec.structs.replace(request, **{name: getattr(settings, name) for name in (*PACING, "ceilings")})
    bundle.manifest = msgspec.structs.replace(bundle.manifest, request=request)


_UNDO = "undo the change of the file, or choose another --out"


def _variant_text(variant: Variant) -> str:
    """Return a variant's name with all that distinguishes it from another of that name."""
    role = variant.role.value if variant.role else "no role"
    off = f"without {', '.join(variant.ablated)}" if variant.ablated else "nothing off"
    cpus = f", CPUs {', '.join(map(str, variant.affinity))}" if variant.affinity else ""
    return f"{variant.name} ({role}, {off}, threads {variant.threads}{cpus})"


def _arms_contradiction(manifest: Manifest, experiment: Experiment, target: RunTarget) -> Contradiction | None:
    """Return the contradiction if untraced runs were planned and are not requested now, or the other way round."""
    planned, requested = bool(manifest.plan.timed_order), _timed_untraced(experiment, target)
    return None if planned == requested else Contradiction(str(planned).lower(), str(requested).lower())


def _timed_untraced(experiment: Experiment, target: RunTarget) -> bool:
    """Return whether variants are also timed without tracing."""
    # Of several builds, one may have tracing built in and another not: the traced runs are what all of them have.
    return experiment.untraced and not target.capabilities().always_traces and not runs_builds(experiment)


def grow(bundle: Bundle, rounds: int) -> None:
    """Plan more rounds; the order of those that were planned before stays as it is.

    The plan is written with the next status of the bundle.
    """
    manifest = bundle.manifest
    names = [variant.name for variant in manifest.variants]
    traced, timed = manifest.left_out.trace is None, bool(manifest.plan.timed_order)
    plan = _with_rounds(manifest.plan, names, rounds, traced=traced, timed=timed)
    bundle.manifest = msgspec.structs.replace(manifest, plan=plan)


def _with_rounds(plan: Plan, names: list[str], rounds: int, *, traced: bool, timed: bool) -> Plan:
    """Return a plan of so many rounds with event tracing, without it, or both.

    The rounds that the given plan has stay as they are: the seed's order only goes on.
    """
    seed = plan.seed or 0
    order = interleave_rounds(names, rounds, seed) if traced else [[] for _ in range(rounds)]
    timed_order = interleave_rounds(names, rounds, seed + 1) if timed else []
    return msgspec.structs.replace(
        plan,
        rounds=rounds,
        order=[*plan.order, *order[len(plan.order) :]],
        timed_order=[*plan.timed_order, *timed_order[len(plan.timed_order) :]],
    )
