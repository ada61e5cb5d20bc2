"""What a change did to the balance of a model: what shrank, what is on top now, and how much is left to gain.

After acceleration the parts that it does not help weigh more, and they bound what more of it could give (Amdahl,
"Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities", AFIPS 1967).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from opscope.analysis.operators.operators import OnHeadline
from opscope.core.stats.effect import Verdict
from opscope.core.units import ratio_of_times
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.latency.headline import HeadlineSplit


class _Sides(Protocol):
    @property
    def baseline_ns(self) -> float | None: ...
    @property
    def candidate_ns(self) -> float | None: ...
    @property
    def saved_ns(self) -> float: ...
    @property
    def baseline_headline_ns(self) -> float | None: ...
    @property
    def candidate_headline_ns(self) -> float | None: ...
    @property
    def saved_headline_ns(self) -> float | None: ...


class _ShownSides(Protocol):
    @property
    def shown_baseline_ns(self) -> float | None: ...
    @property
    def shown_candidate_ns(self) -> float | None: ...
    @property
    def verdict(self) -> Verdict: ...


class ChangeOnHeadline:
    """Of a change: what a person is shown, on the scale of the headline wherever that is known."""

    __slots__ = ()

    @property
    def shown_baseline_ns(self: _Sides) -> float | None:
        """Time on the baseline; None where the baseline has no such operator."""
        return self.baseline_ns if self.baseline_headline_ns is None else self.baseline_headline_ns

    @property
    def shown_candidate_ns(self: _Sides) -> float | None:
        """Time on the candidate; likewise."""
        return self.candidate_ns if self.candidate_headline_ns is None else self.candidate_headline_ns

    @property
    def shown_saved_ns(self: _Sides) -> float:
        """Their difference."""
        return self.saved_ns if self.saved_headline_ns is None else self.saved_headline_ns

    @property
    def shown_speedup(self: _ShownSides) -> float | None:
        """Ratio of the two as they are shown; None where one of them is too short to be shown, or it is withheld."""
        if self.verdict is Verdict.WITHHELD:
            return None
        return ratio_of_times(self.shown_baseline_ns, self.shown_candidate_ns)


class Top(msgspec.Struct, OnHeadline, frozen=True):
    """The kind of operator that takes most on one side, the framework's own time left out.

    ``headline_ns`` and ``share_of_headline`` are on the scale of the side's headline, null where that is not known.
    """

    kind: str
    category: Category
    backend: str
    time_ns: float
    share: float
    headline_ns: float | None = None
    share_of_headline: float | None = None


class Moved(msgspec.Struct, frozen=True):
    """Operators with one verdict: how many, and their time on both sides, the framework's with the unchanged ones.

    Times on the scale of the headline are null where that is not known.
    """

    operators: int
    baseline_ns: float
    candidate_ns: float
    baseline_headline_ns: float | None = None
    candidate_headline_ns: float | None = None


class Remaining(msgspec.Struct, OnHeadline, frozen=True):
    """What a category takes on the candidate, and the speedup over it if it took nothing; null if nothing else is.

    ``limit`` is of means; ``headline_ns``, ``share_of_headline`` and ``limit_of_headline`` are on the scale of the
    headline, null where that is not known; there data movement holds the copies of inputs and outputs.
    """

    category: Category
    time_ns: float
    share: float
    limit: float | None
    headline_ns: float | None = None
    share_of_headline: float | None = None
    limit_of_headline: float | None = None

    @property
    def shown_limit(self) -> float | None:
        """Of the headline where that is known, else of means."""
        return self.limit if self.headline_ns is None else self.limit_of_headline


class OutsideChange(msgspec.Struct, frozen=True):
    """Time outside of the operators on both sides: copies of inputs and outputs, what tracing costs; absent is 0."""

    name: str
    category: Category | None
    baseline_headline_ns: float
    candidate_headline_ns: float
    saved_headline_ns: float


class Shift(msgspec.Struct, frozen=True):
    """How the time of an inference moved.

    Attributes:
        saved_ns: mean latency of the baseline minus that of the candidate; the savings of all operators sum to it.
        before: what took most on the baseline; null when no operator was recorded.
        after: what takes most on the candidate.
        faster: operators that became faster.
        slower: operators that became slower.
        unchanged: operators that did neither, as far as was shown, and the framework's own time.
        undecided: operators of which that cannot be told with so few processes.
        limit: speedup over the baseline if the operators that became faster took no time at all; null when they are
            all there is, and where no end-to-end difference is shown, or none in the direction of the means; of means.
        remaining: every category on the candidate, longest first, with the limit of removing it.
        saved_headline_ns: headline of the baseline minus that of the candidate; ``saved_headline_ns`` of all operators
            and of ``outside`` sum to it; null where a headline is not known.
        outside: what lies between the operators and the headline.
        unmatched: operators of one of two programs only, which have nothing to be compared with.
        limit_of_headline: as ``limit``, of headlines: copies of inputs and outputs are left; null where a headline is
            not known, too.
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
    saved_headline_ns: float | None = None
    outside: list[OutsideChange] = []
    unmatched: Moved = Moved(0, 0.0, 0.0)
    limit_of_headline: float | None = None

    @property
    def shown_limit(self) -> float | None:
        """Of headlines where these are known, else of means."""
        return self.limit if self.saved_headline_ns is None else self.limit_of_headline


class _Change(_Sides, Protocol):
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
    @property
    def candidate_headline_ns(self) -> float | None: ...


