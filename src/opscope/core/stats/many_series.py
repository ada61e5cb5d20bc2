"""Many series at once: how far the newest runs of each are above its own level, and how often noise alone does that.

Each series is judged by its own scatter. How far noise reaches is not assumed but counted: the same question is asked
of all earlier runs of all series, so that heavy tails and correlation from run to run are in the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from opscope.core.stats.changes import SHORTEST_SEGMENT, SHORTEST_SERIES, TOLERANCE, level_changes
from opscope.core.stats.effect import adjust_for_many
from opscope.core.stats.prediction import FEWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.int64]

CONFIRMING = 3
"""Newest runs that may confirm one another: one is judged by itself, two and three by the least of them."""
FEWEST_IN_COMMON = 3
"""Series of a group below which they have nothing in common that could be told from each by itself."""
_FINEST = 0.001
"""Scatter below which no series is taken to be: a clock of whole microseconds can show none at all. Chosen."""
_MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median over that of a mean, for normal noise."""
_MEAN_DEVIATION = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute deviation, for normal noise."""
_TAIL_SHARE, _TAIL_FEWEST, _TAIL_MOST = 0.02, 12, 400
"""Of the replayed values: the largest ones that the tail is fitted to."""
_FEWEST_REPLAYED = 60
"""Replayed values below which nothing is known of the tails."""
_UNKNOWN_SCALE = 1.0
"""Mean excess of a tail of which nothing is known; normal noise has 0.3."""


class NewestRuns(NamedTuple):
    """The newest runs of each series beside its level.

    Attributes:
        level: median logarithm since the last change of level before these runs; shape (series).
        scatter: standard deviation of the logarithms around the levels; shape (series).
        excess: logarithm less level, oldest of the newest runs first; shape (series, CONFIRMING).
        distance: the same in standard deviations, as normal noise would have them whatever the number of runs.
        predecessors: runs that level and scatter rest on; shape (series).
        judged: whether there are enough of them; the rest of what is said of others means nothing.
    """

    level: Floats
    scatter: Floats
    excess: Floats
    distance: Floats
    predecessors: Integers
    judged: Flags


class Levels(NamedTuple):
    """Where the level of each series changed before its newest runs.

    Attributes:
        segment: number of the segment that a run belongs to, from 0; shape (series, runs).
        residuals: logarithms around the medians of their segments; nan where there is no run.
    """

    segment: Integers
    residuals: Floats


def levels(logs: Floats) -> Levels:
    """Where the level of each series changed, by :func:`opscope.core.stats.changes.level_changes`.

    Args:
        logs: logarithms, a series a row, the newest run in the last column, nan before the first run; the last
            ``CONFIRMING`` columns are not looked at.
    """
    before = logs[:, :-CONFIRMING]
    there = np.isfinite(before)
    segment = np.zeros(before.shape, np.int64)
    residuals = before - _medians(before, there)[:, None]
    with np.errstate(invalid="ignore"):
        spread = np.where(there, before, -np.inf).max(axis=1) - np.where(there, before, np.inf).min(axis=1)
    # Levels that are closer than the tolerance are one, so a series within it has no change.
    for row in np.flatnonzero((spread > math.log1p(TOLERANCE)) & (there.sum(axis=1) >= SHORTEST_SERIES)):
        first = int(np.argmax(there[row]))
        own = before[row, first:]
        kept = np.isfinite(own)
        borders = level_changes(np.exp(own[kept]))
        if borders:
            numbers = np.searchsorted(borders, np.arange(kept.sum()), side="right")
            segment[row, first:][kept] = numbers
            middles = np.array([np.median(own[kept][numbers == one]) for one in range(len(borders) + 1)])
            residuals[row, first:][kept] = own[kept] - middles[numbers]
    return Levels(segment, residuals)


def newest_runs(logs: Floats, found: Levels) -> NewestRuns:
    """The newest runs of each series beside the level and the scatter of those before them.

    Args:
        logs: as of :func:`levels`; at least ``CONFIRMING + 1`` columns.
        found: the levels of these series.
    """
    return _beside(logs, found, logs.shape[1] - CONFIRMING)


def replayed(logs: Floats, found: Levels) -> Floats:
    """What :func:`newest_runs` would have said of the runs before the newest, each time as if they were.

    Windows that a change of level lies in are left out: they are no noise.

    Returns:
        Distances of the runs of each window; shape (windows, CONFIRMING).
    """
    windows = [np.empty((0, CONFIRMING))]
    for end in range(FEWEST, logs.shape[1] - 2 * CONFIRMING + 1):
        own = _beside(logs, found, end)
        one = found.segment[:, end + CONFIRMING - 1] == found.segment[:, end - 1]
        windows.append(own.distance[own.judged & one])
    return np.concatenate(windows)


def _beside(logs: Floats, found: Levels, end: int) -> NewestRuns:
    """The ``CONFIRMING`` runs from a column on beside the runs before it."""
    before, there = logs[:, :end], np.isfinite(logs[:, :end])
    current = there & (found.segment[:, :end] == found.segment[:, end - 1 : end])
    count, own = there.sum(axis=1), current.sum(axis=1)
    level = _medians(before, current)
    segments = found.segment[:, end - 1] + 1
    degrees = np.maximum(count - segments, 1)
    deviations = np.where(there, np.abs(found.residuals[:, :end]), 0).sum(axis=1)
    scatter = np.maximum(_MEAN_DEVIATION * deviations / np.sqrt(np.maximum(count, 1) * degrees), _FINEST)
    excess = logs[:, end : end + CONFIRMING] - level[:, None]
    error = scatter * np.sqrt(1 + _MEDIAN_VARIANCE / np.maximum(own, 1))
    enough = (count >= FEWEST) & (own >= SHORTEST_SEGMENT) & np.isfinite(excess).all(axis=1)
    return NewestRuns(level, scatter, excess, normal_distance(excess / error[:, None], degrees[:, None]), count, enough)


def normal_distance(distance: Floats, degrees: Integers) -> Floats:
    """The distance that normal noise reaches as often as Student's t reaches this one.

    Source: Wallace, "Bounds on normal approximations to Student's and the chi-square distributions", Annals of
    Mathematical Statistics 30 (1959). It grows with the root of the logarithm, so tails that fall with a power of the
    distance fall faster than exponentially here.
    """
    corrected = (8 * degrees + 1) / (8 * degrees + 3)
    found: Floats = np.sign(distance) * corrected * np.sqrt(degrees * np.log1p(distance**2 / degrees))
    return found


def _medians(values: Floats, chosen: Flags) -> Floats:
    """Median of the chosen values of each row; 0 where none is."""
    count = chosen.sum(axis=1)
    ordered = np.sort(np.where(chosen, values, np.inf), axis=1)
    rows, last = np.arange(len(values)), max(values.shape[1] - 1, 0)
    lower, upper = (np.minimum(np.maximum(place, 0), last) for place in ((count - 1) // 2, count // 2))
    with np.errstate(invalid="ignore"):
        middle = (ordered[rows, lower] + ordered[rows, upper]) / 2
    return np.where(count > 0, middle, 0.0)


class NoiseTail(NamedTuple):
    """How often noise alone reaches a distance, as earlier runs did.

    Attributes:
        ordered: replayed distances, ascending.
        fitted: how many of the largest the tail is fitted to.
        scale: mean excess of those over the next smaller one; beyond it, the tail falls exponentially.
    """

    ordered: Floats
    fitted: int
    scale: float

    def reached(self, distances: Floats) -> Floats:
        """Probabilities that noise reaches these distances."""
        total = len(self.ordered) + 1
        above = len(self.ordered) - np.searchsorted(self.ordered, distances)
        share = (above + 1) / total
        if not self.fitted:
            tail = np.exp(-np.maximum(distances, 0) / self.scale)
            return np.maximum(share, tail) if len(self.ordered) == 0 else tail
        border = self.ordered[-self.fitted - 1]
        with np.errstate(over="ignore"):
            tail = (self.fitted + 1) / total * np.exp(-(distances - border) / self.scale)
        return np.where(distances > border, tail, share)

    def distance(self, probability: float) -> float:
        """The distance that noise reaches with a probability below that of the fitted tail."""
        total = len(self.ordered) + 1
        if not self.fitted:
            return -self.scale * math.log(probability)
        share = (self.fitted + 1) / total
        if probability >= share:
            return float(np.quantile(self.ordered, 1 - probability))
        return float(self.ordered[-self.fitted - 1]) + self.scale * math.log(share / probability)


def noise_tail(distances: Floats) -> NoiseTail:
    """The tail of replayed distances, of which a part is known, and the rest falls exponentially.

    By :func:`normal_distance` both normal noise and noise whose tails fall with a power of the distance fall faster than
    that, so the probabilities of what was never seen are too large rather than too small. Few values know the mean excess
    with an error of one in the root of their number; it is taken two such errors larger.
    """
    ordered = np.sort(distances)
    if len(ordered) < _FEWEST_REPLAYED:
        return NoiseTail(ordered, 0, _UNKNOWN_SCALE)
    fitted = min(max(round(_TAIL_SHARE * len(ordered)), _TAIL_FEWEST), _TAIL_MOST)
    border = ordered[-fitted - 1]
    scale = float((ordered[-fitted:] - border).mean()) * (1 + 2 / math.sqrt(fitted))
    return NoiseTail(ordered, fitted, max(scale, 0.05))


class JudgedSeries(NamedTuple):
    """Which of many series are slower than their own noise, and the noise of all of them, explains.

    Attributes:
        runs: the newest runs beside their levels.
        levels: before these runs.
        p_values: that noise alone gives as much in any of the looks at a series; 1 where nothing is judged.
        fall_p_values: likewise that noise alone lies as far below the level.
        corrected: p-values after correction for all judged series (false discovery rate).
        confirmed: number of newest runs that show it best, from 1; shape (series).
        change: median excess of that many newest runs.
        fall: median excess of as many newest runs as show best that a series is faster.
        tails: of one, two and three newest runs.
    """

    runs: NewestRuns
    levels: Levels
    p_values: Floats
    fall_p_values: Floats
    corrected: Floats
    confirmed: Integers
    change: Floats
    fall: Floats
    tails: tuple[NoiseTail, ...]

    def detectable(self, probability: float) -> list[float]:
        """Logarithms of the changes that one, two and three newest runs show in half of the series of median scatter.

        Args:
            probability: that noise alone gives as much.
        """
        scatter = self.runs.scatter[self.runs.judged]
        middle = float(np.median(scatter)) if len(scatter) else math.nan
        return [tail.distance(probability / CONFIRMING) * middle for tail in self.tails]


def judge_newest(logs: Floats) -> JudgedSeries:
    """Compare the newest runs of each series with its level, and what they show with what noise alone shows.

    Each series is looked at three times: the newest run by itself, and the least of the two and of the three newest
    ones; the p-value is three times the smallest of the three. How often noise reaches as much is counted in the runs
    before, see :func:`replayed`; beyond what was seen, see :func:`noise_tail`. So noise with heavy tails asks for a
    second and a third run, and noise without shows itself in one.

    Args:
        logs: as of :func:`levels`; the last ``CONFIRMING`` columns are judged.
    """
    found = levels(logs)
    runs, null = newest_runs(logs, found), replayed(logs, found)
    tails = tuple(noise_tail(null[:, -count:].min(axis=1)) for count in range(1, CONFIRMING + 1))
    each = _looks(runs, runs.distance, tails)
    falls = _looks(runs, -runs.distance, tuple(noise_tail(-null[:, -n:].max(axis=1)) for n in range(1, CONFIRMING + 1)))
    p_values, fall_p_values = (np.minimum(CONFIRMING * one.min(axis=1), 1.0) for one in (each, falls))
    medians = np.stack([np.median(runs.excess[:, -count:], axis=1) for count in range(1, CONFIRMING + 1)], axis=1)
    change, fall = (medians[np.arange(len(logs)), one.argmin(axis=1)] for one in (each, falls))
    corrected = np.ones(len(logs))
    if runs.judged.any():
        corrected[runs.judged] = adjust_for_many(p_values[runs.judged].tolist())
    confirmed = each.argmin(axis=1) + 1
    return JudgedSeries(runs, found, p_values, fall_p_values, corrected, confirmed, change, fall, tails)


def _looks(runs: NewestRuns, distance: Floats, tails: Sequence[NoiseTail]) -> Floats:
    """Probabilities of the least of one, two and three newest runs; 1 where nothing is judged."""
    found = [tail.reached(distance[:, -count:].min(axis=1)) for count, tail in enumerate(tails, start=1)]
    return np.where(runs.judged[:, None], np.stack(found, axis=1), 1.0)


def common_courses(judged: JudgedSeries, nights: Integers, groups: Integers) -> tuple[Floats, Integers]:
    """What the series of each group have in common: the median of their residuals in each night.

    Args:
        judged: the series by themselves.
        nights: number of the night of each run, ascending in a row; same shape.
        groups: number of the group of each series, from 0; shape (series).

    Returns:
        Courses as :func:`judge_newest` takes them, a group a row, all nan where too few series are judged; and the
        number of series in the newest night of each group.
    """
    values = np.concatenate([judged.levels.residuals, judged.runs.excess], axis=1)
    rows = np.broadcast_to(groups[:, None], values.shape)
    kept = np.isfinite(values) & judged.runs.judged[:, None]
    order = np.lexsort((values[kept], nights[kept], rows[kept]))
    value, night, row = values[kept][order], nights[kept][order], rows[kept][order]
    count = int(groups.max(initial=-1)) + 1
    if not len(value):
        return np.full((count, CONFIRMING + 1), math.nan), np.zeros(count, np.int64)
    firsts = np.flatnonzero(np.concatenate([[True], (np.diff(row) != 0) | (np.diff(night) != 0)]))
    sizes = np.diff(np.concatenate([firsts, [len(value)]]))
    middles = (value[firsts + (sizes - 1) // 2] + value[firsts + sizes // 2]) / 2
    enough = sizes >= FEWEST_IN_COMMON
    owners, middles, sizes = row[firsts][enough], middles[enough], sizes[enough]
    lengths = np.bincount(owners, minlength=count)
    courses = np.full((count, max(int(lengths.max(initial=0)), CONFIRMING + 1)), math.nan)
    newest = np.zeros(count, np.int64)
    ends = np.cumsum(lengths)
    for group, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        if length:
            courses[group, -length:] = middles[end - length : end]
            newest[group] = sizes[end - 1]
    return courses, newest
