"""The bootstrap over processes and inferences: its draws, its symmetry, and what it adds to that of processes alone."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from opscope.core.stats.effect import Verdict, unpaired_effects
from opscope.core.stats.hierarchy import median_effect, median_interval, resampled_medians

SEED = 11


def processes(
    medians: list[float], *, spread: float = 0.01, inferences: int = 50, seed: int = SEED
) -> list[np.ndarray]:
    """Inferences around each process's own median."""
    generator = np.random.default_rng(seed)
    return [median * np.exp(generator.normal(0, spread, inferences)) for median in medians]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 51])
def test_medians_of_resamples_are_drawn_without_the_resamples(size: int) -> None:
    """They are distributed as medians of samples that were really drawn with replacement; 5 standard errors at most."""
    generator = np.random.default_rng(SEED)
    ordered = np.sort(generator.exponential(1.0, size))
    shortcut = resampled_medians(ordered, 40_000, generator)
    drawn = np.median(generator.choice(ordered, (40_000, size)), axis=1)
    levels = (ordered[:, None] + ordered) / 2
    shares = [(sample[:, None] <= levels.ravel() * (1 + 1e-12)).mean(axis=0) for sample in (shortcut, drawn)]
    assert shares[0] == pytest.approx(shares[1], abs=5 * (0.25 * 2 / 40_000) ** 0.5)


@pytest.mark.parametrize("paired", [True, False])
def test_exchanging_the_sides_mirrors_the_interval(paired: bool) -> None:
    """Which side is called the baseline is a convention."""
    left = processes([1e6, 1.02e6, 0.99e6, 1.01e6, 1e6, 1.03e6])
    right = processes([0.9e6, 0.95e6, 0.91e6, 0.93e6, 0.9e6, 0.96e6], seed=5)
    there, back = median_effect(left, right, paired=paired), median_effect(right, left, paired=paired)
    assert there.low is not None
    assert back.high == pytest.approx(-there.low)
    assert there.p_value == back.p_value
    assert (there.verdict(), back.verdict()) == (Verdict.FASTER, Verdict.SLOWER)


def test_few_noisy_inferences_widen_the_interval_of_sides_one_after_the_other() -> None:
    """Equal medians of processes know nothing of the noise within; the second level does."""
    medians = [1e6, 1.001e6, 0.999e6, 1e6, 1.002e6, 0.998e6, 1e6, 1.001e6]
    generator = np.random.default_rng(SEED)
    noisy = [median + np.r_[-1, 0, 1] * generator.uniform(2e5, 4e5) for median in medians]
    other = [own + 10.0 for own in noisy]
    both = median_effect(noisy, other, paired=False)
    logs = [np.log([[np.median(own)] for own in side]) for side in (noisy, other)]
    alone = unpaired_effects(*logs)[0]
    assert both.p_value == alone.p_value
    assert both.low is not None
    assert alone.low is not None
    assert both.high is not None
    assert alone.high is not None
    assert both.high - both.low > 10 * (alone.high - alone.low)


@pytest.mark.parametrize("paired", [True, False])
def test_one_process_a_side_has_no_interval(paired: bool) -> None:
    """However many inferences it ran."""
    effect = median_effect(processes([1e6]), processes([2e6]), paired=paired)
    assert effect.low is None
    assert effect.verdict() is Verdict.UNDECIDABLE


def test_durations_of_zero_are_no_crash() -> None:
    """A clock that stands still says 0."""
    effect = median_effect([np.zeros(3)] * 6, [np.zeros(3)] * 6, paired=True)
    assert (effect.estimate, effect.verdict()) == (0, Verdict.NO_DIFFERENCE)


def test_results_repeat() -> None:
    """The draws are seeded."""
    left, right = processes([1e6, 1.1e6, 0.9e6]), processes([1e6, 1.2e6, 0.8e6], seed=3)
    assert median_effect(left, right, paired=True) == median_effect(left, right, paired=True)
    assert median_interval(left) == median_interval(left)


def test_the_interval_of_a_median_is_as_wide_as_processes_differ() -> None:
    """Inferences within 0.1 % of each other, processes 10 % apart: more inferences make nothing more certain."""
    generator = np.random.default_rng(SEED)
    few, many = (
        processes(list(1e6 * np.exp(generator.normal(0, 0.1, 20))), spread=0.001, inferences=count)
        for count in (20, 2_000)
    )
    for sample in (few, many):
        low, high = median_interval(sample)
        assert low < np.median(np.concatenate(sample)) < high
        assert 0.02 < (high - low) / 1e6 < 0.2


def test_the_interval_holds_the_median_it_is_of() -> None:
    """Two processes with two modes: the middle two of eight values lie in different ones, and their mean in neither."""
    low, high = median_interval([np.array([1.54, 1.57, 5.60, 5.71]) * 1e6, np.array([1.55, 1.58, 5.64, 5.68]) * 1e6])
    assert low < 1.6e6
    assert high > 5.5e6


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 2), (4, 4), (1, 30), (5, 6, 7), (40, 3)])
def test_every_interval_holds_its_median(sizes: tuple[int, ...]) -> None:
    """Of an even number of inferences, too, whose median is the mean of the middle two."""
    generator = np.random.default_rng(SEED)
    for _ in range(50):
        sample = [np.where(generator.random(size) < 0.5, 1.5e6, 5.6e6) + generator.normal(0, 1e4) for size in sizes]
        low, high = median_interval(sample)
        assert low <= np.median(np.concatenate(sample)) <= high


def test_few_processes_know_the_median_no_better_than_independent_inferences() -> None:
    """Two processes alike by chance: the spread of their inferences still counts."""
    own = np.array([0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03]) * 1e6
    low, high = median_interval([own, own + 1.0])
    assert low <= 0.98e6
    assert high >= 1.02e6


def test_intervals_of_medians_cover() -> None:
    """Of 200 experiments with ten processes each, about 95 % cover; 3.5 standard errors are let through."""
    generator = np.random.default_rng(SEED)
    hits = 0
    for _ in range(200):
        medians = 1e6 * np.exp(generator.normal(0, 0.05, 10))
        low, high = median_interval([m * np.exp(generator.normal(0, 0.01, 15)) for m in medians])
        hits += low <= 1e6 <= high
    assert hits / 200 > 0.895


def test_intervals_of_medians_cover_with_few_processes_and_two_modes() -> None:
    """Of 200 experiments of three processes, at least 95 % cover; 3.5 standard errors are let through.

    Six of ten inferences are in the slower mode, so a sixth of that mode lies below the median.
    """
    generator = np.random.default_rng(SEED)
    median = 5.6e6 * math.exp(0.01 * NormalDist().inv_cdf(1 / 6))
    hits = 0
    for _ in range(200):
        modes = np.where(generator.random((3, 20)) < 0.6, 5.6e6, 1.5e6)
        low, high = median_interval(list(modes * np.exp(generator.normal(0, 0.01, (3, 20)))))
        hits += low <= median <= high
    assert hits / 200 > 0.895
