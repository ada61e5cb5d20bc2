"""Run directories of the Arm kit: experiments as sides, the run as a report, figures checked, kernels as listed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opscope.analysis.kernels.kernel_sources import source_of_log, source_of_registrations
from opscope.analysis.kernels.kernels import KernelFilter, KernelView, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import LadderInputs, variant_ladder
from opscope.bundle.manifest import (
    Conditions,
    Environment,
    Failure,
    FailureKind,
    Manifest,
    Model,
    Plan,
    Repetition,
    Status,
    Target,
    Variant,
)
from opscope.core.errors import NotFoundError, OpscopeError, TraceFormatError
from opscope.core.files import sha256_of
from opscope.core.parts import explained, part
from opscope.core.table import TraceWarning
from opscope.core.tracebacks import nothing_known
from opscope.core.units import counted_text, time_text
from opscope.core.version import __version__
from opscope.kit.readers.directory import read_kit, record_beside
from opscope.measurements.analyses import analysis_of, comparisons_of
from opscope.measurements.attribution import with_program
from opscope.measurements.bundle_kernels import with_variant
from opscope.measurements.trace_sides import mark_warmup
from opscope.runtimes.registry import read_model
from opscope.runtimes.side import Side, Warmup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.analysis.preflight.contents import KernelSummary
    from opscope.core.table import EventTable
    from opscope.kit.readers.run import KitExperiment, KitRun, StatedMedian
    from opscope.readers.registry import TraceRead
    from opscope.reports.content.content import ReportContent
    from opscope.runtimes.side import ProgramFiles


TIMING = "timing"
_NOT_KNOWN = "not known"
_RUN_AGAIN = "rerun the kit with a runner that has event tracing"
_AGREES = 0.01
_SMALLEST_NS = 500.0
_MILLI = 1e6


def kit_side(directory: Path, name: str | None, warmup: Warmup, files: ProgramFiles | None = None) -> Side:
    """Return the side that an experiment of a run directory is, attributed with the named files of its program."""
    run = read_kit(directory)
    if name is not None:
        return experiment_side(run, run.experiment(name), warmup, files)
    chosen = _choose_experiment(run)
    side = experiment_side(run, chosen, warmup, files)
    further = [e.key for e in run.experiments if e.trace and e is not chosen]
    if run.comparisons or not further:
        return side
    message = f"{chosen.key} is shown because it is listed first; the directory also holds {', '.join(further)[:300]}"
    return side._replace(
        table=side.table.with_warnings(TraceWarning("kit_first_experiment", message, "choose one: DIR#experiment"))
    )


def _choose_experiment(run: KitRun) -> KitExperiment:
    """Return the experiment to show first: the candidate of a comparison, else the first that left a trace."""
    candidates = [run.experiment(pair.candidate) for pair in run.comparisons]
    kit_experiment = next((experiment for experiment in (*candidates, *run.experiments) if experiment.trace), None)
    if kit_experiment is None:
        reasons = [warning.message for e in run.experiments for warning in e.warnings]
        raise NotFoundError(
            f"none of its {counted_text(len(run.experiments), 'experiment')} left a trace",
            where=run.directory,
            hint="; ".join(reasons[:3]) or "run the kit with a runner that has event tracing",
        )
    return kit_experiment


def experiment_side(
    run: KitRun, experiment: KitExperiment, warmup: Warmup = None, files: ProgramFiles | None = None
) -> Side:
    """Return the side that an experiment is, with warnings where its figures contradict its trace."""
    from opscope.readers.registry import read_trace

    file = experiment.trace
    if file is None:
        reasons = "; ".join(warning.message for warning in experiment.warnings)
        problem = f"the experiment {experiment.key[:80]} left no trace"
        raise NotFoundError(problem, where=run.directory, hint=reasons or "run it again")
    path = Path(run.directory) / file
    trace = read_trace(path)
    warnings = [
        *run.warnings,
        *experiment.warnings,
        *_first_run_only(experiment),
        *_warn_of_differences(run, experiment, trace),
    ]
    table = mark_warmup(trace.table, "auto" if warmup is None else warmup).with_warnings(*warnings)
    hashes = [(str(path), trace.sha256)]
    side = Side(table, str(path), trace.format, hashes, experiment.key, None, _experiment_variant(experiment))
    if files is None:
        return _with_recorded_program(run, side)
    return with_program(side, files.program, files.etrecord or record_beside(files.program))


def _with_recorded_program(run: KitRun, side: Side) -> Side:
    """Attribute a side with the program that the kit recorded, as far as that is here and is the one that ran."""
    if run.program is None:
        return side
    try:
        return with_program(side, Path(run.program), Path(run.etrecord) if run.etrecord else None)
    except OpscopeError as error:
        message = f"operators are known by name only: {error}"
        warning = TraceWarning("program_unusable", message, "name the program that ran: --program")
        return side._replace(table=side.table.with_warnings(warning))


def _first_run_only(experiment: KitExperiment) -> list[TraceWarning]:
    """Warn of an experiment with a timeline of its first run alone."""
    if experiment.trace != experiment.files.run0:
        return []
    message = f"of {experiment.key} only the timeline of the first run exists: one inference, and the first is slow"
    return [TraceWarning("kit_first_run_only", message, "keep the .etdump or the timelines of all runs")]


def _warn_of_differences(run: KitRun, experiment: KitExperiment, trace: TraceRead) -> list[TraceWarning]:
    """Compare the kit's figures with the trace, and its timeline with its .etdump."""
    median = _median_inference(trace.table)
    differing = [_warn_of_median(experiment, stated, median) for stated in experiment.stated]
    timeline_file = experiment.files.timeline if experiment.files.etdump else None
    warnings = [warning for warning in differing if warning is not None]
    return [*warnings, *(_warn_of_timeline(run, experiment, timeline_file, median) if timeline_file else [])]


