"""Uncertainty of medians when inferences are grouped in processes.

Inferences of one process share its memory layout, its clock and its neighbours, so they are not independent samples of
what a model takes. A bootstrap that draws processes first, then inferences within each drawn process, keeps both levels
(Davison and Hinkley, Bootstrap Methods and their Application, section 3.8; Kalibera and Jones, "Rigorous Benchmarking
in Reasonable Time", ISMM 2013, who show that the highest level decides).

The median of a resample is drawn without making the resample: of n uniform numbers the k-th smallest follows a beta
distribution, and drawing with replacement maps them to ranks (David and Nagaraja, Order Statistics, section 2.3).

The difference of two sides that ran in the same interleaved rounds, one process of each side a round.

Every process counts by one level, the logarithm of its median latency. Two rank tests stand ready, and the data say
which one fits:

- Where latency moves with time, so that the two processes of a round are alike, a round is compared within itself by
  Wilcoxon's signed-rank test. With few rounds that test can hardly reject (with six only when all agree), so there
  Student's t-test stands beside it. With three to five rounds only what is clear is called.
- Else a round means nothing, and every process is compared with every other one by the normal-scores test of van der
  Waerden. It loses next to nothing against a t-test on normal noise and hardly notices single processes that were slow.

Which of the two is decided by what neither test looks at: whether neighbouring rounds are alike (von Neumann's ratio of
the ranks of the sums of rounds), or whether these sums scatter far more than differences do. The interval is the
inversion of the same test, so it excludes zero just when a difference is called.

Sources: Conover, Practical Nonparametric Statistics, 3rd edition, chapter 5 (signed ranks, normal scores, t on ranks,
intervals by inversion); Bartels, "The Rank Version of von Neumann's Ratio Test for Randomness", JASA 77 (1982). Error
rates, coverage and power are measured by bench/calibration.py; docs/design/verdict.md says how the levels were chosen.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import median_ranks, t_cdf, t_quantile
from opscope.core.stats.effect import (
    ALPHA,
    Effect,
    detectable_beyond,
    expanded_interval,
    paired_effects,
    unpaired_effects,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Ranks: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

_HALF = 5_000
_SEED = 20_130_620
_LEAST = 1.0  # durations are whole nanoseconds; a clock may say 0
_BINS = 2_048
_TIED = 3
_RESAMPLES = 2_000
FEWEST_ROUNDS = 6
"""With fewer, no signed-rank test rejects at 5 %, and there is nothing to choose a test by."""
FEWEST_CLEAR = 3
"""With fewer, nothing is called and no interval is given; with as many, what is clear: see :func:`round_effect`."""
_ALPHA = 0.05
_CLEAR_LEVEL = 0.001
# A choice between two tests rejects a little more often than either; what it adds is taken off beforehand.
_BETWEEN_LEVEL, _T_LEVEL = 0.0455, 0.045
_TOO_COARSE = 0.04
_NEIGHBOURS, _SCATTER = 9.0, 2.05
_LISTED_ROUNDS, _LISTED_PROCESSES = 10, 14
_TIE = 1e-9
_NORMAL = NormalDist()


def median_effect(baseline: Sequence[Floats], candidate: Sequence[Floats], *, paired: bool) -> Effect:
    """Effect of two sides on the logarithm of latency; a process counts by its median.

    Paired sides are judged by :func:`opscope.core.stats.hierarchy.round_effect`, whose interval is the inversion of its
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
    there = _resample_levels(sides[0], 0, 1) - _resample_levels(sides[1], 1, 2)
    back = _resample_levels(sides[0], 1, 2) - _resample_levels(sides[1], 0, 1)
    low, high = expanded_interval(np.concatenate([there, back])[:, None], count)
    shown = detectable_beyond(float(high[0] - low[0]) / 2, count - 1)
    detectable = max(effect.minimum_detectable or 0.0, shown)
    return msgspec.structs.replace(effect, low=float(low[0]), high=float(high[0]), minimum_detectable=detectable)


def _of_rounds(baseline: Floats, candidate: Floats) -> Effect:
    effect = round_effect(baseline, candidate)
    rounds = len(baseline)
    if rounds < FEWEST_CLEAR:
        return Effect(effect.estimate, None, None, effect.p_value, None, effect.smallest_p)
    detectable = detectable_beyond((effect.high - effect.low) / 2, rounds - 1 if effect.within else 2 * rounds - 2)
    return Effect(effect.estimate, effect.low, effect.high, effect.p_value, detectable, effect.smallest_p)


