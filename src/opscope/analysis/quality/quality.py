"""Quality of a measurement: good, usable or do not trust, with the reasons and what to do about each."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.findings.message import Grade, Message, concern, not_checked, passed
from opscope.analysis.findings.rule import ask_rules, declare_rule
from opscope.core.stats.series import trend
from opscope.core.stats.steady import Shape, Steadiness, steadiness
from opscope.core.units import counted_text, ratio_text, share_text, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.analysis.compare.compare import EndToEnd
    from opscope.analysis.latency.latency import Latency, Untraced

# Where these come from: docs/design/quality.md.
FEWEST_ROUNDS = 6
BEYOND_PROCESSES = 2.0
PROCESSES = (0.05, 0.25)
INFERENCES = (0.10, 0.30)
PRECISION = (0.05, 0.25)
UNSETTLED = (0.25, 0.75)
DRIFT = 0.05
DRIFT_P = 0.01
AFFECTED = 0.25
FEWEST_INDEPENDENT = 10.0
FEWEST_RUNS = 10
TRACING = 0.10


class TimedVariant(NamedTuple):
    """Inferences of one variant."""

    name: str  # name of the variant, or of the trace
    latency: Latency  # latency of its measured inferences
    series: list[Steadiness]  # what each process's inferences say about themselves, warm-up included

    @property
    def medians(self) -> list[float]:
        """Median of each process, in order."""
        return [process.median_ns for process in self.latency.processes]


class QualityEvidence(NamedTuple):
    """Evidence that the quality of a measurement is judged by."""

    variants: list[TimedVariant]  # what was timed; at least one
    verdicts: Mapping[str, EndToEnd] = {}  # verdicts of the comparison, by method; empty where there is none
    # why outputs of variants disagree; empty when they agree, None when they were not compared
    outputs: str | None = None
    tracing: float | None = None  # largest ratio of a traced to an untraced call; None if unknown
    same_program: bool = True  # whether all variants ran one program, so that their outputs have to agree
    is_one_variant: bool = False  # whether the figures are of several methods of one variant, which nobody compares
    inputs_at_fault: bool = False  # whether all outputs hold the same values that are not finite


def evidence_of(
    variants: Mapping[str, tuple[Latency, Untraced | None]],
    verdicts: Mapping[str, EndToEnd] | None = None,
    outputs: str | None = None,
    *,
    same_program: bool = True,
    is_one_variant: bool = False,
    inputs_at_fault: bool = False,
) -> QualityEvidence:
    """Collect the evidence; of each variant the untraced latency if there is one, else the traced one."""
    costs = [untraced.tracing.ratio for _, untraced in variants.values() if untraced and untraced.tracing]
    rows = [
        describe_timing(name, untraced.latency if untraced else traced) for name, (traced, untraced) in variants.items()
    ]
    tracing = max(costs, default=None)
    return QualityEvidence(rows, verdicts or {}, outputs, tracing, same_program, is_one_variant, inputs_at_fault)


def describe_timing(name: str, latency: Latency) -> TimedVariant:
    """Return the inferences of one variant, with what each process's series shows."""
    series = [
        steadiness(np.concatenate([np.asarray(before, np.float64), after]))
        for before, after in zip(latency.warmup_samples_ns, latency.by_process(), strict=False)
    ]
    return TimedVariant(name, latency, series)


def examine_measurement(evidence: QualityEvidence) -> list[Message]:
    """Check what the figures say about their own quality."""
    return ask_rules(CHECKS, evidence)


def grade_by_limits(value: float, limits: tuple[float, float]) -> Grade | None:
    """Return the grade that a value allows: None up to the first limit, usable up to the second."""
    if value <= limits[0]:
        return None
    return Grade.USABLE if value <= limits[1] else Grade.DO_NOT_TRUST


def graded_message(check: str, grade: Grade | None, figures: str, advice: str, why: str = "") -> Message:
    """Return that figures passed a check if no grade limits them, else the grade, the reason and advice."""
    return passed(check, figures) if grade is None else concern(check, grade, figures + why, advice)


