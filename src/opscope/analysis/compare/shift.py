"""What a change did to the balance of a model: what shrank, what is on top now, and how much is left to gain.

After acceleration the parts that it does not help weigh more, and they bound what more of it could give (Amdahl,
"Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities", AFIPS 1967).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from opscope.core.stats.effect import Verdict
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Top(msgspec.Struct, frozen=True):
    """The kind of operator that takes most on one side, the framework's own time left out."""

    kind: str
    category: Category
    backend: str
    time_ns: float
    share: float


class Moved(msgspec.Struct, frozen=True):
    """Operators with one verdict: how many, and their time on both sides, the framework's with the unchanged ones."""

    operators: int
    baseline_ns: float
    candidate_ns: float


class Remaining(msgspec.Struct, frozen=True):
    """What a category takes on the candidate, and the speedup over it if it took nothing; null if nothing else is."""

    category: Category
    time_ns: float
    share: float
    limit: float | None


class Shift(msgspec.Struct, frozen=True):
    """How the time of an inference moved, by traced means.

    Attributes:
        saved_ns: mean latency of the baseline minus that of the candidate; the savings of all operators sum to it.
        before: what took most on the baseline; null when no operator was recorded.
        after: what takes most on the candidate.
        faster: operators that became faster.
        slower: operators that became slower.
        unchanged: operators that did neither, as far as was shown, and the framework's own time.
        undecided: operators of which that cannot be told with so few processes.
        limit: speedup over the baseline if the operators that became faster took no time at all; null when they are
            all there is.
        remaining: every category on the candidate, longest first, with the limit of removing it.
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


class _Change(Protocol):
    @property
    def category(self) -> Category: ...
    @property
    def kind(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def verdict(self) -> Verdict: ...
    @property
    def baseline_ns(self) -> float | None: ...
    @property
    def candidate_ns(self) -> float | None: ...


def shift(
    operators: Sequence[_Change], kinds: Sequence[_Change], categories: Iterable[tuple[Category, float]]
) -> Shift:
    """How the time of an inference moved.

    Args:
        operators: changes of all operators.
        kinds: changes of their kinds.
        categories: time of each on the candidate.
    """
    baseline = sum(change.baseline_ns or 0.0 for change in operators)
    candidate = sum(change.candidate_ns or 0.0 for change in operators)
    groups: dict[Verdict, list[_Change]] = {verdict: [] for verdict in Verdict}
    for change in operators:
        groups[Verdict.NO_DIFFERENCE if change.kind == FRAMEWORK.kind else change.verdict].append(change)
    faster = _moved(groups[Verdict.FASTER])
    return Shift(
        saved_ns=baseline - candidate,
        before=_top([(change, change.baseline_ns or 0.0) for change in kinds], baseline),
        after=_top([(change, change.candidate_ns or 0.0) for change in kinds], candidate),
        faster=faster,
        slower=_moved(groups[Verdict.SLOWER]),
        unchanged=_moved(groups[Verdict.NO_DIFFERENCE]),
        undecided=_moved(groups[Verdict.UNDECIDABLE]),
        limit=_limit(baseline, candidate - faster.candidate_ns) if faster.operators else None,
        remaining=sorted(
            (
                Remaining(category, time, time / candidate if candidate else 0.0, _limit(candidate, candidate - time))
                for category, time in categories
            ),
            key=lambda row: -row.time_ns,
        ),
    )


def _moved(changes: Sequence[_Change]) -> Moved:
    baseline, candidate = (
        sum((time or 0.0 for time in side), 0.0)
        for side in ([change.baseline_ns for change in changes], [change.candidate_ns for change in changes])
    )
    return Moved(sum(change.kind != FRAMEWORK.kind for change in changes), baseline, candidate)


def _top(times: Sequence[tuple[_Change, float]], total: float) -> Top | None:
    work = [(change, time) for change, time in times if change.kind != FRAMEWORK.kind and time > 0]
    if not work:
        return None
    change, time = max(work, key=lambda pair: pair[1])
    return Top(change.kind, change.category, change.backend, time, time / total)


def _limit(whole: float, rest: float) -> float | None:
    """Speedup when only the rest is left; None when nothing measurable is."""
    return whole / rest if rest > whole * 1e-6 else None