def process_level(ordered: Floats) -> float:
    """Logarithm of the median of a process."""
    return math.log(process_median(ordered))


def process_median(ordered: Floats) -> float:
    """The median of a process, at least 1 ns.

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
        return max(float(np.median(ordered)), _LEAST)
    share = (len(ordered) / 2 - below) / (through - below) - 0.5
    return float(max(middle + unit * share, _LEAST))


def typical(processes: Sequence[Floats]) -> float:
    """Latency by which sides are compared: the median of the geometric means of all pairs of process medians.

    Each is paired with itself, too. It hardly notices single processes that were slow. Of two sides whose processes
    share what a round adds to both, the ratio of theirs loses that as the ratio of means does.

    Source: Hodges and Lehmann, "Estimates of Location Based on Rank Tests", Ann. Math. Statist. 34 (1963).
    """
    medians = np.array([process_median(np.sort(np.maximum(np.asarray(own, np.float64), _LEAST))) for own in processes])
    first, second = np.triu_indices(len(medians))
    means = np.sort(np.sqrt(medians[first] * medians[second]))
    return math.sqrt(float(means[(len(means) - 1) // 2]) * float(means[len(means) // 2]))


def resampled_medians(ordered: Floats, count: int, generator: np.random.Generator) -> Floats:
    """Medians of resamples of one process, each as large as the process."""
    size = len(ordered)
    half = size // 2
    if size % 2:
        return ordered[_rank_of_uniform(generator.beta(half + 1, half + 1, count), size)]
    lower = generator.beta(half, half + 1, count)
    upper = lower + (1 - lower) * generator.beta(1, half, count)
    middle: Floats = (ordered[_rank_of_uniform(lower, size)] + ordered[_rank_of_uniform(upper, size)]) / 2
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
    """Return the 95 % interval of the median of independent durations; the median twice if there are too few."""
    ranks = median_ranks(len(ordered), 1 - ALPHA)
    if ranks is None:
        return float(np.median(ordered)), float(np.median(ordered))
    return float(ordered[ranks[0]]), float(ordered[ranks[1]])


def _resample_levels(processes: Sequence[Floats], stream: int, picking: int) -> Floats:
    """Return mean log medians of resamples of processes and of inferences in them; shape (resamples,)."""
    number = len(processes)
    picks: Ranks = np.random.default_rng((_SEED, 1, picking)).integers(0, number, (_HALF, number))
    generator = np.random.default_rng((_SEED, 2, stream))
    values = np.empty(picks.shape)
    for index, durations in enumerate(processes):
        chosen = picks == index
        values[chosen] = resampled_medians(durations, int(chosen.sum()), generator)
    means: Floats = np.log(values).mean(axis=1)
    return means


def _rank_of_uniform(uniform: Floats, size: int) -> Ranks:
    return np.minimum((uniform * size).astype(np.int64), size - 1)


class RoundEffect(NamedTuple):
    """The difference of two sides; positive if the baseline has the higher level."""

    estimate: float  # the shift at which the test sees no difference any more
    low: float  # lower end of the 95 % interval
    high: float  # upper end
    p_value: float  # of the test, corrected for having been chosen
    smallest_p: float  # the smallest one that this many rounds can have
    within: bool  # whether rounds were compared within themselves


def round_effect(baseline: Floats, candidate: Floats) -> RoundEffect:
    """Return the shift between two sides with its interval and its test.

    With fewer than ``FEWEST_ROUNDS`` the interval is Student's. No signed-rank test can reject then, and Student's does
    so at 5 % far too often where noise is not normal: a difference is called that it sees at 0.1 % and no round
    contradicts. Else the p-value is that of exchanging the sides within rounds, which cannot reach 5 %.
    """
    rounds = len(baseline)
    difference = baseline - candidate
    if rounds < FEWEST_ROUNDS:
        middle, half = _student_interval(difference, _ALPHA)
        clear = rounds >= FEWEST_CLEAR and abs(np.sign(difference).sum()) == rounds
        student = float(_t_test(difference[:, None])[0])
        if clear and student <= _CLEAR_LEVEL:
            return RoundEffect(middle, middle - half, middle + half, student, student, within=True)
        p_value = float(_signed_ranks(difference[:, None])[1][0])
        return RoundEffect(middle, middle - half, middle + half, p_value, 2 / 2**rounds, within=True)
    p_value = float(round_p_values(baseline[:, None], candidate[:, None])[0])
    if not within_rounds(baseline[:, None], candidate[:, None])[0]:
        shifts = np.sort((baseline[:, None] - candidate).ravel())
        interval = _invert_test(
            shifts, lambda by: _normal_scores(baseline[:, None] - by, candidate[:, None]), _BETWEEN_LEVEL
        )
        smallest = 2 / math.comb(2 * rounds, rounds) * _ALPHA / _BETWEEN_LEVEL
        return RoundEffect(*interval, p_value, smallest, within=False)
    first, second = np.triu_indices(rounds)
    shifts = np.sort((difference[first] + difference[second]) / 2)
    estimate, low, high = _invert_test(shifts, lambda by: _signed_ranks(difference[:, None] - by), _ALPHA)
    if _is_coarse(rounds):
        middle, half = _student_interval(difference, _T_LEVEL)
        low, high = max(low, middle - half), min(high, middle + half)
        estimate = min(max(estimate, low), high)
    return RoundEffect(estimate, low, high, p_value, 2 / 2**rounds, within=True)


def round_p_values(baseline: Floats, candidate: Floats) -> Floats:
    """Return the p-values that :func:`round_effect` has, of many experiments with ``FEWEST_ROUNDS`` rounds or more."""
    within = within_rounds(baseline, candidate)
    p_values = np.empty(baseline.shape[1])
    _, between = _normal_scores(baseline[:, ~within], candidate[:, ~within])
    p_values[~within] = np.minimum(between * _ALPHA / _BETWEEN_LEVEL, 1)
    difference = (baseline - candidate)[:, within]
    _, ranked = _signed_ranks(difference)
    if _is_coarse(len(baseline)):
        with_t_test = np.minimum(_t_test(difference) * _ALPHA / _T_LEVEL, ranked)
        ranked = np.where(ranked > _ALPHA, with_t_test, ranked)
    p_values[within] = ranked
    return p_values


def within_rounds(baseline: Floats, candidate: Floats) -> Flags:
    """Return whether the processes of a round are alike, so that rounds are to be compared within themselves.

    Neither a change of one side nor, in the ratio of von Neumann, an exchange of sides within rounds alters the answer.
    """
    rounds = len(baseline)
    total = baseline + candidate
    ranks = _mid_ranks(total)
    steps = (np.diff(ranks, axis=0) ** 2).sum(axis=0)
    ratio = steps / np.maximum(((ranks - ranks.mean(axis=0)) ** 2).sum(axis=0), _TIE)
    variance = 4 * (rounds - 2) * (5 * rounds**2 - 2 * rounds - 9) / (5 * rounds * (rounds + 1) * (rounds - 1) ** 2)
    limit = 2 + _NORMAL.inv_cdf(_NEIGHBOURS / rounds**2) * math.sqrt(variance)
    scatter = math.exp(_SCATTER / math.sqrt(rounds - 2))
    wide: Flags = total.std(axis=0) > scatter * (baseline - candidate).std(axis=0) + _TIE
    alike: Flags = (ratio <= limit) | wide
    return alike


def _normal_scores(baseline: Floats, candidate: Floats) -> tuple[Floats, Floats]:
    """Return statistic and two-sided p-value of each column: van der Waerden's test of two groups of equal size."""
    size = len(baseline)
    scores = _score_table(2 * size)[np.rint(2 * _mid_ranks(np.concatenate([baseline, candidate]))).astype(np.int64)]
    statistic: Floats = scores[:size].sum(axis=0)
    if 2 * size <= _LISTED_PROCESSES:
        return statistic, _share_reaching(_all_halves(2 * size) @ scores, statistic)
    squares = (scores**2).sum(axis=0)
    rest = np.maximum(squares - 2 * statistic**2 / size, _TIE)
    return statistic, _two_sided_tails(2 * statistic / size / np.sqrt(rest / (size * (size - 1))), 2 * size - 2)