def _median_inference(table: EventTable) -> float:
    """Return the median of all inferences, as the kit takes it; 0 when there is none."""
    import numpy as np

    durations = table.inference_times().duration
    return float(np.median(durations)) if len(durations) else 0.0


def _warn_of_median(experiment: KitExperiment, stated: StatedMedian, median: float) -> TraceWarning | None:
    """Warn of a stated median that differs from that of the trace."""
    if stated.median_ms is None or _nearly_equal(stated.median_ms * _MILLI, median):
        return None
    message = (
        f"{stated.file} states a median of {time_text(stated.median_ms * _MILLI)} for {experiment.key}, "
        f"Method::execute in {experiment.trace} has {time_text(median)}"
    )
    return TraceWarning("kit_median_differs", message, "trust the trace; the stated figure does not come from it")


def _nearly_equal(first_ns: float, second_ns: float) -> bool:
    """Return whether two durations agree up to rounding."""
    return abs(first_ns - second_ns) <= max(_SMALLEST_NS, _AGREES * second_ns)


def _warn_of_timeline(run: KitRun, experiment: KitExperiment, file: str, median: float) -> list[TraceWarning]:
    """Compare the timeline beside an .etdump with it, and keep the timeline's own warnings about percentages."""
    from opscope.readers.registry import read_trace

    try:
        table = read_trace(Path(run.directory) / file).table
    except TraceFormatError as error:
        hint = "opscope analysed the .etdump; delete or rewrite the timeline"
        return [TraceWarning("kit_timeline_damaged", f"{file} cannot be read: {error.problem}", hint)]
    warnings = [warning for warning in table.warnings if warning.code.startswith("kit_percentages")]
    own_median = _median_inference(table)
    if _nearly_equal(own_median, median):
        return warnings
    message = (
        f"the timeline {file} has a median of {time_text(own_median)} for {experiment.key}, "
        f"its .etdump {time_text(median)}"
    )
    return [
        *warnings,
        TraceWarning("kit_timeline_differs", message, "they come from different runs; trust the .etdump"),
    ]


class _Outcome(NamedTuple):
    """Outcome of an experiment: its side, or why there is none."""

    experiment: KitExperiment
    side: Side | None
    problem: str | None
    kind: FailureKind = FailureKind.TRACE


def kit_content(
    directory: Path, compared: tuple[str | None, str | None] | None = None, files: ProgramFiles | None = None
) -> ReportContent:
    """Return the report of a run directory: of the two experiments that are named, else as the kit was asked.

    Experiments whose traces are missing or damaged are listed as failed, whatever the kit recorded about them.
    """
    from opscope.measurements.findings import findings_of
    from opscope.measurements.quality import quality_of
    from opscope.reports.content.content import ReportContent, VariantResult

    run = read_kit(directory, compared)
    _choose_experiment(run)
    if files:
        read_model(files.program, files.etrecord)
    outcomes = [_experiment_outcome(run, e, files) for e in run.experiments if is_timed(e)]
    sides = _sides_with_warnings(run, outcomes)
    analyses = {key: analysis_of(side) for key, side in sides.items()}
    if not analyses:
        problems = "; ".join(f"{o.experiment.key}: {o.problem}" for o in outcomes[:3])
        if any(outcome.kind is FailureKind.BUG for outcome in outcomes):
            raise nothing_known(problems, directory, None)
        raise TraceFormatError(f"no experiment could be measured: {problems}", where=directory, hint=_RUN_AGAIN)
    not_compared: list[str] = []
    comparisons = comparisons_of(_measured_pairs(run, sides), not_compared)
    variants = [VariantResult(_experiment_variant(o.experiment), analyses.get(o.experiment.key)) for o in outcomes]
    content = ReportContent(_manifest_of_run(run, outcomes, analyses), variants, comparisons, [], [])
    findings, ruled_out = findings_of(content.manifest, sides, analyses, comparisons, content.shown)
    return msgspec.structs.replace(
        content,
        findings=findings,
        ruled_out=ruled_out,
        quality=quality_of(content.manifest, analyses, comparisons),
        config=run.config,
        kernel_logs=_summarise_logs(run),
        kernels=part("kernels", lambda: kit_kernels(run, analyses, comparisons), None),
        not_compared=not_compared,
    )


