"""What successive samples know of each other, how finely they were taken, and whether they rise or fall."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.core.stats.distributions import normal_cdf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]


MAD_TO_SIGMA = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
# Rounding to a step q cannot be seen in a median deviation of 0: then at least half of the samples lie within q/2 of
# one value, which of normal noise holds up to a standard deviation of 0.74 q.
_HIDDEN_BY_ROUNDING = 0.74
# Above, the factor of an autoregressive process (19) is too uncertain to be told from a change of level.
_HIGHEST_CORRELATION = 0.9
_FEWEST = 10
"""Samples below which an autocorrelation is not stated: its standard error would exceed 0.3."""


def mid_ranks(values: Floats) -> Floats:
    """Ranks from 1; equal samples share the mean of theirs."""
    order = values.argsort(kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(first, append=len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(first + (counts + 1) / 2, counts)
    return ranks


def upward_sigma(values: Floats, step: float) -> float:
    """Standard deviation of the bulk towards slow samples, as it is of normal noise.

    From the median absolute deviation or, where noise is skewed, the upper quartile; no less than rounding may hide.
    """
    middle, upper = np.quantile(values, (0.5, 0.75))
    deviation = max(float(np.median(np.abs(values - middle))), float(upper - middle))
    return max(MAD_TO_SIGMA * deviation, _HIDDEN_BY_ROUNDING * step)


def clock_step(values: Floats) -> float:
    """The largest whole number that divides every sample: 1000 for whole microseconds in nanoseconds.

    0 when samples are not whole numbers, so that nothing is known of the clock.
    """
    whole = values.astype(np.int64)
    return float(np.gcd.reduce(whole)) if bool((whole == values).all()) else 0.0


def autocorrelation(values: Floats) -> float | None:
    """Correlation of each sample's rank with the next one's; ranks, so that no outlier decides.

    Corrected for the bias of short series (Kendall, "Note on bias in the estimation of autocorrelation", Biometrika
    41 (1954)). Null below 10 samples and when all are equal.
    """
    ranks = mid_ranks(values)
    ranks -= ranks.mean()
    if len(values) < _FEWEST or not ranks.any():
        return None
    return float(np.clip(_unbiased(_lag_one(ranks), len(values), 1), -1, 1))


def effective_size(values: Floats) -> float | None:
    """Number of independent samples that know the mean as well as these; at most as many as there are.

    Short series follow an autoregressive model of order 1, which few samples can fit; longer memory is found by
    Geyer's initial monotone sequence ("Practical Markov Chain Monte Carlo", Statistical Science 7 (1992), section
    3.3). The more cautious of the two counts. Null as for :func:`autocorrelation`.
    """
    correlation = autocorrelation(values)
    if correlation is None:
        return None
    ranks = mid_ranks(values)
    return len(values) / max(_factor(correlation), _monotone_sequence(ranks - ranks.mean()))


def inflation(residuals: Floats, fitted: int) -> float:
    """How much autocorrelation widens the variance of a mean: (1 + r) / (1 - r), at least 1.

    Source: Bartlett, J. R. Statist. Soc. 98 (1935), for an autoregressive process of order 1.
    """
    return _factor(_unbiased(_lag_one(residuals), len(residuals), fitted)) if residuals.any() else 1.0


def binned(values: Floats, most: int) -> tuple[Floats, Floats]:
    """Places and medians of at most ``most`` neighbouring groups of samples; a short series stays as it is."""
    size = -(-len(values) // most)
    places = np.arange(len(values), dtype=np.float64)
    if size == 1:
        return places, values
    whole = len(values) // size * size  # fewer samples than one group are left out at the end
    return places[:whole].reshape(-1, size).mean(axis=1), np.median(values[:whole].reshape(-1, size), axis=1)


def _lag_one(centred: Floats) -> float:
    return float(centred[1:] @ centred[:-1] / (centred @ centred))


def _unbiased(correlation: float, count: int, fitted: int) -> float:
    return (count * correlation + fitted) / (count - 3 * fitted)


def _factor(correlation: float) -> float:
    bounded = min(max(correlation, 0.0), _HIGHEST_CORRELATION)
    return (1 + bounded) / (1 - bounded)


def _monotone_sequence(centred: Floats) -> float:
    count = len(centred)
    spectrum = np.abs(np.fft.rfft(centred, 2 * count)) ** 2
    correlations = np.fft.irfft(spectrum)[: count - count % 2] / float(centred @ centred)
    pairs = correlations[::2] + correlations[1::2]
    negative = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: negative[0] if len(negative) else len(pairs)])
    return float(2 * kept.sum() - 1)


_FEWEST_RANKED = 10
"""Samples below which Kendall's statistic is not near to normal (Kendall, Rank Correlation Methods, section 4.8)."""
# Groups of neighbours that stand for a long series: the cost grows with their square, the sharpness hardly.
_MOST = 128


def median_line(values: Floats) -> tuple[float, float]:
    """Begin and slope, for each sample, of the line by the median slope of all pairs.

    Source: Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", JASA 63 (1968). Of long series,
    medians of neighbours stand for the samples.
    """
    places, medians = binned(values, _MOST)
    later, earlier = np.tril_indices(len(places), -1)
    slope = float(np.median((medians[later] - medians[earlier]) / (places[later] - places[earlier])))
    return float(np.median(medians - slope * places)), slope


def trend(values: Floats) -> tuple[float, float] | None:
    """Relative change from begin to end, positive when rising, and the p-value of there being none.

    The change is that of the median slope of all pairs (Sen, "Estimates of the Regression Coefficient Based on
    Kendall's Tau", JASA 63 (1968)), the p-value that of Kendall's rank correlation with time (Mann, Econometrica 13
    (1945)) with its variance widened by the autocorrelation of what the slope leaves (Yue and Wang, "The Mann-Kendall
    Test Modified by Effective Sample Size", Water Resources Management 18 (2004)). None below 10 samples. Of long
    series, medians of neighbours stand for the samples.
    """
    if len(values) < _FEWEST_RANKED:
        return None
    begin, slope = median_line(values)
    places, medians = binned(values, _MOST)
    later, earlier = np.tril_indices(len(places), -1)
    change = slope * (len(values) - 1) / begin if begin > 0 else math.inf
    statistic = float(np.sign(medians[later] - medians[earlier]).sum())
    return change, _p_value(statistic, medians, medians - slope * places)


def _p_value(statistic: float, values: Floats, residuals: Floats) -> float:
    count = len(values)
    ties = np.unique(values, return_counts=True)[1]
    pairs = count * (count - 1) * (2 * count + 5) - int((ties * (ties - 1) * (2 * ties + 5)).sum())
    if pairs == 0:
        return 1.0
    ranks = mid_ranks(residuals)
    variance = pairs / 18 * inflation(ranks - ranks.mean(), 2)
    return 2 * (1 - normal_cdf(max(abs(statistic) - 1, 0.0) / math.sqrt(variance)))
