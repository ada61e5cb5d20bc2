"""Where the inferences of a process change their level."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.core.stats.series import binned, inflation, mid_ranks

if TYPE_CHECKING:
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
    borders = [0, *sorted(_splits(values)), len(values)]
    return _without_disturbances(values, _joined(values, borders))[1:-1]


def _splits(values: Floats) -> list[int]:
    shortest = max(SHORTEST_SEGMENT, len(values) // _FINEST)
    found, open_parts = [], [(0, len(values))]
    while open_parts:
        first, end = open_parts.pop()
        if end - first < max(SHORTEST_SERIES, 2 * shortest):
            continue
        splits = [first + split for split in _split(values[first:end], shortest)]
        found += splits
        open_parts += itertools.pairwise([first, *splits, end]) if splits else []
    return found


def _split(values: Floats, shortest: int) -> list[int]:
    """Where a series falls into two levels; else where a part of it has another level than both sides; else nothing."""
    ranks = mid_ranks(values)
    ranks -= ranks.mean()
    split = _widest(ranks, shortest)
    if _stands_out(ranks, 0, split, _CRITICAL + _CRITICAL_SHORT / len(values)):
        return [split]
    size = -(-len(values) // _MOST_ENDS)
    groups = binned(ranks, _MOST_ENDS)[1]
    first, end = _widest_part(groups - groups.mean(), -(-shortest // size))
    critical = _critical_part(len(groups))
    return _ends(values, first * size, end * size) if first < end and _stands_out(groups, first, end, critical) else []


def _critical_part(count: int) -> float:
    return _CRITICAL_PART + _CRITICAL_PART_SHORT / count


def _ends(values: Floats, first: int, end: int) -> list[int]:
    """Exact ends of a part that was found among groups, from samples clamped to its level and that of the others."""
    inside, outside = np.median(values[first:end]), np.median(np.concatenate([values[:first], values[end:]]))
    clamped, middle = np.clip(values, min(inside, outside), max(inside, outside)), (first + end) // 2
    return [_widest(clamped[:middle], 1), middle + _widest(clamped[middle:], 1)]


def _widest(values: Floats, shortest: int) -> int:
    """Size of the leading part whose mean differs most, in standard errors, from that of the rest."""
    sizes = np.arange(shortest, len(values) - shortest + 1)
    sums = np.cumsum(values - values.mean())[sizes - 1]
    return int(sizes[np.argmax(sums**2 / (sizes * (len(values) - sizes)))])


def _widest_part(centred: Floats, shortest: int) -> tuple[int, int]:
    """First and end of the inner part whose mean differs most from that of all others; (0, 0) when there is no room."""
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
    """Whether a part differs from the others by more than noise, judged by what two means leave."""
    part = np.zeros(len(ranks), np.bool_)
    part[first:end] = True
    inside, outside = float(ranks[part].mean()), float(ranks[~part].mean())
    residuals = ranks - np.where(part, inside, outside)
    sizes, count = end - first, len(ranks)
    variance = float(residuals @ residuals) / (count - 2) * inflation(residuals, SHORTEST_SEGMENT)
    return abs(inside - outside) > critical * math.sqrt(variance * count / (sizes * (count - sizes)))


def _joined(values: Floats, borders: list[int]) -> list[int]:
    """Borders less those between levels within the tolerance, the least different first."""
    kept, levels = list(borders), _levels(values, borders)
    while len(levels) > 1:
        steps = [max(pair) / min(pair) - 1 for pair in itertools.pairwise(levels)]
        least = min(range(len(steps)), key=steps.__getitem__)
        if steps[least] > TOLERANCE:
            break
        del kept[least + 1]
        levels[least : least + 2] = _levels(values, kept[least : least + 2])
    return kept


def _without_disturbances(values: Floats, borders: list[int]) -> list[int]:
    longest = len(values) // 10
    levels = _levels(values, borders)
    for inner in range(1, len(levels) - 1):
        before, after = sorted((levels[inner - 1], levels[inner + 1]))
        if borders[inner + 1] - borders[inner] <= longest and after <= before * (1 + TOLERANCE):
            return _without_disturbances(values, borders[:inner] + borders[inner + 2 :])
    return borders


def _levels(values: Floats, borders: list[int]) -> list[float]:
    return [float(np.median(values[first:end])) for first, end in itertools.pairwise(borders)]
