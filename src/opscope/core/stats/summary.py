"""One sample, described robustly, and a ratio of two sums with its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.core.stats.distributions import median_ranks, t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
