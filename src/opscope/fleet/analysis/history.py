"""A figure over many runs of one thing on one machine: its points in order, its steps, drifts and outliers."""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
import numpy as np

from opscope.core.grouping import grouped
from opscope.core.parts import explained
from opscope.core.stats.segments import FEWEST_RUNS, SMALLEST_CHANGE, SeriesSegment, outliers, segments, steps
from opscope.core.units import counted_text
from opscope.fleet.analysis.common_moves import CommonMove

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


class Subject(msgspec.Struct, frozen=True):
    """What a series is about: runs that differ in any of these are never in one series."""

    model: str
    dtype: str | None
    device: str
    target: str | None
    variant: str
    threads: int | None
    affinity: str | None
    arm: str | None
    method: str | None = None  # where the runs call several


class Point(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        bundle: its hash.
        created: when it began, ISO 8601, UTC.
        label: its date, commit or version.
        value: of the figure.
        placed: where it stands among the others, ISO 8601: when it was added to the store.
    """

    bundle: str
    created: str
    label: str
    value: float
    placed: str


class ChangedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A step or a drift of the level.

    Attributes:
        index: first point of the new level, from 0, the most likely one where that is not certain; or of the drift.
        from_value: median of the level before a step, or what it had drifted to; what a drift begins with, by the
            median slope of all pairs of points.
        to_value: median of the level after a step, or what it begins with where it drifts; what a drift ends with.
        ratio: ``to_value`` / ``from_value``.
        better: whether ``to_value`` is better.
        acknowledged: note of the person who looked at it; null where nobody has.
    """

    index: int
    from_value: float
    to_value: float
    ratio: float
    better: bool
    acknowledged: str | None = None


class LevelChange(ChangedLevel, frozen=True, kw_only=True):
    """Where the level changed.

    Attributes:
        earliest: the first point that may be it.
        latest: the last one; the same where it is certain.
        label: of the point ``latest``.
        before: of the point before ``earliest``.
        ci95: 95 % interval of the ratio, by Student's t.
        runs: points of the two levels.
    """

    earliest: int
    latest: int
    label: str
    before: str
    ci95: tuple[float, float]
    runs: tuple[int, int]

    kind: ClassVar[Literal["step"]] = "step"

    @property
    def seen(self) -> int:
        """Number of the point with which it was seen: the first one of the new level."""
        return self.index


class LevelDrift(ChangedLevel, frozen=True, kw_only=True):
    """Where the level rose or fell from run to run.

    Attributes:
        first: label of its first point.
        last: of its last point.
        runs: its points.
    """

    first: str
    last: str
    runs: int

    kind: ClassVar[Literal["drift"]] = "drift"

    @property
    def seen(self) -> int:
        """Number of the point with which it was seen: its last one."""
        return self.index + self.runs - 1


class Outlier(msgspec.Struct, frozen=True):
    """A run that stands apart from those before and after it.

    Attributes:
        index: of the point, from 0.
        label: of it.
        value: of it.
        ratio: its value / what its level or drift has there.
    """

    index: int
    label: str
    value: float
    ratio: float


class Series(msgspec.Struct, frozen=True):
    """The runs of one thing on one machine.

    Attributes:
        subject: what they are runs of.
        points: in order.
        changes: in order; empty when none was found, or nothing was judged.
        level: median since the last change; where it drifts, what it has drifted to.
        scatter: standard deviation of the logarithms since then, around the drift where there is one, without outliers;
            null with fewer than two points.
        not_judged: why changes were not looked for; null when they were.
        drifts: in order.
        outliers: in order.
        segments: levels and drifts in order; one level where changes were not looked for.
        is_lost: whether a bug in opscope kept changes from being looked for.
    """

    subject: Subject
    points: list[Point]
    changes: list[LevelChange]
    level: float
    scatter: float | None
    not_judged: str | None = None
    drifts: list[LevelDrift] = []
    outliers: list[Outlier] = []
    segments: list[SeriesSegment] = []
    is_lost: bool = False

    def steps_and_drifts(self) -> list[LevelChange | LevelDrift]:
        """All changes: first the steps, then the drifts."""
        return [*self.changes, *self.drifts]

    def current(self) -> list[Point]:
        """Points since the last change, or of the last drift."""
        return self.points[self.segments[-1].first if self.segments else 0 :]


class History(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.history/1"):
    """A figure over the runs of a store.

    Attributes:
        store: where they are.
        metric: the figure.
        order: what points stand beside each other by.
        tolerance: levels that are closer than this fraction count as one.
        series: by device, model and variant.
        left_out: runs without this figure, or graded ``do_not_trust``.
        moves: what series have in common whose levels changed at the same time, the newest first.
    """

    store: str
    metric: Metric
    order: Order
    tolerance: float
    series: list[Series]
    left_out: int
    moves: list[CommonMove] = []


def history(
    store: str, metric: Metric, order: Order, points: Iterable[tuple[Subject, Point]], left_out: int
) -> History:
    """The history of a figure."""
    groups = grouped(points, lambda pair: pair[0])
    ordered = sorted(groups.items(), key=lambda group: tuple(map(str, msgspec.structs.astuple(group[0]))))
    found = [_judged(subject, in_order([point for _, point in own], order), metric) for subject, own in ordered]
    return History(store, metric, order, SMALLEST_CHANGE, found, left_out)


def _judged(subject: Subject, points: Sequence[Point], metric: Metric) -> Series:
    """A series; one that a bug of ours keeps from being judged says so."""
    return explained(
        f"the series of {subject.model} on {subject.device}, {subject.variant}",
        lambda: series(subject, points, metric),
        lambda failure: msgspec.structs.replace(_one_level(subject, points, failure.because), is_lost=True),
    )


def series(subject: Subject, points: Sequence[Point], metric: Metric) -> Series:
    """The series of one subject with its changes of level."""
    values = np.array([point.value for point in points], np.float64)
    reason = _not_judged(values)
    if reason:
        return _one_level(subject, points, reason)
    series_segments = segments(values)
    last = series_segments[-1]
    apart = outliers(values, series_segments)
    residuals = np.log(values[last.first :] / last.fitted())
    usual = np.delete(residuals, [place - last.first for place in apart if place >= last.first])
    return Series(
        subject,
        list(points),
        _changes(points, values, series_segments, metric),
        last.ends,
        float(usual.std(ddof=1)),
        drifts=[_drift(points, segment, metric) for segment in series_segments if segment.drifts],
        outliers=_outliers(points, values, series_segments, apart),
        segments=series_segments,
    )


def _one_level(subject: Subject, points: Sequence[Point], reason: str) -> Series:
    """A series of which changes were not looked for, and why."""
    values = np.array([point.value for point in points], np.float64)
    level = float(np.median(values))
    scatter = float(np.log(values).std(ddof=1)) if len(values) > 1 and bool((values > 0).all()) else None
    whole = [SeriesSegment(0, len(values), level, level)]
    return Series(subject, list(points), [], level, scatter, reason, segments=whole)


def in_order(points: Sequence[Point], order: Order) -> list[Point]:
    """Points by date; or by version or commit, where all runs of one stand together.

    By date means in the order in which runs were added, and those that were added together by the times when they
    began: a device whose clock is wrong would put its runs where they do not belong.

    Versions stand in the order of their numbers, commits in that of their first runs: a store knows no ancestry.
    """
    by_date = sorted(points, key=lambda point: (point.placed, point.created, point.bundle))
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
    release = text.split("+", maxsplit=1)[0]
    sorts = itertools.groupby(release, key=lambda character: (character.isdecimal(), character.isalpha()))
    parts = ["".join(own) for _, own in sorts]
    words = [part for part in parts if part not in {".", "-", "_"}]
    return (*((1, int(w), "") if w.isdecimal() else (-1, 0, w) for w in words), (0, 0, ""))


def _not_judged(values: NDArray[np.float64]) -> str | None:
    if len(values) < FEWEST_RUNS:
        few = counted_text(len(values), "run")
        return f"{few}: at least {FEWEST_RUNS} are needed to tell a level change from noise"
    if not bool((values > 0).all()):
        return "some values are zero, so ratios are meaningless"
    return None


def _changes(
    points: Sequence[Point], values: NDArray[np.float64], series_segments: Sequence[SeriesSegment], metric: Metric
) -> list[LevelChange]:
    """Steps between neighbouring segments; where a drift begins or ends without one, there is none."""
    sizes = {
        one.first: (before.end - before.first, one.end - one.first)
        for before, one in itertools.pairwise(series_segments)
    }
    return [
        LevelChange(
            index=step.first,
            earliest=step.earliest,
            latest=step.latest,
            label=points[step.latest].label,
            before=points[step.earliest - 1].label,
            from_value=step.before,
            to_value=step.after,
            ratio=step.ratio,
            ci95=step.ci95,
            better=(step.ratio > 1) is metric.higher_is_better,
            runs=sizes[step.first],
        )
        for step in steps(values, series_segments)
    ]


def _drift(points: Sequence[Point], segment: SeriesSegment, metric: Metric) -> LevelDrift:
    return LevelDrift(
        index=segment.first,
        first=points[segment.first].label,
        last=points[segment.end - 1].label,
        from_value=segment.begins,
        to_value=segment.ends,
        ratio=segment.ends / segment.begins,
        better=(segment.ends > segment.begins) is metric.higher_is_better,
        runs=segment.end - segment.first,
    )


def _outliers(
    points: Sequence[Point], values: NDArray[np.float64], series_segments: list[SeriesSegment], apart: list[int]
) -> list[Outlier]:
    expected = np.concatenate([segment.fitted() for segment in series_segments])
    return [
        Outlier(place, points[place].label, float(values[place]), float(values[place] / expected[place]))
        for place in apart
    ]
