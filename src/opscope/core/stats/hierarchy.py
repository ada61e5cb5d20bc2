"""Uncertainty of medians when inferences are grouped in processes.

Inferences of one process share its memory layout, its clock and its neighbours, so they are no independent samples of
what a model takes. A bootstrap that draws processes first, then inferences within each drawn process, keeps both levels
(Davison and Hinkley, Bootstrap Methods and their Application, section 3.8; Kalibera and Jones, "Rigorous Benchmarking
in Reasonable Time", ISMM 2013, who show that the highest level decides).

The median of a resample is drawn without making the resample: of n uniform numbers the k-th smallest follows a beta
distribution, and drawing with replacement maps them to ranks (David and Nagaraja, Order Statistics, section 2.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.effect import Effect, detectable_beyond, expanded_interval, paired_effects, unpaired_effects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Ranks: TypeAlias = NDArray[np.int64]

_HALF = 5_000
_SEED = 20_130_620
_LEAST = 1.0  # durations are whole nanoseconds; a clock may say 0
_BINS = 2_048
_RESAMPLES = 2_000


def median_effect(baseline: Sequence[Floats], candidate: Sequence[Floats], *, paired: bool) -> Effect:
    """Effect of two sides on the logarithm of latency; a process counts by its median.

    The p-value is that of processes, see ``opscope.core.stats.effect``; the interval is the expanded percentile
    interval of a bootstrap over processes and the inferences in them. A verdict needs both, so the smallest detectable
    effect is the larger of what either could show. Exchanging the two sides mirrors the result exactly.

    Args:
        baseline: durations in each of its processes, at least one process and one duration in each.
        candidate: likewise; with ``paired``, process i ran in the same round as the baseline's process i.
        paired: whether rounds are drawn as pairs.
    """
    sides = [
        [np.sort(np.maximum(np.asarray(own, np.float64), _LEAST)) for own in side] for side in (baseline, candidate)
    ]
    left, right = (np.log([[np.median(own)] for own in side]) for side in sides)
    effect = (paired_effects if paired else unpaired_effects)(left, right)[0]
    count = min(len(side) for side in sides)
    if effect.low is None or count < 2:  # noqa: PLR2004 - one process has no spread
        return effect
    there = _drawn(sides[0], 0, 0 if paired else 1) - _drawn(sides[1], 1, 0 if paired else 2)
    back = _drawn(sides[0], 1, 0 if paired else 2) - _drawn(sides[1], 0, 0 if paired else 1)
    low, high = expanded_interval(np.concatenate([there, back])[:, None], count)
    shown = detectable_beyond(float(high[0] - low[0]) / 2, count - 1)
    detectable = max(effect.minimum_detectable or 0.0, shown)
    return msgspec.structs.replace(effect, low=float(low[0]), high=float(high[0]), minimum_detectable=detectable)


def resampled_medians(ordered: Floats, count: int, generator: np.random.Generator) -> Floats:
    """Medians of resamples of one process, each as large as the process.

    Args:
        ordered: its durations, ascending, at least one.
        count: number of resamples.
        generator: source of randomness.
    """
    size = len(ordered)
    half = size // 2
    if size % 2:
        return ordered[_rank(generator.beta(half + 1, half + 1, count), size)]
    lower = generator.beta(half, half + 1, count)
    upper = lower + (1 - lower) * generator.beta(1, half, count)
    middle: Floats = (ordered[_rank(lower, size)] + ordered[_rank(upper, size)]) / 2
    return middle


def median_interval(processes: Sequence[Floats]) -> tuple[float, float]:
    """95 % interval of the median of all inferences, by a bootstrap over processes.

    Durations are sorted into at most 2,048 bins of equal count, so that the cost does not grow with their number.

    Args:
        processes: durations in each process; at least two processes, at least one duration in each.
    """
    pooled = np.concatenate(processes)
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, _BINS), method="inverted_cdf"))
    counts = np.stack([np.bincount(np.searchsorted(edges, own), minlength=len(edges)) for own in processes])
    number = len(processes)
    weights = np.random.default_rng((_SEED, 3)).multinomial(number, np.full(number, 1 / number), _RESAMPLES)
    below = np.cumsum(weights @ counts, axis=1)
    # The first bin in which half of the drawn inferences are reached holds the median.
    medians = edges[(2 * below < below[:, -1:]).sum(axis=1)]
    low, high = expanded_interval(medians[:, None], number)
    return float(low[0]), float(high[0])


def _drawn(processes: Sequence[Floats], stream: int, picking: int) -> Floats:
    """Mean log medians of resamples of processes and of inferences in them; shape (resamples,).

    Args:
        processes: ordered durations of each.
        stream: of the numbers that draw inferences.
        picking: of those that draw processes; the same for both sides of pairs.
    """
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