def _summarise_logs(run: KitRun) -> list[KernelSummary]:
    """Return summaries of the microkernels that the logs of trace-enabled runs name."""
    from opscope.analysis.preflight.contents import summarise_kernels
    from opscope.core.system.memory import file_bytes

    summaries = []
    for experiment in run.experiments:
        file = experiment.files.kernel_log
        if experiment.kernels is not None and file is not None:
            sha256 = hashlib.sha256(file_bytes(Path(run.directory) / file)).hexdigest()
            summaries.append(summarise_kernels(experiment.kernels, file, sha256))
    return summaries


def is_timed(experiment: KitExperiment) -> bool:
    """Return whether an experiment was to leave a trace; one of which only a list of kernels is here was not."""
    if experiment.trace or experiment.mode == TIMING:
        return True
    only_kernels = experiment.files.kernel_log or experiment.files.kernels
    return experiment.mode is None and (not only_kernels or experiment.files.latency_log is not None)


def _sides_with_warnings(run: KitRun, outcomes: Sequence[_Outcome]) -> dict[str, Side]:
    """Return the sides by key.

    The first also carries the warnings of experiments that have none, such as kernel logs.
    """
    sides = {outcome.experiment.key: outcome.side for outcome in outcomes if outcome.side}
    other_warnings = [warning for e in run.experiments if e.key not in sides for warning in e.warnings]
    for key, side in list(sides.items())[:1]:
        sides[key] = side._replace(table=side.table.with_warnings(*other_warnings))
    return sides


def _experiment_outcome(run: KitRun, experiment: KitExperiment, files: ProgramFiles | None) -> _Outcome:
    """Return the outcome of an experiment; a failure of opscope itself becomes its problem."""
    return explained(
        f"the experiment {experiment.key}",
        lambda: _try_experiment(run, experiment, files),
        lambda failure: _Outcome(experiment, None, f"unknown because of {failure.because}", FailureKind.BUG),
    )


def _try_experiment(run: KitRun, experiment: KitExperiment, files: ProgramFiles | None) -> _Outcome:
    """Return the side of an experiment, or why its trace gives none."""
    try:
        side = experiment_side(run, experiment, None, files)
        analysis_of(side)
    except TraceFormatError as error:
        return _Outcome(experiment, None, error.problem)
    except NotFoundError as error:
        return _Outcome(experiment, None, f"{error.problem}; {error.hint}")
    return _Outcome(experiment, side, None)


def _measured_pairs(run: KitRun, sides: dict[str, Side]) -> list[tuple[Side, Side]]:
    """Return the pairs of sides that the kit was asked to compare, where both left a trace."""
    pairs = [(sides.get(pair.baseline), sides.get(pair.candidate)) for pair in run.comparisons]
    return [(baseline, candidate) for baseline, candidate in pairs if baseline and candidate]


def _experiment_variant(experiment: KitExperiment) -> Variant:
    """Return an experiment as a variant of the report."""
    return Variant(experiment.key, experiment.role, None, [], experiment.listed.threads)


def _manifest_of_run(run: KitRun, outcomes: Sequence[_Outcome], analyses: dict[str, Analysis]) -> Manifest:
    """Return the run as a bundle's manifest, as far as the kit's files tell it."""
    failed = any(outcome.problem for outcome in outcomes)
    return Manifest(
        opscope=__version__,
        created=run.generated or _NOT_KNOWN,
        status=Status.INCOMPLETE if failed else Status.COMPLETE,
        model=_model_of_run(run, analyses.values()),
        plan=_plan_of_run(run, [outcome.experiment.key for outcome in outcomes]),
        variants=[_experiment_variant(outcome.experiment) for outcome in outcomes],
        target=Target("Arm kit run", ""),
        environment=_environment_of_run(run),
        repetitions=[_repetition_of_outcome(outcome) for outcome in outcomes],
    )


