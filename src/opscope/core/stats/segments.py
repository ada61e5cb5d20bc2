"""A series of runs as segments, each a level or a drift, and the runs that stand apart from both sides."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import t_cdf, t_quantile
from opscope.core.stats.effect import ALPHA
from opscope.core.stats.series import MAD_TO_SIGMA, inflation, median_line, mid_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

FEWEST_RUNS = 12
"""Runs below which neither a step nor a drift is looked for."""
SMALLEST_CHANGE = 0.01
"""Steps and drifts below 1 % are not told: chosen, not measured."""
SAME_LEVEL = 0.03
"""Levels closer than 3 % are the same to a gate: less than processes of one program differ by, and what it lets
through."""
SHORTEST_SEGMENT = 3
"""Runs of a segment; one or two are outliers."""
_OUTLIER = 5.0
"""Robust standard deviations by which an outlier differs from its segment."""
# Groups of neighbours that the ends of an inner part are looked for in; their pairs are what costs.
_MOST_ENDS = 128
# Critical values of the largest standardised sums of clipped runs, as a + b ln n + c / n for n runs that independent
# noise moves. Levels: 1.6 % (step), 0.3 % (drift), 0.2 % (inner part), together at most 2 %. Fitted to 40,000 normal
# series (16,000 above 60 runs; 600 to 20,000 for the inner part) of 12 to 365 runs; off by at most 0.05 (0.27).
_CRITICAL_STEP = (2.947, 0.098, -7.29)
_CRITICAL_DRIFT = (2.891, 0.018, -3.94)
_CRITICAL_PART = (3.674, 0.185, -15.16)
_YOUNG = 5
"""Runs of a level that may be too few for a segment."""
_FIGURES = 2
"""Fitted for each segment: where it is and where it begins."""
_TAILS, _FINEST = 4.0, 1e-4
"""Degrees of freedom of the noise by which places are judged, and the least scatter that it is taken to have."""
_CERTAIN = 0.98
"""Probability of the places that are told together: with 0.95, one in twenty places of steps that scatter nearly hides
was wrong (400 simulated series of normal, heavy-tailed and correlated noise for each size and age)."""
_FIRM = 0.01
"""Chance that a step of a gate is noise."""
_AT_ONCE, _SCREEN = 2_000, 1 - 1e-9
"""Series that are looked at together, which bounds the memory; and what rounding may take from a limit."""
_SHOWN = 2.0
"""Standard errors from which a correlation is taken for one."""


class SeriesSegment(msgspec.Struct, frozen=True):
    """Neighbouring runs that one level, or one drift, describes.

    Attributes:
        first: its first run, from 0.
        end: first run behind it.
        begins: value that the segment has at its first run.
        ends: at its last run; the same for a level.
    """

    first: int
    end: int
    begins: float
    ends: float

    @property
    def drifts(self) -> bool:
        """Return whether it rises or falls."""
        return self.begins != self.ends

    def fitted(self) -> Floats:
        """Return its value at each of its runs."""
        return np.geomspace(self.begins, self.ends, self.end - self.first)


def segments(values: Floats, smallest: float = SMALLEST_CHANGE) -> list[SeriesSegment]:
    """Return the levels and drifts of a series, in order; one level if no change of at least ``smallest`` is shown.

    A segment is divided while a step, a part with another level than both sides, or a drift stands out: against the
    distribution of the largest statistic over all places, of logarithms without their tails, so that neither the place
    nor a single run makes a change; noise that is correlated from run to run widens it.
    Whether a part of the series is a level, a drift or two levels is then decided by what describes it with fewest
    figures (Schwarz, "Estimating the Dimension of a Model", Annals of Statistics 6 (1978)), with medians and the median
    slope of all pairs (Sen, JASA 63 (1968)) in place of means and least squares.
    """
    logs = np.log(values)
    if len(values) < FEWEST_RUNS:
        return [_fit_level(logs, 0, len(values))] if len(values) else []
    # Steps that are not yet known look like correlation: it is judged by what a first division leaves.
    first = _divide_runs(logs, 0, len(logs), 1.0)
    if len(first) == 1 and not first[0].drifts:
        return first
    widened = _noise_widening(logs - np.log(np.concatenate([segment.fitted() for segment in first])), len(first))
    divided = first if widened == 1 else _divide_runs(logs, 0, len(logs), widened)
    return _join_segments(logs, divided, widened, smallest)


def firm_segments(values: Floats) -> list[SeriesSegment]:
    """Return the segments that a gate uses: those of :func:`segments` that differ by 3 % and are no noise.

    Of thousands of series 2 in 100 have a step by chance, and behind each the newest runs would be judged by a few
    runs. So a step must pass a second test: Student's t, times the places where it could have been found, 1 in 100.
    """
    series_segments = segments(values, SAME_LEVEL)
    logs = np.log(values)
    while len(series_segments) > 1:
        tested = [step_between(values, series_segments, at) for at in range(1, len(series_segments))]
        chances = [len(values) * step.p_value for step in tested]
        weakest = max(range(len(chances)), key=chances.__getitem__)
        if chances[weakest] <= _FIRM:
            break
        series_segments[weakest : weakest + 2] = [
            _fit_level(logs, series_segments[weakest].first, series_segments[weakest + 1].end)
        ]
    return series_segments


def may_change(logs: Floats) -> NDArray[np.bool_]:
    """Select the series, one per row, that :func:`segments` has to look at; every other series is one level."""
    count = logs.shape[1]
    if count < FEWEST_RUNS:
        return np.zeros(len(logs), np.bool_)
    if count > _MOST_ENDS:
        return np.ones(len(logs), np.bool_)
    ends, times = np.arange(count + 1), np.arange(count) - (count - 1) / 2
    first, end = (side.ravel() for side in np.meshgrid(ends, ends, indexing="ij"))
    is_inner = (end - first >= SHORTEST_SEGMENT) & (end <= count - SHORTEST_SEGMENT)
    split, part = is_inner & (first == 0), is_inner & (first >= SHORTEST_SEGMENT)
    selected = np.zeros(len(logs), np.bool_)
    for begin in range(0, len(logs), _AT_ONCE):
        scores = _without_tails(logs[begin : begin + _AT_ONCE])
        total, sums = np.square(scores).sum(axis=1), np.cumsum(np.pad(scores, ((0, 0), (1, 0))), axis=1)
        drift = np.square(scores @ times) / float(times @ times)
        statistics = [(drift, _CRITICAL_DRIFT)]
        for candidates, critical in ((split, _CRITICAL_STEP), (part, _CRITICAL_PART)):
            sizes = (end - first)[candidates]
            between = (
                np.square(sums[:, end[candidates]] - sums[:, first[candidates]]) * count / (sizes * (count - sizes))
            )
            statistics.append((between.max(axis=1, initial=0.0), critical))
        for explained, critical in statistics:
            selected[begin : begin + _AT_ONCE] |= explained > _SCREEN * _critical_ratio(critical, count) * (
                total - explained
            )
    return selected


class LevelStep(NamedTuple):
    """The place where one level or drift ends and the next one begins, and the difference there."""

    first: int  # first run behind it
    earliest: int  # the first run that may be it, and
    latest: int  # the last one: the same where the place is certain
    before: float  # value of the level before; what a drift ends with
    after: float  # value of the level behind it; what a drift begins with
    ci95: tuple[float, float]  # of after / before, by Student's t with the scatter around all segments
    p_value: float  # that scatter alone makes such a step at this place

    @property
    def ratio(self) -> float:
        """Return the value after the step divided by the value before."""
        return self.after / self.before


def step_between(values: Floats, series_segments: Sequence[SeriesSegment], at: int) -> LevelStep:
    """Return the step from the segment before number ``at`` to that segment."""
    return _make_step(np.log(values), series_segments, (series_segments[at - 1], series_segments[at]))


def newest_rise(values: Floats, series_segments: Sequence[SeriesSegment], level: float) -> LevelStep | None:
    """Return the step up from a level, in a series whose newest runs are known to be above it; None if nothing rises.

    It may be too young for a segment of its own. Then the last segment is divided where two levels describe it best.
    """
    logs, last = np.log(values), series_segments[-1]
    if len(series_segments) > 1 and abs(math.log(series_segments[-2].ends / level)) < abs(
        math.log(last.begins / level)
    ):
        known = _make_step(logs, series_segments, (series_segments[-2], last))
        if known.ratio > 1:
            return known
    splits = range(max(last.first + 1, last.end - _YOUNG), last.end)
    halves = [(_fit_level(logs, last.first, split), _fit_level(logs, split, last.end)) for split in splits]
    rising = [pair for pair in halves if pair[1].begins > pair[0].begins]
    if not rising:
        return None
    best = min(rising, key=lambda pair: sum(float(np.abs(_segment_residuals(logs, half)).sum()) for half in pair))
    return _make_step(logs, [*series_segments[:-1], *best], best)


def _make_step(
    logs: Floats, series_segments: Sequence[SeriesSegment], pair: tuple[SeriesSegment, SeriesSegment]
) -> LevelStep:
    before, after = pair
    scatter, degrees = scatter_around(logs, series_segments)
    # A line is known four times less well at its end than a level of as many runs, as a variance.
    variances = [(4 if segment.drifts else 1) / (segment.end - segment.first) for segment in pair]
    size, error = math.log(after.begins / before.ends), scatter * math.sqrt(sum(variances))
    room = t_quantile(1 - ALPHA / 2, degrees) * error
    return LevelStep(
        after.first,
        *_certain_places(logs, before, after),
        before.ends,
        after.begins,
        ci95=(math.exp(size - room), math.exp(size + room)),
        p_value=2 * (1 - t_cdf(abs(size) / error, degrees)) if error > 0 else 0.0,
    )


def scatter_around(logs: Floats, series_segments: Sequence[SeriesSegment]) -> tuple[float, int]:
    """Return the standard deviation of logarithms around all segments, and its degrees of freedom."""
    residuals = np.concatenate([_segment_residuals(logs, segment) for segment in series_segments])
    degrees = max(1, len(residuals) - _FIGURES * len(series_segments))
    ranks = mid_ranks(residuals)
    # Segments that follow wandering noise leave little of its correlation: what is left widens, and does not undo, it.
    widened = inflation(ranks - ranks.mean(), min(len(series_segments), len(residuals) // 4))
    return math.sqrt(float(residuals @ residuals) / degrees * widened), degrees


def _segment_residuals(logs: Floats, segment: SeriesSegment) -> Floats:
    """Return the differences of a segment's runs from its fit."""
    residuals: Floats = logs[segment.first : segment.end] - np.log(segment.fitted())
    return residuals


