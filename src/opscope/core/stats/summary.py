"""One sample of latencies, described robustly, and a ratio of two sums with its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.core.stats.distributions import median_ranks, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_CONFIDENCE = 0.95
_FENCE = 1.5
FEWEST = 6
"""Fewest pairs that an interval is given for: as many as the 95 % interval of a median needs."""
_UPPER = 0.975


class Outliers(msgspec.Struct, frozen=True):
    """Samples beyond Tukey's fences (Exploratory Data Analysis, 1977, section 2D): reported, never removed."""

    count: int  # how many there are
    low: float  # first quartile minus 1.5 interquartile ranges
    high: float  # third quartile plus 1.5 interquartile ranges


class Summary(msgspec.Struct, frozen=True):
    """Location and spread of a sample, in the sample's unit.

    Quantiles interpolate linearly (Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American
    Statistician 50 (1996), type 7). Trimmed means leave out that share of the samples at either end, rounded down
    (Tukey and McLaughlin, Sankhya A 25 (1963)). The standard deviation has n - 1 in its denominator and is null for one
    sample. The median absolute deviation is not scaled. The median's interval is distribution-free and null below six
    samples; it takes the samples for independent, which inferences of several processes are not.
    """

    n: int
    median: float
    mean: float
    trimmed_mean_5: float
    trimmed_mean_10: float
    min: float
    max: float
    stdev: float | None
    mad: float
    cv: float | None
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    ci95_median: tuple[float, float] | None
    outliers: Outliers


def summarise(samples: Sequence[float]) -> Summary:
    """Describe a sample."""
    values = np.sort(np.asarray(samples, np.float64))
    if not len(values):
        raise ValueError("no samples to summarise")
    median, p75, p90, p95, p99 = (float(q) for q in np.percentile(values, (50, 75, 90, 95, 99)))
    mean = float(values.mean())
    stdev = float(values.std(ddof=1)) if len(values) > 1 else None
    return Summary(
        n=len(values),
        median=median,
        mean=mean,
        trimmed_mean_5=_trimmed_mean(values, 0.05),
        trimmed_mean_10=_trimmed_mean(values, 0.10),
        min=float(values[0]),
        max=float(values[-1]),
        stdev=stdev,
        mad=float(np.median(np.abs(values - median))),
        cv=stdev / mean if stdev is not None and mean > 0 else None,
        p50=median,
        p75=p75,
        p90=p90,
        p95=p95,
        p99=p99,
        ci95_median=_median_interval(values),
        outliers=_outliers(values),
    )


def _trimmed_mean(ordered: NDArray[np.float64], share: float) -> float:
    """Mean without that share of the samples at either end."""
    left_out = int(share * len(ordered))
    return float(ordered[left_out : len(ordered) - left_out].mean())


def _median_interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    ranks = median_ranks(len(values), _CONFIDENCE)
    return None if ranks is None else (float(values[ranks[0]]), float(values[ranks[1]]))


def _outliers(values: NDArray[np.float64]) -> Outliers:
    first, third = (float(q) for q in np.percentile(values, (25, 75)))
    low, high = first - _FENCE * (third - first), third + _FENCE * (third - first)
    return Outliers(int(((values < low) | (values > high)).sum()), low, high)


def ratio_interval(above: NDArray[np.float64], below: NDArray[np.float64]) -> tuple[float, float] | None:
    """95 % interval of ``above.sum() / below.sum()``; None with fewer than six pairs, or where it has no bounds.

    The jackknife: the ratio without each pair in turn, and Student's t with one degree of freedom less than pairs.
    Pairs count as independent.

    Source: Miller, The jackknife - a review, Biometrika 61 (1974).
    """
    count = len(above)
    rest = below.sum() - below
    if count < FEWEST or (rest <= 0).any():
        return None
    without = (above.sum() - above) / rest
    error = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    ratio, width = float(above.sum() / below.sum()), t_quantile(_UPPER, count - 1) * error
    return ratio - width, ratio + width
