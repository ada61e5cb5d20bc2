"""Gate on two sides: is the candidate slower than a limit allows, and can the measurements tell?

The decision uses an existing comparison; nothing is estimated anew.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.compare.compare import ComparedSide, EndToEnd, MethodChange, OperatorChange, verdicts_of
from opscope.analysis.compare.outputs import OutputAgreement
from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, make_decision, worst_outcome
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, share_text
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.findings.message import Quality
    from opscope.analysis.gate.decision import Decision


DESIGN = "history"

DEFAULT_THRESHOLD = 0.03
_TIMES = {Quantity.SLOWDOWN, Quantity.TIME, Quantity.SHARE}
MOST_ROUNDS = 1_000
"""Most processes that are advised: beyond that the noise is the problem, not their number."""


class ComparisonEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="comparison"):
    """Evidence of a decision on two sides, or on a run and its history.

    Attributes:
        model: name of the candidate's model; null if unknown.
        baseline: the side that the candidate is measured by.
        candidate: the side that is judged.
        end_to_end: the verdict of the comparison on all calls together.
        slower: operators that became slower, the largest loss first; verdicts are corrected for their number.
        outputs: agreement of what both sides computed on the same inputs; null where that was not compared.
        unmatched: operators that only one side has, those that take longest first; they have no verdict.
        methods: the verdicts on several methods one by one, which then decide; else empty.
    """

    model: str | None
    baseline: ComparedSide
    candidate: ComparedSide
    end_to_end: EndToEnd
    slower: list[OperatorChange]
    outputs: OutputAgreement | None = None
    unmatched: list[OperatorChange] = []
    methods: list[MethodChange] = []

    @property
    def verdicts(self) -> dict[str, EndToEnd]:
        """Verdicts that answer, by method; see :func:`opscope.analysis.compare.compare.verdicts_of`."""
        return verdicts_of(self.end_to_end, self.methods)


class Thresholds(NamedTuple):
    """Largest slowdowns that pass, as fractions."""

    usual: float = DEFAULT_THRESHOLD  # of latency
    methods: Mapping[str, float] = {}  # of single methods, in place of the usual one

    def of(self, method: str) -> float:
        """Return the threshold of a method, or of all calls for the empty name."""
        return self.methods.get(method, self.usual)


class Slowdown(NamedTuple):
    """Slowdown with its uncertainty."""

    estimate: float  # candidate / baseline - 1
    interval: tuple[float, float] | None  # its 95 % interval; None with too few processes
    verdict: Verdict  # whether the candidate is slower
    minimum_detectable: float | None  # smallest change that would have shown; None with too few processes
    decidable: bool  # whether there are enough processes for any verdict


def gate(
    comparison: Comparison,
    *,
    thresholds: Thresholds | None = None,
    model: str | None = None,
    mismatches: Sequence[str] = (),
    notes: Sequence[str] = (),
    budgets: Sequence[Criterion] = (),
) -> Decision[ComparisonEvidence]:
    """Return the decision on a comparison.

    ``thresholds``: the largest slowdowns that are let through; ``model``: name of the candidate's; ``mismatches``: why
    the sides are not comparable, when they are compared anyway; ``notes``: of the sides, beside those of the
    comparison; ``budgets``: criteria besides those of latency.
    """
    thresholds = thresholds or Thresholds()
    latency = [
        slowdown_criterion(method, end, end_to_end_slowdown(end), thresholds.of(method))
        for method, end in comparison.verdicts.items()
    ]
    criteria = [*latency, *budgets]
    if worst_outcome(criteria) in {Outcome.PASSED, Outcome.REGRESSION} and doubt(comparison.quality):
        criteria = [_distrust_criterion(criterion, doubt(comparison.quality)) for criterion in criteria]
    slower, unmatched = slower_operators(comparison.operators), unmatched_operators(comparison.operators)
    evidence = ComparisonEvidence(
        model,
        comparison.baseline,
        comparison.candidate,
        comparison.end_to_end,
        slower,
        comparison.outputs,
        unmatched,
        comparison.methods,
    )
    untrusted = worst_outcome(criteria) is Outcome.UNTRUSTED
    return make_decision(
        criteria,
        evidence,
        advice=QUIETER if untrusted else advice(criteria, comparison.end_to_end, slower, unmatched),
        mismatches=mismatches,
        notes=dict.fromkeys([*_output_notes(comparison.outputs), *notes, *comparison.notes]),
        quality=comparison.quality,
    )


def _distrust_criterion(criterion: Criterion, reason: str) -> Criterion:
    """Return a criterion of times as untrusted; criteria of other figures stay."""
    decides = criterion.outcome in {Outcome.PASSED, Outcome.REGRESSION} and criterion.quantity in _TIMES
    return msgspec.structs.replace(criterion, outcome=Outcome.UNTRUSTED, reason=reason) if decides else criterion


def doubt(quality: Quality | None) -> str:
    """Return why times cannot be trusted, as one sentence; empty if they can, or if that was not judged."""
    worst = quality.doubt if quality else None
    return f"measured, but not trustworthy: {worst.title}" if worst else ""


def _output_notes(outputs: OutputAgreement | None) -> list[str]:
    """Return what is known of the results of both sides, which no limit of time covers."""
    if outputs is None:
        return []
    if not outputs.agree:
        return [f"the two sides compute different results on the same inputs: {outputs.problem}"]
    if not outputs.max_rel_error:
        return ["both sides give equal outputs for the same inputs"]
    return [f"outputs on the same inputs agree, with a relative error of at most {outputs.max_rel_error:.2g}"]


def end_to_end_slowdown(end_to_end: EndToEnd) -> Slowdown | None:
    """Return the slowdown of a comparison, the inverse of its speedup; None if the speedup is withheld."""
    if end_to_end.speedup is None:
        return None
    interval = None if end_to_end.ci95 is None else (1 / end_to_end.ci95[1] - 1, 1 / end_to_end.ci95[0] - 1)
    decidable = end_to_end.verdict is not Verdict.UNDECIDABLE
    return Slowdown(1 / end_to_end.speedup - 1, interval, end_to_end.verdict, end_to_end.minimum_detectable, decidable)


def judge(slowdown: Slowdown, limit: float) -> tuple[Outcome, str]:
    """Return whether a slowdown keeps a limit, and why.

    A regression is shown to be slower, and estimated beyond the limit. A pass is shown to be within it, or estimated
    within it by data in which a change of that size would have shown.
    """
    if not slowdown.decidable or slowdown.interval is None:
        return Outcome.INCONCLUSIVE, "too few processes for a verdict"
    if slowdown.estimate > limit:
        if slowdown.verdict is Verdict.SLOWER:
            return (
                Outcome.REGRESSION,
                f"slower by {share_text(slowdown.estimate)}; the limit is {share_text(limit)}",
            )
        return Outcome.INCONCLUSIVE, f"{share_text(slowdown.estimate)} exceeds the limit, but may be noise"
    return _judge_within_limit(slowdown, limit, slowdown.interval[1])


def _judge_within_limit(slowdown: Slowdown, limit: float, highest: float) -> tuple[Outcome, str]:
    """Judge a slowdown whose estimate is within its limit and whose interval ends at ``highest``."""
    if highest <= limit:
        return Outcome.PASSED, "the whole 95 % interval is within the limit"
    smallest = slowdown.minimum_detectable
    if smallest is None or smallest > limit:
        changes = "any change" if smallest is None else f"changes below {share_text(smallest)}"
        return Outcome.INCONCLUSIVE, f"too noisy: cannot detect {changes}"
    if slowdown.verdict is Verdict.SLOWER:
        return Outcome.PASSED, f"slower, but within the limit; the interval reaches {share_text(highest)}"
    return Outcome.PASSED, f"no slowdown detected; minimum detectable change: {share_text(smallest)}"


def slower_operators(changes: Sequence[OperatorChange]) -> list[OperatorChange]:
    """Return the operators that are shown to be slower, the largest loss first."""
    return sorted(
        (change for change in changes if change.verdict is Verdict.SLOWER), key=lambda change: change.saved_ns
    )


def unmatched_operators(changes: Sequence[OperatorChange]) -> list[OperatorChange]:
    """Return the operators that only one side has, the longest first, without the framework."""
    unmatched = (
        change
        for change in changes
        if None in {change.baseline_ns, change.candidate_ns} and change.kind != FRAMEWORK.kind
    )
    return sorted(unmatched, key=lambda change: -abs(change.saved_ns))


def advice(
    criteria: Sequence[Criterion],
    end_to_end: EndToEnd,
    slower: Sequence[OperatorChange],
    unmatched: Sequence[OperatorChange] = (),
) -> str | None:
    """Return what to do about the first criterion that decides the outcome; None if all passed."""
    outcome = worst_outcome(criteria)
    if outcome is Outcome.PASSED:
        return None
    first = next(criterion for criterion in criteria if criterion.outcome is outcome)
    if outcome is Outcome.REGRESSION:
        if first.quantity is not Quantity.SLOWDOWN:
            return (
                "reduce its time, or raise the limit if the new time is intended; `opscope analyze` shows where it goes"
            )
        if sum(c.saved_ns for c in unmatched) < sum(c.saved_ns for c in slower):
            return "look at operators that only one side has; `opscope compare` lists all of them"
        if slower:
            return "see which operators became slower; `opscope compare` lists all of them"
        return "no single operator is slower beyond noise; `opscope compare` shows where the time moved"
    return _more_data(first, end_to_end)


def _more_data(first: Criterion, end_to_end: EndToEnd) -> str:
    """Return advice on how many rounds would decide a criterion, as far as that can be computed."""
    fewest = min(end_to_end.baseline_processes, end_to_end.candidate_processes)
    if first.verdict is Verdict.UNDECIDABLE or end_to_end.verdict is Verdict.UNDECIDABLE:
        return "measure more rounds: a verdict needs 6 paired ones, or 4 unpaired processes per side"
    rounds = rounds_for(first, fewest)
    if rounds is None:
        return f"measure more than {fewest} rounds, or on a quieter machine"
    if rounds > MOST_ROUNDS:
        return f"make the machine quieter or raise the limit: {share_text(first.limit)} is far below the noise"
    return f"measure about {counted_text(rounds, 'round')} instead of {fewest}, or on a quieter machine"


def rounds_for(criterion: Criterion, processes: int) -> int | None:
    """Return how many processes would show a slowdown as large as the limit; None if that is unknown.

    The smallest change that shows falls with the square root of their number.
    """
    smallest = criterion.minimum_detectable
    if smallest is None or criterion.limit <= 0 or smallest <= criterion.limit:
        return None
    return math.ceil(processes * (smallest / criterion.limit) ** 2)


def slowdown_criterion(
    method: str, end_to_end: EndToEnd, slowdown: Slowdown | None, threshold: float, against: str = "the baseline"
) -> Criterion:
    """Return the threshold of a gate as a criterion with its outcome; ``method`` is empty for all calls."""
    outcome, reason = judge(slowdown, threshold) if slowdown else (Outcome.UNTRUSTED, end_to_end.reason or "withheld")
    return Criterion(
        name=f"{f'latency of {method}' if method else 'end-to-end latency'} against {against}",
        method=method or None,
        quantity=Quantity.SLOWDOWN,
        limit=threshold,
        measured=slowdown.estimate if slowdown else None,
        ci95=slowdown.interval if slowdown else None,
        outcome=outcome,
        reason=reason,
        candidate_ns=end_to_end.candidate_ns,
        verdict=end_to_end.verdict,
        minimum_detectable=end_to_end.minimum_detectable,
        baseline_ns=end_to_end.baseline_ns,
    )
