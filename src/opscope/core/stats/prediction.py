"""Whether one more value is what its predecessors' own scatter explains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from opscope.core.stats.distributions import t_cdf, t_quantile
from opscope.core.stats.effect import ALPHA, Verdict
from opscope.core.stats.series import inflation, mid_ranks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

FEWEST = 5
"""Predecessors below which nothing is decided: the quantile of Student's t is above 3 then."""
_POWER = 0.8
_FITTED = 1
_FEWEST_CORRELATED = 10
"""Predecessors from which their autocorrelation is taken into account; of fewer it is not known."""


class PredictionInterval(NamedTuple):
    """A new value beside what was to be expected."""

    level: float  # mean of the predecessors
    excess: float  # new value less level
    low: float | None  # lower end of the 95 % interval of the excess; None with too few predecessors
    high: float | None  # its upper end
    p_value: float | None  # that a value of the same distribution is as far off; None likewise
    minimum_detectable: float | None  # excess that would be found in 80 of 100 cases; None likewise
    predecessors: int  # their number

    def verdict(self, corrected: float | None = None) -> Verdict:
        """Slower when the new value is above what scatter explains, at 5 %."""
        if self.p_value is None:
            return Verdict.UNDECIDABLE
        if (self.p_value if corrected is None else corrected) > ALPHA:
            return Verdict.NO_DIFFERENCE
        return Verdict.SLOWER if self.excess > 0 else Verdict.FASTER


def predict(predecessors: Floats, value: float) -> PredictionInterval:
    """Compare a new value with the prediction interval of its predecessors.

    The interval is Student's, for one future observation (Hahn and Meeker, Statistical Intervals, section 4.7): the
    scatter of the new value, and the uncertainty of the level, which autocorrelation widens.
    """
    count, level = len(predecessors), float(predecessors.mean())
    excess = value - level
    if count < FEWEST:
        return PredictionInterval(level, excess, None, None, None, None, count)
    scatter = float(predecessors.std(ddof=1))
    error = scatter * math.sqrt(1 + _correlation(predecessors) / count)
    quantile = t_quantile(1 - ALPHA / 2, count - 1)
    distance = abs(excess) / error if error > 0 else (math.inf if excess else 0.0)
    p_value = 2 * (1 - t_cdf(distance, count - 1)) if math.isfinite(distance) else 0.0
    half, detectable = quantile * error, (quantile + t_quantile(_POWER, count - 1)) * error
    return PredictionInterval(level, excess, excess - half, excess + half, p_value, detectable, count)


def _correlation(values: Floats) -> float:
    if len(values) < _FEWEST_CORRELATED:
        return 1.0
    ranks = mid_ranks(values)
    return inflation(ranks - ranks.mean(), _FITTED)
