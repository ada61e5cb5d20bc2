"""Gate on work: does a candidate execute more than its baseline, and which operators do.

Counts are exact, so there is no interval and nothing is inconclusive: equal is equal.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.gate.decision import Criterion, Decision, Outcome, Quantity, make_decision
from opscope.analysis.gate.gate import ComparisonEvidence
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, signed_share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.work.work import CountedOperator, Work


class WorkSide(msgspec.Struct, frozen=True):
    """Side of a gate on work.

    Attributes:
        model: path of the program.
        sha256: SHA-256 of the program.
        instructions: instructions that its operators execute in one inference.
        operators: how many there are.
    """

    model: str
    sha256: str
    instructions: int
    operators: int


class WorkChange(msgspec.Struct, frozen=True):
    """Operator that executes a different number of instructions, or that only one side has.

    Attributes:
        layer: layer that it belongs to; null if unknown.
        name: name as the runtime calls it.
        kind: lower level of the taxonomy.
        baseline: instructions; null where the baseline has no such operator.
        candidate: instructions; null where the candidate has no such operator.
    """

    layer: str | None
    name: str
    kind: str
    baseline: int | None
    candidate: int | None

    @property
    def more(self) -> int:
        """Instructions of the candidate beyond those of the baseline."""
        return (self.candidate or 0) - (self.baseline or 0)

    @property
    def label(self) -> str:
        """Layer of the operator, or its name."""
        return self.layer or self.name


class WorkEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="work"):
    """Evidence of a decision on work.

    Attributes:
        baseline: what the candidate is measured by.
        candidate: what is judged.
        counter: what counted, with its version.
        processor: processor that the counter shows programs.
        equal: operators that execute the same.
        changed: the others, the largest change first.
    """

    baseline: WorkSide
    candidate: WorkSide
    counter: str
    processor: str
    equal: int
    changed: list[WorkChange]


class WorkAndTimeEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="work_and_time"):
    """Evidence of a decision on work and time: two verdicts, neither of which replaces the other.

    Attributes:
        work: evidence of the first criterion.
        time: evidence of the other criteria.
    """

    work: WorkEvidence
    time: ComparisonEvidence


def join_with_time(work: Decision[WorkEvidence], time: Decision[ComparisonEvidence]) -> Decision[WorkAndTimeEvidence]:
    """Join both decisions: the candidate must pass by what it executes and by how long it takes."""
    return make_decision(
        [*work.criteria, *time.criteria],
        WorkAndTimeEvidence(work.evidence, time.evidence),
        advice=work.advice or time.advice,
        mismatches=time.mismatches,
        notes=[*_exact_note(work, time), *time.notes],
        quality=time.quality,
    )


def _exact_note(work: Decision[WorkEvidence], time: Decision[ComparisonEvidence]) -> list[str]:
    """Return a note on an exact regression beside times that cannot be trusted; else empty."""
    both = work.outcome is Outcome.REGRESSION and time.outcome is Outcome.UNTRUSTED
    return (
        ["the regression is in exact work, which noise does not change; the times are not trustworthy"] if both else []
    )


def work_decision(baseline: Work, candidate: Work, limit: float = 0.0) -> Decision[WorkEvidence]:
    """Decide whether a candidate executes more than its baseline.

    ``limit``: largest share of more instructions that is let through.
    """
    pairs = list(_match_operators(baseline.operators, candidate.operators))
    changes = [_work_change(*pair) for pair in pairs]
    changed = sorted(
        (change for change in changes if change.more or None in {change.baseline, change.candidate}), key=_change_order
    )
    share = candidate.instructions / baseline.instructions - 1 if baseline.instructions else 0.0
    outcome = Outcome.REGRESSION if share > limit else Outcome.PASSED
    verdict = Verdict.SLOWER if share > 0 else Verdict.FASTER if share < 0 else Verdict.NO_DIFFERENCE
    evidence = WorkEvidence(
        baseline=_work_side(baseline),
        candidate=_work_side(candidate),
        counter=candidate.counter,
        processor=candidate.processor,
        equal=len(pairs) - len(changed),
        changed=changed,
    )
    criterion = Criterion(
        name="work",
        quantity=Quantity.WORK,
        limit=limit,
        measured=share,
        ci95=None,
        outcome=outcome,
        reason=_reason_text(changed, share),
        verdict=verdict,
    )
    advice = "look at the operators that changed" if outcome is Outcome.REGRESSION else None
    return make_decision([criterion], evidence, advice=advice)


def _work_side(work: Work) -> WorkSide:
    return WorkSide(work.model, work.sha256, work.instructions, len(work.operators))


def _change_order(change: WorkChange) -> tuple[int, str]:
    return -abs(change.more), change.label


def _reason_text(changed: list[WorkChange], share: float) -> str:
    if not changed:
        return "every operator executes the same work"
    first = changed[0]
    if first.baseline is None or first.candidate is None:
        text = "is new" if first.baseline is None else "is gone"
    else:
        text = signed_share_text(first.candidate / first.baseline - 1)
    others_text = f", and {counted_text(len(changed) - 1, 'more operator')} changed" if len(changed) > 1 else ""
    return f"{signed_share_text(share)} instructions, exact: {first.label} {text}{others_text}"


def _work_change(before: CountedOperator | None, after: CountedOperator | None) -> WorkChange:
    known = after or before
    assert known is not None  # noqa: S101 - one of both is there
    counts = (None if operator is None else operator.instructions for operator in (before, after))
    return WorkChange(known.layer, known.name, known.kind, *counts)


def _match_operators(
    before: list[CountedOperator], after: list[CountedOperator]
) -> Iterator[tuple[CountedOperator | None, CountedOperator | None]]:
    """Match operators of both sides in order, by layer and kind; those of one side only have no partner."""
    old, new = (
        [(operator.method, operator.layer or operator.name, operator.kind) for operator in side]
        for side in (before, after)
    )
    for tag, low, high, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(before[low:high], after[first:last], strict=True)
        else:
            yield from ((operator, None) for operator in before[low:high])
            yield from ((None, operator) for operator in after[first:last])
