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
    """Whether its variants are builds of executor_runner, whose features are fixed and which may trace or not."""
    named = parse_target(experiment.target, builds_named=True)
    own = named.kind.only_builds or named.runner
    return named.kind.builds and any(own or variant.runner for variant in experiment.variants)


def target_of(experiment: Experiment, program: Path | None = None, given: RunTarget | None = None) -> RunTarget:
    """Where an experiment runs."""
    check_runtime(experiment)
    if runs_builds(experiment):
        return VariantTargets({v.name: build_of(experiment, v, program) for v in experiment.variants})
    if given is not None:
        return given
    if not experiment.variants:
        others = [one.model for one in experiment.all_models[1:]]
        return target_running(
            experiment.model,
            experiment.target,
            *others,
            runtime=experiment.runtime,
            asked=partial(asked_calls, experiment),
        )
    models = experiment.models_by_variant
    # What is added to the variants of a file runs where the variant runs that it stands beside.
    every = {one: model for name, model in models.items() for one in (name, control_name(experiment, name))}
    places = {name: (model, experiment.target) for name, model in every.items()}
    return targets_running(places, partial(asked_calls, experiment))


def check_runtime(experiment: Experiment) -> None:
    """Refuse what the runtime of a model does not do."""
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
    """Refuse options of runtimes that run none of the models that they are for."""
    of = {name: runtime_of(*planned) for name, planned in experiment.models_by_variant.items()}
    named = [v.name for v in experiment.variants if v.delegate is not None]
    wrong = next((name for name in named if not of[name].chooses_delegate), None)
    if wrong or (experiment.delegate is not None and not any(one.chooses_delegate for one in used)):
        able = " or ".join(f"a {one.title} model ({one.suffix})" for one in RUNTIMES if one.chooses_delegate)
        problem = f"only {able} runs with and without a delegate"
        raise UsageError(problem, where=f"delegate of {wrong}" if wrong else "--delegate", hint="leave it out")
    asked = [
        (planned_variant.model or experiment.model, planned_variant.delegate or experiment.delegate)
        for planned_variant in experiment.variants
    ]
    for model, delegate in asked or [(experiment.model, experiment.delegate)]:
        if delegate in {"none", "both"}:
            runtime_of(model).check_without_delegate(Path(model))
    wrong = next((v.name for v in experiment.variants if v.options and not of[v.name].has_options), None)
    if wrong or (experiment.session_options and not any(one.has_options for one in used)):
        able = " or ".join(f"a model of {one.title} ({one.suffix})" for one in RUNTIMES if one.has_options)
        problem = f"only {able} has session options"
        where = f"session_options of {wrong}" if wrong else "session_options"
        raise UsageError(problem, where=where, hint="leave them out")
    for runtime in used:
        runtime.check_options(experiment.session_options)
    for variant in experiment.variants:
        of[variant.name].check_options(variant.options)


def build_of(experiment: Experiment, variant: PlannedVariant, program: Path | None = None) -> RunTarget:
    """The build of executor_runner that runs a variant, where the experiment runs."""
    named = parse_target(experiment.target, builds_named=True)
    runtime = runtime_of(*experiment.models_by_variant[variant.name])
    return runtime.build(named, variant.runner, variant.arguments, program)


