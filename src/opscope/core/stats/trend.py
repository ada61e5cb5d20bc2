"""Whether a series rises or falls from begin to end, and by how much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.core.stats.distributions import normal_cdf
from opscope.core.stats.series import binned, inflation, mid_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

_FEWEST = 10
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
    if len(values) < _FEWEST:
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
