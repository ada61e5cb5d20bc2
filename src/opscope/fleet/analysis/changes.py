"""The one change detector: where the level of each of many series of runs changed.

Steps and drifts are found by the calibrated segmentation (``core.stats.segments``). A level of its own needs three
runs, so the newest runs are also compared with the level before them, by how far noise alone reached in all earlier
runs (``core.stats.many_series``). Both have a p-value that is corrected for the number of series (false discovery
rate), so that a gate over thousands of series is seldom red without a reason. How often: docs/design/fleet-gate.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.core.grouping import grouped
from opscope.core.stats.distributions import t_cdf, t_quantile
from opscope.core.stats.effect import ALPHA, adjust_for_many
from opscope.core.stats.many_series import CONFIRMING, SHORTEST, judge_newest
from opscope.core.stats.segments import (
    FEWEST_RUNS,
    SMALLEST_CHANGE,
    SeriesSegment,
    may_change,
    newest_rise,
    scatter_around,
    segments,
    step_between,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.stats.segments import LevelStep

Floats: TypeAlias = NDArray[np.float64]
ChangeKind: TypeAlias = Literal["step", "drift"]
FALSE_RED_NIGHTS = 1 / 30
"""Nights in which a gate may be red though nothing changed: one of thirty."""
RATE = FALSE_RED_NIGHTS / 2
"""P-value up to which a change is confirmed: one half for the newest runs, one half for levels and drifts."""
_MOST_PREDECESSORS = 60
"""Runs before the newest ones that these are compared with."""


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


class SeriesRuns(NamedTuple):
    """The runs of one series that have a figure and are trusted, oldest first; perhaps none."""

    subject: Subject
    values: Floats  # of the figure
    bundles: Sequence[str]
    placed: Sequence[str]  # when they began, or were added where that is not known: ISO 8601, UTC
    labels: Sequence[str]  # what a reader knows them by: date, commit or version
    higher_is_better: bool = False  # whether a larger value of the figure is a good one
    created: Sequence[str | None] = ()  # ISO 8601, UTC, where it differs from `placed`; empty where it is not known
    untrusted: int = 0  # runs that were left out
    newest_untrusted: str = ""  # when the newest of these was placed


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
        p_value: that noise makes such a change anywhere in the series, corrected for the number of series.
        confirmed: whether the p-value tells it from noise, so that a gate counts it.
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
    p_value: float
    confirmed: bool = False

    @property
    def seen(self) -> int:
        """Number of the first point that certainly is of the new level; of the last one of a drift."""
        return self.latest if self.kind == "step" else self.end - 1

    @property
    def settled(self) -> int:
        """Number of the point that confirms it: the third one of the new level, since one may be too few to tell."""
        return min(self.first + CONFIRMING, self.end) - 1 if self.kind == "step" else self.seen


class SeriesCourse(NamedTuple):
    """The levels and changes of a series."""

    segments: list[SeriesSegment]  # levels and drifts in order; one level where changes were not looked for
    changes: list[LevelChange]  # in order
    is_judged: bool  # whether there were enough runs, all above zero


class Detection(NamedTuple):
    """The courses of many series."""

    courses: list[SeriesCourse]
    detectable: list[float] | None  # slowdowns that one, two and three new runs show in half of the series


def detect_changes(series: Sequence[SeriesRuns]) -> Detection:
    """Find the changes of level of many series of runs, each with at least one run."""
    lengths = [len(runs.values) if bool((runs.values > 0).all()) else 0 for runs in series]  # zeros have no ratio
    searched = [number for number, length in enumerate(lengths) if length >= FEWEST_RUNS]
    by_length = grouped(searched, lambda number: lengths[number])
    flagged = {number for numbers in by_length.values() for number in _screen_series(series, numbers)}
    parts = [
        segments(runs.values) if number in flagged else _make_level(runs.values) for number, runs in enumerate(series)
    ]
    changes = {number: _changes_of_segments(series[number], parts[number]) for number in flagged}
    _correct_for_many(changes, searched)
    judged = [number for number, length in enumerate(lengths) if length >= SHORTEST]
    newest, detectable = _find_newest_changes(series, parts, judged)
    courses = []
    for number, runs in enumerate(series):
        joined = _join_changes(changes.get(number, []), newest.get(number), len(runs.values))
        finished = [msgspec.structs.replace(change, confirmed=change.p_value <= RATE) for change in joined]
        courses.append(SeriesCourse(parts[number], finished, lengths[number] >= SHORTEST))
    return Detection(courses, detectable)


def _screen_series(series: Sequence[SeriesRuns], numbers: Sequence[int]) -> list[int]:
    """Return which series, of equal length, the segmentation has to look at; the others are one level."""
    flags = may_change(np.log(np.stack([series[number].values for number in numbers])))
    return [number for number, flag in zip(numbers, flags, strict=True) if flag]


def _make_level(values: Floats) -> list[SeriesSegment]:
    level = float(np.median(values))
    return [SeriesSegment(0, len(values), level, level)]


def _changes_of_segments(runs: SeriesRuns, parts: Sequence[SeriesSegment]) -> list[LevelChange]:
    changes = []
    for position, part in enumerate(parts):
        previous = parts[position - 1] if position else part
        if position and max(previous.ends, part.begins) / min(previous.ends, part.begins) >= 1 + SMALLEST_CHANGE:
            step = step_between(runs.values, parts, position)
            p_value = min(1.0, len(runs.values) * step.p_value)
            changes.append(_make_step(runs, step, part.end, previous.first, p_value))
        if part.drifts:
            changes.append(_make_drift(runs, parts, part))
    return changes


def _make_step(runs: SeriesRuns, step: LevelStep, end: int, first_before: int, p_value: float) -> LevelChange:
    """Return a step to a level that ends at a run, from one that begins at another, as people read it."""
    return LevelChange(
        kind="step",
        first=step.first,
        earliest=step.earliest,
        latest=step.latest,
        end=end,
        label=runs.labels[step.latest],
        before=runs.labels[step.earliest - 1],
        from_value=step.before,
        to_value=step.after,
        ratio=step.ratio,
        ci95=step.ci95,
        better=(step.ratio > 1) is runs.higher_is_better,
        runs=(step.first - first_before, end - step.first),
        p_value=p_value,
    )


def _make_drift(runs: SeriesRuns, parts: Sequence[SeriesSegment], part: SeriesSegment) -> LevelChange:
    count, size = part.end - part.first, math.log(part.ends / part.begins)
    scatter, degrees = scatter_around(np.log(runs.values), parts)
    error = scatter * math.sqrt(12 / count)  # of the ends of a line through as many runs
    room = t_quantile(1 - ALPHA / 2, degrees) * error
    chance = 2 * (1 - t_cdf(abs(size) / error, degrees)) if error > 0 else 0.0
    return LevelChange(
        kind="drift",
        first=part.first,
        earliest=part.first,
        latest=part.first,
        end=part.end,
        label=runs.labels[part.end - 1],
        before=runs.labels[part.first],
        from_value=part.begins,
        to_value=part.ends,
        ratio=part.ends / part.begins,
        ci95=(math.exp(size - room), math.exp(size + room)),
        better=(size > 0) is runs.higher_is_better,
        runs=(count, count),
        p_value=min(1.0, len(runs.values) * chance),
    )


def _correct_for_many(changes: dict[int, list[LevelChange]], searched: Sequence[int]) -> None:
    """Correct the p-values of the changes for all series that were searched: each takes part with its least one."""
    least = [min((change.p_value for change in changes.get(number, ())), default=1.0) for number in searched]
    for number, before, corrected in zip(searched, least, adjust_for_many(least) if least else [], strict=True):
        factor = corrected / before if before > 0 else 1.0
        if number in changes:
            changes[number] = [
                msgspec.structs.replace(change, p_value=min(1.0, max(corrected, change.p_value * factor)))
                for change in changes[number]
            ]


def _find_newest_changes(
    series: Sequence[SeriesRuns], parts: Sequence[Sequence[SeriesSegment]], numbers: Sequence[int]
) -> tuple[dict[int, LevelChange], list[float] | None]:
    """Return steps that the newest runs show by themselves, by the number of the series, and what would have shown."""
    if not numbers:
        return {}, None
    width = max(min(len(series[number].values), _MOST_PREDECESSORS + CONFIRMING) for number in numbers)
    logs = np.full((len(numbers), width), math.nan)
    for row, number in enumerate(numbers):
        newest = series[number].values[-width:]
        logs[row, -len(newest) :] = np.log(newest)
    judged = judge_newest(logs)
    changes: dict[int, LevelChange] = {}
    for row in np.flatnonzero(np.minimum(judged.rises, judged.falls) <= RATE).tolist():
        number, rises = numbers[row], bool(judged.rises[row] <= judged.falls[row])
        p_value = float(judged.rises[row] if rises else judged.falls[row])
        level = math.exp(judged.runs.level[row])
        change = _make_newest_step(series[number], parts[number], level, p_value, rises=rises)
        if change is not None and abs(math.log(change.ratio)) >= math.log1p(SMALLEST_CHANGE):
            changes[number] = change
    count = int(judged.runs.judged.sum())
    sizes = judged.detectable(RATE / count) if count else None
    return changes, sizes and [math.expm1(size) for size in sizes]


def _make_newest_step(
    runs: SeriesRuns, parts: Sequence[SeriesSegment], level: float, p_value: float, *, rises: bool
) -> LevelChange | None:
    """Return the step to the newest runs of a series, which are known to be off its level."""
    if rises:
        step = newest_rise(runs.values, parts, level)
    else:  # a fall is a rise of what is upside down
        inverted = [SeriesSegment(part.first, part.end, 1 / part.begins, 1 / part.ends) for part in parts]
        step = newest_rise(1 / runs.values, inverted, 1 / level)
        if step is not None:
            low, high = step.ci95
            step = step._replace(before=1 / step.before, after=1 / step.after, ci95=(1 / high, 1 / low))
    if step is None:
        return None
    first_before = max((part.first for part in parts if part.first < step.first), default=0)
    return _make_step(runs, step, len(runs.values), first_before, p_value)


def _join_changes(changes: list[LevelChange], newest: LevelChange | None, count: int) -> list[LevelChange]:
    """Return the changes of a series; how sure its newest runs are is said by all earlier runs, not by its segments."""
    young = [
        change for change in changes if change.kind == "step" and change.end == count and change.runs[1] <= CONFIRMING
    ]
    if not young:
        return [*changes, newest] if newest else changes
    is_same = newest is not None and (newest.ratio > 1) is (young[0].ratio > 1)
    p_value = newest.p_value if newest is not None and is_same else 1.0
    return [msgspec.structs.replace(change, p_value=p_value) if change in young else change for change in changes]