def _certain_places(logs: Floats, before: SeriesSegment, after: SeriesSegment) -> tuple[int, int]:
    """Return the first and the last run that may be the first one behind a step: together as good as certain.

    Where the two levels are known, the probability of a place falls with what the runs between it and the best one
    lose by changing sides. Noise is taken for Student's t with four degrees of freedom, so that no single run decides,
    and correlation that is shown flattens it. A level of few runs is hardly known, so its runs may be of either side.
    """
    residuals = np.concatenate([_segment_residuals(logs, segment) for segment in (before, after)])
    count = len(residuals)
    scale = max(float(np.abs(residuals).sum()) * math.sqrt(math.pi / 2) / max(count - _FIGURES, 1), _FINEST)
    window, runs = logs[before.first : after.end], np.arange(count)
    split = after.first - before.first
    courses = [
        math.log(segment.begins) + _segment_slope(segment) * (runs - at)
        for segment, at in ((before, 0), (after, split))
    ]
    losses = [(_TAILS + 1) / 2 * np.log1p(np.square((window - course) / scale) / _TAILS) for course in courses]
    sums = [np.concatenate([[0.0], np.cumsum(loss)]) for loss in losses]
    splits = np.arange(1, count)
    cost = sums[0][splits] + sums[1][-1] - sums[1][splits]
    weights = np.exp(-(cost - cost.min()) / _noise_widening(residuals, 2))
    order = np.argsort(-weights, kind="stable")
    enough = int(np.searchsorted(np.cumsum(weights[order]), _CERTAIN * weights.sum())) + 1
    likely = splits[order[:enough]]
    return before.first + min(int(likely.min()), split), before.first + max(int(likely.max()), split)