def _model_of_run(run: KitRun, analyses: Iterable[Analysis]) -> Model:
    """Return the model that the run measured, as far as its files tell."""
    source = run.model or _NOT_KNOWN
    stem = source.replace("\\", "/").rpartition("/")[2].removesuffix(".pte")
    backends = dict.fromkeys(row.backend for a in analyses for row in a.backends)
    delegates = [name for name in backends if name not in {"portable", "framework"}]
    return Model(
        name=stem if run.model else "unknown model",
        source=source,
        dtype=None,
        program=source,
        etrecord=None,
        sha256=sha256_of(Path(run.program)) if run.program else None,
        size=Path(run.program).stat().st_size if run.program else None,
        methods=None,
        backends=delegates,
    )


def _plan_of_run(run: KitRun, names: list[str]) -> Plan:
    """Plan one process for each experiment; numbers on which the experiments differ are not known."""
    runs, warmup = _common_count(run, "runs"), _common_count(run, "warmup")
    return Plan(rounds=1, runs=runs, warmup=warmup, seed=None, order=[names], timeout_seconds=None)


def _common_count(run: KitRun, field: Literal["runs", "warmup"]) -> int | None:
    """Return the number that all timed experiments have in common, if any."""
    counts = {e.runs if field == "runs" else e.warmup for e in run.experiments if e.mode in {None, TIMING}}
    return counts.pop() if len(counts) == 1 else None


def _environment_of_run(run: KitRun) -> Environment:
    """Return the environment, of which the kit records the checkout of ExecuTorch alone."""
    checkout = run.executorch
    versions = {}
    if checkout and checkout.sha:
        versions["executorch"] = f"commit {checkout.sha[:80]}" + (" with local changes" if checkout.dirty else "")
    return Environment(None, None, None, None, None, None, None, None, None, None, versions)


def _repetition_of_outcome(outcome: _Outcome) -> Repetition:
    """Return the one repetition of an experiment, with its failure."""
    experiment, side = outcome.experiment, outcome.side
    unknown = Conditions(None, None, None)
    return Repetition(
        variant=experiment.key,
        round=0,
        attempt=1,
        started=None,
        seconds=None,
        directory="",
        trace=experiment.trace,
        trace_sha256=side.files[0][1] if side else None,
        inferences=len(side.table.inference_times().duration) if side else 0,
        before=unknown,
        after=unknown,
        measurement=None,
        failure=Failure(outcome.kind, outcome.problem) if outcome.problem else None,
    )


def kit_sources(directory: Path, label: str | None) -> list[KernelSource]:
    """Return the kernels that the experiments of a run of the kit tell, as far as they have a log or a list of them."""
    run = read_kit(directory)
    selected = run.experiments if label is None else (run.experiment(label),)
    return [source for experiment in selected if (source := _kernels_of_experiment(experiment, directory)) is not None]


def _kernels_of_experiment(experiment: KitExperiment, directory: Path) -> KernelSource | None:
    """Return the kernels that a log or a list of an experiment names, if it has one."""
    files = experiment.files
    if experiment.kernels is not None and files.kernel_log:
        source = source_of_log(experiment.kernels, experiment.listed.experiment, str(directory / files.kernel_log))
    elif experiment.kernel_rows and files.kernels:
        lines = [(row.kernel.whole, row.category, row.registrations) for row in experiment.kernel_rows]
        source = source_of_registrations(lines, experiment.listed.experiment, str(directory / files.kernels))
    else:
        return None
    return with_variant(source, _experiment_variant(experiment))


def kit_kernels(run: KitRun, analyses: Mapping[str, Analysis], comparisons: Sequence[Comparison]) -> KernelView:
    """Return the kernels that a report of a run shows: those registered, and those that names of operators tell.

    On which CPU it ran no file tells, so nothing speaks against SME.
    """
    sources = [
        source for experiment in run.experiments if (source := _kernels_of_experiment(experiment, Path())) is not None
    ]
    against, every = {comparison.candidate.label: comparison for comparison in comparisons}, KernelFilter()
    ladders = [
        variant_ladder(
            experiment.key,
            experiment.listed.threads,
            LadderInputs(analyses[experiment.key].operators, {}, comparison=against.get(experiment.key)),
        )
        for experiment in run.experiments
        if experiment.key in analyses
    ]
    return KernelView(
        columns=[source.column for source in sources],
        kernels=kernel_lines(sources, every),
        pairs=kernel_pairs(sources, every),
        ladders=ladders,
    )
