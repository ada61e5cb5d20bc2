"""How much two groups of processes differ, with an interval, a test, and the smallest effect they could show.

For operators of any two sides, and for the latency of sides that ran one after the other; the latency of sides in the
same rounds has an estimator of its own, ``opscope.core.stats.hierarchy``.

The process is the unit: inferences within a process agree far better with each other than processes do, so each
process contributes one number. Two ways to look at the same data must agree before a difference is called:

- a bootstrap over processes (and for end-to-end latency over the inferences in them, see
  ``opscope.core.stats.hierarchy``) gives the interval, widened for small samples (Hesterberg, "What Teachers Should
  Know About the Bootstrap", The American Statistician 69 (2015), section 3.4: the expanded percentile interval);
- a permutation test gives the error rate: if the two sides were the same, exchanging them within a round (paired) or
  between processes (unpaired) would change nothing, so at most 5 in 100 such comparisons reject, whatever the shape
  of the noise (Good, Permutation, Parametric and Bootstrap Tests of Hypotheses, chapter 3).

Before either, the number of processes must be large enough that the test could reject at all.

One more value beside its predecessors is judged by their own scatter: :func:`predict`.
"""

from __future__ import annotations

import enum
import itertools
import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import normal_cdf, t_cdf, t_quantile
from opscope.core.stats.series import inflation, mid_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]


ALPHA = 0.05
_POWER = 0.8
_RESAMPLES = 10_000
_LISTED = 20_000
_KEPT = 64
"""Rows up to which draws are kept: each is drawn at most so often, which fits into a byte."""
_SEED = 20_240_229
# Sums of the same numbers in another order differ in the last digits; they must still count as equal.
_TIE = 1e-12