def _signed_ranks(difference: Floats) -> tuple[Floats, Floats]:
    """Return statistic and two-sided p-value of each column: Wilcoxon's signed-rank test."""
    rounds = len(difference)
    signed = np.sign(difference) * _mid_ranks(np.abs(difference))
    statistic: Floats = signed.sum(axis=0)
    if rounds <= _LISTED_ROUNDS:
        return statistic, _share_reaching(_all_signs(rounds) @ np.abs(signed), statistic)
    return statistic, _t_test(signed)


def _t_test(values: Floats) -> Floats:
    """Return two-sided p-values of Student's test of a mean of zero."""
    rounds = len(values)
    error = np.maximum(values.std(axis=0, ddof=1) / math.sqrt(rounds), _TIE * np.abs(values).max(axis=0) + 1e-300)
    return _two_sided_tails(values.mean(axis=0) / error, rounds - 1)


def _student_interval(difference: Floats, level: float) -> tuple[float, float]:
    """Return mean and half width of Student's interval."""
    rounds = len(difference)
    error = float(difference.std(ddof=1)) / math.sqrt(rounds)
    return float(difference.mean()), t_quantile(1 - level / 2, rounds - 1) * error


def _invert_test(
    shifts: Floats, test: Callable[[Floats], tuple[Floats, Floats]], level: float
) -> tuple[float, float, float]:
    """Return estimate and both ends of the interval: the shifts of one side that a test does not reject."""
    probes = np.concatenate([[shifts[0] - 1], (shifts[1:] + shifts[:-1]) / 2, [shifts[-1] + 1]])

    def first(passed: Callable[[float, float], bool]) -> float:
        """The shift behind which the statistic has passed something."""
        low, high = 0, len(probes) - 1
        while low < high:
            middle = (low + high) // 2
            statistic, p = (float(value[0]) for value in test(probes[middle]))
            low, high = (low, middle) if passed(statistic, p) else (middle + 1, high)
        return float(shifts[max(low - 1, 0)])

    low = first(lambda statistic, p: statistic <= 0 or p > level)
    high = first(lambda statistic, p: statistic < 0 and p <= level)
    middle = (first(lambda statistic, _: statistic <= _TIE) + first(lambda statistic, _: statistic < -_TIE)) / 2
    return middle, low, high