@declare_rule(FEWEST_ROUNDS=FEWEST_ROUNDS, BEYOND_PROCESSES=BEYOND_PROCESSES)
def enough_processes(evidence: QualityEvidence) -> Message:
    """Fewer processes than a verdict needs; with one per side, only a ratio beyond process noise is usable."""
    check = "enough_processes"
    fewest = min(len(variant.latency.processes) for variant in evidence.variants)
    many = f"{fewest} process{'' if fewest == 1 else 'es'} per variant"
    if fewest >= FEWEST_ROUNDS:
        return passed(check, many)
    speedups = [end.speedup for end in evidence.verdicts.values()]
    least = min(
        (speedup for speedup in speedups if speedup), key=lambda speedup: max(speedup, 1 / speedup), default=None
    )
    known = f"{many}: process-to-process noise is {'unknown' if fewest == 1 else 'barely known'}"
    advice = f"--rounds {FEWEST_ROUNDS} or more"
    if fewest == 1 and least and None not in speedups and _exceeds_process_noise(least):
        beyond_that = (
            f"{known}, but {ratio_text(least)} exceeds {BEYOND_PROCESSES:g}x, the effect of one unlucky process"
        )
        return concern(check, Grade.USABLE, beyond_that, advice)
    compared = len(evidence.variants) > 1 and not evidence.is_one_variant
    grade = Grade.DO_NOT_TRUST if speedups or (fewest == 1 and compared) else Grade.USABLE
    return concern(check, grade, known, advice)


def _exceeds_process_noise(speedup: float) -> bool:
    """Return whether a ratio, in either direction, is more than one unlucky process can cause."""
    return max(speedup, 1 / speedup) > BEYOND_PROCESSES


@declare_rule(PROCESSES=PROCESSES)
def processes_agree(evidence: QualityEvidence) -> Message:
    """Processes of one variant that differ from each other."""
    check = "processes_agree"
    worst = max(evidence.variants, key=lambda variant: _coefficient_of_variation(variant.medians))
    spread = _coefficient_of_variation(worst.medians)
    figures = f"medians of the {len(worst.medians)} processes of {worst.name} vary by {share_text(spread)}"
    return graded_message(
        check, grade_by_limits(spread, PROCESSES), figures, "close other programs, fix the clock frequency, add rounds"
    )


@declare_rule(INFERENCES=INFERENCES)
def inferences_agree(evidence: QualityEvidence) -> Message:
    """Inferences within a process that differ from each other."""
    check = "inferences_agree"
    worst = max(evidence.variants, key=_relative_spread)
    spread = _relative_spread(worst)
    figures = f"half of the inferences of {worst.name} differ from the median by more than {share_text(spread)}"
    advice = "close other programs, use fewer threads than cores, raise --runs"
    return graded_message(check, grade_by_limits(spread, INFERENCES), figures, advice)


@declare_rule(PRECISION=PRECISION)
def precise(evidence: QualityEvidence) -> Message:
    """A confidence interval that is wide relative to its value."""
    check = "precise"
    intervals = {_speedup_name(method): end.ci95 for method, end in evidence.verdicts.items()}
    intervals = intervals or {"the median": evidence.variants[0].latency.ci95_median_ns}
    halves = {
        name: _relative_half_width(interval) for name, interval in intervals.items() if interval and interval[0] > 0
    }
    if missing := [name for name in intervals if name not in halves]:
        return not_checked(check, f"there is no interval of {missing[0]}")
    name, half = max(halves.items(), key=lambda pair: pair[1])
    figures = f"{name} has an uncertainty of {share_text(half)}"
    return graded_message(
        check, grade_by_limits(half, PRECISION), figures, "add rounds: four times as many halve the interval"
    )


def _relative_half_width(interval: tuple[float, float]) -> float:
    """Return how far an interval reaches to either side of its middle, relative to it."""
    return math.sqrt(interval[1] / interval[0]) - 1


def _speedup_name(method: str) -> str:
    return f"the speedup of {method}" if method else "the speedup"


