"""A gate: is the candidate slower than a limit lets through, or is that more than the measurements can tell.

The decision is made from a comparison that is there already; nothing is estimated anew. Schema ``opscope.check/1``.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.compare.compare import ComparedSide, EndToEnd, OperatorChange
from opscope.analysis.compare.outputs import OutputAgreement
from opscope.analysis.findings.quality import Grade, Quality
from opscope.core.stats.effect import Verdict
from opscope.core.units import share_text
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison


DESIGN = "history"

DEFAULT_THRESHOLD = 0.03
QUIETER = "measure again on a quiet machine: the reasons stand with the measurement quality"
_NOT_OF_TIMES = {"outputs_alike", "idle"}
"""Checks that limit a grade and say nothing of how the inferences that count were timed."""
MOST_ROUNDS = 1_000
"""More processes than that are never advised: the noise is the problem then, not their number."""


class Outcome(str, enum.Enum):
    """What a gate says about one criterion, or about all of them."""

    PASSED = "passed"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    """The measurements are too few or too noisy for the limit."""
    UNTRUSTED = "untrusted"
    """It was measured, and the measurements are not to be trusted."""


class Quantity(str, enum.Enum):
    """What a criterion limits, and so the unit of its figures."""

    SLOWDOWN = "slowdown"
    """Candidate / baseline - 1, as a fraction: 0.03 is 3 % slower."""
    TIME = "time_ns"
    """Time per inference in ns."""
    SHARE = "share"
    """Part of the time of an inference, as a fraction."""


class Criterion(msgspec.Struct, frozen=True):
    """One limit, and how the candidate stands to it.

    Attributes:
        name: what is limited, in words; unique in its report.
        quantity: unit of ``limit``, ``measured`` and ``ci95``.
        limit: the largest value that is let through.
        measured: estimate of the candidate.
        ci95: its 95 % interval over processes; null with too few processes, or where it cannot be compared.
        outcome: whether it is kept.
        reason: why, as one sentence without a full stop.
        verdict: of a slowdown: whether the candidate is slower than the baseline at all, corrected for the number of
            limits of the budget file; null for other quantities.
        minimum_detectable: of a slowdown: the smallest one that such data would show in 80 of 100 experiments; else
            null.
        entry: number of the entry in the budget file, from 0; null for end-to-end latency.
        operators: how many operators of the candidate it is about; null for end-to-end latency.
        candidate_ns: time per inference of what it is about, on the candidate.
        baseline_ns: likewise on the baseline; null where the baseline was not asked, or has nothing like it.
    """

    name: str
    quantity: Quantity
    limit: float
    measured: float | None
    ci95: tuple[float, float] | None
    outcome: Outcome
    reason: str
    candidate_ns: float
    verdict: Verdict | None = None
    minimum_detectable: float | None = None
    entry: int | None = None
    operators: int | None = None
    baseline_ns: float | None = None


class GateReport(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.check/1"):
    """The decision of a gate, and everything that it rests on.

    Attributes:
        outcome: untrusted when the measurements decide and are not to be trusted, or were disturbed; else regression
            when any criterion is one, else inconclusive when any is, else passed.
        let_through: whether the candidate may pass: it passed, or is inconclusive where that was allowed.
        model: name of the candidate's model; null where it is not known.
        baseline: the side that the candidate is measured by.
        candidate: the side that is judged.
        threshold: the largest end-to-end slowdown that is let through, as a fraction.
        slowdown: candidate / baseline - 1, end to end; null where it is withheld.
        ci95_slowdown: its 95 % interval; null with fewer than two processes a side.
        end_to_end: the verdict of the comparison.
        criteria: every limit; the end-to-end slowdown first, then those of the budget file in its order.
        slower: operators that became slower, the largest loss first; verdicts are corrected for their number.
        advice: what to do when it is not a pass; null for a pass.
        mismatches: why the sides are not comparable; only with force, and empty otherwise.
        notes: what else limits the meaning of the figures.
        quality: how far the measurements can be trusted.
        outputs: agreement of what both sides computed on the same inputs; null where that was not compared.
        unmatched: operators that only one side has, those that take longest first; they have no verdict.
    """

    outcome: Outcome
    let_through: bool
    model: str | None
    baseline: ComparedSide
    candidate: ComparedSide
    threshold: float
    slowdown: float | None
    ci95_slowdown: tuple[float, float] | None
    end_to_end: EndToEnd
    criteria: list[Criterion]
    slower: list[OperatorChange]
    advice: str | None
    mismatches: list[str]
    notes: list[str]
    quality: Quality | None = None
    outputs: OutputAgreement | None = None
    unmatched: list[OperatorChange] = []


class Slowdown(NamedTuple):
    """A slowdown as far as it is known."""

    estimate: float  # candidate / baseline - 1
    interval: tuple[float, float] | None  # its 95 % interval; None with too few processes
    verdict: Verdict  # whether the candidate is slower
    minimum_detectable: float | None  # the smallest change that would have shown; None likewise
    decidable: bool  # whether there are enough processes for any verdict


class Terms(NamedTuple):
    """What the gate was asked, and what is known besides the figures."""

    threshold: float = DEFAULT_THRESHOLD  # the largest end-to-end slowdown that is let through, as a fraction
    model: str | None = None  # name of the candidate's model
    mismatches: Sequence[str] = ()  # why the sides are not comparable, when they are compared anyway
    notes: Sequence[str] = ()  # of the sides, beside those of the comparison


def gate(comparison: Comparison, terms: Terms, budgets: Sequence[Criterion] = ()) -> GateReport:
    """The decision on a comparison."""
    found = comparison.end_to_end
    shown = end_to_end_slowdown(found)
    first = slowdown_criterion("end-to-end latency against the baseline", found, shown, terms.threshold)
    criteria = [first, *budgets]
    if overall(criteria) in {Outcome.PASSED, Outcome.REGRESSION} and doubt(comparison.quality):
        criteria[0] = msgspec.structs.replace(first, outcome=Outcome.UNTRUSTED, reason=doubt(comparison.quality))
    outcome, slower = overall(criteria), slower_operators(comparison.operators)
    unmatched = unmatched_operators(comparison.operators)
    return GateReport(
        outcome=outcome,
        let_through=outcome is Outcome.PASSED,
        model=terms.model,
        baseline=comparison.baseline,
        candidate=comparison.candidate,
        threshold=terms.threshold,
        slowdown=shown.estimate if shown else None,
        ci95_slowdown=shown.interval if shown else None,
        end_to_end=found,
        criteria=criteria,
        slower=slower,
        advice=QUIETER if outcome is Outcome.UNTRUSTED else advice(criteria, found, slower, unmatched),
        mismatches=list(terms.mismatches),
        notes=list(dict.fromkeys([*_outputs_text(comparison.outputs), *terms.notes, *comparison.notes])),
        quality=comparison.quality,
        outputs=comparison.outputs,
        unmatched=unmatched,
    )


def doubt(quality: Quality | None) -> str:
    """Why times are not to be trusted, as one sentence; empty where they are, or where that was not judged.

    That both sides compute different results says nothing about their times: a retrained model is no slower one. Nor
    does the load average: what others took from the inferences themselves is a check of its own.
    """
    found = [own for own in quality.reasons if own.limits_to is Grade.DO_NOT_TRUST] if quality else []
    worst = next((own for own in found if own.check not in _NOT_OF_TIMES), None)
    return f"measured, and not to be trusted: {worst.problem}" if worst else ""


def _outputs_text(outputs: OutputAgreement | None) -> list[str]:
    """What is known of the results of both sides, which no limit of time is about."""
    if outputs is None:
        return []
    if not outputs.agree:
        return [f"the two sides compute different results on the same inputs: {outputs.problem}"]
    if not outputs.max_rel_error:
        return ["the outputs of both sides on the same inputs are equal"]
    return [f"outputs on the same inputs agree, with a relative error of at most {outputs.max_rel_error:.2g}"]


def lenient(report: GateReport) -> GateReport:
    """The report with an inconclusive outcome let through, which a note then says; any other as it is."""
    if report.outcome is not Outcome.INCONCLUSIVE:
        return report
    notes = ["inconclusive results pass, as requested", *report.notes]
    return msgspec.structs.replace(report, let_through=True, notes=notes)


def end_to_end_slowdown(found: EndToEnd) -> Slowdown | None:
    """The slowdown of a comparison: its speedup, seen from the other side; None where that is withheld."""
    if found.speedup is None:
        return None
    interval = None if found.ci95 is None else (1 / found.ci95[1] - 1, 1 / found.ci95[0] - 1)
    decidable = found.verdict is not Verdict.UNDECIDABLE
    return Slowdown(1 / found.speedup - 1, interval, found.verdict, found.minimum_detectable, decidable)


def judge(shown: Slowdown, limit: float) -> tuple[Outcome, str]:
    """Whether a slowdown keeps a limit, and why.

    A regression is shown to be slower, and estimated beyond the limit. A pass is shown to be within it, or estimated
    within it by data in which a change of that size would have shown.
    """
    if not shown.decidable or shown.interval is None:
        return Outcome.INCONCLUSIVE, "too few processes for a verdict"
    if shown.estimate > limit:
        if shown.verdict is Verdict.SLOWER:
            return (
                Outcome.REGRESSION,
                f"slower by {share_text(shown.estimate)}; the limit is {share_text(limit)}",
            )
        return Outcome.INCONCLUSIVE, f"{share_text(shown.estimate)} exceeds the limit, but may be noise"
    return _estimated_within(shown, limit, shown.interval[1])


def _estimated_within(shown: Slowdown, limit: float, highest: float) -> tuple[Outcome, str]:
    """The decision on a slowdown that is estimated within its limit, where its interval ends at ``highest``."""
    if highest <= limit:
        return Outcome.PASSED, "the whole 95 % interval is within the limit"
    smallest = shown.minimum_detectable
    if smallest is None or smallest > limit:
        shows = "no change could" if smallest is None else f"only a change of {share_text(smallest)} could"
        return Outcome.INCONCLUSIVE, f"too noisy: {shows} be detected"
    if shown.verdict is Verdict.SLOWER:
        return Outcome.PASSED, f"slower, but within the limit; the interval reaches {share_text(highest)}"
    return Outcome.PASSED, f"no slowdown detected; minimum detectable change: {share_text(smallest)}"


def overall(criteria: Sequence[Criterion]) -> Outcome:
    """The worst outcome of all criteria."""
    outcomes = {criterion.outcome for criterion in criteria}
    worst_first = (Outcome.UNTRUSTED, Outcome.REGRESSION, Outcome.INCONCLUSIVE)
    return next((outcome for outcome in worst_first if outcome in outcomes), Outcome.PASSED)


def slower_operators(changes: Sequence[OperatorChange]) -> list[OperatorChange]:
    """Operators that are shown to be slower, the largest loss first."""
    return sorted((c for c in changes if c.verdict is Verdict.SLOWER), key=lambda change: change.saved_ns)


def unmatched_operators(changes: Sequence[OperatorChange]) -> list[OperatorChange]:
    """Operators that only one side has, those that take longest first; calls of the framework are none."""
    lone = (c for c in changes if None in {c.baseline_ns, c.candidate_ns} and c.kind != FRAMEWORK.kind)
    return sorted(lone, key=lambda change: -abs(change.saved_ns))


def advice(
    criteria: Sequence[Criterion],
    found: EndToEnd,
    slower: Sequence[OperatorChange],
    unmatched: Sequence[OperatorChange] = (),
) -> str | None:
    """What to do about the first criterion that decides the outcome; None when all passed."""
    outcome = overall(criteria)
    if outcome is Outcome.PASSED:
        return None
    first = next(criterion for criterion in criteria if criterion.outcome is outcome)
    if outcome is Outcome.REGRESSION:
        return _remedy(first, slower, unmatched)
    return _more_data(first, found)


def _remedy(first: Criterion, slower: Sequence[OperatorChange], unmatched: Sequence[OperatorChange]) -> str:
    if first.quantity is not Quantity.SLOWDOWN:
        return "make it cheaper, or raise the limit if the new time is intended; `opscope analyze` shows where it goes"
    if sum(c.saved_ns for c in unmatched) < sum(c.saved_ns for c in slower):
        return "the operators that only one side has say where; `opscope compare` shows all of them"
    if slower:
        return "see which operators became slower; `opscope compare` shows all of them"
    return "no single operator is slower beyond noise; `opscope compare` shows how the time moved"


def _more_data(first: Criterion, found: EndToEnd) -> str:
    """How many rounds would decide a criterion, as far as that can be told."""
    fewest = min(found.baseline_processes, found.candidate_processes)
    if found.verdict is Verdict.UNDECIDABLE:
        return "measure more rounds: a verdict needs at least 6 paired ones, or 4 unpaired processes per side"
    wanted = rounds_for(first, fewest)
    if wanted is None:
        return f"measure more than {fewest} rounds, or on a quieter machine"
    if wanted > MOST_ROUNDS:
        return f"make the machine quieter or raise the limit: {share_text(first.limit)} is far below the noise"
    return f"measure about {wanted} rounds instead of {fewest}, or on a quieter machine"


def rounds_for(criterion: Criterion, processes: int) -> int | None:
    """How many processes would show a slowdown as large as the limit; None where that cannot be told.

    The smallest change that shows falls with the square root of their number.
    """
    smallest = criterion.minimum_detectable
    if smallest is None or criterion.limit <= 0 or smallest <= criterion.limit:
        return None
    return math.ceil(processes * (smallest / criterion.limit) ** 2)


def slowdown_criterion(name: str, found: EndToEnd, shown: Slowdown | None, threshold: float) -> Criterion:
    """The threshold of a gate, and how the candidate stands to it."""
    outcome, reason = judge(shown, threshold) if shown else (Outcome.UNTRUSTED, found.reason or "withheld")
    return Criterion(
        name=name,
        quantity=Quantity.SLOWDOWN,
        limit=threshold,
        measured=shown.estimate if shown else None,
        ci95=shown.interval if shown else None,
        outcome=outcome,
        reason=reason,
        candidate_ns=found.candidate_ns,
        verdict=found.verdict,
        minimum_detectable=found.minimum_detectable,
        baseline_ns=found.baseline_ns,
    )
