"""Changes of histories that somebody has looked at: which of those found are new, and which are known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.core.stats.segments import SMALLEST_CHANGE
from opscope.fleet.analysis.history import LevelDrift

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.fleet.analysis.history import History, LevelChange, Series

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


def with_known(history: History, known: KnownChanges) -> History:
    """The history, in which known changes bear the note that they were acknowledged with."""

    def marked(series: Series) -> Series:
        subject = series.subject._asdict()
        own = [one for one in known.changes if (one.metric, one.subject) == (history.metric.name, subject)]
        return _marked(series, own)

    return msgspec.structs.replace(history, series=[marked(one) for one in history.series])


def seen_since(history: History, moment: str) -> History:
    """The history with the changes and outliers alone that were seen at a moment or later."""

    def late(series: Series) -> Series:
        points = series.points
        return msgspec.structs.replace(
            series,
            changes=[one for one in series.changes if points[one.seen].placed >= moment],
            drifts=[one for one in series.drifts if points[one.seen].placed >= moment],
            outliers=[one for one in series.outliers if points[one.index].placed >= moment],
        )

    return msgspec.structs.replace(history, series=[late(one) for one in history.series])


def new_for_the_worse(history: History) -> list[tuple[Series, LevelChange | LevelDrift]]:
    """The changes for the worse, not acknowledged, each with its series, the newest first."""
    found = [(series, change) for series, change in _unknown(history) if not change.better]
    return sorted(found, key=lambda pair: pair[0].points[pair[1].seen].placed, reverse=True)


def acknowledged(history: History, known: KnownChanges, note: str, when: str) -> KnownChanges:
    """The known changes, with all of a history that are not among them."""
    new = [
        KnownChange(
            metric=history.metric.name,
            subject=series.subject._asdict(),
            kind=change.kind,
            bundle=series.points[change.index].bundle,
            label=series.points[change.index].label,
            ratio=change.ratio,
            note=note,
            acknowledged=when,
        )
        for series, change in _unknown(history)
    ]
    return KnownChanges([*known.changes, *new])


def _unknown(history: History) -> list[tuple[Series, LevelChange | LevelDrift]]:
    return [(series, one) for series in history.series for one in series.steps_and_drifts() if one.acknowledged is None]


def _marked(series: Series, known: Sequence[KnownChange]) -> Series:
    places = {point.bundle: place for place, point in enumerate(series.points)}
    placed = [(places[one.bundle], one) for one in known if one.bundle in places]

    def note(change: LevelChange | LevelDrift) -> str | None:
        return next((one.note for place, one in placed if _is(change, place, one)), None)

    return msgspec.structs.replace(
        series,
        changes=[msgspec.structs.replace(one, acknowledged=note(one)) for one in series.changes],
        drifts=[msgspec.structs.replace(one, acknowledged=note(one)) for one in series.drifts],
    )


def _is(change: LevelChange | LevelDrift, place: int, known: KnownChange) -> bool:
    after = place - change.index
    here = abs(after) <= NEAR or (isinstance(change, LevelDrift) and 0 <= after < change.runs)
    size, was = math.log(change.ratio), math.log(known.ratio)
    grown = abs(size) > _GROWTH * abs(was) + math.log1p(SMALLEST_CHANGE)
    return known.kind == change.kind and here and (size > 0) is (was > 0) and not grown
