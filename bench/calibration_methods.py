"""Ways to judge whether two sides differ: opscope's, and those that it stands beside.

Every method takes durations of the shape (experiments, processes, inferences) for each side and tells for each
experiment whether it calls a difference at the 5 % level, and in which direction.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opscope.core.stats.distributions import t_quantile
from opscope.core.stats.effect import ALPHA, Effect, Verdict, paired_effects, unpaired_effects
from opscope.core.stats.hierarchy import FEWEST_ROUNDS, median_effect, process_level, round_effect, round_p_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Floats: TypeAlias = NDArray[np.float64]
Signs: TypeAlias = NDArray[np.int64]
"""1 where the candidate is called slower, -1 where it is called faster, 0 where no difference is called."""

_NORMAL_95 = 1.959963984540054
_BATCH = 200
_SIGN = {Verdict.SLOWER: 1, Verdict.FASTER: -1}


def effect(baseline: Sequence[Floats], candidate: Sequence[Floats], *, paired: bool) -> Effect:
    """The product's own effect of one experiment."""
    return median_effect(list(baseline), list(candidate), paired=paired)


def sign(found: Effect) -> int:
    """Direction that an effect's verdict calls."""
    return _SIGN.get(found.verdict(), 0)


def opscope(baseline: Floats, candidate: Floats, *, paired: bool) -> Signs:
    """The product's verdicts.

    A difference is called only when the p-value is at most 5 % and the interval agrees. The p-values of many
    experiments are computed at once, and the whole effect only where its interval still matters: every verdict is that
    of ``effect``, sooner.
    """
    called = np.zeros(len(baseline), np.int64)
    for number in np.flatnonzero(p_values(baseline, candidate, paired=paired) <= ALPHA + 1e-9):
        called[number] = sign(effect(baseline[number], candidate[number], paired=paired))
    return called


def p_values(baseline: Floats, candidate: Floats, *, paired: bool) -> Floats:
    """P-values of the product's test on the levels of processes."""
    if paired:
        sides = levels(baseline), levels(candidate)
        if len(sides[0]) < FEWEST_ROUNDS:
            return np.array([round_effect(*pair).p_value for pair in zip(sides[0].T, sides[1].T, strict=True)])
        return round_p_values(*sides)
    left, right = (np.log(np.median(side, axis=2)).T for side in (baseline, candidate))
    found = []
    for start in range(0, left.shape[1], _BATCH):
        part = slice(start, start + _BATCH)
        found += [one.p_value for one in unpaired_effects(left[:, part], right[:, part])]
    return np.array(found, np.float64)


def levels(durations: Floats) -> Floats:
    """Level of each process, as the product takes it; shape (processes, experiments)."""
    ordered = np.sort(durations, axis=2)
    return np.array([[process_level(own) for own in experiment] for experiment in ordered], np.float64).T


def pooled_means(baseline: Floats, candidate: Floats) -> Signs:
    """Welch's test on all inferences of all processes, with the normal distribution for that of t."""
    left, right = (side.reshape(len(side), -1) for side in (baseline, candidate))
    return _beyond(left, right, _NORMAL_95)


def one_process(baseline: Floats, candidate: Floats) -> Signs:
    """Likewise on the inferences of one process a side, the first one of each."""
    return _beyond(baseline[:, 0], candidate[:, 0], _NORMAL_95)


def pooled_ranks(baseline: Floats, candidate: Floats) -> Signs:
    """Mann and Whitney's U on all inferences of all processes, by the normal approximation corrected for ties.

    Source: Conover, Practical Nonparametric Statistics, section 5.1.
    """
    sizes = baseline[0].size, candidate[0].size
    return np.array([_ranked(b.ravel(), c.ravel(), *sizes) for b, c in zip(baseline, candidate, strict=True)], np.int64)


def t_test(baseline: Floats, candidate: Floats) -> Signs:
    """Student's paired t-test on the logarithms of the processes' medians."""
    difference = _differences(baseline, candidate)
    rounds = difference.shape[1]
    limit = t_quantile(1 - ALPHA / 2, rounds - 1) * difference.std(axis=1, ddof=1) / math.sqrt(rounds)
    return _called(difference.mean(axis=1), limit)