def _segment_slope(segment: SeriesSegment) -> float:
    """Return the slope of the logarithms from run to run."""
    return math.log(segment.ends / segment.begins) / max(segment.end - segment.first - 1, 1)


def outliers(values: Floats, series_segments: list[SeriesSegment]) -> list[int]:
    """Return the runs, single or in pairs, more than 5 robust standard deviations and 1 % away from their segment."""
    apart: list[int] = []
    for segment in series_segments:
        if segment.end - segment.first < FEWEST_RUNS // 2:
            continue
        residuals = np.log(values[segment.first : segment.end] / segment.fitted())
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(residuals)))
        limit = max(_OUTLIER * sigma, math.log1p(SMALLEST_CHANGE))
        apart += (segment.first + np.flatnonzero(np.abs(residuals) > limit)).tolist()
    return apart


def _divide_runs(logs: Floats, first: int, end: int, widened: float) -> list[SeriesSegment]:
    """Divide the runs from first to end into segments, with the noise widened by a factor."""
    part = logs[first:end]
    if len(part) < FEWEST_RUNS:
        return [_fit_level(logs, first, end)]
    splits, drifts = _find_splits(part, widened), _has_drift(part, widened)
    if not splits and not drifts:
        return [_fit_level(logs, first, end)]
    steps = _divide_at_places(logs, first, end, splits or [_widest_split(_without_tails(part))], widened)
    line = _fit_line(logs, first, end)
    if not drifts or _schwarz_cost(logs, steps) < _schwarz_cost(logs, [line]):
        return steps
    bends = _find_splits(part - np.log(line.fitted()), widened)
    bent = _divide_at_places(logs, first, end, bends, widened) if bends else [line]
    return bent if _schwarz_cost(logs, bent) < _schwarz_cost(logs, [line]) else [line]


