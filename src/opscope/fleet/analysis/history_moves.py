"""Steps of a history that happened together: whether a device changed, or a program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from opscope.fleet.analysis.common_moves import SeriesMove, common_moves, owner
from opscope.fleet.analysis.history import Order
from opscope.fleet.analysis.known_changes import NEAR

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.fleet.analysis.common_moves import CommonMove, FactsOfRuns
    from opscope.fleet.analysis.history import History, LevelChange, Point, Series


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
                for (one, first), own in zip(runs, series, strict=True)
                if own.direction == way and owner(own, move.kind) == move.name
            )
            label = labels.most_common(1)[0][0] if labels else ""
            found.append((key, msgspec.structs.replace(move, label=label)))
    return [move for _, move in sorted(found, key=lambda one: one[0], reverse=True)]


def _events(history: History) -> list[tuple[str, list[tuple[Series, int]]]]:
    """Times at which levels changed, with the first run behind it of every series that has runs on both sides."""
    judged = [one for one in history.series if one.not_judged is None]
    left = Counter(_key(one.points[step.index], history.order) for one in judged for step in one.changes)
    found = []
    while left:
        key = max(left, key=lambda one: (left[one], one))
        pairs = [(one, _first_behind(one, key, history.order)) for one in judged]
        runs = [(one, first) for one, first in pairs if first]
        left.subtract(_key(one.points[first], history.order) for one, first in runs if _step(one, first))
        left[key] = 0
        left = +left
        found.append((key, runs))
    return found


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