class Verdict(str, enum.Enum):
    """What a comparison says about the candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no_difference"
    """No difference was shown; see the smallest one that would have been."""
    UNDECIDABLE = "undecidable"
    """There are too few processes for any difference to be shown."""
    WITHHELD = "withheld"
    """Other processes disturbed the measurement so much that no ratio is told."""


class Effect(msgspec.Struct, frozen=True):
    """Difference of baseline and candidate: positive when the candidate takes less."""

    estimate: float  # mean of baseline minus mean of candidate
    low: float | None  # lower end of the 95 % interval; null with fewer than two processes a side
    high: float | None  # upper end
    p_value: float | None  # of the permutation test; null with fewer than two processes a side
    minimum_detectable: float | None  # difference that such data would show in 80 of 100 experiments; null likewise
    smallest_p: float  # the smallest p-value that this many processes can reach, when all of them agree

    def verdict(self, corrected: float | None = None) -> Verdict:
        """The verdict at 5 %."""
        if self.p_value is None or self.low is None or self.high is None or self.smallest_p > ALPHA:
            return Verdict.UNDECIDABLE
        p = self.p_value if corrected is None else corrected
        if p > ALPHA and self.p_value <= ALPHA and self.p_value <= self.smallest_p * (1 + _TIE):
            return Verdict.UNDECIDABLE
        if p > ALPHA or self.low <= 0 <= self.high:
            return Verdict.NO_DIFFERENCE
        return Verdict.FASTER if self.estimate > 0 else Verdict.SLOWER


class Bounded(Protocol):
    """An estimate with both ends of its interval, or with neither."""

    @property
    def low(self) -> float | None: ...  # noqa: D102 - None with too few values
    @property
    def high(self) -> float | None: ...  # noqa: D102 - likewise


def interval_of(found: Bounded, value: Callable[[float], float] = float) -> tuple[float, float] | None:
    """The interval of a rising or falling function of an estimate, lower end first; None where there is none."""
    if found.low is None or found.high is None:
        return None
    low, high = sorted((value(found.low), value(found.high)))
    return low, high


def paired_effects(baseline: Floats, candidate: Floats) -> list[Effect]:
    """Effects of paired rounds, one for each column."""
    difference = baseline - candidate
    rounds = len(difference)
    if rounds < 2:  # noqa: PLR2004 - one number has no spread
        return [_bare_estimate(float(value)) for value in difference.mean(axis=0)]
    estimate = difference.mean(axis=0)
    low, high = expanded_interval(_resampled_means(difference, 0), rounds)
    p_values = _sign_flip(difference)
    spread = difference.std(axis=0, ddof=1)
    detectable = np.maximum(
        _detectable_difference(spread / math.sqrt(rounds), rounds - 1), spread * _mean_for_agreement(rounds)
    )
    smallest = _smallest_p(2, 2**rounds)
    return _make_effects(estimate, low, high, p_values, detectable, smallest)


def unpaired_effects(baseline: Floats, candidate: Floats) -> list[Effect]:
    """Effects of two independent groups of processes, one for each column."""
    estimate = baseline.mean(axis=0) - candidate.mean(axis=0)
    sizes = len(baseline), len(candidate)
    if min(sizes) < 2:  # noqa: PLR2004 - one number has no spread
        return [_bare_estimate(float(value)) for value in estimate]
    low, high = _unpaired_ends(baseline, candidate)
    error = np.sqrt(sum(side.var(axis=0, ddof=1) / len(side) for side in (baseline, candidate)))
    detectable = _detectable_difference(error, min(sizes) - 1)
    # With equal sizes the labels can be exchanged whole, which gives the same difference again.
    smallest = _smallest_p(1 + (sizes[0] == sizes[1]), math.comb(sum(sizes), sizes[0]))
    p_values = _label_exchange(baseline, candidate)
    return _make_effects(estimate, low, high, p_values, detectable, smallest)


def adjust_for_many(p_values: list[float]) -> list[float]:
    """P-values corrected so that, of the differences called, at most the stated share is expected to be false.

    Source: Benjamini and Hochberg, "Controlling the False Discovery Rate", J. R. Statist. Soc. B 57 (1995).
    """
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values)
    scaled = values[order] * len(values) / np.arange(1, len(values) + 1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1)
    return [float(value) for value in adjusted]


def stepped_down(p_values: list[float], tests: int) -> list[float]:
    """P-values corrected so that a false difference is called among all tests at most as often as stated.

    ``tests`` are at least as many as p-values are given: where others were made, too, these may be the smallest of all.

    Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scand. J. Statist. 6 (1979).
    """
    order = np.argsort(p_values)
    scaled = np.asarray(p_values, np.float64)[order] * (tests - np.arange(len(order)))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(value) for value in adjusted]


def _bare_estimate(estimate: float) -> Effect:
    return Effect(estimate, None, None, None, None, smallest_p=1.0)


def _make_effects(
    estimate: Floats, low: Floats, high: Floats, p_values: Floats, detectable: Floats, smallest_p: float
) -> list[Effect]:
    columns = (estimate, low, high, p_values, detectable)
    return [Effect(e, lo, hi, p, d, smallest_p) for e, lo, hi, p, d in np.column_stack(columns).tolist()]


def _unpaired_ends(baseline: Floats, candidate: Floats) -> tuple[Floats, Floats]:
    # Either side is drawn from either stream, so that exchanging the sides mirrors the interval exactly.
    forward = _resampled_means(baseline, 0) - _resampled_means(candidate, 1)
    backward = _resampled_means(baseline, 1) - _resampled_means(candidate, 0)
    return expanded_interval(np.concatenate([forward, backward]), min(len(baseline), len(candidate)))


def _resampled_means(values: Floats, stream: int) -> Floats:
    """Means of rows drawn with replacement; shape (resamples, quantities). Seeded, so that results repeat."""
    rows = len(values)
    counts = _kept_draws(rows, stream) if rows <= _KEPT else _draw_counts(rows, stream)
    means: Floats = counts @ values / rows
    return means


@lru_cache(maxsize=64)
def _kept_draws(rows: int, stream: int) -> NDArray[np.uint8]:
    """Return the draws of few rows, kept because a history of many series asks for them often: 40 MB at most."""
    return _draw_counts(rows, stream).astype(np.uint8)


def _draw_counts(rows: int, stream: int) -> NDArray[np.int64]:
    """Return how often each row is drawn; shape (resamples, rows)."""
    return np.random.default_rng((_SEED, stream)).multinomial(rows, np.full(rows, 1 / rows), _RESAMPLES)


def expanded_interval(statistics: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the expanded percentile interval of bootstrap statistics: a low and a high end for each quantity."""
    stretched = math.sqrt(count / (count - 1)) * t_quantile(1 - ALPHA / 2, count - 1)
    tail = normal_cdf(-stretched)
    low, high = np.quantile(statistics, (tail, 1 - tail), axis=0)
    return low, high