def _divide_at_places(logs: Floats, first: int, end: int, splits: list[int], widened: float) -> list[SeriesSegment]:
    """Divide the parts between some places, which count from the first run, into segments."""
    borders = [first, *(first + split for split in splits), end]
    return [segment for a, b in itertools.pairwise(borders) for segment in _divide_runs(logs, a, b, widened)]


def _join_segments(logs: Floats, parts: list[SeriesSegment], widened: float, smallest: float) -> list[SeriesSegment]:
    """Join segments that a common level or drift describes as well, or that differ by too little."""
    joined = list(parts)
    while len(joined) > 1:
        best = min(
            range(len(joined) - 1), key=lambda at: _separation_gain(logs, joined[at], joined[at + 1], widened, smallest)
        )
        if _separation_gain(logs, joined[best], joined[best + 1], widened, smallest) > 0:
            break
        joined[best : best + 2] = [_describe_simplest(logs, joined[best].first, joined[best + 1].end, widened)]
    return [
        _fit_level(logs, segment.first, segment.end)
        if _is_small_change(segment.begins, segment.ends, smallest)
        else segment
        for segment in joined
    ]


def _separation_gain(logs: Floats, left: SeriesSegment, right: SeriesSegment, widened: float, smallest: float) -> float:
    """Return how much less two segments cost than one; -inf if the step between two levels is too small to tell."""
    if not left.drifts and not right.drifts and _is_small_change(left.ends, right.begins, smallest):
        return -math.inf
    return _schwarz_cost(logs, [_describe_simplest(logs, left.first, right.end, widened)]) - _schwarz_cost(
        logs, [left, right]
    )


