"""Changes of histories: which are new, which somebody has looked at, and which happened together."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.core.stats.segments import SMALLEST_CHANGE
from opscope.fleet.analysis.common_moves import SeriesMove, common_moves, owner
from opscope.fleet.analysis.history import LevelDrift, Order, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.fleet.analysis.common_moves import CommonMove, FactsOfRuns
    from opscope.fleet.analysis.history import History, LevelChange, Point, Series


NEAR = 3
"""Runs by which the place of a step may move when more runs are there: those on one side of the shortest level."""
_GROWTH = 1.5
"""A change that has grown beyond this times what was acknowledged, and 1 %, is new again."""


class KnownChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was acknowledged."""

    metric: str  # the figure
    subject: Subject  # of the series
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
        place = history.metric.name, series.subject
        return _marked(series, [one for one in known.changes if (one.metric, one.subject) == place])

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
            subject=series.subject,
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


def common_steps(history: History, facts_of: Callable[[list[str]], FactsOfRuns]) -> list[CommonMove]:
    """What series have in common whose levels changed at the same time, the newest first.

    Steps are taken for one event when they are at most three runs apart, since that is how well a step is placed. A
    series takes part when it was judged and has runs on both sides.

    ``history``: whose steps are meant; ``facts_of``: the facts of the runs of some bundles; asked for events that have
    something in common, once.
    """
    events = [(key, runs) for key, runs in _events(history) if common_moves([_move(*one, {}) for one in runs])]
    sides = (series.points[at] for _, runs in events for series, first in runs for at in (first - 1, first))
    facts = facts_of(list(dict.fromkeys(point.bundle for point in sides))) if events else {}
    found: list[tuple[str, CommonMove]] = []
    for key, runs in events:
        series = [_move(*one, facts) for one in runs]
        for move in common_moves(series):
            way = 1 if move.ratio > 1 else -1
            labels = Counter(
                one.points[first].label
                for (one, first), series_move in zip(runs, series, strict=True)
                if series_move.direction == way and owner(series_move, move.kind) == move.name
            )
            label = labels.most_common(1)[0][0] if labels else ""
            found.append((key, msgspec.structs.replace(move, label=label)))
    return [move for _, move in sorted(found, key=lambda one: one[0], reverse=True)]


def _events(history: History) -> list[tuple[str, list[tuple[Series, int]]]]:
    """Times at which levels changed, with the first run behind it of every series that has runs on both sides."""
    judged = [one for one in history.series if one.not_judged is None]
    left = Counter(_key(one.points[step.index], history.order) for one in judged for step in one.changes)
    events = []
    while left:
        key = max(left, key=lambda one: (left[one], one))
        pairs = [(one, _first_behind(one, key, history.order)) for one in judged]
        runs = [(one, first) for one, first in pairs if first]
        left.subtract(_key(one.points[first], history.order) for one, first in runs if _step(one, first))
        left[key] = 0
        left = +left
        events.append((key, runs))
    return events


def _first_behind(series: Series, key: str, order: Order) -> int | None:
    """Number of the first run behind a time, or of its step that is as near as steps are placed."""
    keys = [_key(point, order) for point in series.points]
    if order is Order.DATE:
        place = next((number for number, one in enumerate(keys) if one >= key), None)
    else:
        place = keys.index(key) if key in keys else None
    if not place:
        return None
    step = min((change.index for change in series.changes), key=lambda index: abs(index - place), default=place)
    return step if abs(step - place) <= NEAR else place


def _key(point: Point, order: Order) -> str:
    """What times are compared by: the day, or the commit or version."""
    return point.placed[:10] if order is Order.DATE else point.label


def _step(series: Series, first: int) -> LevelChange | None:
    return next((change for change in series.changes if change.index == first), None)


def _move(series: Series, first: int, facts: FactsOfRuns) -> SeriesMove:
    subject, step = series.subject, _step(series, first)
    before, after = (facts.get((point.bundle, subject.variant), {}) for point in series.points[first - 1 : first + 1])
    ratio = step.ratio if step else 1.0
    direction = 0 if step is None else 1 if ratio > 1 else -1
    return SeriesMove(subject.model, subject.device, ratio, direction, before, after)
