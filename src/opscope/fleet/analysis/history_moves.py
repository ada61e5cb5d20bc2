"""Steps of a history that happened together: whether a device changed, or a program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.fleet.analysis.common_moves import SeriesMove, common_moves
from opscope.fleet.analysis.history import Order
from opscope.fleet.analysis.known_changes import NEAR

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.fleet.analysis.common_moves import CommonMove, FactsOfRuns
    from opscope.fleet.analysis.history import History, LevelChange, Point, Series


class _Side(NamedTuple):
    """A series at a time: the numbers of its last run before and of its first run behind, and its step there."""

    series: Series
    before: int
    after: int
    step: LevelChange | None


def common_steps(history: History, facts_of: Callable[[list[str]], FactsOfRuns]) -> list[CommonMove]:
    """What series have in common whose levels changed at the same time, the newest first.

    Steps are taken for one event when they are at most three runs apart, since that is how well a step is placed. A
    series takes part when it was judged and has runs on both sides.

    Args:
        history: whose steps are meant.
        facts_of: the facts of the runs of some bundles; asked for events that have something in common, once.
    """
    events = [(key, sides) for key, sides in _events(history) if common_moves([_move(one, {}) for one in sides])]
    runs = (one.series.points[at] for _, sides in events for one in sides for at in (one.before, one.after))
    facts = facts_of(list(dict.fromkeys(point.bundle for point in runs))) if events else {}
    found: list[tuple[str, CommonMove]] = []
    for key, sides in events:
        for move in common_moves([_move(one, facts) for one in sides]):
            labels = Counter(
                one.step.label
                for one in sides
                if one.step and (one.step.ratio > 1) is (move.ratio > 1) and _is_of(one.series, move)
            )
            label = labels.most_common(1)[0][0] if labels else ""
            found.append((key, msgspec.structs.replace(move, label=label)))
    return [move for _, move in sorted(found, key=lambda one: one[0], reverse=True)]


def _events(history: History) -> list[tuple[str, list[_Side]]]:
    """Times at which levels changed, with every series that has runs on both sides."""
    judged = [one for one in history.series if one.not_judged is None]
    left = Counter(_key(one.points[step.index], history.order) for one in judged for step in one.changes)
    found = []
    while left:
        key = max(left, key=lambda one: (left[one], one))
        sides = [side for side in (_side(one, key, history.order) for one in judged) if side is not None]
        near = [_key(one.series.points[one.step.index], history.order) for one in sides if one.step]
        left.subtract(near)
        left[key] = 0
        left = +left
        found.append((key, sides))
    return found


def _side(series: Series, key: str, order: Order) -> _Side | None:
    keys = [_key(point, order) for point in series.points]
    if order is Order.DATE:
        place = next((number for number, one in enumerate(keys) if one >= key), None)
    else:
        place = keys.index(key) if key in keys else None
    if not place:
        return None
    step = min(series.changes, key=lambda one: abs(one.index - place), default=None)
    if step is None or abs(step.index - place) > NEAR:
        return _Side(series, place - 1, place, None)
    return _Side(series, step.index - 1, step.index, step)


def _key(point: Point, order: Order) -> str:
    """What times are compared by: the day, or the commit or version."""
    return point.placed[:10] if order is Order.DATE else point.label


def _move(side: _Side, facts: FactsOfRuns) -> SeriesMove:
    subject, points, step = side.series.subject, side.series.points, side.step
    before, after = (facts.get((points[place].bundle, subject.variant), {}) for place in (side.before, side.after))
    ratio = step.ratio if step else 1.0
    direction = 0 if step is None else 1 if ratio > 1 else -1
    return SeriesMove(subject.model, subject.device, ratio, direction, before, after)


def _is_of(series: Series, move: CommonMove) -> bool:
    return move.name in {"", series.subject.device, series.subject.model}