def _describe_simplest(logs: Floats, first: int, end: int, widened: float) -> SeriesSegment:
    level, line = _fit_level(logs, first, end), _fit_line(logs, first, end)
    return (
        line
        if _has_drift(logs[first:end], widened) and _schwarz_cost(logs, [line]) < _schwarz_cost(logs, [level])
        else level
    )


def _is_small_change(before: float, after: float, smallest: float = SMALLEST_CHANGE) -> bool:
    return max(before, after) / min(before, after) - 1 < smallest


def _fit_level(logs: Floats, first: int, end: int) -> SeriesSegment:
    level = float(np.exp(np.median(logs[first:end])))
    return SeriesSegment(first, end, level, level)


def _fit_line(logs: Floats, first: int, end: int) -> SeriesSegment:
    begin, slope = median_line(logs[first:end])
    return SeriesSegment(first, end, math.exp(begin), math.exp(begin + slope * (end - first - 1)))


def _schwarz_cost(logs: Floats, described: list[SeriesSegment]) -> float:
    """Return Schwarz's criterion of runs described by segments: absolute deviations, and ln n for each figure."""
    first, end = described[0].first, described[-1].end
    count, scale = end - first, float(np.median(np.abs(np.diff(logs)))) or np.finfo(np.float64).eps
    deviation = sum(
        float(np.abs(logs[segment.first : segment.end] - np.log(segment.fitted())).sum()) for segment in described
    )
    figures = sum(2 + 2 * segment.drifts for segment in described)
    return count * math.log(deviation / count + 1e-3 * scale) + figures * math.log(count) / 2


def _find_splits(part: Floats, widened: float) -> list[int]:
    """Return where runs fall into two levels, else the ends of an inner part with a level of its own, else nothing."""
    scores = _without_tails(part)
    split = _widest_split(scores)
    if _stands_out((part, scores), (0, split), _CRITICAL_STEP, widened):
        levels = np.where(np.arange(len(part)) < split, np.median(part[:split]), np.median(part[split:]))
        room = 2.5 * MAD_TO_SIGMA * float(np.median(np.abs(part - levels)))
        clipped = np.clip(part, levels.min() - room, levels.max() + room)
        centred: Floats = clipped - clipped.mean()
        return [_widest_split(centred)]
    first, end = _widest_part(scores)
    return [first, end] if first < end and _stands_out((part, scores), (first, end), _CRITICAL_PART, widened) else []


def _has_drift(part: Floats, widened: float) -> bool:
    """Return whether the scores rise or fall with time by more than chance explains."""
    count = len(part)
    if count < FEWEST_RUNS:
        return False
    scores, times = _without_tails(part), np.arange(count) - (count - 1) / 2
    fitted = float(scores @ times) / float(times @ times) * times
    line = _fit_line(part, 0, count)
    residuals = part - np.log(line.fitted())
    return _exceeds_chance(_CRITICAL_DRIFT, (scores, scores - fitted), (part, residuals), widened)


def _without_tails(logs: Floats) -> Floats:
    """Clip logarithms at three robust standard deviations and centre them, by row: no single run decides."""
    middle = np.median(logs, axis=-1, keepdims=True)
    distances = np.abs(logs - middle)
    usual = np.median(distances, axis=-1, keepdims=True)
    room = 3 * MAD_TO_SIGMA * np.where(usual > 0, usual, distances.mean(axis=-1, keepdims=True))
    clipped = np.clip(logs, middle - room, middle + room)
    centred: Floats = clipped - clipped.mean(axis=-1, keepdims=True)
    return centred