class _Side(NamedTuple):
    """The whole of one side: mean of traced inferences, headline, and what savings on it are multiplied by."""

    mean_ns: float
    headline: HeadlineSplit | None

    @property
    def shown_ns(self) -> float:
        return self.mean_ns if self.headline is None else self.headline.headline_ns

    def without(self, time_ns: float) -> float:
        """What is left of it when operators of that time are taken out."""
        return self.shown_ns - time_ns * (1.0 if self.headline is None else self.headline.saving_scale)


def shift(
    operators: Sequence[_Change],
    kinds: Sequence[_Change],
    categories: Iterable[_CategoryChange],
    headlines: tuple[HeadlineSplit | None, HeadlineSplit | None] = (None, None),
    *,
    decided: Verdict = Verdict.FASTER,
    same_program: bool = True,
) -> Shift:
    """How the time of an inference moved."""
    baseline = _Side(sum(change.baseline_ns or 0.0 for change in operators), headlines[0])
    candidate = _Side(sum(change.candidate_ns or 0.0 for change in operators), headlines[1])
    groups: dict[Verdict, list[_Change]] = {verdict: [] for verdict in Verdict}
    unmatched: list[_Change] = []
    for change in operators:
        if change.kind == FRAMEWORK.kind:
            groups[Verdict.NO_DIFFERENCE].append(change)
        elif not same_program and None in {change.baseline_ns, change.candidate_ns}:
            unmatched.append(change)
        else:
            groups[change.verdict].append(change)
    faster = _moved(groups[Verdict.FASTER])
    bounded = faster.operators > 0 and decided is _direction(baseline.shown_ns, candidate.shown_ns)
    left = None if faster.candidate_headline_ns is None else candidate.without(faster.candidate_headline_ns)
    known = None not in headlines and left is not None
    return Shift(
        saved_ns=baseline.mean_ns - candidate.mean_ns,
        before=_top([(own, own.baseline_ns or 0.0, own.baseline_headline_ns) for own in kinds], baseline),
        after=_top([(own, own.candidate_ns or 0.0, own.candidate_headline_ns) for own in kinds], candidate),
        faster=faster,
        slower=_moved(groups[Verdict.SLOWER]),
        unchanged=_moved(groups[Verdict.NO_DIFFERENCE]),
        undecided=_moved([*groups[Verdict.UNDECIDABLE], *groups[Verdict.WITHHELD]]),
        limit=_limit(baseline.mean_ns, candidate.mean_ns - faster.candidate_ns) if bounded else None,
        remaining=sorted((_remaining(own, candidate) for own in categories), key=lambda row: -row.shown_ns),
        saved_headline_ns=None if None in headlines else baseline.shown_ns - candidate.shown_ns,
        outside=_outside(*headlines),
        unmatched=_moved(unmatched),
        limit_of_headline=_limit(baseline.shown_ns, left or 0.0) if known and bounded else None,
    )


def _known(on_headline: float | None, mean: float) -> float:
    return mean if on_headline is None else on_headline


def _remaining(change: _CategoryChange, candidate: _Side) -> Remaining:
    time, on_headline = change.candidate_ns, change.candidate_headline_ns
    share = time / candidate.mean_ns if candidate.mean_ns else 0.0
    found = Remaining(change.category, time, share, _limit(candidate.mean_ns, candidate.mean_ns - time))
    if on_headline is None or candidate.headline is None:
        return found
    return msgspec.structs.replace(
        found,
        headline_ns=on_headline,
        share_of_headline=on_headline / candidate.shown_ns,
        limit_of_headline=_limit(candidate.shown_ns, candidate.without(on_headline)),
    )


def _outside(baseline: HeadlineSplit | None, candidate: HeadlineSplit | None) -> list[OutsideChange]:
    """Rows of both sides by what they are; one that a side does not have takes no time there."""
    if baseline is None or candidate is None:
        return []
    sides = [{(row.name, row.category): row.headline_ns for row in side.rows} for side in (baseline, candidate)]
    found = []
    for name, category in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get((name, category), 0.0) for side in sides)
        found.append(OutsideChange(name, category, before, after, before - after))
    return found


def _direction(baseline: float, candidate: float) -> Verdict:
    """The verdict that agrees with the latencies, which a limit would stand beside."""
    return Verdict.FASTER if candidate <= baseline else Verdict.SLOWER


def _moved(changes: Sequence[_Change]) -> Moved:
    baseline, candidate = (
        sum((time or 0.0 for time in side), 0.0)
        for side in ([change.baseline_ns for change in changes], [change.candidate_ns for change in changes])
    )
    known = all(change.saved_headline_ns is not None for change in changes)
    shown = [
        sum((time or 0.0 for time in side), 0.0) if known else None
        for side in ([c.baseline_headline_ns for c in changes], [c.candidate_headline_ns for c in changes])
    ]
    return Moved(sum(change.kind != FRAMEWORK.kind for change in changes), baseline, candidate, *shown)


def _top(times: Sequence[tuple[_Change, float, float | None]], side: _Side) -> Top | None:
    work = [row for row in times if row[0].kind != FRAMEWORK.kind and row[1] > 0]
    if not work:
        return None
    change, time, on_headline = max(work, key=lambda row: _known(row[2], row[1]))
    share = None if on_headline is None else on_headline / side.shown_ns
    return Top(change.kind, change.category, change.backend, time, time / side.mean_ns, on_headline, share)


def _limit(whole: float, rest: float) -> float | None:
    """Speedup when only the rest is left; None when nothing measurable is."""
    return whole / rest if rest > whole * 1e-6 else None
