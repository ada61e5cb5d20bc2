"""The processes of `opscope tune`: a few inferences for the outputs, the rounds of a search, those of a confirmation.

Every round is written into the plan of its bundle before it runs. A bundle that is opened again gives the rounds that
it has, and measures only what it lacks, so an interrupted tuning goes on where it stopped.
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
    TuningCandidate,
    TuningSample,
    helped_alone,
    log_gains,
    needs_more_rounds,
    select_survivors,
)
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.bundle.manifest import Role
from opscope.core.errors import BundleError, RunError, UsageError
from opscope.core.system.stages import enter
from opscope.experiment.engine import planned_job, run_experiment
from opscope.experiment.planned import Experiment, PlannedVariant, Settings
from opscope.experiment.protocol import OUTPUTS
from opscope.readers.outputs import read_arrays
from opscope.workflows.measure.experiment_bundle import new_bundle, old_bundle
from opscope.workflows.measure.experiments import Means, complete_inferences, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.tuning import TuningSpace
    from opscope.bundle.manifest import Plan, Repetition
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array

SEARCH, BUNDLE = "search", "bundle"
"""Directories of the bundles of the search and of the confirmation, below the output directory."""
FIRST_ROUNDS, MOST_ROUNDS = 8, 20
"""Rounds of a confirmation, and the most that it may have."""
_MORE_ROUNDS = 4
_TRACED_ROUNDS = 2
_SEARCH_ROUNDS = 6
_SEARCH_PART = 0.5
"""Share of the time limit that the search may use."""
_SEARCH_SECONDS, _CONFIRMATION_SECONDS = 0.12, 0.2
"""Measured time of one process, which sets its number of inferences."""
_WARMUP_SHARE = 0.5
_FEWEST_RUNS, _MOST_RUNS = 5, 2_000
_CHECK_INFERENCES = 3
_WORTH_CONFIRMING = math.log(0.97)
_KEPT_SETTINGS = "input inputs dim guess_inputs data methods runtime delegate seed timeout dtype".split()
"""Settings of a measurement that hold for a search, too."""


class TuningRequest(NamedTuple):
    """A model, the settings to try, and what they run with."""

    model: str
    settings: Settings
    space: TuningSpace
    directory: Path  # of all results
    deadline: float  # by the clock of `means`, in seconds
    target: RunTarget
    means: Means


class CheckedOutputs(NamedTuple):
    """The outputs of a setting's first inferences, and their shortest latency."""

    outputs: list[Array]
    latency_ns: float


def plan_experiment(model: str, settings: Settings, candidates: Sequence[TuningCandidate], name: str) -> Experiment:
    """Return the experiment of some candidates, each a variant; rounds are added to its bundle later."""
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


