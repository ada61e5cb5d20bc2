"""Uncertainty of medians when inferences are grouped in processes.

Inferences of one process share its memory layout, its clock and its neighbours, so they are not independent samples of
what a model takes. A bootstrap that draws processes first, then inferences within each drawn process, keeps both levels
(Davison and Hinkley, Bootstrap Methods and their Application, section 3.8; Kalibera and Jones, "Rigorous Benchmarking
in Reasonable Time", ISMM 2013, who show that the highest level decides).

The median of a resample is drawn without making the resample: of n uniform numbers the k-th smallest follows a beta
distribution, and drawing with replacement maps them to ranks (David and Nagaraja, Order Statistics, section 2.3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import median_ranks
from opscope.core.stats.effect import (
    ALPHA,
    Effect,
    detectable_beyond,
    expanded_interval,
    paired_effects,
    unpaired_effects,
)
from opscope.core.stats.rounds import round_effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Ranks: TypeAlias = NDArray[np.int64]

_HALF = 5_000
_SEED = 20_130_620
_LEAST = 1.0  # durations are whole nanoseconds; a clock may say 0
_BINS = 2_048
_TIED = 3
_RESAMPLES = 2_000


def median_effect(baseline: Sequence[Floats], candidate: Sequence[Floats], *, paired: bool) -> Effect:
    """Effect of two sides on the logarithm of latency; a process counts by its median.

    Paired sides are judged by :func:`opscope.core.stats.rounds.round_effect`, whose interval is the inversion of its
    test: what scatters within processes is part of how their medians differ, and counts once. Sides that ran one after
    the other keep two safeguards: the p-value is that of processes, see ``opscope.core.stats.effect``, and the interval
    is the expanded percentile interval of a bootstrap over processes and the inferences in them; a verdict needs both,
    so the smallest detectable effect is the larger of what either could show. Exchanging the two sides mirrors the
    result exactly.
    """
    sides = [
        [np.sort(np.maximum(np.asarray(own, np.float64), _LEAST)) for own in side] for side in (baseline, candidate)
    ]
    if paired and len(sides[0]) > 1:
        return _of_rounds(*(np.array([process_level(own) for own in side]) for side in sides))
    left, right = (np.log([[np.median(own)] for own in side]) for side in sides)
    effect = (paired_effects if paired else unpaired_effects)(left, right)[0]
    count = min(len(side) for side in sides)
    if effect.low is None or count < 2:  # noqa: PLR2004 - one process has no spread
        return effect
    there = _drawn(sides[0], 0, 1) - _drawn(sides[1], 1, 2)
    back = _drawn(sides[0], 1, 2) - _drawn(sides[1], 0, 1)
    low, high = expanded_interval(np.concatenate([there, back])[:, None], count)
    shown = detectable_beyond(float(high[0] - low[0]) / 2, count - 1)
    detectable = max(effect.minimum_detectable or 0.0, shown)
    return msgspec.structs.replace(effect, low=float(low[0]), high=float(high[0]), minimum_detectable=detectable)


def _of_rounds(baseline: Floats, candidate: Floats) -> Effect:
    found = round_effect(baseline, candidate)
    rounds = len(baseline)
    detectable = detectable_beyond((found.high - found.low) / 2, rounds - 1 if found.within else 2 * rounds - 2)
    return Effect(found.estimate, found.low, found.high, found.p_value, detectable, found.smallest_p)


def process_level(ordered: Floats) -> float:
    """Logarithm of the median of a process.

    Durations in whole units of a coarse clock tie, and their median jumps from one to the next. Where the middle value
    occurs more than once, the median is taken inside of it, as if durations were spread evenly over its unit.

    Source: the grouped median; Rohatgi and Saleh, An Introduction to Probability and Statistics; ``statistics`` of
    Python's library has it as ``median_grouped``.
    """
    middle = float(ordered[len(ordered) // 2])
    below, through = np.searchsorted(ordered, middle, "left"), np.searchsorted(ordered, middle, "right")
    neighbours = np.abs(np.diff(ordered))
    unit = float(neighbours[neighbours > 0].min(initial=math.inf))
    if through - below < _TIED or not math.isfinite(unit):
        return float(np.log(np.median(ordered)))
    share = (len(ordered) / 2 - below) / (through - below) - 0.5
    return math.log(max(middle + unit * share, _LEAST))


def resampled_medians(ordered: Floats, count: int, generator: np.random.Generator) -> Floats:
    """Medians of resamples of one process, each as large as the process."""
    size = len(ordered)
    half = size // 2
    if size % 2:
        return ordered[_rank(generator.beta(half + 1, half + 1, count), size)]
    lower = generator.beta(half, half + 1, count)
    upper = lower + (1 - lower) * generator.beta(1, half, count)
    middle: Floats = (ordered[_rank(lower, size)] + ordered[_rank(upper, size)]) / 2
    return middle


def median_interval(processes: Sequence[Floats]) -> tuple[float, float]:
    """95 % interval of the median of all inferences, by a bootstrap over processes; it holds that median.

    It is nowhere narrower than the interval of as many independent inferences: those of one process have causes in
    common, so they tell no more. A few processes that are alike by chance, such as two with the same two modes, would
    seem to know the median far better than they do.

    Durations are sorted into at most 2,048 bins of equal count, so that the cost does not grow with their number.
    """
    pooled = np.sort(np.concatenate(processes))
    medians = _medians_of_draws(pooled, processes)
    low, high = expanded_interval(medians[:, None], len(processes))
    least, most = _independent_interval(pooled)
    return min(float(low[0]), least), max(float(high[0]), most)


def _medians_of_draws(pooled: Floats, processes: Sequence[Floats]) -> Floats:
    """Medians of all inferences of processes drawn with replacement; of an even number the mean of the middle two."""
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, _BINS), method="inverted_cdf"))
    counts = np.stack([np.bincount(np.searchsorted(edges, own), minlength=len(edges)) for own in processes])
    number = len(processes)
    weights = np.random.default_rng((_SEED, 3)).multinomial(number, np.full(number, 1 / number), _RESAMPLES)
    below = np.cumsum(weights @ counts, axis=1)
    total = below[:, -1:]
    # The first bin in which half of the drawn inferences are reached, and the first in which more than half are.
    lower, upper = edges[(2 * below < total).sum(axis=1)], edges[(2 * below <= total).sum(axis=1)]
    medians: Floats = (lower + upper) / 2
    return medians


def _independent_interval(ordered: Floats) -> tuple[float, float]:
    """95 % interval of the median of independent durations; the median itself where they are too few for one."""
    ranks = median_ranks(len(ordered), 1 - ALPHA)
    if ranks is None:
        return float(np.median(ordered)), float(np.median(ordered))
    return float(ordered[ranks[0]]), float(ordered[ranks[1]])


def _drawn(processes: Sequence[Floats], stream: int, picking: int) -> Floats:
    """Mean log medians of resamples of processes and of inferences in them; shape (resamples,)."""
    number = len(processes)
    picks: Ranks = np.random.default_rng((_SEED, 1, picking)).integers(0, number, (_HALF, number))
    generator = np.random.default_rng((_SEED, 2, stream))
    values = np.empty(picks.shape)
    for index, own in enumerate(processes):
        chosen = picks == index
        values[chosen] = resampled_medians(own, int(chosen.sum()), generator)
    means: Floats = np.log(values).mean(axis=1)
    return means


def _rank(uniform: Floats, size: int) -> Ranks:
    return np.minimum((uniform * size).astype(np.int64), size - 1)
