"""A figure over many runs of one thing on one machine: its points in order, and where its level changed."""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.core.grouping import grouped
from opscope.core.stats.changes import SHORTEST_SERIES, TOLERANCE, level_changes
from opscope.core.stats.effect import interval_of, unpaired_effects
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


class Order(str, enum.Enum):
    """What the points of a history stand beside each other by."""

    DATE = "date"
    COMMIT = "commit"
    VERSION = "version"


class FigureUnit(str, enum.Enum):
    """Unit of a figure."""

    TIME = "ns"
    SIZE = "bytes"
    RATIO = "ratio"


class Metric(msgspec.Struct, frozen=True):
    """The figure.

    Attributes:
        name: as the user named it.
        unit: of its values.
        higher_is_better: whether a larger value is a good one.
    """

    name: str
    unit: FigureUnit
    higher_is_better: bool = False


class Subject(NamedTuple):
    """What a series is about: runs that differ in any of these are never in one series."""

    model: str
    dtype: str | None
    device: str
    target: str | None
    variant: str
    threads: int | None
    affinity: str | None
    arm: str | None


class Point(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        bundle: its hash.
        created: when it began, ISO 8601, UTC.
        label: its date, commit or version.
        value: of the figure.
    """

    bundle: str
    created: str
    label: str
    value: float


class LevelChange(msgspec.Struct, frozen=True):
    """Where the level changed.

    Attributes:
        index: first point of the new level, from 0.
        label: of it.
        before: of the point before it.
        from_value: median of the level before.
        to_value: median of the level after.
        ratio: after / before, of geometric means.
        ci95: its 95 % interval; null where a level has too few points.
        better: whether the new level is a better one.
        runs: points of the two levels.
    """

    index: int
    label: str
    before: str
    from_value: float
    to_value: float
    ratio: float
    ci95: tuple[float, float] | None
    better: bool
    runs: tuple[int, int]


class Series(msgspec.Struct, frozen=True):
    """The runs of one thing on one machine.

    Attributes:
        subject: what they are runs of.
        points: in order.
        changes: in order; empty when none was found, or nothing was judged.
        level: median since the last change.
        scatter: standard deviation of the logarithms since then; null with fewer than two points.
        not_judged: why changes were not looked for; null when they were.
    """

    subject: Subject
    points: list[Point]
    changes: list[LevelChange]
    level: float
    scatter: float | None
    not_judged: str | None = None

    def current(self) -> list[Point]:
        """Points since the last change."""
        return self.points[self.changes[-1].index if self.changes else 0 :]


class History(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.history/1"):
    """A figure over the runs of a store.

    Attributes:
        store: where they are.
        metric: the figure.
        order: what points stand beside each other by.
        tolerance: levels that are closer than this fraction count as one.
        series: by device, model and variant.
        left_out: runs without this figure.
    """

    store: str
    metric: Metric
    order: Order
    tolerance: float
    series: list[Series]
    left_out: int


def history(
    store: str, metric: Metric, order: Order, points: Iterable[tuple[Subject, Point]], left_out: int
) -> History:
    """The history of a figure.

    Args:
        store: where the runs are.
        metric: the figure.
        order: what points stand beside each other by.
        points: in order of time, of all subjects.
        left_out: runs without this figure.
    """
    groups = grouped(points, lambda pair: pair[0])
    ordered = sorted(groups.items(), key=lambda group: tuple(str(part) for part in group[0]))
    found = [series(subject, in_order([point for _, point in own], order), metric) for subject, own in ordered]
    return History(store, metric, order, TOLERANCE, found, left_out)


def series(subject: Subject, points: Sequence[Point], metric: Metric) -> Series:
    """The series of one subject with its changes of level.

    Args:
        subject: what it is about.
        points: in order, at least one.
        metric: the figure.
    """
    values = np.array([point.value for point in points], np.float64)
    reason = _not_judged(values)
    borders = [] if reason else level_changes(values)
    ends = [0, *borders, len(values)]
    parts = [values[first:end] for first, end in itertools.pairwise(ends)]
    changes = [
        _change(points, index, (before, after), metric)
        for index, before, after in zip(borders, parts, parts[1:], strict=False)
    ]
    last = parts[-1]
    scatter = float(np.log(last).std(ddof=1)) if len(last) > 1 and bool((last > 0).all()) else None
    return Series(subject, list(points), changes, float(np.median(last)), scatter, reason)


def in_order(points: Sequence[Point], order: Order) -> list[Point]:
    """Points by date; or by version or commit, where all runs of one stand together.

    Versions stand in the order of their numbers, commits in that of their first runs: a store knows no ancestry.
    """
    by_date = sorted(points, key=lambda point: (point.created, point.bundle))
    if order is Order.DATE:
        return by_date
    if order is Order.VERSION:
        return sorted(by_date, key=lambda point: version_key(point.label))
    first: dict[str, int] = {}
    for number, point in enumerate(by_date):
        first.setdefault(point.label, number)
    return sorted(by_date, key=lambda point: first[point.label])


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Key by which 1.10 stands behind 1.9, and 1.10rc1 before 1.10."""
    parts = ["".join(own) for _, own in itertools.groupby(text.split("+", maxsplit=1)[0], key=_sort_of_character)]
    words = [part for part in parts if part not in {".", "-", "_"}]
    return (*((1, int(w), "") if w.isdecimal() else (-1, 0, w) for w in words), (0, 0, ""))


def _sort_of_character(character: str) -> int:
    return 0 if character.isdecimal() else 1 if character.isalpha() else 2


def _not_judged(values: NDArray[np.float64]) -> str | None:
    if len(values) < SHORTEST_SERIES:
        few = counted_text(len(values), "run")
        return f"{few}: at least {SHORTEST_SERIES} are needed to tell a change of level from scatter"
    if not bool((values > 0).all()):
        return "some values are zero, so that ratios mean nothing"
    return None


def _change(
    points: Sequence[Point],
    index: int,
    levels: tuple[NDArray[np.float64], ...],
    metric: Metric,
) -> LevelChange:
    before, after = levels
    effect = unpaired_effects(np.log(after)[:, None], np.log(before)[:, None])[0]
    ratio = _exp(effect.estimate)
    return LevelChange(
        index=index,
        label=points[index].label,
        before=points[index - 1].label,
        from_value=float(np.median(before)),
        to_value=float(np.median(after)),
        ratio=ratio,
        ci95=interval_of(effect, _exp),
        better=(ratio > 1) is metric.higher_is_better,
        runs=(len(before), len(after)),
    )


def _exp(value: float) -> float:
    return float(np.exp(value))