def _mid_ranks(values: Floats) -> Floats:
    """Return ranks from 1 along the first axis; ties share the mean of theirs."""
    below = (values[:, None] > values).sum(axis=1)
    ranks: Floats = below + ((values[:, None] == values).sum(axis=1) + 1) / 2
    return ranks


@lru_cache(maxsize=64)
def _score_table(count: int) -> Floats:
    """Return normal scores by twice the rank."""
    inner = [_NORMAL.inv_cdf(twice / 2 / (count + 1)) for twice in range(1, 2 * count + 2)]
    return np.array([-math.inf, *inner])


@lru_cache(maxsize=16)
def _all_signs(rounds: int) -> Floats:
    return np.array(list(itertools.product((1.0, -1.0), repeat=rounds)))


@lru_cache(maxsize=16)
def _all_halves(count: int) -> Floats:
    """Return every way to take half of ``count``, as rows of ones and zeros."""
    rows = np.zeros((math.comb(count, count // 2), count))
    np.put_along_axis(rows, np.array(list(itertools.combinations(range(count), count // 2))), 1.0, axis=1)
    return rows


@lru_cache(maxsize=16)
def _is_coarse(rounds: int) -> bool:
    """Return whether the largest level of the signed-rank test that is at most 5 % lies far below 5 %."""
    if rounds > _LISTED_ROUNDS:
        return False
    sums = np.abs(_all_signs(rounds) @ np.arange(1.0, rounds + 1))
    levels = [float((sums >= value).mean()) for value in np.unique(sums)]
    return max(level for level in levels if level <= _ALPHA) < _TOO_COARSE


def _share_reaching(permuted: Floats, observed: Floats) -> Floats:
    """Return the share of the ways to exchange labels that reach the observed statistic."""
    share: Floats = (np.abs(permuted) >= np.abs(observed) - _TIE).mean(axis=0)
    return share


def _two_sided_tails(values: Floats, degrees: int) -> Floats:
    return np.array([2 * t_cdf(-abs(value), degrees) for value in values.tolist()])
