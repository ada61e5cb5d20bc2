"""Decision of every gate: which limits were set, how the candidate compares with each, and what follows.

Programs, bundles, histories, fleets and NPU traces have one form of decision, schema ``opscope.check/2``; what each
rests on stands beside it as evidence of its own type.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from opscope.analysis.findings.message import Quality
from opscope.core.errors import InconclusiveError, OpscopeError, RegressionError, UntrustedError
from opscope.core.stats.effect import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


E = TypeVar("E")
QUIETER = "measure again on a quiet machine; see the measurement quality for the reasons"


class Outcome(str, enum.Enum):
    """Result of one criterion, or of all of them."""

    PASSED = "passed"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    """The measurements are too few or too noisy for the limit."""
    UNTRUSTED = "untrusted"
    """It was measured, but the measurements cannot be trusted."""
    SKIPPED = "skipped"
    """Only of a criterion: it could not be measured, and others decide."""


ERRORS: dict[Outcome, type[OpscopeError]] = {
    Outcome.REGRESSION: RegressionError,
    Outcome.INCONCLUSIVE: InconclusiveError,
    Outcome.UNTRUSTED: UntrustedError,
}
"""Error that ends a command if the candidate may not pass; the kind of error sets the exit code."""
_WORST_FIRST = (Outcome.UNTRUSTED, Outcome.REGRESSION, Outcome.INCONCLUSIVE)


class Quantity(str, enum.Enum):
    """Quantity that a criterion limits, which sets the unit of its figures."""

    SLOWDOWN = "slowdown"
    """Candidate / baseline - 1, as a fraction: 0.03 is 3 % slower."""
    WORK = "work"
    """Instructions of the candidate / baseline - 1, as a fraction; exact, and so without an interval."""
    TIME = "time_ns"
    """Time per inference in ns."""
    SHARE = "share"
    """Part of the time of an inference, as a fraction."""
    COUNT = "count"
    """Number of series that are slower than their own limits."""


class Criterion(msgspec.Struct, frozen=True):
    """Limit, and how the candidate compares with it.

    Attributes:
        name: what is limited, in words; unique in its decision.
        quantity: unit of ``limit``, ``measured`` and ``ci95``.
        limit: the largest value that is let through.
        measured: estimate of the candidate; null where there is none.
        ci95: its 95 % interval over processes; null with too few processes, or where it cannot be compared.
        outcome: whether it is kept.
        reason: why, as one sentence without a full stop.
        candidate_ns: time per inference of what it is about, on the candidate; null where that is no time.
        verdict: verdict of a slowdown: whether the candidate is slower than the baseline at all, corrected for the
            number of limits of the budget file; null for other quantities.
        minimum_detectable: minimum detectable change of a slowdown: the smallest one that such data would show in 80 of
            100 experiments; else null.
        entry: number of the entry in the budget file, from 0; null where it is of none.
        operators: how many operators of the candidate it is about; null where it is about none.
        baseline_ns: time as ``candidate_ns``, on the baseline; null where the baseline was not asked, or has nothing
            like it.
        method: method that its latency is of, where the sides call several; else null.
    """

    name: str
    quantity: Quantity
    limit: float
    measured: float | None
    ci95: tuple[float, float] | None
    outcome: Outcome
    reason: str
    candidate_ns: float | None = None
    verdict: Verdict | None = None
    minimum_detectable: float | None = None
    entry: int | None = None
    operators: int | None = None
    baseline_ns: float | None = None
    method: str | None = None


class Decision(msgspec.Struct, Generic[E], frozen=True, tag_field="schema", tag="opscope.check/2"):
    """Decision of a gate, and everything that it rests on.

    Attributes:
        outcome: the worst of all criteria: untrusted before regression, that before inconclusive; else passed.
        let_through: whether the candidate may pass: it passed, or is inconclusive where that was allowed.
        criteria: every limit; the slowdown of latency first, of several methods one by one, then those of the budget
            file in its order. Of a fleet:
            devices and models that are slower as a whole, absolute limits, and every model.
        evidence: what else is known, by the kind of what was judged.
        advice: what to do when it is not a pass; null for a pass.
        mismatches: why the sides are not comparable; only with force, and empty otherwise.
        notes: what else limits the meaning of the figures.
        quality: grade of the measurements, and its reasons; null where that was not judged.
    """

    outcome: Outcome
    let_through: bool
    criteria: list[Criterion]
    evidence: E
    advice: str | None
    mismatches: list[str]
    notes: list[str]
    quality: Quality | None = None


def make_decision(
    criteria: Sequence[Criterion],
    evidence: E,
    *,
    advice: str | None,
    mismatches: Iterable[str] = (),
    notes: Iterable[str] = (),
    quality: Quality | None = None,
) -> Decision[E]:
    """Return the decision that follows from criteria."""
    outcome = worst_outcome(criteria)
    passed = outcome is Outcome.PASSED
    return Decision(outcome, passed, [*criteria], evidence, advice, [*mismatches], [*notes], quality)


def worst_outcome(criteria: Sequence[Criterion]) -> Outcome:
    """Return the worst outcome of all criteria; exact work that grew is a regression, however times were measured."""
    outcomes = {criterion.outcome for criterion in criteria}
    if any(criterion.quantity is Quantity.WORK and criterion.outcome is Outcome.REGRESSION for criterion in criteria):
        return Outcome.REGRESSION
    return next((outcome for outcome in _WORST_FIRST if outcome in outcomes), Outcome.PASSED)


def let_inconclusive_pass(decision: Decision[E]) -> Decision[E]:
    """Return the decision with an inconclusive outcome let through, as a note then says; others unchanged."""
    if decision.outcome is not Outcome.INCONCLUSIVE:
        return decision
    notes = ["inconclusive results pass, as requested", *decision.notes]
    return msgspec.structs.replace(decision, let_through=True, notes=notes)


def failing_criteria(decision: Decision[Any]) -> list[Criterion]:
    """Return the criteria that decide an outcome other than a pass, in their order."""
    return [
        criterion
        for criterion in decision.criteria
        if criterion.outcome is decision.outcome and criterion.outcome is not Outcome.PASSED
    ]


def problem(decision: Decision[Any]) -> str:
    """Return the first criterion that decides the outcome, and why; empty for a pass."""
    deciding = failing_criteria(decision)
    more = f" (and {len(deciding) - 1} more)" if len(deciding) > 1 else ""
    return f"{deciding[0].name}: {deciding[0].reason}{more}" if deciding else ""


def refusal(decision: Decision[Any], where: str, text: str = "") -> OpscopeError | None:
    """Return the error that a command ends with; None if the candidate may pass.

    Args:
        decision: what was decided.
        where: what was judged.
        text: why it is not a pass; empty: as :func:`problem` says.
    """
    if decision.let_through:
        return None
    return ERRORS[decision.outcome](text or problem(decision), where=where, hint=decision.advice)
