"""The one change detector: where the level of each of many series of runs changed.

Steps and drifts are found by the calibrated segmentation (``core.stats.segments``). A level of its own needs three
runs, so the newest runs are also compared with the level before them, by how far noise alone reached in all earlier
runs (``core.stats.many_series``). Both have a p-value that is corrected for the number of series (false discovery
rate), so that a gate over thousands of series is seldom red without a reason. How often: docs/design/fleet-gate.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

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

    from numpy.typing import NDArray

    from opscope.core.stats.many_series import JudgedSeries

    Floats: TypeAlias = NDArray[np.float64]

ChangeKind: TypeAlias = Literal["step", "drift"]
FALSE_RED_NIGHTS = 1 / 30
"""Nights in which a gate may be red though nothing changed: one of thirty."""
RATE = FALSE_RED_NIGHTS / 2
"""P-value up to which a change is confirmed: one half for the newest runs, one half for levels and drifts."""
_MOST_PREDECESSORS = 60
"""Runs before the newest ones that these are compared with."""


class DetectedChange(NamedTuple):
    """A step or a drift of a series; runs are counted from 0."""

    kind: ChangeKind
    first: int  # first run of the new level, or of the drift
    earliest: int  # first run that may be it, and the last one: the same where the place is certain
    latest: int
    end: int  # first run behind the new level or the drift
    before: float  # value of the level before; what a drift begins with
    after: float  # value of the level behind a step; what a drift ends with
    ci95: tuple[float, float]  # of after / before, by Student's t
    runs: tuple[int, int]  # of the levels before and behind a step; of a drift its own, twice
    p_value: float  # that noise makes such a change anywhere in the series, corrected for the number of series

    @property
    def ratio(self) -> float:
        """After / before."""
        return self.after / self.before

    @property
    def is_confirmed(self) -> bool:
        """Whether a gate may count it."""
        return self.p_value <= RATE

    @property
    def seen(self) -> int:
        """Number of the first run that certainly is of the new level; of the last one of a drift."""
        return self.latest if self.kind == "step" else self.end - 1

    @property
    def settled(self) -> int:
        """Number of the run that confirms it: the third one of the new level, since one may be too few to tell."""
        return min(self.first + CONFIRMING, self.end) - 1 if self.kind == "step" else self.seen


class SeriesCourse(NamedTuple):
    """The levels and changes of a series."""

    segments: list[SeriesSegment]  # levels and drifts in order; one level where changes were not looked for
    changes: list[DetectedChange]  # in order
    is_judged: bool  # whether there were enough runs, all above zero


class Detection(NamedTuple):
    """The courses of many series."""

    courses: list[SeriesCourse]
    detectable: list[float] | None  # slowdowns that one, two and three new runs show in half of the series


def detect_changes(series: Sequence[Floats]) -> Detection:
    """Find the changes of level of many series of runs, each oldest first and with at least one run."""
    usable = [bool((values > 0).all()) for values in series]
    flagged = _screen(series, usable)
    parts = [
        segments(values) if flag else [SeriesSegment(0, len(values), level := float(np.median(values)), level)]
        for values, flag in zip(series, flagged, strict=True)
    ]
    old = [
        _changes_of_segments(values, own) if flag else []
        for values, own, flag in zip(series, parts, flagged, strict=True)
    ]
    searched = [number for number, values in enumerate(series) if usable[number] and len(values) >= FEWEST_RUNS]
    _correct(old, searched)
    new, detectable = _newest_changes(series, parts, usable)
    courses = []
    for number, own in enumerate(old):
        found = _join_changes(own, new.get(number), len(series[number]))
        is_judged = usable[number] and len(series[number]) >= SHORTEST
        courses.append(SeriesCourse(parts[number], found, is_judged))
    return Detection(courses, detectable)


def _join_changes(old: list[DetectedChange], newest: DetectedChange | None, count: int) -> list[DetectedChange]:
    """Return the changes of a series; how sure its newest runs are is said by all earlier runs, not by its segments."""
    young = [change for change in old if change.kind == "step" and change.end == count and change.runs[1] <= CONFIRMING]
    if not young:
        return [*old, newest] if newest else old
    is_same = newest is not None and (newest.ratio > 1) is (young[0].ratio > 1)
    p_value = newest.p_value if newest is not None and is_same else 1.0
    return [change._replace(p_value=p_value) if change in young else change for change in old]


def _screen(series: Sequence[Floats], usable: Sequence[bool]) -> list[bool]:
    """Return which series the segmentation has to look at; the others are one level."""
    by_length: dict[int, list[int]] = {}
    for number, values in enumerate(series):
        if usable[number] and len(values) >= FEWEST_RUNS:
            by_length.setdefault(len(values), []).append(number)
    flagged = [False] * len(series)
    for numbers in by_length.values():
        logs = np.log(np.stack([series[number] for number in numbers]))
        for number, flag in zip(numbers, may_change(logs), strict=True):
            flagged[number] = bool(flag)
    return flagged


def _changes_of_segments(values: Floats, parts: Sequence[SeriesSegment]) -> list[DetectedChange]:
    changes = []
    for at, part in enumerate(parts):
        if at and max(parts[at - 1].ends, part.begins) / min(parts[at - 1].ends, part.begins) >= 1 + SMALLEST_CHANGE:
            step, runs = step_between(values, parts, at), parts[at - 1].end - parts[at - 1].first
            chance = min(1.0, len(values) * step.p_value)
            sides = (runs, part.end - part.first)
            changes.append(
                DetectedChange(
                    "step",
                    *(
                        step.first,
                        step.earliest,
                        step.latest,
                        part.end,
                        step.before,
                        step.after,
                        step.ci95,
                        sides,
                        chance,
                    ),
                )
            )
        if part.drifts:
            changes.append(_drift(values, parts, part))
    return changes


def _drift(values: Floats, parts: Sequence[SeriesSegment], part: SeriesSegment) -> DetectedChange:
    runs, size = part.end - part.first, math.log(part.ends / part.begins)
    scatter, degrees = scatter_around(np.log(values), parts)
    error = scatter * math.sqrt(12 / runs)  # of the ends of a line through as many runs
    room = t_quantile(1 - ALPHA / 2, degrees) * error
    p_value = min(1.0, len(values) * 2 * (1 - t_cdf(abs(size) / error, degrees))) if error > 0 else 0.0
    ci95 = math.exp(size - room), math.exp(size + room)
    places = (part.first, part.first, part.first, part.end)
    return DetectedChange("drift", *places, part.begins, part.ends, ci95, (runs, runs), p_value)


def _correct(changes: list[list[DetectedChange]], searched: Sequence[int]) -> None:
    """Correct the p-values of the changes for all series that were searched: each takes part with its least one."""
    if not searched:
        return
    least = [min((change.p_value for change in changes[number]), default=1.0) for number in searched]
    for number, one, corrected in zip(searched, least, adjust_for_many(least), strict=True):
        factor = corrected / one if one > 0 else 1.0
        changes[number] = [
            change._replace(p_value=min(1.0, max(corrected, change.p_value * factor))) for change in changes[number]
        ]


def _newest_changes(
    series: Sequence[Floats], parts: Sequence[Sequence[SeriesSegment]], usable: Sequence[bool]
) -> tuple[dict[int, DetectedChange], list[float] | None]:
    """Return steps that the newest runs show by themselves, by the number of the series, and what would have shown."""
    numbers = [number for number, values in enumerate(series) if usable[number] and len(values) >= SHORTEST]
    if not numbers:
        return {}, None
    width = max(min(len(series[number]), _MOST_PREDECESSORS + CONFIRMING) for number in numbers)
    logs = np.full((len(numbers), width), math.nan)
    for row, number in enumerate(numbers):
        newest = series[number][-width:]
        logs[row, -len(newest) :] = np.log(newest)
    judged = judge_newest(logs)
    chosen = judged.runs.judged
    falls = np.ones(len(numbers))
    if chosen.any():
        falls[chosen] = adjust_for_many(judged.fall_p_values[chosen].tolist())
    found: dict[int, DetectedChange] = {}
    for row in np.flatnonzero(np.minimum(judged.corrected, falls) <= RATE).tolist():
        number, rises = numbers[row], bool(judged.corrected[row] <= falls[row])
        p_value = float(judged.corrected[row] if rises else falls[row])
        change = _newest_step(series[number], parts[number], judged, row, rises=rises)
        if change is not None and abs(math.log(change.ratio)) >= math.log1p(SMALLEST_CHANGE):
            found[number] = change._replace(p_value=p_value)
    count = int(chosen.sum())
    sizes = judged.detectable(RATE / count) if count else None
    return found, sizes and [math.expm1(size) for size in sizes]


def _newest_step(
    values: Floats, parts: Sequence[SeriesSegment], judged: JudgedSeries, row: int, *, rises: bool
) -> DetectedChange | None:
    """Return the step to the newest runs of a series, which are known to be off its level."""
    level = math.exp(judged.runs.level[row])
    if not rises:  # a fall is a rise of what is upside down
        values, level = 1 / values, 1 / level
        parts = [SeriesSegment(one.first, one.end, 1 / one.begins, 1 / one.ends) for one in parts]
    step = newest_rise(values, parts, level)
    if step is None:
        return None
    before, after, (low, high) = step.before, step.after, step.ci95
    if not rises:
        before, after, low, high = 1 / before, 1 / after, 1 / high, 1 / low
    first_before = max((one.first for one in parts if one.first < step.first), default=0)
    runs = step.first - first_before, len(values) - step.first
    places = (step.first, step.earliest, step.latest, len(values))
    return DetectedChange("step", *places, before, after, (low, high), runs, 1.0)