def check_request(path: Path, experiment: Experiment, given: RunTarget | None = None) -> None:
    """Refuse what is wrong whatever the machine says, before it is waited for."""
    check_free(path)
    asked_inputs(experiment)
    sources = [program_source(*planned, experiment.models) for planned in experiment.all_models]
    _check_sources(experiment, sources)
    if None in sources:
        EXPORTER.check_exporter()
    if not runs_builds(experiment):
        _check_inputs(experiment, sources)
    asked = (*experiment.ablate, *(name for variant in experiment.variants for name in variant.ablated or ()))
    kind = parse_target(experiment.target, builds_named=True).kind
    here_alone = given is None and not (kind.remote or kind.emulated)
    for name in asked:
        if name != NOTHING_OFF:
            check_name(name)
            if here_alone:
                isa.group(isa.architecture(platform.machine()), name)
    if here_alone and not experiment.oversubscribe:
        here = capture(None)
        for threads in experiment.thread_counts:
            check_thread_count(threads, experiment.cpus, here)


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
    """The bundle of an experiment that :func:`check_request` let through, with its model exported where needed.

    And where it runs, which is another target if only that runs what was exported and the choice was opscope's.
    """
    variants, not_switched = variants_of(experiment, target)
    check_threads(variants, target.environment(), oversubscribe=experiment.oversubscribe)
    untraceable = _untraceable(target, experiment)
    models = experiment.all_models
    sources = [program_source(*one, experiment.models) for one in models]
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        programs = [
            _program(experiment, one, source, Path(tempfile.mkdtemp(dir=work)), path)
            for one, source in zip(models, sources, strict=True)
        ]
        if experiment.against is None:
            _check_unlike(programs)
        first, owners = programs[0], _owners(experiment, variants)
        # The files of a program lie under the name of the first variant that runs it.
        others = {owners[program.planned][0]: program for program in programs[1:]}
        try:
            _check_all_registered(programs, owners, target, variants[0].name)
        except MissingDependencyError:
            if not _chosen_for_us(experiment, programs):
                raise
            model, *rest = (str(program.files[0]) for program in programs)
            target = target_running(model, experiment.target, *rest)
            _check_all_registered(programs, owners, target, variants[0].name)
            variants, not_switched = variants_of(experiment, target)
            untraceable = _untraceable(target, experiment)
        plan = _plan(experiment, variants, target, _calls(experiment, target, first.files[0]))
        plan = _with_inputs(plan, experiment, target.of(variants[0].name), first, Path(work))
        if experiment.against is not None:
            for program in others.values():
                calls = _calls(experiment, target, program.files[0])
                check_same_inputs(plan, experiment, (first.files[0], program.files[0]), calls)
        shared = {} if experiment.against is not None else _own_calls(experiment, plan, programs, Path(work))
        plan = msgspec.structs.replace(plan, inputs_of=_unlike_plan(plan, shared, owners))
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
                for home, program in others.items()
                for name in owners[program.planned]
            },
            request=experiment.request,
            device=experiment.device,
            targets=_own_targets(target, variants),
        )
        for variant in variants:
            target.of(variant.name).check_honoured(planned_job(manifest, path, variant, traced=False))
        own_files = {
            home: [*program.files, *(shared[program.planned][1] if program.planned in shared else [])]
            for home, program in others.items()
        }
        files = [*first.files, Path(work) / INPUTS] if plan.values else first.files
        return Bundle.create(path, manifest, files, own_files), target


def _chosen_for_us(experiment: Experiment, programs: Sequence[_Program]) -> bool:
    """Whether the target of all variants was left to opscope, which chose it before a model was exported."""
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
    """One run of a program with all CPU features and the inputs that an experiment asks for; None: it succeeded.

    Raises a UsageError where what is asked for does not fit the program, or its operators are not there.
    """
    program, plan = _single_plan(experiment, target, source, work)
    return plan, _run_once(plan, target, program, work)[0]


def counting_job(experiment: Experiment, target: RunTarget, work: Path) -> tuple[list[Path], Job]:
    """The files of a model, its program first, and the traced run of two inferences that an experiment asks for.

    Raises a UsageError where what is asked for does not fit the program, or its operators are not there.
    """
    source = program_source(*experiment.first_model, experiment.models)
    program, plan = _single_plan(experiment, target, source, work)
    each = len(plan.calls) or 1
    job = _single_job(plan, program, work)
    return program.files, msgspec.structs.replace(job, traced=True, inferences=2 * each, warmup=each)


def _single_plan(experiment: Experiment, target: RunTarget, source: Path | None, work: Path) -> tuple[_Program, Plan]:
    """A program and the plan of one run of it, with the inputs that an experiment asks for."""
    program = _program(experiment, experiment.first_model, source, work, work)
    _check_registered(program.files[0], target)
    calls = _calls(experiment, target, program.files[0])
    empty = Plan(rounds=0, runs=1, warmup=0, seed=0, order=[], timeout_seconds=experiment.timeout, calls=calls)
    return program, _with_inputs(empty, experiment, target, program, work)


def _single_job(plan: Plan, program: _Program, work: Path) -> Job:
    """One call of every method, with the inputs of a plan."""
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
    """A program to run, as a bundle keeps it."""

    planned: PlannedModel  # as it was named, and what runs it
    source: Path | None  # the file that was named; None for a model that was exported
    files: list[Path]  # the program first
    inputs: Mapping[str, Sequence[InputValue]]  # that came with it, by method

    def described(self, home: str) -> Model:
        """What a manifest says of it, where its files lie in this directory of the bundle."""
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


def _owners(experiment: Experiment, variants: Sequence[Variant]) -> dict[PlannedModel, list[str]]:
    """Names of the variants that run each model, where it is not the one of the experiment."""
    if experiment.against is not None:
        return {experiment.all_models[-1]: [OLD]}
    owners: dict[PlannedModel, list[str]] = {}
    there = {variant.name for variant in variants}
    for name, model in experiment.models_by_variant.items():
        if model != experiment.first_model:
            owners.setdefault(model, []).extend(n for n in (name, control_name(experiment, name)) if n in there)
    return owners


