"""Many series at once: how far the newest runs of each are above its own level, and how often noise alone does that.

Each series is judged by its own scatter. How far noise reaches is not assumed but counted: the same question is asked
of all earlier runs of all series, so that heavy tails and correlation from run to run are in the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from opscope.core.stats.effect import FEWEST, adjust_for_many
from opscope.core.stats.segments import FEWEST_RUNS, SAME_LEVEL, SHORTEST_SEGMENT, firm_segments, may_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.int64]

CONFIRMING = 3
"""Newest runs that may confirm one another: one is judged by itself, two and three by the least of them."""
SHORTEST = FEWEST + CONFIRMING
"""Runs of a series below which nothing is said of it."""
_FINEST = 0.001
"""Scatter below which no series is taken to be: a clock of whole microseconds can show none at all. Chosen."""
_MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median over that of a mean, for normal noise."""
_MEAN_DEVIATION = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute deviation, for normal noise."""
_TAIL_SHARE, _TAIL_FEWEST, _TAIL_MOST = 0.002, 12, 25
"""Of the replayed values: the largest ones that the tail is fitted to."""
_NO_NOISE = 4.5
"""Distance that noise does not reach three times in a row: less than once in two million windows of normal noise, of
noise with heavy tails (Student's t with two degrees of freedom) and of correlated noise (0.5)."""
_LIKE = 2 / 3
"""Part of the predecessors of the newest runs that a replayed window has at least: what heavy tails reach grows with
their number."""
_FEWEST_REPLAYED = 60
"""Replayed values below which nothing is known of the tails."""
_UNKNOWN_SCALES = (1.0, 0.6, 0.45)
"""Mean excess of a tail of which nothing is known, of the least of one, two and three runs: what noise with heavy tails
(Student's t with two degrees of freedom) and correlated noise (0.5) stay below."""
_LEAST_SCALE = 0.05
"""Of any tail: normal noise has 0.2 five standard deviations off, and a third of it three times in a row."""


class NewestRuns(NamedTuple):
    """The newest runs of each series beside its level."""

    level: Floats  # median logarithm since the last change of level before these runs; shape (series)
    scatter: Floats  # standard deviation of the logarithms around the levels; shape (series)
    excess: Floats  # logarithm less level, oldest of the newest runs first; shape (series, CONFIRMING)
    distance: Floats  # the same in standard deviations, as normal noise would have them whatever the number of runs
    predecessors: Integers  # runs that level and scatter rest on; shape (series)
    judged: Flags  # whether there are enough of them; the rest of what is said of others means nothing


class SeriesLevels(NamedTuple):
    """The levels of each series before its newest runs, and where they changed."""

    segment: Integers  # number of the segment that a run belongs to, from 0; shape (series, runs)
    residuals: Floats  # logarithms around the levels and drifts of their segments; nan where there is no run


def levels(logs: Floats) -> SeriesLevels:
    """Find where the level of each series changed, by :func:`opscope.core.stats.segments.firm_segments`."""
    before = logs[:, :-CONFIRMING]
    is_run = np.isfinite(before)
    segment = np.zeros(before.shape, np.int64)
    residuals = before - _row_medians(before, is_run)[:, None]
    with np.errstate(invalid="ignore"):
        spread = np.where(is_run, before, -np.inf).max(axis=1) - np.where(is_run, before, np.inf).min(axis=1)
    # A series within one level has no change.
    counts = is_run.sum(axis=1)
    wide = spread > math.log1p(SAME_LEVEL)
    for count in np.unique(counts[wide & (counts >= FEWEST_RUNS)]):
        rows = np.flatnonzero(wide & (counts == count))
        complete = before[rows][is_run[rows]].reshape(len(rows), count)
        for index in np.flatnonzero(may_change(complete)):
            row, segments = rows[index], firm_segments(np.exp(complete[index]))
            segment[row, is_run[row]] = np.repeat(
                np.arange(len(segments)), [part.end - part.first for part in segments]
            )
            residuals[row, is_run[row]] = complete[index] - np.log(np.concatenate([part.fitted() for part in segments]))
    return SeriesLevels(segment, residuals)


class Replay(NamedTuple):
    """The answers :class:`NewestRuns` would have given on every three runs in a row, as if they were the newest."""

    distance: Floats  # of the three; shape (windows, series, CONFIRMING). Window w begins with run `FEWEST + w`
    judged: Flags  # whether the runs before a window are enough; shape (windows, series)
    # whether a window belongs to the level before it, and has two thirds as many runs before it as the newest
    # runs have; likewise, false of the last windows, in which the newest runs are
    comparable: Flags

    def lasting_changes(self) -> Flags:
        """Find runs of three in a row that are all farther off, to one side, than noise is three times in a row.

        Such a change may be too young, or too small, for a level of its own. Flags have the shape (series, runs).
        """
        windows, count = self.judged.shape
        changed = np.zeros((count, FEWEST + windows + CONFIRMING - 1), np.bool_)
        least = np.maximum(self.distance.min(axis=2), -self.distance.max(axis=2))
        for window, far in enumerate(self.judged & (least > _NO_NOISE)):
            changed[far, FEWEST + window : FEWEST + window + CONFIRMING] = True
        return changed

    def noise(self, changed: Flags) -> Floats:
        """Return distances of the runs of each window that is nothing but noise, of shape (windows, CONFIRMING).

        Windows that a change of level lies in, and those with a run that changed, are excluded.
        """
        first_runs = range(FEWEST, FEWEST + len(self.judged))
        has_change = np.stack([changed[:, first : first + CONFIRMING].any(axis=1) for first in first_runs])
        distances: Floats = self.distance[self.judged & self.comparable & ~has_change]
        return distances


def replay(logs: Floats, series_levels: SeriesLevels) -> Replay:
    """Judge every three runs in a row by the runs before them."""
    last = logs.shape[1] - CONFIRMING
    windows = [_judge_window(logs, series_levels, end) for end in range(FEWEST, last + 1)]
    count = len(logs)
    comparable = np.zeros((len(windows), count), np.bool_)
    for number, end in enumerate(range(FEWEST, last - CONFIRMING + 1)):
        comparable[number] = series_levels.segment[:, end + CONFIRMING - 1] == series_levels.segment[:, end - 1]
        comparable[number] &= windows[number].predecessors >= _LIKE * windows[-1].predecessors
    return Replay(
        np.stack([window.distance for window in windows]), np.stack([window.judged for window in windows]), comparable
    )


def _judge_window(logs: Floats, series_levels: SeriesLevels, end: int) -> NewestRuns:
    """Judge the ``CONFIRMING`` runs from column ``end`` on by the runs before it."""
    before, is_run = logs[:, :end], np.isfinite(logs[:, :end])
    current = is_run & (series_levels.segment[:, :end] == series_levels.segment[:, end - 1 : end])
    count, current_count = is_run.sum(axis=1), current.sum(axis=1)
    # What a segment has at its last run: the median of a level, where a drift has come to.
    fitted = np.where(current, before - series_levels.residuals[:, :end], np.nan)
    level = _row_medians(series_levels.residuals[:, :end], current) + _last_chosen(fitted, current)
    degrees = np.maximum(count - series_levels.segment[:, end - 1] - 1, 1)
    deviations = np.where(is_run, np.abs(series_levels.residuals[:, :end]), 0).sum(axis=1)
    scatter = np.maximum(_MEAN_DEVIATION * deviations / np.sqrt(np.maximum(count, 1) * degrees), _FINEST)
    excess = logs[:, end : end + CONFIRMING] - level[:, None]
    error = scatter * np.sqrt(1 + _MEDIAN_VARIANCE / np.maximum(current_count, 1))
    enough = (count >= FEWEST) & (current_count >= SHORTEST_SEGMENT) & np.isfinite(excess).all(axis=1)
    return NewestRuns(level, scatter, excess, normal_distance(excess / error[:, None], degrees[:, None]), count, enough)


def normal_distance(distance: Floats, degrees: Integers) -> Floats:
    """Return the distance that normal noise reaches as often as Student's t reaches ``distance``.

    Source: Wallace, "Bounds on normal approximations to Student's and the chi-square distributions", Annals of
    Mathematical Statistics 30 (1959). It grows with the root of the logarithm, so tails that fall with a power of the
    distance fall faster than exponentially here.
    """
    corrected = (8 * degrees + 1) / (8 * degrees + 3)
    normal: Floats = np.sign(distance) * corrected * np.sqrt(degrees * np.log1p(distance**2 / degrees))
    return normal


def _row_medians(values: Floats, chosen: Flags) -> Floats:
    """Return the median of the chosen values of each row; 0 where none is chosen."""
    count = chosen.sum(axis=1)
    ordered = np.sort(np.where(chosen, values, np.inf), axis=1)
    rows, last = np.arange(len(values)), max(values.shape[1] - 1, 0)
    lower, upper = (np.minimum(np.maximum(position, 0), last) for position in ((count - 1) // 2, count // 2))
    with np.errstate(invalid="ignore"):
        middle = (ordered[rows, lower] + ordered[rows, upper]) / 2
    return np.where(count > 0, middle, 0.0)


def _last_chosen(values: Floats, chosen: Flags) -> Floats:
    """Return the last chosen value of each row; 0 where none is chosen."""
    position = chosen.shape[1] - 1 - np.argmax(chosen[:, ::-1], axis=1)
    return np.where(chosen.any(axis=1), np.nan_to_num(values)[np.arange(len(values)), position], 0.0)


class NoiseTail(NamedTuple):
    """How often noise alone reaches a distance, as earlier runs did."""

    ordered: Floats  # replayed distances, ascending
    fitted: int  # how many of the largest the tail is fitted to
    scale: float  # mean excess of those over the next smaller one; beyond it, the tail falls exponentially

    def reached(self, distances: Floats) -> Floats:
        """Probabilities that noise reaches these distances."""
        total = len(self.ordered) + 1
        above = len(self.ordered) - np.searchsorted(self.ordered, distances)
        share = (above + 1) / total
        if not self.fitted:
            return np.exp(-np.maximum(distances, 0) / self.scale)
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


def noise_tail(distances: Floats, runs: int = 1) -> NoiseTail:
    """The tail of replayed distances, of which a part is known, and the rest falls exponentially.

    Far off, by :func:`normal_distance`, normal noise falls faster than that, and so does noise whose tails fall with a
    power of the distance. Where a few of many series have such tails, it may fall more slowly at first: the tail is
    therefore fitted to the 25 largest values at most. They know the mean excess with an error of one in the root of
    their number; it is taken two such errors larger.
    """
    ordered = np.sort(distances)
    if len(ordered) < _FEWEST_REPLAYED:
        return NoiseTail(ordered, 0, _UNKNOWN_SCALES[runs - 1])
    fitted = min(max(round(_TAIL_SHARE * len(ordered)), _TAIL_FEWEST), _TAIL_MOST)
    border = ordered[-fitted - 1]
    scale = float((ordered[-fitted:] - border).mean()) * (1 + 2 / math.sqrt(fitted))
    return NoiseTail(ordered, fitted, max(scale, _LEAST_SCALE))


class JudgedSeries(NamedTuple):
    """Which of many series have left their levels by more than their own noise, and the noise of all, explains.

    P-values are corrected for all judged series (false discovery rate); they are 1 where nothing is judged.
    """

    runs: NewestRuns  # the newest runs beside their levels
    rises: Floats  # p-values that noise alone lies as far above the level in any of the looks at a series
    falls: Floats  # p-values that noise alone lies as far below it
    tails: tuple[NoiseTail, ...]  # of one, two and three newest runs above the level

    def detectable(self, probability: float) -> list[float]:
        """Logarithms of the changes that one, two and three new runs show in half of the series of median scatter."""
        scatter = self.runs.scatter[self.runs.judged]
        middle = float(np.median(scatter)) if len(scatter) else math.nan
        return [tail.distance(probability / CONFIRMING) * middle for tail in self.tails]


def judge_newest(logs: Floats) -> JudgedSeries:
    """Compare the newest runs of each series with its level, and what they show with what noise alone shows.

    Each series is looked at three times: the newest run by itself, and the least of the two and of the three newest
    ones; the p-value is three times the smallest of the three. How often noise reaches as much is counted in the runs
    before, see :func:`replay`; beyond what was seen, see :func:`noise_tail`. So noise with heavy tails asks for a
    second and a third run, and noise without shows itself in one.
    """
    series_levels = levels(logs)
    runs, before = _judge_window(logs, series_levels, logs.shape[1] - CONFIRMING), replay(logs, series_levels)
    noise = before.noise(before.lasting_changes())
    above, below = _find_tails(noise), _find_tails(-noise)
    rises, falls = _judge_looks(runs, runs.distance, above), _judge_looks(runs, -runs.distance, below)
    return JudgedSeries(runs, rises, falls, above)


def _find_tails(noise: Floats) -> tuple[NoiseTail, ...]:
    """Return the tails of the least of the last one, two and three replayed runs."""
    return tuple(noise_tail(noise[:, -count:].min(axis=1), count) for count in range(1, CONFIRMING + 1))


def _judge_looks(runs: NewestRuns, distance: Floats, tails: Sequence[NoiseTail]) -> Floats:
    """Return the corrected p-value of each series by its three looks; 1 where nothing is judged."""
    looks = [tail.reached(distance[:, -count:].min(axis=1)) for count, tail in enumerate(tails, start=1)]
    p_values = np.where(runs.judged, np.minimum(CONFIRMING * np.min(looks, axis=0), 1.0), 1.0)
    if runs.judged.any():
        p_values[runs.judged] = adjust_for_many(p_values[runs.judged].tolist())
    return p_values
