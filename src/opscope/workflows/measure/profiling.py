"""The main job: a model in, a bundle with its reports out."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.bundle import MODEL, Bundle, check_free
from opscope.bundle.manifest import LeftOut, Manifest, Model, Plan, Role, Status, Variant
from opscope.core.errors import ExportError, FeatureError, MissingDependencyError, RunError, UsageError
from opscope.core.files import sha256_of, storage_errors
from opscope.core.version import __version__
from opscope.experiment.engine import run_experiment
from opscope.experiment.schedule import interleaved
from opscope.experiment.target import capabilities, reserved
from opscope.hosts.target_kinds import AUTO
from opscope.machine import isa
from opscope.machine.clock import SystemClock
from opscope.machine.emulation import marked
from opscope.measurements.export_record import RECORD, record_beside, recorded_tokens
from opscope.measurements.method_calls import planned_calls
from opscope.measurements.results import Profiled
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.export.choices import Choice
from opscope.runtimes.executorch.export.process import EXPORT_LOG
from opscope.runtimes.executorch.export.sources import source_of
from opscope.runtimes.executorch.pte import read_executable, read_program
from opscope.workflows.export.exporting import checked_export
from opscope.workflows.measure.ceilings import measure_roofs
from opscope.workflows.measure.model_files import RECORD_SUFFIX, bundled_files
from opscope.workflows.measure.targets import recorded_target, target_named
from opscope.workflows.measure.threads import check_threads
from opscope.workflows.reports.reports import REPORT_FORMATS, content_of, write_reports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from opscope.bundle.manifest import Repetition
    from opscope.experiment.engine import Progress
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.reports.content.content import ReportContent

    Module: TypeAlias = Any
    """A ``torch.nn.Module``; torch is not typed here."""
    Tensors: TypeAlias = Any
    """A tensor, or a tuple of tensors."""


class Settings(msgspec.Struct, frozen=True):
    """How a model is profiled.

    Attributes:
        target: where it runs, see :func:`opscope.workflows.measure.targets.target_named`.
        ablate: feature groups to switch off in the baseline; empty for the strongest of the CPU; ``none`` alone
            switches nothing off.
        ladder: run the whole staircase of the CPU's features instead.
        threads: sizes of the thread pool, each a pair of variants.
        oversubscribe: allow more threads than the target has usable CPUs; they then wait for each other.
        rounds: repetitions of every variant, each in a process of its own.
        runs: measured inferences of each process.
        warmup: inferences before them that are set aside.
        dtype: number type to export a registered model in.
        seed: of the order and of the inputs.
        timeout_seconds: limit for one process.
        untraced: run every variant without event tracing too, for its latency; a traced run is for the split.
        roofs: ceilings of the machine for every variant, after its repetitions. None: those of an earlier run where a
            short probe agrees with them, else measured, in some four seconds each. True: measured. False: none.
        methods: what a process calls over and over, as ``NAME`` or ``NAME:COUNT``; empty: every method that there is.
            ``runs`` and ``warmup`` then count these rounds of calls.
        models: the user's directory of models; None for the usual one.
    """

    target: str = AUTO.name
    ablate: tuple[str, ...] = ()
    ladder: bool = False
    threads: tuple[int, ...] = (1,)
    rounds: int = 10
    runs: int = 50
    warmup: int = 5
    dtype: str = "fp32"
    seed: int = 0
    timeout_seconds: float = 600.0
    untraced: bool = True
    roofs: bool | None = None
    methods: tuple[str, ...] = ()
    models: str | None = None
    oversubscribe: bool = False


def _silent(done: int, total: int, repetition: Repetition | None) -> None:
    """Progress that nobody watches."""


def default_directory(model: str, now: datetime) -> Path:
    """Where a bundle goes when no directory is named."""
    name = re.sub(r"[^\w.-]+", "-", Path(model).stem)
    return Path("opscope-out") / f"{name}-{now:%Y%m%d-%H%M%S}"


def profile(  # noqa: PLR0913 - the one call a notebook makes; all but the first two are by name
    model: str | Path | Module,
    inputs: Tensors | None = None,
    *,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress = _silent,
    target: RunTarget | None = None,
    clock: TimeSource | None = None,
) -> Profiled:
    """Profile a model with acceleration on and off, and write the bundle with its reports.

    Args:
        model: what can be exported (see :func:`opscope.api.export`), the path of a .pte, or a PyTorch module.
        inputs: of a module, a tensor or a tuple of them: they tell the shapes that it is exported for. What is measured
            are seeded random numbers of these shapes, the same in every variant.
        settings: how; with ``resume`` those of the bundle count, but for ``roofs``.
        out: directory of the bundle; new or empty, with ``resume`` the one to finish. None: ``opscope-out/MODEL-TIME``.
            The program of a module is kept beside it, in ``OUT-model``.
        resume: run what the bundle in ``out`` still lacks.
        progress: hears of every repetition.
        target: where to run; None: as ``settings.target`` says.
        clock: None: the machine's.

    Raises:
        OpscopeError: of the kind that fits; what was measured before it is kept in ``out``.
    """
    settings, clock = settings or Settings(), clock or SystemClock()
    name = str(model) if isinstance(model, str | Path) else type(model).__name__
    path = default_directory(name, clock.now()) if out is None else Path(out)
    source = _source(model, inputs, settings, path)
    bundle = resumed_bundle(path, source) if resume else None
    # A run is finished where it began.
    runner = target or (recorded_target(bundle.manifest.target) if bundle else target_named(settings.target))
    with reserved(runner):
        bundle = bundle or _planned(path, source, settings, runner, clock)
        shown = _run(bundle, runner, clock, progress, roofs=settings.roofs)
    return Profiled(path, shown, write_reports(bundle, shown, REPORT_FORMATS))


def _source(model: str | Path | Module, inputs: Tensors | None, settings: Settings, out: Path) -> str:
    """The registered name or the path of the program; a module is exported first.

    Raises:
        UsageError: inputs for what has its own, or a module without.
    """
    if isinstance(model, str | Path):
        if inputs is not None:
            hint = "leave them out: they are drawn from the seed, in the shapes that the program declares"
            raise UsageError("inputs are for PyTorch modules", where="inputs", hint=hint)
        return str(model)
    if inputs is None:
        hint = "give a tensor or a tuple of tensors of the shapes to export for"
        raise UsageError("a PyTorch module needs inputs", where="inputs", hint=hint)
    from opscope.runtimes.executorch.export.live import export_live

    check_settings(settings)
    check_free(out)
    directory = out.with_name(f"{out.name}-model")
    check_free(directory)
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return str(export_live(model, inputs, settings.dtype, directory))


def _run(
    bundle: Bundle, runner: RunTarget, clock: TimeSource, progress: Progress, *, roofs: bool | None
) -> ReportContent:
    with bundle.locked():
        run_experiment(bundle, runner, clock, complete_inferences, progress)
        if roofs is not False:
            measure_roofs(bundle, runner, clock, anew=roofs is True)
    shown = content_of(bundle)
    if shown.shown is None:
        failures = bundle.manifest.failures()
        reason = failures[0].failure.message if failures and failures[0].failure else "no repetition succeeded"
        hint = "the logs beside the manifest say more; `opscope doctor` checks this machine"
        raise RunError(f"nothing could be measured: {reason}", where=bundle.path, hint=hint)
    return shown


def complete_inferences(path: Path) -> int:
    """Complete inferences in a trace."""
    return len(read_trace(path).table.inference_times().duration)


def resumed_bundle(path: Path, model: str) -> Bundle:
    """The bundle to finish.

    Raises:
        UsageError: it is of another model.
        RunError: its program is missing or changed.
    """
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    if model not in (manifest.model.source, manifest.model.name):
        hint = f"opscope profile {manifest.model.source} --out {path} --resume"
        raise UsageError(f"the bundle is of {manifest.model.source}, not of {model}", where=path, hint=hint)
    program = bundle.path / manifest.model.program
    if not program.exists() or sha256_of(program) != manifest.model.sha256:
        raise RunError("the bundle's program is missing or changed", where=program, hint="profile into a new --out")
    return bundle


def _planned(path: Path, model: str, settings: Settings, runner: RunTarget, clock: TimeSource) -> Bundle:
    check_settings(settings)
    variants, not_switched = planned_variants(settings, runner)
    environment = runner.environment()
    check_threads(variants, environment, oversubscribe=settings.oversubscribe)
    untraceable = untraceable_reason(runner, untraced=settings.untraced)
    models = Path(settings.models) if settings.models else None
    source = program_source(model, models)
    check_free(path)
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        work_path = Path(work)
        given = (
            exported_files(model, settings.dtype, work_path, path, models) if source is None else given_files(source)
        )
        files = bundled_files(given, work_path)
        foreign = capabilities(runner).is_build and not settings.methods  # it calls the one that it chooses
        calls = [] if foreign else planned_calls(files[0], settings.methods)
        environment = runner.environment()
        manifest = Manifest(
            opscope=__version__,
            created=clock.now().isoformat(timespec="seconds"),
            status=Status.RUNNING,
            model=described_model(model, source, files),
            plan=with_calls(_plan(settings, variants, runner), calls),
            variants=variants,
            target=marked(runner.describe(), environment),
            environment=environment,
            repetitions=[],
            left_out=LeftOut(switch=not_switched, trace=untraceable),
        )
        return Bundle.create(path, manifest, files)


def untraceable_reason(runner: RunTarget, *, untraced: bool) -> str | None:
    """Why the target traces nothing, as one sentence; None where it does.

    Args:
        runner: the target.
        untraced: whether runs without tracing are wanted, which are then all there is.

    Raises:
        MissingDependencyError: only traced runs are wanted, and there are none.
    """
    reason = capabilities(runner).untraceable
    if reason and not untraced:
        raise MissingDependencyError(reason, hint="leave out --traced-only: latency is measured without tracing")
    return reason


def _plan(settings: Settings, variants: list[Variant], runner: RunTarget) -> Plan:
    # A foreign runner may have tracing built in, so that there is no run without it.
    untraced = settings.untraced and not capabilities(runner).always_traces
    names = [variant.name for variant in variants]
    traced = interleaved(names, settings.rounds, settings.seed)
    return Plan(
        rounds=settings.rounds,
        runs=settings.runs,
        warmup=settings.warmup,
        seed=settings.seed,
        order=[[] for _ in traced] if capabilities(runner).untraceable else traced,
        timeout_seconds=settings.timeout_seconds,
        timed_order=interleaved(names, settings.rounds, settings.seed + 1) if untraced else [],
    )


def with_calls(plan: Plan, calls: list[str]) -> Plan:
    """A plan whose runs and warm-up are rounds of calls; unchanged without calls."""
    each = len(calls) or 1
    runs, warmup = (plan.runs or 0) * each, (plan.warmup or 0) * each
    return msgspec.structs.replace(plan, runs=runs, warmup=warmup, calls=calls)


_LIMITS = {"rounds": (1, 10_000), "runs": (1, 1_000_000), "warmup": (0, 1_000_000)}


def check_settings(settings: Settings) -> None:
    """Refuse numbers that make no sense.

    Raises:
        UsageError: naming the option and what it may be.
    """
    for name, (low, high) in _LIMITS.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise UsageError(f"{value} is not between {low} and {high:,}", where=f"--{name}")
    if not settings.threads or min(settings.threads) < 1:
        raise UsageError("a thread pool has at least one thread", where="--threads", hint="for example --threads 1,2")
    if NOTHING_OFF in settings.ablate and len(settings.ablate) > 1:
        raise UsageError("none stands alone", where="--ablate", hint="--ablate none switches nothing off")
    if settings.ladder and settings.ablate:
        raise UsageError("the ladder decides itself what to switch off", where="--ladder", hint="leave out --ablate")


class PlannedVariants(NamedTuple):
    """The variants of an experiment, and why none of them has a feature switched off; None when one has."""

    variants: list[Variant]
    not_switched: str | None = None


NOTHING_OFF = "none"
"""In place of feature groups: measure the model as it runs, and switch nothing off."""


def planned_variants(settings: Settings, runner: RunTarget) -> PlannedVariants:
    """The variants of an experiment: for each thread count the accelerated one, the steps, and the baseline.

    Where no feature can be switched off, and the user did not ask for one, it is the accelerated variant alone.
    Nothing can be switched off in a runner of the user's: it is one variant, of which nothing tells what it uses.

    Raises:
        FeatureError: what the user asked for cannot be switched off.
    """
    if capabilities(runner).is_build:
        return PlannedVariants(_as_it_is(settings))
    if settings.ablate == (NOTHING_OFF,):
        return PlannedVariants(_variants(settings, []), "--ablate none was given")
    try:
        steps = _steps(settings, runner)
    except FeatureError as error:
        if settings.ablate or settings.ladder:
            raise
        return PlannedVariants(_variants(settings, []), str(error))
    return PlannedVariants(_variants(settings, steps))


class _Step(NamedTuple):
    """Groups that are switched off, and the fields that are cleared for it."""

    groups: list[str]
    cleared: list[str]


def _steps(settings: Settings, runner: RunTarget) -> list[_Step]:
    """What is switched off, step by step; the last one is the baseline.

    Raises:
        FeatureError: the switch cannot be proved, or the CPU lacks what is to be switched off.
    """
    probed = runner.probe()
    fields = frozenset(probed.fields)
    default = isa.default_ablation(probed.arch, fields).name if settings.ladder or not settings.ablate else ""
    groups = isa.ladder(probed.arch, fields) if settings.ladder else [list(settings.ablate) or [default]]
    return [_Step(names, isa.cleared_fields(probed.arch, names, fields)) for names in groups]


def _variants(settings: Settings, steps: Sequence[_Step]) -> list[Variant]:
    found = []
    for threads in dict.fromkeys(settings.threads):
        suffix = f"-t{threads}" if len(set(settings.threads)) > 1 else ""
        found.append(Variant(f"accelerated{suffix}", Role.ACCELERATED, [], [], threads))
        for number, (names, cleared) in enumerate(steps, 1):
            last = number == len(steps)
            name = "baseline" if last else f"without-{names[-1]}"
            role = Role.BASELINE if last else Role.INTERMEDIATE
            found.append(Variant(f"{name}{suffix}", role, names, cleared, threads))
    return found


def _as_it_is(settings: Settings) -> list[Variant]:
    if settings.ladder or settings.ablate not in {(), (NOTHING_OFF,)}:
        hint = "leave out --ablate and --ladder; two runners are compared with `opscope run`"
        raise UsageError("nothing can be switched off in a foreign runner", where="--target", hint=hint)
    several = len(set(settings.threads)) > 1
    return [
        Variant(f"runner-t{threads}" if several else "runner", Role.CANDIDATE, [], [], threads)
        for threads in dict.fromkeys(settings.threads)
    ]


def program_source(model: str, models: Path | None = None) -> Path | None:
    """The .pte that was named, or None for a model to export.

    Args:
        model: as on the command line.
        models: the user's directory of models.

    Raises:
        NotFoundError: it is neither.
        TraceFormatError: the .pte is damaged.
    """
    path = Path(model)
    if path.suffix == ".pte" or (path.is_file() and path.suffix != ".py"):
        read_program(path)
        return path
    source_of(model, models)
    return None


def exported_files(model: str, dtype: str, work: Path, out: Path, models: Path | None = None) -> list[Path]:
    """The program, its ETRecord, the record and the log of the export, in a directory that is thrown away.

    Raises:
        ExportError: the export failed; its log is kept beside the bundle that was not written.
    """
    try:
        record = checked_export(model, Choice(dtype), work, models, None)
    except ExportError as error:
        log = out.with_name(f"{out.name}-export.log")
        with storage_errors(log):
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(work / EXPORT_LOG, log)
        raise ExportError(error.problem, where=log, hint=error.hint) from error
    return [work / name for name in (record.program.name, record.etrecord.name, RECORD, EXPORT_LOG)]


def given_files(source: Path) -> list[Path]:
    """The program that was named, and the records beside it when there are any."""
    etrecord = source.with_suffix(RECORD_SUFFIX)
    found = [source, etrecord] if etrecord.is_file() else [source]
    return [*found, source.with_name(RECORD)] if record_beside(source) else found


def described_model(model: str, source: Path | None, files: list[Path]) -> Model:
    """What a manifest says about a model.

    Args:
        model: as it was named.
        source: the .pte that was named; None for a model that was exported.
        files: as the bundle keeps them, the program first.
    """
    program, record = files[0], record_beside(files[0])
    executable = read_executable(program)
    plan = executable.outline()
    payloads = {delegate.data for own in executable.plans for delegate in own.delegates if delegate.data}
    records = [file for file in files if file.suffix == RECORD_SUFFIX]
    return Model(
        name=record.name if source is None and record else Path(program).stem,
        source=model,
        dtype=record.dtype if record else None,
        program=f"{MODEL}/{program.name}",
        etrecord=f"{MODEL}/{records[0].name}" if records else None,
        etrecord_sha256=sha256_of(records[0]) if records else None,
        sha256=sha256_of(program),
        size=program.stat().st_size,
        methods=[method.name for method in plan.methods],
        backends=plan.backends(),
        planned_bytes=sum(sum(own.planned_buffers) for own in executable.plans),
        delegate_bytes=sum(data.size for data in payloads),
        tokens=recorded_tokens(program),
    )
