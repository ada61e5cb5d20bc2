"""`opscope tune`: settings that are faster than a runtime's own default and compute the same.

Three steps, each in fresh processes: every setting runs a few inferences, whose outputs are compared; a search drops
what is slow, round by round; a confirmation measures the finalists, the default and the default under another name in
new interleaved processes, from which every figure that is told comes. Its bundle is kept.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.compare.outputs import are_identical, compare_outputs
from opscope.analysis.tuning import (
    DEFAULT,
    FINALISTS,
    NULL,
    ROUNDING,
    SAMPLES_BEFORE_HALVING,
    CandidateResult,
    OutputClass,
    Tuning,
    TuningCandidate,
    TuningSample,
    choose_winner,
    confirm_gain,
    find_disturbance,
    find_foreign_load,
    helped_alone,
    log_gains,
    needs_more_rounds,
    select_survivors,
)
from opscope.bundle.bundle import check_free
from opscope.bundle.manifest import Role
from opscope.core.errors import RunError, UsageError
from opscope.core.json import to_json
from opscope.core.outputs import marked_markdown, write_outputs
from opscope.core.system.stages import enter
from opscope.experiment.engine import ignore_progress, planned_job, run_experiment
from opscope.experiment.planned import Experiment, PlannedVariant, Settings
from opscope.experiment.protocol import OUTPUTS
from opscope.machine.clock import SystemClock
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import TuningResult
from opscope.readers.outputs import read_arrays
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.tuning import apply_text, tuning_document
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiment_bundle import check_request, new_bundle, target_of
from opscope.workflows.measure.experiments import Means, complete_inferences, measure
from opscope.workflows.measure.profiling import default_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opscope.analysis.tuning import ConfirmedGain, TuningSpace
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Plan, Repetition
    from opscope.experiment.engine import Progress
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array
    from opscope.machine.clock import TimeSource

RESULT, SEARCH, BUNDLE = "tune.json", "search", "bundle"
"""Names below the output directory."""
_SEARCH_SECONDS, _CONFIRMATION_SECONDS = 0.12, 0.2
"""Measured time of one process, which follows from the latency of the default."""
_WARMUP_SHARE = 0.5
_FEWEST_RUNS, _MOST_RUNS = 5, 2_000
_CHECK_INFERENCES = 3
_SEARCH_ROUNDS = 6
_FIRST_ROUNDS, _MORE_ROUNDS, _MOST_ROUNDS = 8, 4, 20
_TRACED_ROUNDS = 2
_KEPT_SETTINGS = "input inputs dim guess_inputs data methods runtime delegate seed timeout dtype".split()
"""Settings of a measurement that hold for a search, too."""
_WORTH_CONFIRMING = math.log(0.97)
_SEARCH_PART = 0.5
"""Of the time that is allowed, which the search may use."""


class _Checked(NamedTuple):
    """What a setting computed in its first inferences."""

    outputs: list[Array]
    latency_ns: float


class _Request(NamedTuple):
    """What is asked for, and with what it is run."""

    model: str
    settings: Settings
    space: TuningSpace
    out: Path
    deadline: float  # of the clock, in seconds
    target: RunTarget
    means: Means


def tune(  # noqa: PLR0913 - all but the model are by name
    model: str | Path,
    *,
    minutes: float = 3.0,
    try_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
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
        target: where to run; None: as ``settings.target`` says.
        progress: hears of every process.
        notify: hears that another run is waited for.
        clock: None: the machine's.

    Raises:
        UsageError: the runtime has no settings, or the default computes no finite numbers.
        RunError: the default does not run.
        OpscopeError: as of :func:`opscope.api.profile`.
    """
    chosen, time = settings or Settings(), clock or SystemClock()
    runtime = runtime_of(str(model), chosen.runtime)
    path = default_directory(f"tune-{Path(str(model)).name}", time.now()) if out is None else Path(out)
    experiment = _plan_experiment(str(model), chosen, [TuningCandidate(DEFAULT, 1)], SEARCH)
    check_free(path)
    check_request(path / SEARCH, experiment, target)
    means = Means(progress, target, time, lock=chosen.lock, lock_limit=chosen.lock_limit)
    means = means if notify is None else means._replace(notify=notify)
    run_target = target_of(experiment, given=target)
    began = time.monotonic()
    with run_target.reserved(means.lock_request()):
        environment = run_target.environment()
        space = runtime.tuning_space(max(1, environment.usable_cpus or 1))
        threads = space.default.threads
        extra = [TuningCandidate(f"{key}={value}", threads, {key: value}) for key, value in (try_options or {}).items()]
        space = space._replace(candidates=[*space.candidates, *extra])
        if not space.candidates:
            raise UsageError("there is nothing to try: one CPU, and no option", where=model, hint="--try KEY=VALUE")
        request = _Request(str(model), chosen, space, path, began + 60 * minutes, run_target, means)
        return _run_tuning(request, runtime.title, environment.cpu or "a machine that does not tell its CPU", began)


