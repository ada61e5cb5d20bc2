"""Changes of histories that somebody has looked at: which of those found are new, and which are known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opscope.core.stats.segments import SMALLEST_CHANGE
from opscope.fleet.analysis.history import LevelChange, LevelDrift

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.fleet.analysis.history import History, Point, Series, Subject

NEAR = 3
"""Runs by which the place of a step may move when more runs are there: those on one side of the shortest level."""
_GROWTH = 1.5
"""A change that has grown beyond this times what was acknowledged, and 1 %, is new again."""


class KnownChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was acknowledged."""

    metric: str  # the figure
    subject: dict[str, str | int | None]  # of the series, by the names of its parts
    kind: Literal["step", "drift"]  # a step, or a drift
    bundle: str  # hash of the first run of the new level, or of the drift
    label: str  # of that run
    ratio: float  # after / before
    note: str  # why it is in order, or what is done about it
    acknowledged: str  # when, ISO 8601, UTC


class KnownChanges(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.known-changes/1"):
    """The changes that were acknowledged, oldest first."""

    changes: list[KnownChange] = []


class FoundChange(NamedTuple):
    """A change of a history, with the series that it is in."""

    series: Series
    change: LevelChange | LevelDrift

    @property
    def kind(self) -> Literal["step", "drift"]:
        """A step, or a drift."""
        return "step" if isinstance(self.change, LevelChange) else "drift"

    @property
    def first(self) -> Point:
        """First run of the new level, or of the drift."""
        return self.series.points[self.change.index]

    @property
    def seen(self) -> str:
        """When it was seen: with the first run of the new level, or with the last one of the drift."""
        if isinstance(self.change, LevelChange):
            return _time(self.first)
        return _time(self.series.points[self.change.index + self.change.runs - 1])


def with_known(history: History, known: KnownChanges) -> History:
    """The history, in which known changes bear the note that they were acknowledged with."""
    return msgspec.structs.replace(
        history, series=[_marked(one, [k for k in known.changes if _same(history, one, k)]) for one in history.series]
    )


def seen_since(history: History, moment: str) -> History:
    """The history with the changes and outliers alone that were seen at a moment or later."""

    def late(series: Series) -> Series:
        return msgspec.structs.replace(
            series,
            changes=[one for one in series.changes if FoundChange(series, one).seen >= moment],
            drifts=[one for one in series.drifts if FoundChange(series, one).seen >= moment],
            outliers=[one for one in series.outliers if _time(series.points[one.index]) >= moment],
        )

    return msgspec.structs.replace(history, series=[late(one) for one in history.series])


def found_changes(history: History) -> Iterator[FoundChange]:
    """All steps and drifts of a history."""
    for series in history.series:
        yield from (FoundChange(series, change) for change in series.changes)
        yield from (FoundChange(series, drift) for drift in series.drifts)


def new_for_the_worse(history: History) -> list[FoundChange]:
    """The changes for the worse, not acknowledged, the newest first."""
    found = [one for one in found_changes(history) if not one.change.better and one.change.acknowledged is None]
    return sorted(found, key=lambda one: one.seen, reverse=True)


def acknowledged(history: History, known: KnownChanges, note: str, when: str) -> KnownChanges:
    """The known changes, with all of a history that are not among them."""
    new = [
        KnownChange(
            metric=history.metric.name,
            subject=_subject(one.series.subject),
            kind=one.kind,
            bundle=one.first.bundle,
            label=one.first.label,
            ratio=one.change.ratio,
            note=note,
            acknowledged=when,
        )
        for one in found_changes(history)
        if one.change.acknowledged is None
    ]
    return KnownChanges([*known.changes, *new])


def _marked(series: Series, known: Sequence[KnownChange]) -> Series:
    places = {point.bundle: place for place, point in enumerate(series.points)}
    placed = [(places[one.bundle], one) for one in known if one.bundle in places]

    def note(change: LevelChange | LevelDrift) -> str | None:
        found = FoundChange(series, change)
        return next((one.note for place, one in placed if _is(found, place, one)), None)

    return msgspec.structs.replace(
        series,
        changes=[msgspec.structs.replace(one, acknowledged=note(one)) for one in series.changes],
        drifts=[msgspec.structs.replace(one, acknowledged=note(one)) for one in series.drifts],
    )


def _is(found: FoundChange, place: int, known: KnownChange) -> bool:
    after = place - found.change.index
    here = abs(after) <= NEAR or (isinstance(found.change, LevelDrift) and 0 <= after < found.change.runs)
    size, was = math.log(found.change.ratio), math.log(known.ratio)
    grown = abs(size) > _GROWTH * abs(was) + math.log1p(SMALLEST_CHANGE)
    return known.kind == found.kind and here and (size > 0) is (was > 0) and not grown


def _same(history: History, series: Series, known: KnownChange) -> bool:
    return known.metric == history.metric.name and known.subject == _subject(series.subject)


def _subject(subject: Subject) -> dict[str, str | int | None]:
    return subject._asdict()


def _time(point: Point) -> str:
    return point.placed
