"""A figure over many runs of one thing on one machine: its points in order, its changes and outliers."""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from opscope.core.parts import part
from opscope.core.stats.many_series import SHORTEST
from opscope.core.stats.segments import SMALLEST_CHANGE, SeriesSegment, outliers
from opscope.core.units import counted_text
from opscope.fleet.analysis.causes import SharedCause, find_causes
from opscope.fleet.analysis.changes import LevelChange, Subject, detect_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from opscope.fleet.analysis.causes import FactsOfRuns
    from opscope.fleet.analysis.changes import SeriesCourse, SeriesRuns


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
    store: str,
    metric: Metric,
    order: Order,
    runs: Sequence[SeriesRuns],
    read_facts: Callable[[Collection[str]], FactsOfRuns],
    since: str = "",
) -> History:
    """Return the history of a figure.

    Args:
        store: where the runs are.
        metric: the figure.
        order: what points stand beside each other by.
        runs: of each series; series without a run are left out.
        read_facts: gives the facts of the runs of some bundles.
        since: only changes and outliers that were seen then or later, ISO 8601; all runs are judged.
    """
    ordered = sorted(runs, key=lambda rows: tuple(map(str, msgspec.structs.astuple(rows.subject))))
    arranged = [arrange_runs(rows, order) for rows in ordered if len(rows.values)]
    courses = detect_changes(arranged).courses
    series = [_make_series(rows, course, since) for rows, course in zip(arranged, courses, strict=True)]
    changes = [None if row.not_judged else row.changes for row in series]
    causes = part(
        "what changes have in common",
        lambda: find_causes(arranged, changes, read_facts, by_date=order is Order.DATE),
        list[SharedCause](),
    )
    untrusted = sum(rows.untrusted for rows in runs)
    return History(store, metric, order, SMALLEST_CHANGE, series, untrusted, causes)


def arrange_runs(runs: SeriesRuns, order: Order) -> SeriesRuns:
    """Return runs, which are in the order of their dates, by version or commit: all runs of one stand together.

    Versions stand in the order of their numbers, commits in that of their first runs: a store knows no ancestry.
    """
    if order is Order.DATE:
        return runs
    firsts = {label: number for number, label in reversed(list(enumerate(runs.labels)))}
    if order is Order.VERSION:
        numbers = sorted(range(len(runs.labels)), key=lambda number: version_key(runs.labels[number]))
    else:
        numbers = sorted(range(len(runs.labels)), key=lambda number: firsts[runs.labels[number]])
    columns: tuple[Sequence[Any], ...] = (runs.bundles, runs.placed, runs.labels, runs.created)
    bundles, placed, labels, created = ([column[number] for number in numbers] for column in columns)
    return runs._replace(values=runs.values[numbers], bundles=bundles, placed=placed, labels=labels, created=created)


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which 1.10 stands behind 1.9, and 1.10rc1 before 1.10."""
    release = text.split("+", maxsplit=1)[0]
    runs = itertools.groupby(release, key=lambda character: (character.isdecimal(), character.isalpha()))
    words = [word for word in ("".join(run) for _, run in runs) if word not in {".", "-", "_"}]
    return (*((1, int(w), "") if w.isdecimal() else (-1, 0, w) for w in words), (0, 0, ""))


def _make_series(runs: SeriesRuns, course: SeriesCourse, since: str) -> Series:
    apart = outliers(runs.values, course.segments) if course.is_judged else []
    expected = fit_levels(course.segments)
    created = [placed if began is None else began for began, placed in zip(runs.created, runs.placed, strict=True)]
    return Series(
        runs.subject,
        list(map(Point, runs.bundles, created, runs.labels, runs.values.tolist(), runs.placed)),
        [change for change in course.changes if runs.placed[change.seen] >= since],
        course.segments[-1].ends,
        _find_scatter(runs.values, course.segments, apart),
        None if course.is_judged else _why_not_judged(runs.values),
        [
            Outlier(
                number, runs.labels[number], float(runs.values[number]), float(runs.values[number] / expected[number])
            )
            for number in apart
            if runs.placed[number] >= since
        ],
        course.segments,
    )


def fit_levels(parts: Sequence[SeriesSegment]) -> NDArray[np.float64]:
    """Return the value of its level or drift at each run of a series."""
    return np.concatenate(
        [part.fitted() if part.drifts else np.full(part.end - part.first, part.begins) for part in parts]
    )


def _find_scatter(values: NDArray[np.float64], parts: Sequence[SeriesSegment], apart: Sequence[int]) -> float | None:
    last = parts[-1]
    if not bool((values > 0).all()):
        return None
    residuals = np.log(values[last.first :] / fit_levels([last]))
    usual = np.delete(residuals, [number - last.first for number in apart if number >= last.first])
    return float(usual.std(ddof=1)) if len(usual) > 1 else None


def _why_not_judged(values: NDArray[np.float64]) -> str:
    if not bool((values > 0).all()):
        return "some values are zero, so ratios are meaningless"
    few = counted_text(len(values), "run")
    return f"{few}: at least {SHORTEST} are needed to tell a level change from noise"