def _run_tuning(request: _Request, runtime: str, machine: str, began: float) -> TuningResult:
    """Check, search, confirm, and write the result."""
    clock = request.means.clock
    candidates = [request.space.default, _null_candidate(request.space), *request.space.candidates]
    bundle, target = _new_bundle(request, candidates, SEARCH)
    enter("checking outputs")
    checked = _check_candidates(request, bundle, target)
    results = _judge_outputs(request.space, checked)
    enter("searching")
    default = checked[DEFAULT]
    assert isinstance(default, _Checked)  # noqa: S101 - a default that does not run is an error before
    samples, finalists = _search_settings(request, bundle, target, default.latency_ns, results)
    seconds = {"search": clock.monotonic() - began}
    confirmed: list[TuningSample] = []
    if finalists:
        enter("confirming")
        confirmed, first = _confirm_finalists(request, finalists, default.latency_ns)
        seconds["first"] = first - began
    tuning = _build_result(request, results, samples, confirmed, runtime, machine)
    tuning = msgspec.structs.replace(tuning, seconds=seconds | {"all": clock.monotonic() - began})
    _write_result(request.out, tuning)
    return shown_as(TuningResult, tuning)


def _write_result(directory: Path, tuning: Tuning) -> None:
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


def _null_candidate(space: TuningSpace) -> TuningCandidate:
    return msgspec.structs.replace(space.default, name=NULL)


def _plan_experiment(model: str, settings: Settings, candidates: Sequence[TuningCandidate], name: str) -> Experiment:
    """Return the experiment of some candidates: one round, which the plan of its bundle extends."""
    kept_settings = {field: getattr(settings, field) for field in _KEPT_SETTINGS}
    variants = tuple(
        PlannedVariant(
            name=variant_name(candidate.name),
            role=Role.BASELINE if candidate.name == DEFAULT else Role.CANDIDATE,
            ablated=[],
            cleared=[],
            threads=candidate.threads,
            options=dict(candidate.options) or None,
            group=variant_name(candidate.name),
        )
        for candidate in candidates
    )
    return Experiment(
        name=name,
        model=model,
        target=settings.target,
        variants=variants,
        models=Path(settings.models) if settings.models else None,
        rounds=1,
        ceilings=False,
        **kept_settings,
    )


