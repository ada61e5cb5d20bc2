"""Where the warm-up of a process ends, whether its inferences settle, and how far their steady part can be trusted."""

from __future__ import annotations

import enum
import itertools
import math
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.modes import Mode, modes
from opscope.core.stats.series import (
    autocorrelation,
    binned,
    clock_step,
    effective_size,
    inflation,
    mid_ranks,
    trend,
    upward_sigma,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

SHORTEST_SEGMENT = 3
"""Samples of a level; one or two are outliers."""
SHORTEST_SERIES = 12
"""Below, no split could pass: the correlation of what remains around two means cannot be judged."""
TOLERANCE = 0.03
"""Levels closer than 3 % are the same: less than processes of one program differ by, and what a gate usually allows."""
# No segment is shorter than this part of its series, so that long series cost no more than 128 splits.
_FINEST = 128
# A standardised difference of ranks that independent samples reach in 1 of 100 series at most, and autoregressive
# ones with a correlation of 0.5 in 4 of 100: 4,000 simulated series of each of 12, 20, 35, 50, 100, 200 and
# 1,000 samples. Ranks make it the same for every shape of noise.
_CRITICAL, _CRITICAL_SHORT = 3.5, 14.0
# Likewise for a part with both of its ends within the series, in 1 of 200 and 2 of 100: 1,500 series of each length.
_CRITICAL_PART, _CRITICAL_PART_SHORT = 4.5, 36.0
# Groups of neighbours that the ends of such a part are first looked for in; their pairs are what costs.
_MOST_ENDS = 64


def level_changes(values: Floats) -> list[int]:
    """First samples of all segments but the first, ascending; neighbouring levels differ by more than 3 %.

    Binary segmentation (Scott and Knott, Biometrics 30 (1974)) on ranks (Pettitt, "A Non-Parametric Approach to the
    Change-Point Problem", Applied Statistics 28 (1979)), where the noise is that around the two means and is widened by
    its autocorrelation, so that a wandering series is not cut to pieces. Where no split stands out, an inner part may
    (Olshen et al., "Circular binary segmentation", Biostatistics 5 (2004)). Segments whose medians differ by less than
    the tolerance are joined again, and so are the two sides of a passing disturbance of at most a tenth of the series.
    """
    if len(values) < SHORTEST_SERIES:
        return []
    borders = [0, *sorted(_find_all_splits(values)), len(values)]
    return _without_disturbances(values, _join_levels(values, borders))[1:-1]


def _find_all_splits(values: Floats) -> list[int]:
    shortest = max(SHORTEST_SEGMENT, len(values) // _FINEST)
    splits_found, open_parts = [], [(0, len(values))]
    while open_parts:
        first, end = open_parts.pop()
        if end - first < max(SHORTEST_SERIES, 2 * shortest):
            continue
        splits = [first + split for split in _find_splits(values[first:end], shortest)]
        splits_found += splits
        open_parts += itertools.pairwise([first, *splits, end]) if splits else []
    return splits_found


def _find_splits(values: Floats, shortest: int) -> list[int]:
    """Return where a series falls into two levels, else the ends of a part with another level than both sides.

    Nothing if neither stands out.
    """
    ranks = mid_ranks(values)
    ranks -= ranks.mean()
    split = _widest_split(ranks, shortest)
    if _stands_out(ranks, 0, split, _CRITICAL + _CRITICAL_SHORT / len(values)):
        return [split]
    size = -(-len(values) // _MOST_ENDS)
    groups = binned(ranks, _MOST_ENDS)[1]
    first, end = _widest_part(groups - groups.mean(), -(-shortest // size))
    critical = _CRITICAL_PART + _CRITICAL_PART_SHORT / len(groups)
    return (
        _refine_ends(values, first * size, end * size)
        if first < end and _stands_out(groups, first, end, critical)
        else []
    )


def _refine_ends(values: Floats, first: int, end: int) -> list[int]:
    """Return the exact ends of a part found among groups, from samples clamped to its level and that of the others."""
    inner_level, outside = np.median(values[first:end]), np.median(np.concatenate([values[:first], values[end:]]))
    clamped, middle = np.clip(values, min(inner_level, outside), max(inner_level, outside)), (first + end) // 2
    return [_widest_split(clamped[:middle], 1), middle + _widest_split(clamped[middle:], 1)]


def _widest_split(values: Floats, shortest: int) -> int:
    """Return the size of the leading part whose mean differs most, in standard errors, from that of the rest."""
    sizes = np.arange(shortest, len(values) - shortest + 1)
    sums = np.cumsum(values - values.mean())[sizes - 1]
    return int(sizes[np.argmax(sums**2 / (sizes * (len(values) - sizes)))])


def _widest_part(centred: Floats, shortest: int) -> tuple[int, int]:
    """Return first and end of the inner part whose mean differs most from all others; (0, 0) if there is no room."""
    count = len(centred)
    first, end = np.triu_indices(count + 1, shortest)
    inner = (first >= shortest) & (end <= count - shortest)
    first, end = first[inner], end[inner]
    if not len(first):
        return 0, 0
    sums, sizes = np.concatenate([[0.0], np.cumsum(centred)]), end - first
    best = int(np.argmax((sums[end] - sums[first]) ** 2 / (sizes * (count - sizes))))
    return int(first[best]), int(end[best])


def _stands_out(ranks: Floats, first: int, end: int, critical: float) -> bool:
    """Return whether a part differs from the others by more than noise, judged by what two means leave."""
    part = np.zeros(len(ranks), np.bool_)
    part[first:end] = True
    inner_mean, outside = float(ranks[part].mean()), float(ranks[~part].mean())
    residuals = ranks - np.where(part, inner_mean, outside)
    sizes, count = end - first, len(ranks)
    variance = float(residuals @ residuals) / (count - 2) * inflation(residuals, SHORTEST_SEGMENT)
    return abs(inner_mean - outside) > critical * math.sqrt(variance * count / (sizes * (count - sizes)))


def _join_levels(values: Floats, borders: list[int]) -> list[int]:
    """Return borders without those between levels within the tolerance; the least different are joined first."""
    joined, levels = list(borders), _segment_levels(values, borders)
    while len(levels) > 1:
        steps = [max(pair) / min(pair) - 1 for pair in itertools.pairwise(levels)]
        least = min(range(len(steps)), key=steps.__getitem__)
        if steps[least] > TOLERANCE:
            break
        del joined[least + 1]
        levels[least : least + 2] = _segment_levels(values, joined[least : least + 2])
    return joined


def _without_disturbances(values: Floats, borders: list[int]) -> list[int]:
    longest = len(values) // 10
    levels = _segment_levels(values, borders)
    for inner in range(1, len(levels) - 1):
        before, after = sorted((levels[inner - 1], levels[inner + 1]))
        if borders[inner + 1] - borders[inner] <= longest and after <= before * (1 + TOLERANCE):
            return _without_disturbances(values, borders[:inner] + borders[inner + 2 :])
    return borders


def _segment_levels(values: Floats, borders: list[int]) -> list[float]:
    return [float(np.median(values[first:end])) for first, end in itertools.pairwise(borders)]


_FEWEST = 4
"""Samples below which nothing is known of their noise."""
# A first inference must stand out as no normal sample does (3 in a million), for the tails of latencies are heavier;
# those behind it belong to the same warm-up while they stand out as 6 in 1,000 do.
_FIRST_SIGMAS, _NEXT_SIGMAS = 4.5, 2.5
# Slower than 95 of 100 settled samples, or than all of fewer than 20: where there are two modes, the slower one is no
# warm-up.
_QUANTILE = 0.95
# A level that is held for less than a quarter of the series may be left again at once (Barrett et al., section 5).
_SETTLED_SHARE = 0.25


class Shape(str, enum.Enum):
    """The course of a series through its levels."""

    FLAT = "flat"
    """It keeps its level from the first sample on."""
    WARMUP = "warmup"
    """It begins slower and settles within its first half."""
    SLOWDOWN = "slowdown"
    """It was faster before than where it settles, at the latest for its last quarter."""
    UNSTEADY = "unsteady"
    """It does not settle."""


def course(values: Floats) -> tuple[int, Shape | None, list[int]]:
    """Return warm-up, shape, and first samples of later levels; no shape below 12 samples, which show no levels.

    Source: Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual Machine Warmup Blows Hot and Cold", OOPSLA 2017,
    section 5; unlike there, at most half of a series is warm-up, and levels within 3 % are one.
    """
    start, count = slow_start(values), len(values)
    if count < SHORTEST_SERIES:
        return start, None, []
    changes = [start + change for change in level_changes(values[start:])]
    borders = [start, *changes, count]
    levels = [float(np.median(values[first:end])) for first, end in itertools.pairwise(borders)]
    shape = _judge_shape(levels, borders)
    settles = shape in {Shape.FLAT, Shape.WARMUP}
    return borders[-2] if settles else _slow_end(levels, borders), shape, changes


def slow_start(values: Floats) -> int:
    """Return the number of leading samples that are slower than the series later is, up to the first that is not.

    The second half is taken as settled; where it has two modes, its slower one is what counts. Slow is more than 4.5
    robust standard deviations above the median, more than 3 %, and slower than 95 % of settled samples; behind a slow
    first sample 2.5 suffice. At most half of the series is slow; of fewer than four samples, only the first is, when
    there is more than one.
    """
    count = len(values)
    if count < _FEWEST:
        return int(count > 1)
    leading, step = values[: count // 2], clock_step(values)
    settled = _slower_mode(values[count // 2 :], step)
    sigma, median = upward_sigma(settled, step), float(np.median(settled))
    least = max(float(np.quantile(settled, _QUANTILE, method="higher")), median * (1 + TOLERANCE))
    if leading[0] <= max(least, median + _FIRST_SIGMAS * sigma):
        return 0
    slow = leading > max(least, median + _NEXT_SIGMAS * sigma)
    return len(slow) if slow.all() else int(np.argmin(slow))


def _slower_mode(values: Floats, step: float) -> Floats:
    found_modes = modes(values, step)
    return values[values > (found_modes[0].location + found_modes[-1].location) / 2] if len(found_modes) > 1 else values


def _judge_shape(levels: list[float], borders: list[int]) -> Shape:
    settled, count = borders[-2], borders[-1]
    if any(level * (1 + TOLERANCE) < levels[-1] for level in levels):
        return Shape.SLOWDOWN if count - settled >= _SETTLED_SHARE * count else Shape.UNSTEADY
    if settled > count / 2:
        return Shape.UNSTEADY
    return Shape.WARMUP if settled else Shape.FLAT


def _slow_end(levels: list[float], borders: list[int]) -> int:
    """Return the end of the leading levels that are slower than the last one, within the first half."""
    slow = itertools.takewhile(lambda level: level > levels[-1] * (1 + TOLERANCE), levels)
    return max(border for border in borders[: len(list(slow)) + 1] if border <= borders[-1] / 2)


class Steadiness(msgspec.Struct, frozen=True):
    """The steadiness of one process's latencies: warm-up, shape, drift, correlation and modes."""

    warmup: int  # leading samples that are slower than the series later is; at most half of it
    shape: Shape | None  # what the series does; null below 12 samples, which show no levels
    # first samples of later levels, ascending; levels differ by more than 3 %. A few slow first samples make no
    # level
    changes: list[int]
    # first sample of the steady part: all that is behind the warm-up, or in a slowdown the last level; null when
    # the series is unsteady. What follows describes the steady part, or all behind the warm-up
    settled: int | None
    drift: float | None  # relative change from begin to end, positive when it gets slower; null below 10 samples
    drift_p: float | None  # probability of such a drift, or a larger one, where there is none; null likewise
    # of each sample's rank with the next one's; null below 10 samples and when all are equal
    autocorrelation: float | None
    effective_n: float | None  # number of independent samples that would know the mean as well; null likewise
    modes: list[Mode]  # two when samples are bimodal, otherwise one


def steadiness(samples: Sequence[float] | NDArray[np.number]) -> Steadiness:
    """Judge a series of latencies.

    Of flat series at most 5 in 100 are called anything else, at most 7 in 100 drift with p below 0.05, and at most 2 in
    100 have two modes, whether their noise is normal, uniform, skewed, of Student's t with 2 degrees, rounded, or
    correlated by up to 0.5 from one sample to the next: 1,500 simulated series of each, of 20, 50 and 200 samples.
    Correlated by 0.8, up to 12 in 100 short ones seem to change their level. ``opscope.core.stats.steady``, ``trend``,
    ``series`` and ``modes`` cite the methods.
    """
    values = np.asarray(samples, np.float64)
    if not len(values):
        raise ValueError("no samples to judge")
    warmup, shape, changes = course(values)
    settled = changes[-1] if shape is Shape.SLOWDOWN else warmup
    steady = values[settled:]
    drift, drift_p = trend(steady) or (None, None)
    return Steadiness(
        warmup=warmup,
        shape=shape,
        changes=changes,
        settled=None if shape is Shape.UNSTEADY else settled,
        drift=drift,
        drift_p=drift_p,
        autocorrelation=autocorrelation(steady),
        effective_n=effective_size(steady),
        modes=modes(steady, clock_step(values)),
    )


def detect_warmup(samples: Sequence[float]) -> int:
    """Return the number of leading samples that are slower than the series later is; at most half of them.

    A few slow first inferences are found as what stands out from the second half, longer warm-up as levels that the
    series leaves; see ``opscope.core.stats.steady``.
    """
    return course(np.asarray(samples, np.float64))[0]
