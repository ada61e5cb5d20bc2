"""A ratio of two sums with its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.core.stats.distributions import t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST = 6
"""Fewest pairs that an interval is given for: as many as the 95 % interval of a median needs."""
_UPPER = 0.975


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