def variant_name(name: str) -> str:
    """Return the name of a candidate as a directory can have it."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip("-.")


def _new_bundle(request: _Request, candidates: Sequence[TuningCandidate], name: str) -> tuple[Bundle, RunTarget]:
    """Create the bundle of some candidates, with a plan without rounds."""
    experiment = _plan_experiment(request.model, request.settings, candidates, name)
    bundle, target = new_bundle(request.out / name, experiment, request.target, request.means.clock)
    _restate_plan(bundle, msgspec.structs.replace(bundle.manifest.plan, rounds=0, order=[], timed_order=[]))
    return bundle, target


def _restate_plan(bundle: Bundle, plan: Plan) -> None:
    bundle.restate(msgspec.structs.replace(bundle.manifest, plan=plan))


def _check_candidates(request: _Request, bundle: Bundle, target: RunTarget) -> dict[str, _Checked | str]:
    """Run each candidate for a few inferences; return its outputs by its name, or why it does not run."""
    checked: dict[str, _Checked | str] = {}
    for candidate in (request.space.default, *request.space.candidates):
        variant = bundle.manifest.variant(variant_name(candidate.name))
        assert variant is not None  # noqa: S101 - the bundle was made of them
        job = planned_job(bundle.manifest, bundle.path, variant, traced=False)
        job = msgspec.structs.replace(job, inferences=_CHECK_INFERENCES * (len(job.calls) or 1), warmup=0)
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            outcome = target.of(variant.name).execute(job, Path(directory))
            if outcome.failure or outcome.measurement is None:
                message = outcome.failure.message if outcome.failure else "it gave no result"
                if candidate.name == DEFAULT:
                    raise RunError(f"the runtime's default does not run: {message}", where=request.model)
                checked[candidate.name] = message
                continue
            outputs = list(read_arrays(Path(directory) / OUTPUTS).values())
            checked[candidate.name] = _Checked(outputs, float(min(outcome.measurement.wall_ns)))
    return checked


def _judge_outputs(space: TuningSpace, checked: Mapping[str, _Checked | str]) -> dict[str, CandidateResult]:
    """Return what the first inferences say of each candidate; a setting with an outcome is not measured.

    Raises:
        UsageError: the outputs of the reference are not finite, so nothing can be compared with them.
    """
    reference = checked.get(space.reference)
    if not isinstance(reference, _Checked):
        reference = checked[DEFAULT]
    assert isinstance(reference, _Checked)  # noqa: S101 - a default that does not run is an error before
    finite = compare_outputs(reference.outputs, reference.outputs, None, ROUNDING)
    if not finite.agree:
        problem = f"the outputs of the default cannot be compared: {finite.problem}"
        raise UsageError(problem, hint="give inputs that the model accepts with --input")
    results: dict[str, CandidateResult] = {}
    for candidate in (space.default, *space.candidates):
        answer = checked[candidate.name]
        if isinstance(answer, str):
            results[candidate.name] = CandidateResult(candidate, "does not run", reason=answer)
            continue
        agreement = compare_outputs(reference.outputs, answer.outputs, None, ROUNDING)
        kind = OutputClass.SAME_BITS if are_identical(agreement) else OutputClass.ROUNDING
        if not agreement.agree:
            kind = OutputClass.OTHER_NUMBERS
        result = CandidateResult(candidate, "", outputs=kind, max_rel_error=agreement.max_rel_error)
        if kind is OutputClass.OTHER_NUMBERS and candidate.name != DEFAULT:
            result = msgspec.structs.replace(result, outcome="other numbers", reason=agreement.problem or "")
        results[candidate.name] = result
    return results


def _search_settings(
    request: _Request,
    bundle: Bundle,
    target: RunTarget,
    latency_ns: float,
    results: Mapping[str, CandidateResult],
) -> tuple[list[TuningSample], list[TuningCandidate]]:
    """Measure candidates round by round; return all samples and the finalists, the fastest first.

    ``latency_ns`` is that of the default. A setting that the search saw slower by 3 % is no finalist.
    """
    clock = request.means.clock
    limit = clock.monotonic() + (request.deadline - clock.monotonic()) * _SEARCH_PART
    _set_length(bundle, latency_ns, _SEARCH_SECONDS)
    usable = [candidate for candidate in request.space.candidates if not results[candidate.name].outcome]
    alive = [candidate for candidate in usable if not candidate.parts]
    samples: list[TuningSample] = []
    for number in range(_SEARCH_ROUNDS):
        if number and clock.monotonic() > limit:
            break
        samples = _measure_round(request, bundle, target, alive)
        alive = select_survivors(samples, alive)
        if number + 1 >= _SEARCH_ROUNDS // 2 and len(alive) <= FINALISTS:
            break
    joined = [candidate for candidate in usable if candidate.parts and helped_alone(samples, candidate)]
    for _ in range(_SEARCH_ROUNDS // 2 if joined else 0):
        samples = _measure_round(request, bundle, target, [*alive[:1], *joined])
    gains = {
        candidate.name: float(statistics.median(values))
        for candidate in (*alive, *joined)
        if len(values := log_gains(samples, candidate.name))  # all processes of a setting may have failed
    }
    measured = [candidate for candidate in (*alive, *joined) if candidate.name in gains]
    ranked = sorted(measured, key=lambda candidate: -gains[candidate.name])
    return samples, [candidate for candidate in ranked if gains[candidate.name] > _WORTH_CONFIRMING][:FINALISTS]


def _set_length(bundle: Bundle, latency_ns: float, seconds: float) -> None:
    """Let a process measure about so many seconds of a model of this latency, behind a warm-up of half of it."""
    plan = bundle.manifest.plan
    calls = len(plan.calls) or 1
    runs = max(_FEWEST_RUNS, min(_MOST_RUNS, round(seconds * 1e9 / latency_ns)))
    warmup = max(1, round(runs * _WARMUP_SHARE))
    _restate_plan(bundle, msgspec.structs.replace(plan, runs=runs * calls, warmup=warmup * calls))


def _measure_round(
    request: _Request, bundle: Bundle, target: RunTarget, candidates: Sequence[TuningCandidate], *, traced: bool = False
) -> list[TuningSample]:
    """Measure the default, the default again and candidates once, in a random order; return all samples so far."""
    plan = bundle.manifest.plan
    names = [variant_name(name) for name in (DEFAULT, NULL, *(candidate.name for candidate in candidates))]
    generator = random.Random((plan.seed or 0) * 1_000 + plan.rounds)  # noqa: S311 - an order to be repeated
    order = generator.sample(names, len(names))
    plan = msgspec.structs.replace(
        plan,
        rounds=plan.rounds + 1,
        order=[*plan.order, order if traced else []],
        timed_order=[*plan.timed_order, order],
    )
    _restate_plan(bundle, plan)
    with bundle.locked():
        run_experiment(
            bundle, target, request.means.clock, complete_inferences, request.means.progress, keep_going=True
        )
    return _samples_of(bundle, [request.space.default, *request.space.candidates])


def _samples_of(bundle: Bundle, candidates: Sequence[TuningCandidate]) -> list[TuningSample]:
    """Return what the untraced processes of a bundle measured, in the order in which they ran."""
    names = {variant_name(candidate.name): candidate.name for candidate in candidates} | {NULL: NULL}
    warmup = bundle.manifest.plan.warmup or 0
    return [
        _sample_of(names[repetition.variant], repetition, warmup)
        for repetition in bundle.manifest.repetitions
        if repetition.ok and repetition.trace is None and repetition.measurement
    ]


def _sample_of(name: str, repetition: Repetition, warmup: int) -> TuningSample:
    measurement = repetition.measurement
    assert measurement is not None  # noqa: S101 - only those with one are asked for
    calls, usage = measurement.wall_ns[warmup:], measurement.usage
    cpu = usage.cpu_ns / len(calls) if usage and usage.cpu_ns is not None else None
    foreign = None
    if usage and cpu is not None and usage.busy_ns is not None and usage.wall_ns:
        foreign = max(0.0, (usage.busy_ns - cpu * len(calls)) / usage.wall_ns)
    latency = float(statistics.median(calls))
    return TuningSample(name, repetition.round, latency, cpu, foreign, measurement.peak_rss_bytes, measurement.load_ns)


def _confirm_finalists(
    request: _Request, finalists: Sequence[TuningCandidate], latency_ns: float
) -> tuple[list[TuningSample], float]:
    """Measure the finalists against the default in new processes, and write the bundle's reports.

    Returns the samples, and when the first rounds were over, by the clock in seconds.
    """
    clock = request.means.clock
    candidates = [request.space.default, _null_candidate(request.space), *finalists]
    bundle, target = _new_bundle(request, candidates, BUNDLE)
    _set_length(bundle, latency_ns, _CONFIRMATION_SECONDS)
    samples: list[TuningSample] = []
    for number in range(_FIRST_ROUNDS):
        if number >= SAMPLES_BEFORE_HALVING and clock.monotonic() > request.deadline:
            break
        samples = _measure_round(request, bundle, target, finalists, traced=number < _TRACED_ROUNDS)
    first = clock.monotonic()
    while bundle.manifest.plan.rounds < _MOST_ROUNDS and clock.monotonic() < request.deadline:
        if not needs_more_rounds({candidate.name: log_gains(samples, candidate.name) for candidate in finalists}):
            break
        for _ in range(_MORE_ROUNDS):
            samples = _measure_round(request, bundle, target, finalists)
    experiment = _plan_experiment(request.model, request.settings, candidates, BUNDLE)
    enter("writing reports")
    measure(bundle, experiment, target, request.means)
    return samples, first


def _build_result(
    request: _Request,
    results: Mapping[str, CandidateResult],
    searched: Sequence[TuningSample],
    confirmed: Sequence[TuningSample],
    runtime: str,
    machine: str,
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
        runtime=runtime,
        machine=machine,
        base=base,
        candidates=[_with_outcome(result, winner, null) for result in ordered],
        null=null,
        winner=winner,
        reference=request.space.reference,
        foreign_cpus=find_foreign_load(decisive),
        disturbed=disturbed,
        seconds={},
        directory=str(request.out),
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