def _own_targets(target: RunTarget, variants: Sequence[Variant]) -> dict[str, Target]:
    """Where variants run that do not run where the first one does."""
    targets = {variant.name: target.of(variant.name).describe() for variant in variants}
    return {name: one for name, one in targets.items() if one != targets[variants[0].name]}


def _own_calls(
    experiment: Experiment, plan: Plan, programs: Sequence[_Program], work: Path
) -> dict[PlannedModel, tuple[VariantInputs, list[Path]]]:
    """What the programs behind the first one are called with, by their models."""
    calls = {}
    for number, program in enumerate(programs[1:], 1):
        place = ProgramPlace(
            program.files[0],
            work / f"inputs-{number}",
            program_home(
                next(name for name, model in experiment.models_by_variant.items() if model == program.planned)
            ),
        )
        place.work.mkdir()
        values = work / INPUTS if plan.values else None
        calls[program.planned] = shared_inputs(plan, experiment, programs[0].files[0], place, values)
    return calls


def _unlike_plan(
    plan: Plan,
    shared: Mapping[PlannedModel, tuple[VariantInputs, list[Path]]],
    owners: Mapping[PlannedModel, Sequence[str]],
) -> dict[str, VariantInputs]:
    """Calls and inputs of the variants where they are not those of the plan."""
    usual = VariantInputs(plan.inputs, plan.values, plan.values_sha256, plan.calls)
    return {name: calls for model, (calls, _) in shared.items() if calls != usual for name in owners[model]}


def _program(experiment: Experiment, planned: PlannedModel, source: Path | None, work: Path, out: Path) -> _Program:
    """A program, exported where needed; what differs from the files that were given is written to ``work``."""
    runtime, model = runtime_of(*planned), planned.model
    inputs: Mapping[str, Sequence[InputValue]] = {}
    if source is None:
        given = exported_files(msgspec.structs.replace(experiment, model=model), work, out)
    else:
        own, runtime = runtime_of(source), runtime_of(source, planned.runtime)
        source, inputs = own.unpacked(source, work)
        data = experiment.data if model == experiment.model else None
        given = runtime.files(source, Path(data) if data else None)
    return _Program(planned, source, runtime.kept_files(given, work), inputs)


def _check_all_registered(
    programs: Sequence[_Program], owners: Mapping[PlannedModel, Sequence[str]], target: RunTarget, usual: str
) -> None:
    """The same of each program, with the first variant that runs it: its own one, or the usual one."""
    for program in programs:
        _check_registered(program.files[0], target.of(owners.get(program.planned, [usual])[0]))


def _check_registered(program: Path, target: RunTarget) -> None:
    """Refuse a program that calls what the target's runtime does not have, where that can be known."""
    libraries = target.capabilities().libraries
    if libraries is not None:
        runtime_of(program).check_registered(program, libraries(), f"the target {target.describe().kind}")


def _untraceable(target: RunTarget, settings: ExperimentSettings) -> str | None:
    """Why the target traces nothing, as one sentence; None where it does."""
    reason = target.capabilities().untraceable
    if reason and not settings.untraced:
        raise MissingDependencyError(reason, hint="leave out --traced-only: it can only run untraced here")
    return reason


def _calls(experiment: Experiment, target: RunTarget, program: Path) -> list[str]:
    """The methods that a process calls; a build of the user's calls the one that it chooses, unless one is named."""
    chooses = target.capabilities().is_build and not experiment.methods
    return [] if chooses else called_methods(experiment, program)


def _plan(experiment: Experiment, variants: list[Variant], target: RunTarget, calls: list[str]) -> Plan:
    """The plan; its runs and warm-up count single calls, those of the experiment rounds of calls."""
    each = len(calls) or 1
    empty = Plan(
        rounds=0,
        runs=experiment.runs * each,
        warmup=experiment.warmup * each,
        seed=experiment.seed,
        order=[],
        timeout_seconds=experiment.timeout,
        calls=calls,
    )
    names = [variant.name for variant in variants]
    traced = target.capabilities().untraceable is None
    return _with_rounds(empty, names, experiment.rounds, traced=traced, timed=_timed_untraced(experiment, target))


