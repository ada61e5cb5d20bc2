"""`opscope tune`: settings that are faster than a runtime's own default and compute the same.

Three steps, each in fresh processes: every setting runs a few inferences, whose outputs are compared; a search drops
what is slow, round by round; a confirmation measures the finalists, the default and the default under another name in
new interleaved processes, from which every figure that is told comes. Its bundle is kept. A replay repeats the first
and the last step for the setting that an earlier result names.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.tuning import (
    DEFAULT,
    NULL,
    CandidateResult,
    Tuning,
    TuningCandidate,
    TuningSample,
    TuningSpace,
    choose_winner,
    confirm_gain,
    find_disturbance,
    find_foreign_load,
    log_gains,
)
from opscope.bundle.bundle import Bundle, check_free, is_bundle
from opscope.core.errors import NotFoundError, TraceFormatError, UsageError
from opscope.core.files import storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.outputs import marked_markdown, write_outputs
from opscope.core.system.stages import enter
from opscope.experiment.engine import ignore_progress
from opscope.experiment.planned import Settings
from opscope.machine.clock import SystemClock
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import TuningResult
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.tuning import apply_text, tuning_document
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiment_bundle import check_request
from opscope.workflows.measure.experiments import Means, experiment_target
from opscope.workflows.measure.profiling import default_directory
from opscope.workflows.tune.search import (
    BUNDLE,
    FIRST_ROUNDS,
    SEARCH,
    CheckedOutputs,
    TuningRequest,
    check_candidates,
    confirm_finalists,
    judge_outputs,
    open_bundle,
    plan_experiment,
    search_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.tuning import ConfirmedGain
    from opscope.bundle.manifest import Environment, Manifest
    from opscope.experiment.engine import Progress
    from opscope.experiment.target import RunTarget
    from opscope.machine.clock import TimeSource
    from opscope.runtimes.runtime import Runtime

RESULT = "tune.json"
"""Name of the result below the output directory."""


class _Machine(NamedTuple):
    """Where a model is tuned, while it is held."""

    target: RunTarget
    environment: Environment
    runtime: Runtime


def tune(  # noqa: PLR0913 - all but the model are by name
    model: str | Path,
    *,
    minutes: float = 3.0,
    try_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    target: RunTarget | None = None,
    progress: Progress = ignore_progress,
    notify: Callable[[str], None] | None = None,
    clock: TimeSource | None = None,
) -> TuningResult:
    """Search the settings of a model's runtime, and confirm what is faster than its default and computes the same.

    Args:
        model: a program, or a model that can be exported.
        minutes: limit for search and confirmation; a step that has begun is finished.
        try_options: further options of the runtime, each a candidate of its own.
        settings: where and with which inputs it runs; threads, rounds and runs are those of the search.
        out: directory of the result and of the confirmation's bundle, new or empty; None: ``opscope-out/MODEL-TIME``.
        resume: go on with what ``out`` holds: rounds that were measured are kept, and ``minutes`` begin anew.
        target: where to run; None: as ``settings.target`` says.
        progress: hears of every process.
        notify: hears that another run is waited for.
        clock: None: the machine's.

    Raises:
        UsageError: the runtime has no settings, the default computes no finite numbers, or what is to be resumed is not
            there or was begun with other options.
        RunError: the default does not run.
        OpscopeError: as of :func:`opscope.api.profile`.
    """
    chosen, time = settings or Settings(), clock or SystemClock()
    path = default_directory(f"tune-{Path(str(model)).name}", time.now()) if out is None else Path(out)
    if not resume:
        check_free(path)
    elif not is_bundle(path / SEARCH):
        raise UsageError("no tuning was begun there", where=path, hint="leave out --resume, or name its directory")
    means = _make_means(chosen, progress, target, notify, time)
    began = time.monotonic()
    with _hold_machine(str(model), chosen, path, means) as machine:
        space = machine.runtime.tuning_space(max(1, machine.environment.usable_cpus or 1))
        extra = [
            TuningCandidate(f"{key}={value}", space.default.threads, {key: value})
            for key, value in (try_options or {}).items()
        ]
        space = space._replace(candidates=[*space.candidates, *extra])
        if not space.candidates:
            raise UsageError("there is nothing to try: one CPU, and no option", where=model, hint="--try KEY=VALUE")
        request = TuningRequest(str(model), chosen, space, path, began + 60 * minutes, machine.target, means)
        bundle, run_target = open_bundle(request, space.candidates, SEARCH)
        enter("checking outputs")
        checked = check_candidates(request, bundle, run_target)
        results = judge_outputs(space, checked)
        enter("searching")
        latency_ns = _default_latency(checked)
        samples, finalists = search_settings(request, bundle, run_target, latency_ns, results)
        seconds = {"search": time.monotonic() - began}
        confirmed: list[TuningSample] = []
        if finalists:
            enter("confirming")
            confirmed, first = confirm_finalists(request, finalists, latency_ns)
            seconds["first"] = first - began
    tuning = _build_result(request, machine, results, samples, confirmed)
    return _write_result(path, msgspec.structs.replace(tuning, seconds=seconds | {"all": time.monotonic() - began}))


def replay_tuning(  # noqa: PLR0913 - all but the directory are by name
    directory: str | Path,
    *,
    minutes: float = 3.0,
    rounds: int = FIRST_ROUNDS,
    settings: Settings | None = None,
    out: str | Path | None = None,
    target: RunTarget | None = None,
    progress: Progress = ignore_progress,
    notify: Callable[[str], None] | None = None,
    clock: TimeSource | None = None,
) -> TuningResult:
    """Confirm again what an earlier tuning named, with the program and the inputs that its bundle keeps.

    The winner is measured against the default in new processes; where the default was kept, all finalists are.

    Args:
        directory: of the earlier result.
        minutes: limit; three rounds are always measured.
        rounds: that are measured before an interval that holds 1 asks for more, up to 20 in all.
        settings: where it runs; the inputs are those of the earlier bundle.
        out: as of :func:`tune`.
        target: as of :func:`tune`.
        progress: as of :func:`tune`.
        notify: as of :func:`tune`.
        clock: as of :func:`tune`.

    Raises:
        NotFoundError: the directory has no result.
        TraceFormatError: its result cannot be read.
        UsageError: nothing was confirmed there, or an option of its settings names a path.
        OpscopeError: as of :func:`tune`.
    """
    path, time = Path(directory), clock or SystemClock()
    earlier = _read_result(path)
    candidates = _replayed_candidates(earlier, path)
    manifest = Bundle.open(path / BUNDLE).manifest
    chosen = _recorded_settings(settings or Settings(), manifest, path / BUNDLE)
    model = str(path / BUNDLE / manifest.model.program)
    results_path = default_directory(f"tune-{Path(earlier.model).name}", time.now()) if out is None else Path(out)
    check_free(results_path)
    means = _make_means(chosen, progress, target, notify, time)
    began = time.monotonic()
    with _hold_machine(model, chosen, results_path, means) as machine:
        reference = [
            row.candidate
            for row in earlier.candidates
            if row.candidate.name == earlier.reference and row.candidate not in candidates
        ]
        space = TuningSpace(earlier.base.candidate, [*candidates, *reference], earlier.reference)
        request = TuningRequest(model, chosen, space, results_path, began + 60 * minutes, machine.target, means)
        bundle, run_target = open_bundle(request, space.candidates, SEARCH)
        enter("checking outputs")
        checked = check_candidates(request, bundle, run_target)
        results = judge_outputs(space, checked)
        with storage_errors(bundle.path):
            shutil.rmtree(bundle.path)  # it has no rounds: nothing is searched
        seconds: dict[str, float] = {}
        confirmed: list[TuningSample] = []
        usable = [candidate for candidate in candidates if not results[candidate.name].outcome]
        if usable:
            enter("confirming")
            confirmed, first = confirm_finalists(request, usable, _default_latency(checked), rounds)
            seconds["first"] = first - began
    gains = {row.candidate.name: row.confirmed for row in earlier.candidates}
    results = {
        name: msgspec.structs.replace(result, earlier=gains.get(name))
        for name, result in results.items()
        if result.candidate not in reference
    }
    tuning = _build_result(request, machine, results, [], confirmed)
    tuning = msgspec.structs.replace(tuning, model=earlier.model, replayed=str(path))
    return _write_result(
        results_path, msgspec.structs.replace(tuning, seconds=seconds | {"all": time.monotonic() - began})
    )


def _make_means(
    settings: Settings,
    progress: Progress,
    target: RunTarget | None,
    notify: Callable[[str], None] | None,
    clock: TimeSource,
) -> Means:
    means = Means(progress, target, clock, lock=settings.lock, lock_limit=settings.lock_limit)
    return means if notify is None else means._replace(notify=notify)


@contextlib.contextmanager
def _hold_machine(model: str, settings: Settings, directory: Path, means: Means) -> Iterator[_Machine]:
    """Refuse what is wrong before the machine is waited for, then hold it while the block runs."""
    runtime = runtime_of(model, settings.runtime)
    experiment = plan_experiment(model, settings, [TuningCandidate(DEFAULT, 1)], SEARCH)
    if not is_bundle(directory / SEARCH):
        check_request(directory / SEARCH, experiment, means.target)
    target = experiment_target(experiment, directory / SEARCH, means)
    with target.reserved(means.lock_request()):
        yield _Machine(target, target.environment(), runtime)


def _default_latency(checked: Mapping[str, CheckedOutputs | str]) -> float:
    """Return the latency of the default in its first inferences, in nanoseconds."""
    default = checked[DEFAULT]
    assert isinstance(default, CheckedOutputs)  # noqa: S101 - a default that does not run is an error before
    return default.latency_ns


def _read_result(directory: Path) -> Tuning:
    file, hint = directory / RESULT, "name the directory that opscope tune wrote"
    if not file.is_file():
        raise NotFoundError(f"no {RESULT} in the directory", where=directory, hint=hint)
    with storage_errors(file):
        content = file.read_bytes()
    try:
        return from_json(content, Tuning)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a result of opscope tune: {error}", where=file, hint=hint) from error


def _replayed_candidates(earlier: Tuning, directory: Path) -> list[TuningCandidate]:
    """Return the winner of an earlier result, or all its finalists where the default was kept.

    Raises:
        UsageError: there are none, or an option names a path, which the runtime would open: the result may come from
            somebody else.
    """
    finalists = [row.candidate for row in earlier.candidates if row.confirmed]
    candidates = [candidate for candidate in finalists if candidate.name == earlier.winner] or finalists
    if not candidates or not is_bundle(directory / BUNDLE):
        raise UsageError("nothing was confirmed there", where=directory, hint="search again with `opscope tune MODEL`")
    for candidate in (earlier.base.candidate, *candidates):
        for key, value in candidate.options.items():
            if any(separator in value for separator in "/\\"):
                problem = f"{key}={value} names a path that the runtime would use"
                hint = f"if you trust it, search with it: opscope tune MODEL --try {key}={value}"
                raise UsageError(problem, where=directory / RESULT, hint=hint)
    return candidates


def _recorded_settings(settings: Settings, manifest: Manifest, bundle: Path) -> Settings:
    """Return settings with the inputs, methods, runtime and seed that a bundle was measured with."""
    request, plan, model = manifest.request, manifest.plan, manifest.model
    assert request is not None  # noqa: S101 - opscope tune records it
    return msgspec.structs.replace(
        settings,
        input=request.input,
        inputs=str(bundle / plan.values) if request.inputs and plan.values else None,
        dim=request.dim,
        guess_inputs=request.guess_inputs,
        data=str(bundle / model.data) if model.data else None,
        methods=request.methods,
        runtime=manifest.variants[0].runtime or request.runtime,
        delegate=request.delegate,
        seed=request.seed,
    )


def _write_result(directory: Path, tuning: Tuning) -> TuningResult:
    """Write the result as JSON and as pages, and the lines for a program of one's own."""
    document = tuning_document(tuning)
    texts = {
        "report.html": html_document(document),
        "report.md": markdown_document(document),
        "apply.md": marked_markdown(apply_text(tuning)),
    }
    write_outputs(
        {directory / RESULT: to_json(tuning), **{directory / name: text.encode() for name, text in texts.items()}}
    )
    return shown_as(TuningResult, tuning)