def detectable_beyond(half_width: float, degrees: int) -> float:
    """Return the difference for which an interval of this half width excludes zero in 80 of 100 experiments."""
    return half_width * (1 + t_quantile(_POWER, degrees) / t_quantile(1 - ALPHA / 2, degrees))


def _detectable_difference(standard_error: Floats, degrees: int) -> Floats:
    return standard_error * (t_quantile(1 - ALPHA / 2, degrees) + t_quantile(_POWER, degrees))


def _mean_for_agreement(rounds: int) -> float:
    """Return the mean of rounds, in standard deviations, with which all agree in 80 of 100 experiments.

    0 where the test does not need all of them: with seven rounds it already rejects when one small one disagrees.
    """
    must_agree = math.floor(ALPHA * 2**rounds / 2) <= 1
    return NormalDist().inv_cdf(_POWER ** (1 / rounds)) if must_agree else 0.0


def _sign_flip(difference: Floats) -> Floats:
    """Return the two-sided p-value of the mean under random signs; exact while the sign patterns can be listed."""
    rounds = len(difference)
    if 2**rounds <= _LISTED:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=rounds)))
    else:
        signs = np.random.default_rng((_SEED, 2)).choice((1.0, -1.0), (_LISTED, rounds))
    scale = np.abs(difference).sum(axis=0)
    return _share_of_extremes(
        np.abs(signs @ difference), np.abs(difference.sum(axis=0)), scale, exact=2**rounds <= _LISTED
    )


def _label_exchange(baseline: Floats, candidate: Floats) -> Floats:
    """Return the two-sided p-value of a difference of means under exchanged labels; exact while they can be listed."""
    pooled = np.concatenate([baseline, candidate])
    pooled -= pooled.mean(axis=0)
    total, first = len(pooled), len(baseline)
    exact = math.comb(total, first) <= _LISTED
    if exact:
        picks = np.array(list(itertools.combinations(range(total), first)))
    else:
        picks = np.argsort(np.random.default_rng((_SEED, 3)).random((_LISTED, total)), axis=1)[:, :first]
    weights = np.full((len(picks), total), -1 / (total - first))
    np.put_along_axis(weights, picks, 1 / first, axis=1)
    observed = np.abs(pooled[:first].mean(axis=0) - pooled[first:].mean(axis=0))
    return _share_of_extremes(np.abs(weights @ pooled), observed, np.abs(pooled).max(axis=0), exact=exact)


def _share_of_extremes(permuted: Floats, observed: Floats, scale: Floats, *, exact: bool) -> Floats:
    """Return the share of permutations that reach the observed statistic, up to the rounding of sums of this scale."""
    reached = (permuted >= observed - _TIE * scale).sum(axis=0)
    share: Floats = reached / len(permuted) if exact else (reached + 1) / (len(permuted) + 1)
    return share


def _smallest_p(extremes: int, ways: int) -> float:
    """Return the p-value of the most extreme outcome: ``extremes`` of all the ways to exchange labels."""
    return extremes / ways if ways <= _LISTED else 1 / (_LISTED + 1)


FEWEST = 5
"""Predecessors below which nothing is decided: the quantile of Student's t is above 3 then."""
_SEEN = 0.8
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
    error = scatter * math.sqrt(1 + _correlation_inflation(predecessors) / count)
    quantile = t_quantile(1 - ALPHA / 2, count - 1)
    distance = abs(excess) / error if error > 0 else (math.inf if excess else 0.0)
    p_value = 2 * (1 - t_cdf(distance, count - 1)) if math.isfinite(distance) else 0.0
    half, detectable = quantile * error, (quantile + t_quantile(_SEEN, count - 1)) * error
    return PredictionInterval(level, excess, excess - half, excess + half, p_value, detectable, count)


def _correlation_inflation(values: Floats) -> float:
    if len(values) < _FEWEST_CORRELATED:
        return 1.0
    ranks = mid_ranks(values)
    return inflation(ranks - ranks.mean(), _FITTED)
