"""Effect of a change on the balance of a model: what shrank, what dominates now, and how much is left to gain.

After acceleration the parts that it does not help weigh more, and they bound what more of it could give (Amdahl,
"Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities", AFIPS 1967).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from opscope.analysis.operators.operators import CategoryTime, limit_without
from opscope.core.stats.effect import Verdict
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.operators.headline import HeadlineSplit


class Top(msgspec.Struct, frozen=True):
    """Kind of operator that dominates one side, without the framework's own time."""

    kind: str
    category: Category
    backend: str
    time_ns: float
    share: float


class Moved(msgspec.Struct, frozen=True):
    """Operators with one verdict: their number, and their time on both sides; framework time counts as unchanged."""

    operators: int
    baseline_ns: float
    candidate_ns: float


class Remaining(CategoryTime, frozen=True):
    """Time of a category on the candidate, and the speedup if it took none; null if hardly anything else is left."""

    time_ns: float
    limit: float | None


class OutsideChange(msgspec.Struct, frozen=True):
    """Time outside of the operators on both sides, such as copies of inputs and outputs; absent is 0."""

    name: str
    category: Category | None
    baseline_ns: float
    candidate_ns: float
    saved_ns: float


class Shift(msgspec.Struct, frozen=True):
    """Movement of the time of an inference.

    Attributes:
        saved_ns: latency of the baseline minus that of the candidate; the savings of all operators and of ``outside``
            sum to it.
        before: what took most on the baseline; null when no operator was recorded.
        after: what takes most on the candidate.
        faster: operators that became faster.
        slower: operators that became slower.
        unchanged: operators that did neither, as far as was shown, and the framework's own time.
        undecided: operators of which that cannot be told with so few processes.
        limit: speedup over the baseline if the operators that became faster took no time at all; null when they are
            nine tenths of it or more, and where no end-to-end difference is shown, or none in the direction of the
            latencies.
        remaining: every category on the candidate, longest first, with the limit of removing it.
        outside: what lies between the operators and the headline.
        unmatched: operators of one of two programs only, which have nothing to be compared with.
    """

    saved_ns: float
    before: Top | None
    after: Top | None
    faster: Moved
    slower: Moved
    unchanged: Moved
    undecided: Moved
    limit: float | None
    remaining: list[Remaining]
    outside: list[OutsideChange] = []
    unmatched: Moved = Moved(0, 0.0, 0.0)


class _Change(Protocol):
    @property
    def baseline_ns(self) -> float | None: ...
    @property
    def candidate_ns(self) -> float | None: ...
    @property
    def category(self) -> Category: ...
    @property
    def kind(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def verdict(self) -> Verdict: ...


class _CategoryChange(Protocol):
    @property
    def category(self) -> Category: ...
    @property
    def candidate_ns(self) -> float: ...


def shift(
    operators: Sequence[_Change],
    kinds: Sequence[_Change],
    categories: Iterable[_CategoryChange],
    headlines: tuple[HeadlineSplit, HeadlineSplit],
    *,
    decided: Verdict = Verdict.FASTER,
    same_program: bool = True,
) -> Shift:
    """Return how the time of an inference moved between two sides."""
    baseline, candidate = (side.headline_ns for side in headlines)
    groups: dict[Verdict, list[_Change]] = {verdict: [] for verdict in Verdict}
    unmatched: list[_Change] = []
    for change in operators:
        if change.kind == FRAMEWORK.kind:
            groups[Verdict.NO_DIFFERENCE].append(change)
        elif not same_program and None in {change.baseline_ns, change.candidate_ns}:
            unmatched.append(change)
        else:
            groups[change.verdict].append(change)
    faster = _sum_moved(groups[Verdict.FASTER])
    bounded = faster.operators > 0 and decided is (Verdict.FASTER if candidate <= baseline else Verdict.SLOWER)
    return Shift(
        saved_ns=baseline - candidate,
        before=_find_top([(change, change.baseline_ns or 0.0) for change in kinds], baseline),
        after=_find_top([(change, change.candidate_ns or 0.0) for change in kinds], candidate),
        faster=faster,
        slower=_sum_moved(groups[Verdict.SLOWER]),
        unchanged=_sum_moved(groups[Verdict.NO_DIFFERENCE]),
        undecided=_sum_moved([*groups[Verdict.UNDECIDABLE], *groups[Verdict.WITHHELD]]),
        limit=limit_without(faster.candidate_ns / candidate, baseline / candidate) if bounded and candidate else None,
        remaining=sorted(
            (_remaining_category(category_change, candidate) for category_change in categories),
            key=lambda row: -row.time_ns,
        ),
        outside=_outside_changes(*headlines),
        unmatched=_sum_moved(unmatched),
    )


def _remaining_category(change: _CategoryChange, candidate: float) -> Remaining:
    time = change.candidate_ns
    share = time / candidate if candidate else 0.0
    return Remaining(category=change.category, time_ns=time, share=share, limit=limit_without(share))


def _outside_changes(baseline: HeadlineSplit, candidate: HeadlineSplit) -> list[OutsideChange]:
    """Return the rows of both sides by name and category; a row that a side lacks takes no time there."""
    sides = [{(row.name, row.category): row.time_ns or 0.0 for row in side.outside} for side in (baseline, candidate)]
    changes = []
    for name, category in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get((name, category), 0.0) for side in sides)
        changes.append(OutsideChange(name, category, before, after, before - after))
    return changes


def _sum_moved(changes: Sequence[_Change]) -> Moved:
    baseline, candidate = (
        sum((time or 0.0 for time in side), 0.0)
        for side in ([change.baseline_ns for change in changes], [change.candidate_ns for change in changes])
    )
    return Moved(sum(change.kind != FRAMEWORK.kind for change in changes), baseline, candidate)


def _find_top(times: Sequence[tuple[_Change, float]], headline_ns: float) -> Top | None:
    work = [row for row in times if row[0].kind != FRAMEWORK.kind and row[1] > 0]
    if not work:
        return None
    change, time = max(work, key=lambda row: row[1])
    return Top(change.kind, change.category, change.backend, time, time / headline_ns)
