"""Quantiles of the normal, Student's t and binomial distributions, and what needs no more: intervals of one sample."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NORMAL = NormalDist()
_BISECTIONS = 80
_FRACTION_STEPS = 300
_TINY = 1e-300


def normal_cdf(value: float) -> float:
    """Probability that a standard normal variable is at most ``value``."""
    return _NORMAL.cdf(value)


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """Value that a Student's t variable stays below with the given probability.

    Found by bisection on the distribution function, to about 1e-12.
    """
    if probability < 0.5:  # noqa: PLR2004 - the distribution is symmetric about its median
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def t_cdf(value: float, degrees: int) -> float:
    """Probability that a Student's t variable is at most ``value``."""
    tail = 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value))
    return 1 - tail if value > 0 else tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function, by its continued fraction.

    Source: DLMF 8.17.22, https://dlmf.nist.gov/8.17#E22, evaluated by the modified Lentz method.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _lentz(a, b, x))


def _lentz(a: float, b: float, x: float) -> float:
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1, _FRACTION_STEPS):
        half, odd = divmod(step, 2)
        if odd:
            numerator = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            numerator = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / ((1 + numerator * lower) or _TINY)
        upper = (1 + numerator / upper) or _TINY
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:  # noqa: PLR2004 - the last digit of a double
            break
    return value


@lru_cache(maxsize=256)
def median_ranks(count: int, confidence: float) -> tuple[int, int] | None:
    """Ranks (from 0) of the order statistics that enclose the median with at least this confidence.

    Distribution-free: the number of samples below the median is binomial with p = 1/2. None when ``count`` samples
    cannot reach the confidence (fewer than 6 for 95 %).

    Source: Conover, Practical Nonparametric Statistics, section 3.2.
    """
    tail = (1 - confidence) / 2
    below, rank = 0.0, -1
    while below + _half_binomial(count, rank + 1) <= tail:
        rank += 1
        below += _half_binomial(count, rank)
    return None if rank < 0 else (rank, count - 1 - rank)


def _half_binomial(count: int, successes: int) -> float:
    log_choose = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(log_choose - count * math.log(2))


def binomial_interval(successes: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval of a probability after that many successes in so many independent trials.

    It covers the probability at least as often as the confidence says, for every count. The ends are quantiles of beta
    distributions.

    Source: Clopper and Pearson, Biometrika 26 (1934), 404-413.
    """
    tail, failures = (1 - confidence) / 2, count - successes
    low = _beta_quantile(tail, successes, failures + 1) if successes else 0.0
    high = _beta_quantile(1 - tail, successes + 1, failures) if failures else 1.0
    return low, high


def _beta_quantile(probability: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _incomplete_beta(a, b, middle) < probability else (low, middle)
    return (low + high) / 2


_CONFIDENCE = 0.95
FEWEST = 6
"""Fewest pairs that an interval is given for: as many as the 95 % interval of a median needs."""
_UPPER = 0.975


def trimmed_mean(ordered: NDArray[np.float64], share: float) -> float:
    """Mean without that share of the samples at either end, rounded down.

    Source: Tukey and McLaughlin, Sankhya A 25 (1963).
    """
    left_out = int(share * len(ordered))
    return float(ordered[left_out : len(ordered) - left_out].mean())


def median_bounds(ordered: NDArray[np.float64]) -> tuple[float, float] | None:
    """Distribution-free 95 % interval of the median; None below six samples. It takes the samples for independent."""
    ranks = median_ranks(len(ordered), _CONFIDENCE)
    return None if ranks is None else (float(ordered[ranks[0]]), float(ordered[ranks[1]]))


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