def _widest_split(scores: Floats) -> int:
    """Return the number of leading runs whose scores differ most from those of the rest."""
    sizes = np.arange(SHORTEST_SEGMENT, len(scores) - SHORTEST_SEGMENT + 1)
    sums = np.cumsum(scores)[sizes - 1]
    return int(sizes[np.argmax(sums**2 / (sizes * (len(scores) - sizes)))])


def _widest_part(scores: Floats) -> tuple[int, int]:
    """Return first and end of the inner runs whose scores differ most from the others'; (0, 0) if there is no room."""
    count = len(scores)
    step = -(-count // _MOST_ENDS)
    ends = np.arange(0, count + 1, step)
    at, to = np.triu_indices(len(ends), 1)
    first, end = ends[at], ends[to]
    inner = (first >= SHORTEST_SEGMENT) & (end <= count - SHORTEST_SEGMENT) & (end - first >= SHORTEST_SEGMENT)
    first, end = first[inner], end[inner]
    if not len(first):
        return 0, 0
    sums, sizes = np.concatenate([[0.0], np.cumsum(scores)]), end - first
    best = int(np.argmax((sums[end] - sums[first]) ** 2 / (sizes * (count - sizes))))
    return int(first[best]), int(end[best])


def _stands_out(
    runs: tuple[Floats, Floats], bounds: tuple[int, int], critical: tuple[float, float, float], widened: float
) -> bool:
    """Return whether some runs differ from the others by more than chance explains, wherever they lie."""
    (part, scores), (first, end) = runs, bounds
    is_inner = np.zeros(len(part), np.bool_)
    is_inner[first:end] = True
    fitted = np.where(is_inner, scores[is_inner].mean(), scores[~is_inner].mean())
    residuals = part - np.where(is_inner, np.median(part[is_inner]), np.median(part[~is_inner]))
    return _exceeds_chance(critical, (scores, scores - fitted), (part, residuals), widened)


def _exceeds_chance(
    critical: tuple[float, float, float],
    clipped: tuple[Floats, Floats],
    plain: tuple[Floats, Floats],
    widened: float,
) -> bool:
    """Return whether a contrast describes runs better than chance allows, with the noise widened by a factor.

    Clipped runs cannot tell a step of ten standard deviations from one of four: where correlated noise asks for more,
    the runs as they are may decide, too.
    """
    needed = _critical_ratio(critical, len(plain[1])) * widened
    return _explained_ratio(*clipped) > needed or (widened > 1 and _explained_ratio(*plain) > needed)


def _critical_ratio(critical: tuple[float, float, float], count: int) -> float:
    """Return what a contrast of so many runs has to explain, as a multiple of what it leaves."""
    limit = (critical[0] + critical[1] * math.log(count) + critical[2] / count) ** 2
    return limit / (count - 1 - limit)


def _explained_ratio(values: Floats, residuals: Floats) -> float:
    """Return what a contrast explains, as a multiple of what it leaves."""
    total, remainder = float(np.square(values - values.mean()).sum()), float(residuals @ residuals)
    return (total - remainder) / max(remainder, 1e-12 * total) if total else 0.0


def _noise_widening(residuals: Floats, fitted: int) -> float:
    """Return the factor by which correlation from run to run widens the variance of a mean; 1 if none is shown.

    See :func:`opscope.core.stats.series.inflation`. Correlations that independent noise reaches in one of forty series
    are taken for none, since widening for them would hide changes.
    """
    ranks, count = mid_ranks(residuals), len(residuals)
    figures = min(fitted, count // 4)
    smallest_shown = _SHOWN * math.sqrt(count) / (count - 3 * figures)
    widened = inflation(ranks - ranks.mean(), figures)
    return widened if smallest_shown < 1 and widened > (1 + smallest_shown) / (1 - smallest_shown) else 1.0