@declare_rule(UNSETTLED=UNSETTLED)
def settled(evidence: QualityEvidence) -> Message:
    """Processes that reach no steady state, or only after the discarded warm-up."""
    check = "settled"
    known_series = [
        (series, len(before))
        for variant in evidence.variants
        for series, before in zip(variant.series, variant.latency.warmup_samples_ns, strict=False)
        if series.shape is not None
    ]
    if not known_series:
        return not_checked(check, "too few inferences to tell whether they reach a steady state: --runs 20 or more")
    late = [series for series, set_aside in known_series if series.settled is None or series.settled > set_aside]
    figures = f"{len(known_series) - len(late)} of {len(known_series)} processes are steady after the warm-up"
    ends = [series.settled for series in late if series.settled is not None and series.shape is not Shape.SLOWDOWN]
    advice = f"--warmup {max(ends)}" if ends else "close other programs, cool down between rounds, fix the clock speed"
    return graded_message(check, grade_by_limits(len(late) / len(known_series), UNSETTLED), figures, advice)


@declare_rule(AFFECTED=AFFECTED, DRIFT=DRIFT, DRIFT_P=DRIFT_P)
def steady(evidence: QualityEvidence) -> Message:
    """Processes that get slower or faster while they run."""
    check = "steady"
    drifts = [
        (series.drift, series.drift_p or 0.0)
        for variant in evidence.variants
        for series in variant.series
        if series.drift is not None
    ]
    if not drifts:
        return not_checked(check, "too few inferences to detect a trend")
    sure = [drift for drift, p_value in drifts if abs(drift) > DRIFT and p_value <= DRIFT_P]
    if len(sure) <= AFFECTED * len(drifts):
        return passed(check, f"{len(drifts) - len(sure)} of {len(drifts)} processes keep their speed")
    typical = median(sure)
    change = f"{'slower' if typical > 0 else 'faster'} by {share_text(abs(typical))} while they run"
    advice = "let the device cool between rounds, fix the clock frequency" if typical > 0 else "raise --warmup"
    return concern(check, Grade.USABLE, f"{len(sure)} of {len(drifts)} processes become {change}", advice)


@declare_rule(DRIFT=DRIFT, DRIFT_P=DRIFT_P)
def same_all_along(evidence: QualityEvidence) -> Message:
    """A machine that becomes slower or faster over the experiment."""
    check = "same_all_along"
    trends = [(variant, trend(np.asarray(variant.medians))) for variant in evidence.variants]
    known = [(variant.name, *result) for variant, result in trends if result is not None]
    if not known:
        return not_checked(check, "too few processes to detect a trend over the experiment")
    name, change, p_value = max(known, key=lambda row: abs(row[1]) if row[2] <= DRIFT_P else 0.0)
    if abs(change) <= DRIFT or p_value > DRIFT_P:
        return passed(check, "no trend over the experiment")
    return concern(
        check,
        Grade.USABLE,
        f"{name} became {'slower' if change > 0 else 'faster'} by {share_text(abs(change))} over the experiment",
        "rounds are interleaved, so the comparison holds; for absolute latency, cool down and rerun",
    )


@declare_rule(AFFECTED=AFFECTED)
def one_mode(evidence: QualityEvidence) -> Message:
    """Inferences, or processes, that are bimodal."""
    check = "one_mode"
    series = [
        (variant.name, series_of_process) for variant in evidence.variants for series_of_process in variant.series
    ]
    double = [(name, series_of_process) for name, series_of_process in series if len(series_of_process.modes) > 1]
    if not series:
        return not_checked(check, "there is no series of inferences")
    if len(double) <= AFFECTED * len(series):
        return passed(check, f"inferences of {len(series) - len(double)} of {len(series)} processes are unimodal")
    name, first_series = double[0]
    values = " and ".join(f"{time_text(mode.location)} ({share_text(mode.share)})" for mode in first_series.modes)
    return concern(
        check,
        Grade.USABLE,
        f"inferences of {len(double)} of {len(series)} processes are bimodal, in one of {name} {values}",
        (
            "fix the clock frequency and pin the run (--affinity): likely two clock speeds, two core types, or another "
            "program"
        ),
    )


