"""Where the change between two variants comes from, as rows and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.compare.matching import MatchedBy
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text, time_text
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison, OperatorChange
    from opscope.analysis.compare.shift import Moved, Remaining, Top

_ROWS = 12
_WHOLE = "latency, the sum"


class Rank(NamedTuple):
    """Time on one side, its share, and its place among the operators there; null where there is no such operator."""

    time_ns: float | None
    share: float | None
    place: int | None


class ShiftRow(NamedTuple):
    """What one operator, or the rest of them, adds to the change."""

    change: OperatorChange | None  # the operator; null for a sum of several
    label: str  # what to call a sum
    before: Rank  # on the baseline
    after: Rank  # on the candidate
    saved_ns: float  # difference; all rows add up to that of the sides
    interval: tuple[float, float] | None  # of it; null for sums and where there is none
    points: float  # it as a share of the baseline's latency
    verdict: Verdict | None  # null for sums, and for what has no counterpart in another program
    matched: str = ""  # how it was matched with an operator of another program, where that is not certain; else empty


class ShiftSection(NamedTuple):
    """The section on the change: sentences, the rows that add up to it, and what is left to gain."""

    sentences: list[str]
    rows: list[ShiftRow]
    remaining: list[Remaining]


def shift_section(comparison: Comparison) -> ShiftSection | None:
    """Where the change of a comparison comes from; None when no operator was recorded."""
    if not comparison.operators or comparison.baseline.headline_ns <= 0:
        return None
    return ShiftSection(_sentences(comparison), _rows(comparison), comparison.shift.remaining)


def _rows(comparison: Comparison) -> list[ShiftRow]:
    """The operators that changed most, the others in one row, and the sum of all."""
    total = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    work = [change.kind != FRAMEWORK.kind for change in comparison.operators]
    before = _places([c.baseline_ns if own else None for c, own in zip(comparison.operators, work, strict=True)])
    after = _places([c.candidate_ns if own else None for c, own in zip(comparison.operators, work, strict=True)])
    order = sorted(range(len(comparison.operators)), key=lambda number: -abs(comparison.operators[number].saved_ns))
    rows = []
    for number in order[:_ROWS]:
        change = comparison.operators[number]
        rows.append(
            ShiftRow(
                change,
                "",
                _rank(change.baseline_ns, total[0], before[number] if work[number] else None),
                _rank(change.candidate_ns, total[1], after[number] if work[number] else None),
                change.saved_ns,
                change.ci95_saved_ns,
                change.saved_ns / total[0],
                change.verdict if change.is_judged else None,
                matched_text(change),
            )
        )
    others = [comparison.operators[number] for number in order[_ROWS:]]
    if others:
        rows.append(_sum(f"{len(others)} others", others, total))
    return [*rows, *(_closing(row, total) for row in closing_changes(comparison))]


def matched_text(change: OperatorChange) -> str:
    """What is to be known of the partner of an operator, in two words; empty for one that is certain, and for none."""
    if change.kind == FRAMEWORK.kind:
        return ""
    if not change.is_judged:
        return "not matched"
    return "by order" if change.matched_by is MatchedBy.ORDER else ""


class ClosingChange(NamedTuple):
    """A line below the split of a change: what lies between the operators and the latency, and the sum of all."""

    name: str
    baseline_ns: float
    candidate_ns: float
    saved_ns: float


def closing_changes(
    comparison: Comparison, others: Sequence[OperatorChange] = (), *, copies: bool = True
) -> list[ClosingChange]:
    """What joins the split of a change to the change of the headline, last."""
    found = []
    if others:
        sides = [sum(side or 0.0 for side in own) for own in zip(*map(_both, others), strict=True)]
        found.append(ClosingChange(f"{len(others)} others", sides[0], sides[1], sides[0] - sides[1]))
    found += [
        ClosingChange(row.name, row.baseline_ns, row.candidate_ns, row.saved_ns)
        for row in comparison.shift.outside
        if copies or row.category is None
    ]
    return [
        *found,
        ClosingChange(
            _WHOLE, comparison.baseline.headline_ns, comparison.candidate.headline_ns, comparison.shift.saved_ns
        ),
    ]


def _both(change: OperatorChange) -> tuple[float | None, float | None]:
    return change.baseline_ns, change.candidate_ns


def _closing(row: ClosingChange, total: tuple[float, float]) -> ShiftRow:
    sides = _rank(row.baseline_ns, total[0], None), _rank(row.candidate_ns, total[1], None)
    return ShiftRow(None, row.name, *sides, row.saved_ns, None, row.saved_ns / total[0], None)


def _sum(label: str, changes: Sequence[OperatorChange], total: tuple[float, float]) -> ShiftRow:
    baseline, candidate = (sum(time or 0.0 for time in times) for times in zip(*map(_both, changes), strict=True))
    saved = sum(change.saved_ns for change in changes)
    sides = _rank(baseline, total[0], None), _rank(candidate, total[1], None)
    return ShiftRow(None, label, *sides, saved, None, saved / total[0], None)


def _rank(time_ns: float | None, total: float, place: int | None) -> Rank:
    if time_ns is None:
        return Rank(None, None, None)
    return Rank(time_ns, time_ns / total if total else 0.0, place)


def _places(times: Sequence[float | None]) -> list[int]:
    """Place of each among all, from 1 for the longest."""
    order = sorted(range(len(times)), key=lambda number: -(times[number] or 0.0))
    places = [0] * len(times)
    for place, number in enumerate(order, 1):
        places[number] = place
    return places


def _sentences(comparison: Comparison) -> list[str]:
    found = comparison.shift
    lines = []
    if found.before and found.after:
        lines.append(f"Largest before: {_top(found.before)}. Largest after: {_top(found.after)}.")
    parts = (
        _moved(found.faster, "became faster"),
        _moved(found.slower, "became slower"),
        _moved(found.undecided, "inconclusive with so few rounds"),
        _moved(found.unchanged, "show no change, framework time included"),
        _moved(found.unmatched, "have no counterpart in the other program"),
    )
    lines.append(f"{'; '.join(filter(None, parts))}.")
    sides = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    now = sides[0] / sides[1] if sides[1] else None
    if found.limit is not None and now is not None:
        lines.append(
            "If the operators that became faster took no time at all, the candidate would be "
            f"{ratio_text(found.limit)} as fast as the baseline at most (Amdahl's law); by these latencies it is "
            f"{ratio_text(now)} now."
        )
    if comparison.end_to_end.verdict not in _SHOWN:
        return lines
    first = next((row for row in found.remaining if row.limit is not None and row.time_ns > 0), None)
    if first is not None and first.limit is not None:
        lines.append(
            f"Of what remains, {first.category.value} dominates, {share_text(first.share)}; without it the "
            f"candidate would be {ratio_text(first.limit)} as fast as it is."
        )
    return lines


_SHOWN = (Verdict.FASTER, Verdict.SLOWER)


def _top(top: Top) -> str:
    return f"{top.kind} ({top.backend}), {share_text(top.share)}, {time_text(top.time_ns)}"


def _moved(moved: Moved, what: str) -> str:
    if not moved.operators:
        return ""
    times = f"{milliseconds(moved.baseline_ns)} to {milliseconds(moved.candidate_ns)} ms"
    return f"{counted_text(moved.operators, 'operator')} {what} ({times})"
