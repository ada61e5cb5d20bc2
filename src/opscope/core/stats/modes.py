"""Whether samples are unimodal or around two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.series import MAD_TO_SIGMA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

# Dip times the square root of n that 99 of 100 samples of n uniform numbers stay below, uniform being the worst of all
# unimodal shapes. Simulated, 20,000 samples of each n: 0.504 (10), 0.542 (20), 0.571 (50), 0.590 (100), 0.604 (200),
# 0.612 (400); the two numbers fit them within 0.003.
_CRITICAL, _CRITICAL_SHORT = 0.63, 0.4
_FEWEST = 10
"""Samples below which two groups can come from chance alone: one of them would be a pair or a single sample."""
# Quantiles at which long series are looked at; more would find smaller gaps than anyone asks for.
_MOST = 400
# A group of fewer samples is the tail of the other one: it moves no median.
_LEAST_SHARE = 0.1
# A median that jumps between modes closer than this moves by less than processes of one program differ.
_LEAST_GAP = 0.05
_LEAST_SEPARATION = 2.0


class Mode(msgspec.Struct, frozen=True):
    """A value that samples gather around."""

    location: float  # median of the samples nearest to it, in their unit
    share: float  # of all samples, above 0 and at most 1


def modes(values: Floats, step: float = 0.0) -> list[Mode]:
    """Return one mode, or two if samples leave a gap that no unimodal distribution would."""
    ordered = np.sort(values)
    one = [Mode(float(np.median(ordered)), 1.0)]
    if len(ordered) < _FEWEST or not _is_dip_significant(_spread_ties(ordered, step)):
        return one
    clamped = np.clip(ordered, *np.quantile(ordered, (0.05, 0.95)))
    sizes = np.arange(1, len(clamped))
    sums = np.cumsum(clamped - clamped.mean())[:-1]
    split = int(sizes[np.argmax(sums**2 / (sizes * (len(clamped) - sizes)))])
    lower, upper = ordered[:split], ordered[split:]
    two = [Mode(float(np.median(part)), len(part) / len(ordered)) for part in (lower, upper)]
    # The gap must be between these two: no finer structure within either may be what was found.
    evened = np.sort(np.concatenate([_spread_evenly(lower), _spread_evenly(upper)]))
    return two if _are_separate(lower, upper, two) and _is_dip_significant(evened) else one


def dip(ordered: Floats) -> float:
    """Largest distance to the nearest unimodal distribution, between 1 / (2 n) and 1/4.

    Of more than 400 samples, as many evenly spaced quantiles are looked at.

    Source: J. A. and P. M. Hartigan, "The Dip Test of Unimodality", Annals of Statistics 13 (1985).
    """
    if len(ordered) > _MOST:
        ordered = np.quantile(ordered, (np.arange(_MOST) + 0.5) / _MOST).astype(np.float64)
    low, high, largest = 0, len(ordered) - 1, 1.0
    while low < high:
        part = ordered[low : high + 1]
        below, above = np.arange(low, high + 1, dtype=np.float64), np.arange(low + 1, high + 2, dtype=np.float64)
        minorant, majorant = _hull_vertices(part, below, 1), _hull_vertices(part, above, -1)
        convex, concave = (
            np.interp(part, part[minorant], below[minorant]),
            np.interp(part, part[majorant], above[majorant]),
        )
        # Where both are straight they may be parallel: only at a vertex of one is there an end of the mode.
        vertices = np.union1d(minorant, majorant)
        widest = int(vertices[np.argmax((concave - convex)[vertices])])
        if concave[widest] - convex[widest] <= largest:
            break
        left = int(minorant[np.searchsorted(minorant, widest, side="right") - 1])
        right = int(majorant[np.searchsorted(majorant, widest)])
        largest = max(largest, (above - convex)[: left + 1].max(), (concave - below)[right:].max())
        if left == 0 and right == len(part) - 1:
            break
        low, high = low + left, low + right
    return float(largest / (2 * len(ordered)))


def _is_dip_significant(ordered: Floats) -> bool:
    root = math.sqrt(min(len(ordered), _MOST))
    return dip(ordered) * root > _CRITICAL - _CRITICAL_SHORT / root


def _hull_vertices(positions: Floats, heights: Floats, sign: int) -> NDArray[np.int64]:
    """Return the vertices of the greatest convex minorant (sign 1) or the least concave majorant (-1)."""
    xs, ys = positions.tolist(), (sign * heights).tolist()
    vertices: list[int] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        while len(vertices) > 1:
            before, last = vertices[-2], vertices[-1]
            if (ys[last] - ys[before]) * (x - xs[before]) < (y - ys[before]) * (xs[last] - xs[before]):
                break
            vertices.pop()
        vertices.append(index)
    return np.array(vertices)


def _spread_ties(ordered: Floats, step: float) -> Floats:
    """Spread samples of one value evenly over the step of the clock, or less where others are nearer."""
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if len(first) == len(ordered):
        return ordered
    counts, distinct = np.diff(first, append=len(ordered)), ordered[first]
    gaps = np.diff(distinct)
    nearest = np.minimum(np.concatenate([[np.inf], gaps]), np.concatenate([gaps, [np.inf]]))
    width = np.minimum(nearest, step) if step > 0 else nearest
    width = np.where(np.isfinite(width), width, 1.0)
    within = (np.arange(len(ordered)) - np.repeat(first, counts) + 0.5) / np.repeat(counts, counts) - 0.5
    spread: Floats = ordered + within * np.repeat(width, counts)
    return spread


def _spread_evenly(part: Floats) -> Floats:
    """Return as many values, evenly over the range of all but the outermost twentieths."""
    low, high = np.quantile(part, (0.05, 0.95))
    even: Floats = low + (high - low) * (np.arange(len(part)) + 0.5) / len(part)
    return even


def _are_separate(lower: Floats, upper: Floats, two: list[Mode]) -> bool:
    """Return whether two groups are two: large enough, far enough, and further apart than they are wide.

    Source of the last: Ashman, Bird and Zepf, "Detecting Bimodality in Astronomical Datasets", Astronomical Journal 108
    (1994), section 3: a separation of 2 standard deviations is needed; here they are robust.
    """
    gap = two[1].location - two[0].location
    widths = [MAD_TO_SIGMA * float(np.median(np.abs(part - np.median(part)))) for part in (lower, upper)]
    separated = gap > _LEAST_SEPARATION * math.hypot(*widths) / math.sqrt(2)
    return separated and gap > _LEAST_GAP * two[0].location and min(mode.share for mode in two) >= _LEAST_SHARE