def open_bundle(request: TuningRequest, candidates: Sequence[TuningCandidate], name: str) -> tuple[Bundle, RunTarget]:
    """Create the bundle of the default, the null candidate and some others, without rounds, or open it if it exists.

    Raises:
        UsageError: the bundle that exists was begun with other candidates, inputs or options.
    """
    path = request.directory / name
    null = msgspec.structs.replace(request.space.default, name=NULL)
    experiment = plan_experiment(request.model, request.settings, [request.space.default, null, *candidates], name)
    if not is_bundle(path):
        bundle, target = new_bundle(path, experiment, request.target, request.means.clock)
        _restate_plan(bundle, msgspec.structs.replace(bundle.manifest.plan, rounds=0, order=[], timed_order=[]))
        return bundle, target
    manifest, hint = Bundle.open(path).manifest, "give the options that began it, or name another --out"
    begun, planned = ({variant.name for variant in side.variants} for side in (manifest, experiment))
    if begun != planned:
        problem = f"it was begun with {', '.join(sorted(begun))}, not with {', '.join(sorted(planned))}"
        raise UsageError(problem, where=path, hint=hint)
    calls = len(manifest.plan.calls) or 1
    lengths = {"runs": (manifest.plan.runs or 0) // calls, "warmup": (manifest.plan.warmup or 0) // calls}
    try:
        return old_bundle(path, msgspec.structs.replace(experiment, **lengths), request.target), request.target
    except BundleError as error:
        raise UsageError(error.problem, where=path, hint=hint) from error


def _restate_plan(bundle: Bundle, plan: Plan) -> None:
    bundle.restate(msgspec.structs.replace(bundle.manifest, plan=plan))


def check_candidates(request: TuningRequest, bundle: Bundle, target: RunTarget) -> dict[str, CheckedOutputs | str]:
    """Run each candidate for a few inferences; return its outputs by its name, or why it does not run.

    Raises:
        RunError: the default does not run.
    """
    checked: dict[str, CheckedOutputs | str] = {}
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
            checked[candidate.name] = CheckedOutputs(outputs, float(min(outcome.measurement.wall_ns)))
    return checked


def judge_outputs(space: TuningSpace, checked: Mapping[str, CheckedOutputs | str]) -> dict[str, CandidateResult]:
    """Return each candidate's result by its name, from its first inferences; one with an outcome is not measured.

    Raises:
        UsageError: the outputs of the reference are not finite, so nothing can be compared with them.
    """
    reference = checked.get(space.reference)
    if not isinstance(reference, CheckedOutputs):
        reference = checked[DEFAULT]
    assert isinstance(reference, CheckedOutputs)  # noqa: S101 - a default that does not run is an error before
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


def search_settings(
    request: TuningRequest,
    bundle: Bundle,
    target: RunTarget,
    latency_ns: float,
    results: Mapping[str, CandidateResult],
) -> tuple[list[TuningSample], list[TuningCandidate]]:
    """Measure candidates round by round; return all samples and the finalists, the fastest first.

    ``latency_ns`` is that of the default. A setting that the search saw slower by 3 % is no finalist. Once a
    confirmation has begun its candidates are the finalists, and the search is over.
    """
    usable = [candidate for candidate in request.space.candidates if not results[candidate.name].outcome]
    if is_bundle(request.directory / BUNDLE):
        by_variant = {variant_name(candidate.name): candidate for candidate in usable}
        variants = Bundle.open(request.directory / BUNDLE).manifest.variants
        finalists = [by_variant[variant.name] for variant in variants if variant.name in by_variant]
        return read_samples(bundle, request.space), finalists
    clock = request.means.clock
    limit = clock.monotonic() + (request.deadline - clock.monotonic()) * _SEARCH_PART
    rounds_before = bundle.manifest.plan.rounds
    if not rounds_before:
        _set_length(bundle, latency_ns, _SEARCH_SECONDS)
    alive = [candidate for candidate in usable if not candidate.parts]
    samples: list[TuningSample] = []
    number = 0
    while number < _SEARCH_ROUNDS and not (number >= max(rounds_before, 1) and clock.monotonic() > limit):
        samples = _measure_round(request, bundle, target, alive, number)
        alive = select_survivors(samples, alive)
        number += 1
        if number >= _SEARCH_ROUNDS // 2 and len(alive) <= FINALISTS:
            break
    joined = [candidate for candidate in usable if candidate.parts and helped_alone(samples, candidate)]
    for later in range(number, number + _SEARCH_ROUNDS // 2 if joined else number):
        samples = _measure_round(request, bundle, target, [*alive[:1], *joined], later)
    gains = {
        candidate.name: float(statistics.median(values))
        for candidate in (*alive, *joined)
        if len(values := log_gains(samples, candidate.name))  # all processes of a setting may have failed
    }
    measured = [candidate for candidate in (*alive, *joined) if candidate.name in gains]
    ranked = sorted(measured, key=lambda candidate: -gains[candidate.name])
    return samples, [candidate for candidate in ranked if gains[candidate.name] > _WORTH_CONFIRMING][:FINALISTS]


def _set_length(bundle: Bundle, latency_ns: float, seconds: float) -> None:
    """Let a process measure about so many seconds of a model of this latency, after a warm-up of half of it."""
    plan = bundle.manifest.plan
    calls = len(plan.calls) or 1
    runs = max(_FEWEST_RUNS, min(_MOST_RUNS, round(seconds * 1e9 / latency_ns)))
    warmup = max(1, round(runs * _WARMUP_SHARE))
    _restate_plan(bundle, msgspec.structs.replace(plan, runs=runs * calls, warmup=warmup * calls))


def _measure_round(
    request: TuningRequest,
    bundle: Bundle,
    target: RunTarget,
    candidates: Sequence[TuningCandidate],
    number: int,
    *,
    traced: bool = False,
) -> list[TuningSample]:
    """Measure the default, the null candidate and others once, in a random order; return the samples of rounds so far.

    Rounds count from 0. Of a round that the bundle has, only what it lacks is measured.
    """
    plan = bundle.manifest.plan
    if number >= plan.rounds:
        names = [variant_name(name) for name in (DEFAULT, NULL, *(candidate.name for candidate in candidates))]
        generator = random.Random((plan.seed or 0) * 1_000 + number)  # noqa: S311 - an order to be repeated
        order = generator.sample(names, len(names))
        plan = msgspec.structs.replace(
            plan,
            rounds=number + 1,
            order=[*plan.order, order if traced else []],
            timed_order=[*plan.timed_order, order],
        )
        _restate_plan(bundle, plan)
    with bundle.locked():
        slots = [slot for slot in bundle.manifest.pending() if slot.round == number]
        run_experiment(bundle, target, request.means.clock, complete_inferences, request.means.progress, slots=slots)
    return [sample for sample in read_samples(bundle, request.space) if sample.round <= number]


def read_samples(bundle: Bundle, space: TuningSpace) -> list[TuningSample]:
    """Return what the untraced processes of a bundle measured, in the order in which they ran."""
    candidates = [space.default, *space.candidates]
    names = {variant_name(candidate.name): candidate.name for candidate in candidates} | {NULL: NULL}
    warmup = bundle.manifest.plan.warmup or 0
    return [
        _read_sample(names[repetition.variant], repetition, warmup)
        for repetition in bundle.manifest.repetitions
        if repetition.ok and repetition.trace is None and repetition.measurement
    ]


def _read_sample(name: str, repetition: Repetition, warmup: int) -> TuningSample:
    measurement = repetition.measurement
    assert measurement is not None  # noqa: S101 - only those with one are asked for
    calls, usage = measurement.wall_ns[warmup:], measurement.usage
    cpu = usage.cpu_ns / len(calls) if usage and usage.cpu_ns is not None else None
    foreign = None
    if usage and cpu is not None and usage.busy_ns is not None and usage.wall_ns:
        foreign = max(0.0, (usage.busy_ns - cpu * len(calls)) / usage.wall_ns)
    latency = float(statistics.median(calls))
    return TuningSample(name, repetition.round, latency, cpu, foreign, measurement.peak_rss_bytes, measurement.load_ns)


def confirm_finalists(
    request: TuningRequest, finalists: Sequence[TuningCandidate], latency_ns: float, rounds: int = FIRST_ROUNDS
) -> tuple[list[TuningSample], float]:
    """Measure the finalists against the default in new processes, and write the bundle's reports.

    ``rounds`` are measured at first, fewer if the time is over. Up to 20 follow while an interval holds 1. Returns the
    samples, and the clock in seconds after the first rounds.
    """
    clock = request.means.clock
    bundle, target = open_bundle(request, finalists, BUNDLE)
    rounds_before = bundle.manifest.plan.rounds
    if not rounds_before:
        _set_length(bundle, latency_ns, _CONFIRMATION_SECONDS)
    samples: list[TuningSample] = []
    for number in range(rounds):
        if number >= max(rounds_before, SAMPLES_BEFORE_HALVING) and clock.monotonic() > request.deadline:
            break
        samples = _measure_round(request, bundle, target, finalists, number, traced=number < _TRACED_ROUNDS)
    first = clock.monotonic()
    samples = read_samples(bundle, request.space)
    while bundle.manifest.plan.rounds < MOST_ROUNDS and clock.monotonic() < request.deadline:
        if not needs_more_rounds({candidate.name: log_gains(samples, candidate.name) for candidate in finalists}):
            break
        for number in range(bundle.manifest.plan.rounds, bundle.manifest.plan.rounds + _MORE_ROUNDS):
            samples = _measure_round(request, bundle, target, finalists, number)
    null = msgspec.structs.replace(request.space.default, name=NULL)
    experiment = plan_experiment(request.model, request.settings, [request.space.default, null, *finalists], BUNDLE)
    enter("writing reports")
    measure(bundle, experiment, target, request.means)
    return samples, first