def _build_result(
    request: TuningRequest,
    machine: _Machine,
    results: Mapping[str, CandidateResult],
    searched: Sequence[TuningSample],
    confirmed: Sequence[TuningSample],
) -> Tuning:
    """Return what is told: the figures of the confirmation, and of the search for settings that were dropped."""
    finalists = {sample.candidate for sample in confirmed} - {DEFAULT, NULL}
    null = confirm_gain(log_gains(confirmed, NULL), 1)
    decisive = confirmed or searched
    disturbed = find_disturbance(decisive)
    final = [_with_figures(result, searched, confirmed, len(finalists)) for result in results.values()]
    base = next(result for result in final if result.candidate.name == DEFAULT)
    tried = [result for result in final if result is not base]
    winner = choose_winner(tried, null, disturbed)
    ordered = sorted(tried, key=lambda result: (result.confirmed is None, -(result.seen or 0.0)))
    return Tuning(
        model=request.model,
        runtime=machine.runtime.title,
        machine=machine.environment.cpu or "a machine that does not tell its CPU",
        base=base,
        candidates=[_with_outcome(result, winner, null) for result in ordered],
        null=null,
        winner=winner,
        reference=request.space.reference,
        foreign_cpus=find_foreign_load(decisive),
        disturbed=disturbed,
        seconds={},
        directory=str(request.directory),
    )