def sign_flip(baseline: Floats, candidate: Floats) -> Signs:
    """Permutation of the sides within rounds, on the mean difference of the logarithms of the processes' medians."""
    difference = _differences(baseline, candidate)
    found = []
    for start in range(0, len(difference), _BATCH):
        part = difference[start : start + _BATCH].T
        found += [one.p_value for one in paired_effects(part, np.zeros_like(part))]
    called: Signs = (np.sign(difference.mean(axis=1)) * (np.array(found) <= ALPHA + 1e-9)).astype(np.int64)
    return called


def unpaired_t(baseline: Floats, candidate: Floats) -> Signs:
    """Student's test of two independent groups, on the logarithms of the processes' medians."""
    left, right = (np.log(np.median(side, axis=2)) for side in (baseline, candidate))
    size = left.shape[1]
    error = np.sqrt((left.var(axis=1, ddof=1) + right.var(axis=1, ddof=1)) / size)
    return _called(right.mean(axis=1) - left.mean(axis=1), t_quantile(1 - ALPHA / 2, 2 * size - 2) * error)


def rank_sum(baseline: Floats, candidate: Floats) -> Signs:
    """Wilcoxon's test of two independent groups: labels exchanged between processes, on ranks of their medians."""
    return _exchanged(_ranks(baseline, candidate))


def normal_scores(baseline: Floats, candidate: Floats) -> Signs:
    """Van der Waerden's test: likewise, on normal scores of these ranks."""
    ranks = _ranks(baseline, candidate)
    count = len(ranks)
    by_twice = np.array([0.0, *(NormalDist().inv_cdf(twice / 2 / (count + 1)) for twice in range(1, 2 * count + 1))])
    return _exchanged(by_twice[np.rint(2 * ranks).astype(np.int64)])


def _ranks(baseline: Floats, candidate: Floats) -> Floats:
    """Ranks of the processes' medians, ties shared; shape (processes of both sides, experiments)."""
    medians = np.concatenate([np.median(side, axis=2) for side in (baseline, candidate)], axis=1).T
    below = (medians[:, None] > medians).sum(axis=1)
    ranks: Floats = below + ((medians[:, None] == medians).sum(axis=1) + 1) / 2
    return ranks


def _exchanged(own: Floats) -> Signs:
    size = len(own) // 2
    found = []
    for start in range(0, own.shape[1], _BATCH):
        part = own[:, start : start + _BATCH]
        found += [one.p_value for one in unpaired_effects(part[:size], part[size:])]
    difference = own[size:].mean(axis=0) - own[:size].mean(axis=0)
    called: Signs = (np.sign(difference) * (np.array(found) <= ALPHA + 1e-9)).astype(np.int64)
    return called


def _differences(baseline: Floats, candidate: Floats) -> Floats:
    difference: Floats = np.log(np.median(candidate, axis=2)) - np.log(np.median(baseline, axis=2))
    return difference


def _beyond(left: Floats, right: Floats, limit: float) -> Signs:
    error = np.sqrt(left.var(axis=1, ddof=1) / left.shape[1] + right.var(axis=1, ddof=1) / right.shape[1])
    return _called(right.mean(axis=1) - left.mean(axis=1), limit * error)


def _called(difference: Floats, limit: Floats) -> Signs:
    called: Signs = (np.sign(difference) * (np.abs(difference) > limit)).astype(np.int64)
    return called


def _ranked(left: Floats, right: Floats, first: int, second: int) -> int:
    _, inverse, counts = np.unique(np.concatenate([left, right]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    total = first + second
    above = float(ranks[first:].sum()) - second * (total + 1) / 2
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1))
    error = math.sqrt(first * second / 12 * (total + 1 - ties))
    return int(math.copysign(1, above)) if error and abs(above) > _NORMAL_95 * error else 0


NAIVE: dict[str, Callable[[Floats, Floats], Signs]] = {
    "means": pooled_means,
    "one process each": one_process,
    "U test": pooled_ranks,
}
"""Methods that take inferences for independent of each other."""

BESIDE: dict[str, Callable[[Floats, Floats], Signs]] = {
    "t-test": t_test,
    "sign flips": sign_flip,
    "unpaired t-test": unpaired_t,
    "rank sum": rank_sum,
    "normal scores": normal_scores,
}
"""Methods that take processes for the unit, on their medians. All of them keep to 5 % where rounds are interleaved."""
