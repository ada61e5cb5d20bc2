"""A figure over many runs of one thing on one machine: its points in order, its changes and outliers."""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.core.grouping import grouped
from opscope.core.stats.many_series import SHORTEST
from opscope.core.stats.segments import SMALLEST_CHANGE, SeriesSegment, outliers
from opscope.core.units import counted_text
from opscope.fleet.analysis.causes import SharedCause
from opscope.fleet.analysis.detector import ChangeKind, detect_changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from opscope.fleet.analysis.detector import DetectedChange, SeriesCourse


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
        placed: where it stands among the others, ISO 8601: when it began, or was added where that is not known.
    """

    bundle: str
    created: str
    label: str
    value: float
    placed: str


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the level, or a drift from run to run.

    Attributes:
        kind: ``step`` or ``drift``.
        first: first point of the new level, from 0, the most likely one where that is not certain; or of the drift.
        earliest: the first point that may be it.
        latest: the last one; the same where it is certain.
        end: first point behind the new level or the drift.
        label: of the point ``latest``; of a drift, of its last point.
        before: of the point before ``earliest``; of a drift, of its first point.
        from_value: median of the level before a step, or what it had drifted to; what a drift begins with.
        to_value: median of the level after a step, or what it begins with where it drifts; what a drift ends with.
        ratio: ``to_value`` / ``from_value``.
        ci95: 95 % interval of the ratio, by Student's t.
        better: whether ``to_value`` is better.
        runs: points of the two levels; of a drift its own, twice.
        confirmed: whether it is told from noise after correction for all series, so that a gate counts it.
    """

    kind: ChangeKind
    first: int
    earliest: int
    latest: int
    end: int
    label: str
    before: str
    from_value: float
    to_value: float
    ratio: float
    ci95: tuple[float, float]
    better: bool
    runs: tuple[int, int]
    confirmed: bool

    @property
    def seen(self) -> int:
        """Number of the first point that certainly is of the new level; of the last one of a drift."""
        return self.latest if self.kind == "step" else self.end - 1


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
        outliers: in order.
        segments: levels and drifts in order; one level where changes were not looked for.
    """

    subject: Subject
    points: list[Point]
    changes: list[LevelChange]
    level: float
    scatter: float | None
    not_judged: str | None = None
    outliers: list[Outlier] = []
    segments: list[SeriesSegment] = []


class History(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.history/2"):
    """A figure over the runs of a store.

    Attributes:
        store: where they are.
        metric: the figure.
        order: what points stand beside each other by.
        tolerance: levels that are closer than this fraction count as one.
        series: by device, model and variant.
        left_out: runs without this figure, or graded ``do_not_trust``.
        causes: what series have in common whose levels changed at the same time, the newest first.
    """

    store: str
    metric: Metric
    order: Order
    tolerance: float
    series: list[Series]
    left_out: int
    causes: list[SharedCause] = []


def make_history(
    store: str, metric: Metric, order: Order, points: Iterable[tuple[Subject, Sequence[Point]]], left_out: int
) -> History:
    """Return the history of a figure from the points of its series, which are in the order of their dates."""
    ordered = sorted(points, key=lambda pair: tuple(map(str, msgspec.structs.astuple(pair[0]))))
    arranged = [(subject, arrange_points(own, order)) for subject, own in ordered]
    values = [np.array([point.value for point in own], np.float64) for _, own in arranged]
    courses = detect_changes(values).courses
    series = [
        _make_series(subject, own, numbers, course, metric)
        for (subject, own), numbers, course in zip(arranged, values, courses, strict=True)
    ]
    return History(store, metric, order, SMALLEST_CHANGE, series, left_out)


def keep_since(history: History, moment: str) -> History:
    """Return the history with the changes and outliers alone that were seen at a moment or later, ISO 8601."""
    series = [
        msgspec.structs.replace(
            one,
            changes=[change for change in one.changes if one.points[change.seen].placed >= moment],
            outliers=[outlier for outlier in one.outliers if one.points[outlier.index].placed >= moment],
        )
        for one in history.series
    ]
    return msgspec.structs.replace(history, series=series)


def arrange_points(points: Sequence[Point], order: Order) -> list[Point]:
    """Return points, which are in the order of their dates, by version or commit: all runs of one stand together.

    Versions stand in the order of their numbers, commits in that of their first runs: a store knows no ancestry.
    """
    if order is Order.VERSION:
        return sorted(points, key=lambda point: version_key(point.label))
    if order is Order.COMMIT:
        return list(itertools.chain(*grouped(points, lambda point: point.label).values()))
    return list(points)


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which 1.10 stands behind 1.9, and 1.10rc1 before 1.10."""
    release = text.split("+", maxsplit=1)[0]
    runs = itertools.groupby(release, key=lambda character: (character.isdecimal(), character.isalpha()))
    words = [word for word in ("".join(run) for _, run in runs) if word not in {".", "-", "_"}]
    return (*((1, int(w), "") if w.isdecimal() else (-1, 0, w) for w in words), (0, 0, ""))


def make_level_change(change: DetectedChange, labels: Sequence[str], metric: Metric) -> LevelChange:
    """Return a change of a series as people read it, by the labels of its runs."""
    drifts = change.kind == "drift"
    return LevelChange(
        kind=change.kind,
        first=change.first,
        earliest=change.earliest,
        latest=change.latest,
        end=change.end,
        label=labels[change.end - 1 if drifts else change.latest],
        before=labels[change.first if drifts else change.earliest - 1],
        from_value=change.before,
        to_value=change.after,
        ratio=change.ratio,
        ci95=change.ci95,
        better=(change.ratio > 1) is metric.higher_is_better,
        runs=change.runs,
        confirmed=change.is_confirmed,
    )


def _make_series(
    subject: Subject, points: list[Point], values: NDArray[np.float64], course: SeriesCourse, metric: Metric
) -> Series:
    labels, last = [point.label for point in points], course.segments[-1]
    apart = outliers(values, course.segments) if course.is_judged else []
    expected = fit_levels(course.segments)
    return Series(
        subject,
        points,
        [make_level_change(change, labels, metric) for change in course.changes],
        last.ends,
        _find_scatter(values, course.segments, apart),
        None if course.is_judged else _why_not_judged(values),
        [Outlier(at, labels[at], float(values[at]), float(values[at] / expected[at])) for at in apart],
        course.segments,
    )


def fit_levels(parts: Sequence[SeriesSegment]) -> NDArray[np.float64]:
    """Return the value of its level or drift at each run of a series."""
    return np.concatenate([one.fitted() if one.drifts else np.full(one.end - one.first, one.begins) for one in parts])


def _find_scatter(values: NDArray[np.float64], parts: Sequence[SeriesSegment], apart: Sequence[int]) -> float | None:
    last = parts[-1]
    if not bool((values > 0).all()):
        return None
    residuals = np.log(values[last.first :] / fit_levels([last]))
    usual = np.delete(residuals, [at - last.first for at in apart if at >= last.first])
    return float(usual.std(ddof=1)) if len(usual) > 1 else None


def _why_not_judged(values: NDArray[np.float64]) -> str:
    if not bool((values > 0).all()):
        return "some values are zero, so ratios are meaningless"
    few = counted_text(len(values), "run")
    return f"{few}: at least {SHORTEST} are needed to tell a level change from noise"