def _with_figures(
    result: CandidateResult, searched: Sequence[TuningSample], confirmed: Sequence[TuningSample], finalist_count: int
) -> CandidateResult:
    """Return a result with the figures of its processes: those of the confirmation where it took part."""
    name = result.candidate.name
    seen, gains = log_gains(searched, name), log_gains(confirmed, name)
    samples = [sample for sample in confirmed if sample.candidate == name] or [
        sample for sample in searched if sample.candidate == name
    ]
    phase = confirmed if any(sample.candidate == name for sample in confirmed) else searched
    base = [sample.cpu_ns for sample in phase if sample.candidate == DEFAULT and sample.cpu_ns]
    cpu = [sample.cpu_ns for sample in samples if sample.cpu_ns]
    return msgspec.structs.replace(
        result,
        seen=math.exp(statistics.median(seen)) if len(seen) else None,
        confirmed=confirm_gain(gains, finalist_count) if name != DEFAULT else None,
        cpu_ratio=statistics.median(cpu) / statistics.median(base) if cpu and base else None,
        latency_ns=_median_of(sample.latency_ns for sample in samples),
        peak_bytes=_whole_median(sample.peak_bytes for sample in samples),
        load_ns=_whole_median(sample.load_ns for sample in samples),
    )


def _median_of(values: Iterable[float]) -> float | None:
    listed = list(values)
    return float(statistics.median(listed)) if listed else None


def _whole_median(values: Iterable[int | None]) -> int | None:
    middle = _median_of(value for value in values if value is not None)
    return None if middle is None else round(middle)


def _with_outcome(result: CandidateResult, winner: str | None, null: ConfirmedGain | None) -> CandidateResult:
    """Return a result with its outcome in a word, where its outputs have not decided it.

    What the default against itself could show as well is no difference.
    """
    if result.outcome:
        return result
    outcome, reason = "dropped", "the search saw no gain"
    if result.candidate.name == winner:
        outcome, reason = "winner", ""
    elif result.confirmed is not None:
        gain = result.confirmed
        low, high = (min(1.0, null.low), max(1.0, null.high)) if null else (1.0, 1.0)
        outcome = "faster" if gain.low > high else "slower" if gain.high < low else "no difference"
        reason = ""
    elif result.seen is None:
        outcome, reason = "not tried", "its parts did not help alone" if result.candidate.parts else "time was over"
    return msgspec.structs.replace(result, outcome=outcome, reason=reason)