@declare_rule(FEWEST_INDEPENDENT=FEWEST_INDEPENDENT)
def independent(evidence: QualityEvidence) -> Message:
    """Autocorrelated inferences, which carry less information."""
    check = "independent"
    worth = [
        series.effective_n
        for variant in evidence.variants
        for series in variant.series
        if series.effective_n is not None
    ]
    if not worth:
        return not_checked(check, "too few inferences to measure autocorrelation")
    typical = median(worth)
    runs = median(process.n for variant in evidence.variants for process in variant.latency.processes)
    figures = (
        f"the {runs:.0f} inferences of a process carry the information of {min(typical, runs):.0f} independent ones"
    )
    grade = None if typical >= min(FEWEST_INDEPENDENT, runs) else Grade.USABLE
    return graded_message(
        check, grade, figures, "raise --runs, or better --rounds; intervals are per process and stay valid"
    )


@declare_rule(FEWEST_RUNS=FEWEST_RUNS)
def enough_runs(evidence: QualityEvidence) -> Message:
    """Few inferences per process."""
    check = "enough_runs"
    processes = [process for variant in evidence.variants for process in variant.latency.processes]
    warmups = [len(before) for variant in evidence.variants for before in variant.latency.warmup_samples_ns]
    runs = min(process.n for process in processes)
    figures = f"{counted_text(runs, 'measured inference')} per process"
    grade = None if runs >= FEWEST_RUNS else Grade.USABLE
    # Those set aside as warm-up were asked for, too: advice must ask for more than that.
    wanted_runs = 2 * max(FEWEST_RUNS, runs + max(warmups, default=0))
    return graded_message(check, grade, figures, f"--runs {wanted_runs}", ": percentiles and warm-up are guesses")


@declare_rule()
def outputs_alike(evidence: QualityEvidence) -> Message:
    """Variants that compute different results; a difference between two programs may be intended."""
    check = "outputs_alike"
    if evidence.outputs is None:
        return not_checked(check, "outputs were not compared")
    if not evidence.outputs:
        return passed(check, "all variants compute the same results")
    if not evidence.same_program:
        return concern(check, Grade.USABLE, evidence.outputs, "compare the accuracy of both programs (--inputs)")
    if evidence.inputs_at_fault:
        return concern(check, Grade.DO_NOT_TRUST, evidence.outputs, "give inputs that the model accepts with --input")
    advice = "run both on an input whose result you know to find which is wrong"
    return concern(check, Grade.DO_NOT_TRUST, evidence.outputs, advice)


@declare_rule(TRACING=TRACING)
def tracing_light(evidence: QualityEvidence) -> Message:
    """Tracing that distorts the split."""
    check = "tracing_light"
    if evidence.tracing is None:
        return not_checked(check, "tracing overhead was not measured")
    figures = f"tracing slows a call by {ratio_text(evidence.tracing)}"
    grade = None if evidence.tracing - 1 <= TRACING else Grade.USABLE
    return graded_message(
        check, grade, figures, "judge small operators as a group", ": the split includes tracing overhead"
    )


CHECKS: tuple[Callable[[QualityEvidence], Message], ...] = (
    enough_processes,
    processes_agree,
    inferences_agree,
    precise,
    settled,
    steady,
    same_all_along,
    one_mode,
    independent,
    enough_runs,
    outputs_alike,
    tracing_light,
)


def _coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the standard deviation relative to the mean; 0 for fewer than two values."""
    sample = np.asarray(values)
    return float(sample.std(ddof=1) / sample.mean()) if len(sample) > 1 and sample.mean() > 0 else 0.0


def _relative_spread(variant: TimedVariant) -> float:
    """Return the median over processes of the quartiles' distance from the median, relative to it."""
    return float(np.median([_relative_deviation(samples) for samples in variant.latency.by_process()]))


def _relative_deviation(samples: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    middle = float(np.median(samples))
    return float(np.median(np.abs(samples - middle))) / middle if middle > 0 else 0.0