def resumed_bundle(path: Path, model: str, against: str | None = None) -> Bundle:
    """The bundle to finish."""
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    if model not in (manifest.model.source, manifest.model.name):
        again = ["--out", str(path), *manifest.words_of_target, "--resume"]
        if against is None:
            hint = shell_command(["opscope", "profile", manifest.model.source, *again])
        else:
            hint = shell_command(["opscope", "check", manifest.model.source, "--against", against, *again])
        raise UsageError(f"the bundle is for {manifest.model.source}, not for {model}", where=path, hint=hint)
    others = [own.source for own in manifest.programs.values()]
    if against is not None and against not in others:
        problem = f"the bundle is for {manifest.model.source} against {' and '.join(others) or 'nothing'}"
        raise UsageError(f"{problem}, not against {against}", where=path, hint="choose another --out")
    for own in manifest.models.values():
        _check_unchanged(bundle, own)
    names = {variant.name for variant in manifest.variants}
    if unknown := sorted(
        {name for order in (*manifest.plan.order, *manifest.plan.timed_order) for name in order} - names
    ):
        problem = f"the plan of the bundle names {unknown[0]!r}, which is not one of its variants"
        raise BundleError(problem, where=path, hint="profile into a new --out; `opscope validate` shows what is wrong")
    return bundle


def _check_unchanged(bundle: Bundle, model: Model) -> None:
    """Refuse a program that is missing or changed, and weights apart likewise."""
    program = bundle.path / model.program
    if not program.exists() or sha256_of(program) != model.sha256:
        raise RunError("the bundle's program is missing or changed", where=program, hint="profile into a new --out")
    data = bundle.path / model.data if model.data else None
    if data is not None and (not data.exists() or sha256_of(data) != model.data_sha256):
        problem = "the weights of the bundle's program are missing or changed"
        raise RunError(problem, where=data, hint="profile into a new --out")


def old_bundle(path: Path, experiment: Experiment, target: RunTarget) -> Bundle:
    """The bundle of an experiment that has run before, as its file asks for it now."""
    bundle = resumed_bundle(path, experiment.model)
    manifest = bundle.manifest
    # Whether there is a variant without the mechanism depends on what earlier bundles have shown.
    wanted, _ = variants_of(experiment, target)
    begun, variants = ([v for v in own if v.role is not Role.CONTROL] for own in (manifest.variants, wanted))
    _check_models(manifest, experiment, path)
    if begun != variants:
        names, now = (", ".join(map(_variant_text, some)) for some in (begun, variants))
        hint = "name the same variants with --only, undo the change of the file, or choose another --out"
        problem = f"the bundle's variants differ from the file's: {names}; requested: {now}"
        raise BundleError(problem, where=path, hint=hint)
    plan, each = manifest.plan, len(manifest.plan.calls) or 1
    asked = {
        "runs": experiment.runs * each,
        "warmup": experiment.warmup * each,
        "seed": experiment.seed,
        "timeout_seconds": experiment.timeout,
    }
    for name, value in asked.items():
        if getattr(plan, name) != value:
            label = name.removesuffix("_seconds")  # as the key of a file
            problem = f"the bundle was measured with {label} = {getattr(plan, name)}, not {value}"
            raise BundleError(problem, where=path, hint=_UNDO)
    contradictions = {
        "target": target_contradiction(manifest, target.describe().name),
        "dtype": dtype_contradiction(manifest, experiment),
        "inputs": input_contradiction(bundle, experiment),
        "data": data_contradiction(manifest, experiment),
        "methods": calls_contradiction(manifest, _calls(experiment, target, bundle.path / manifest.model.program)),
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
        begun = manifest.model_of(name)
        if model.model not in (begun.source, begun.name):
            raise BundleError(
                f"{name} was measured with {begun.source}, not with {model.model}", where=path, hint=_UNDO
            )


def remember(bundle: Bundle, settings: ExperimentSettings) -> None:
    """Keep how a run that is finished was paced now, which is written with the next status of the bundle."""
    request = bundle.manifest.request
    if request is None:
        return
    request = msgspec.structs.replace(request, **{name: getattr(settings, name) for name in (*PACING, "ceilings")})
    bundle.manifest = msgspec.structs.replace(bundle.manifest, request=request)


_UNDO = "undo the change of the file, or choose another --out"


def _variant_text(variant: Variant) -> str:
    """A variant with all that tells it from one of its name."""
    role = variant.role.value if variant.role else "no role"
    off = f"without {', '.join(variant.ablated)}" if variant.ablated else "nothing off"
    cpus = f", CPUs {', '.join(map(str, variant.affinity))}" if variant.affinity else ""
    return f"{variant.name} ({role}, {off}, threads {variant.threads}{cpus})"


def _arms_contradiction(manifest: Manifest, experiment: Experiment, target: RunTarget) -> Contradiction | None:
    """Whether it was planned to time without tracing, and is not now, or the other way round."""
    planned, asked = bool(manifest.plan.timed_order), _timed_untraced(experiment, target)
    return None if planned == asked else Contradiction(str(planned).lower(), str(asked).lower())


def _timed_untraced(experiment: Experiment, target: RunTarget) -> bool:
    """Whether variants are also timed without tracing."""
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
    """A plan of that many rounds with event tracing, without it, or both.

    It begins like the one given: a seed's order of more rounds only goes on.
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
