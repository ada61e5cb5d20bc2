"""The shift between sides of interleaved rounds: exactness, symmetry, which test is taken, error rate and power."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from opscope.core.stats.hierarchy import FEWEST_CLEAR, FEWEST_ROUNDS, round_effect, round_p_values, within_rounds

SEED = 7
EXPERIMENTS = 2_000
MOST_FALSE_CALLS = 0.065
"""Of 2,000 experiments at 5 %: three standard errors of sampling above it."""


def level_pairs(rounds: int, count: int, *, drift: float = 0.0, slow: float = 0.0, between: float = 0.02) -> np.ndarray:
    """Levels of both sides; shape (2, rounds, experiments).

    Args:
        rounds: of each experiment.
        count: experiments.
        drift: how much slower the machine gets from the first round to the last.
        slow: share of the processes that take twice the time.
        between: standard deviation between processes.
    """
    generator = np.random.default_rng((SEED, rounds))
    noise = generator.normal(0, between, (2, rounds, count))
    noise += math.log(2) * (generator.random((2, rounds, count)) < slow)
    return noise + np.linspace(0, drift, rounds)[:, None]


CONDITIONS = [{}, {"drift": 0.3}, {"slow": 0.2}, {"drift": 0.3, "slow": 0.2}]


@pytest.mark.parametrize("rounds", [6, 8, 10, 15])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_identical_sides_are_called_different_no_more_often_than_promised(rounds: int, condition: dict) -> None:
    """Quiet, drifting and two-humped machines; five in a hundred, sampling error aside."""
    baseline, candidate = level_pairs(rounds, EXPERIMENTS, **condition)
    assert (round_p_values(baseline, candidate) <= 0.05).mean() <= MOST_FALSE_CALLS


@pytest.mark.parametrize("rounds", [6, 10])
@pytest.mark.parametrize("condition", CONDITIONS[:3])
def test_intervals_hold_the_truth_as_often_as_they_say(rounds: int, condition: dict) -> None:
    """95 in a hundred, within three standard errors of 400 experiments on either side."""
    baseline, candidate = level_pairs(rounds, 400, **condition)
    found = [round_effect(baseline[:, number] + 0.1, candidate[:, number]) for number in range(400)]
    held = np.mean([one.low <= 0.1 <= one.high for one in found])
    assert 0.915 <= held <= 0.985


@pytest.mark.parametrize("rounds", [6, 10])
def test_slow_processes_hide_no_change(rounds: int) -> None:
    """One process in five at twice the time; a t-test on pairs calls a tenth of the changes by 10 %."""
    baseline, candidate = level_pairs(rounds, 400, slow=0.2, between=0.01)
    assert (round_p_values(baseline + math.log(1.1), candidate) <= 0.05).mean() > 0.4


def test_drift_hides_no_change() -> None:
    """Half of the changes by 5 % with six rounds, where every process drifts by six times as much."""
    baseline, candidate = level_pairs(6, 400, drift=0.3)
    assert (round_p_values(baseline + math.log(1.05), candidate) <= 0.05).mean() > 0.5


@pytest.mark.parametrize("rounds", [6, 7, 8, 10, 12])
@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_the_interval_excludes_zero_just_when_a_difference_is_called(rounds: int, drift: float) -> None:
    """It is the inversion of the test; the estimate lies in it, and one experiment is judged as many are."""
    baseline, candidate = level_pairs(rounds, 200, drift=drift)
    baseline = baseline + 0.02
    p_values = round_p_values(baseline, candidate)
    for number, p_value in enumerate(p_values):
        found = round_effect(baseline[:, number], candidate[:, number])
        assert found.p_value == p_value
        assert found.low <= found.estimate <= found.high
        assert (found.low > 0 or found.high < 0) == (p_value <= 0.05)


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_exchanging_the_sides_mirrors_everything(drift: float) -> None:
    """Which side is called the baseline is a convention."""
    baseline, candidate = level_pairs(8, 20, drift=drift)[:, :, 0]
    there, back = round_effect(baseline, candidate), round_effect(candidate, baseline)
    assert (back.estimate, back.low, back.high) == pytest.approx((-there.estimate, -there.high, -there.low), abs=1e-12)
    assert (back.p_value, back.within) == (pytest.approx(there.p_value), there.within)


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_a_shift_of_one_side_shifts_the_result(drift: float) -> None:
    """Neither the test that is taken nor the width of the interval depends on the size of the effect."""
    baseline, candidate = level_pairs(7, 20, drift=drift)[:, :, 3]
    there, further = round_effect(baseline, candidate), round_effect(baseline + 5, candidate)
    assert further.within == there.within
    assert (further.estimate, further.low, further.high) == pytest.approx(
        (there.estimate + 5, there.low + 5, there.high + 5)
    )


def test_p_values_are_those_of_all_exchanges() -> None:
    """Van der Waerden's test by its definition: every way to choose six of twelve processes."""
    generator = np.random.default_rng(SEED)
    baseline, candidate = generator.normal(0, 1, (2, 6))
    # Sums of rounds that neither follow each other nor scatter more than differences: nothing to compare within rounds.
    assert not within_rounds(baseline[:, None], candidate[:, None])[0]
    ranks = np.concatenate([baseline, candidate]).argsort().argsort() + 1
    from statistics import NormalDist

    scores = [NormalDist().inv_cdf(rank / 13) for rank in ranks]
    observed = abs(sum(scores[:6]))
    sums = [abs(sum(scores[number] for number in chosen)) for chosen in itertools.combinations(range(12), 6)]
    expected = sum(value >= observed - 1e-9 for value in sums) / len(sums)
    assert round_p_values(baseline[:, None], candidate[:, None])[0] == pytest.approx(min(expected * 0.05 / 0.0455, 1))


def test_rounds_count_where_the_machine_drifts() -> None:
    """And only there."""
    quiet, drifting = level_pairs(10, 500), level_pairs(10, 500, drift=0.3)
    assert within_rounds(*quiet).mean() < 0.2
    assert within_rounds(*drifting).mean() > 0.98


@pytest.mark.parametrize("rounds", range(2, FEWEST_ROUNDS))
def test_fewer_rounds_than_six_call_what_is_clear(rounds: int) -> None:
    """At 0.1 %, from three rounds on; the interval is Student's."""
    generator = np.random.default_rng(SEED)
    found = round_effect(np.full(rounds, 1.0), generator.normal(0, 1e-3, rounds))
    assert (found.p_value <= 0.001) is (rounds >= FEWEST_CLEAR)
    assert found.low < found.estimate < found.high


@pytest.mark.parametrize("rounds", range(2, FEWEST_ROUNDS))
@pytest.mark.parametrize("change", [0.001, 0.3])
def test_fewer_rounds_than_six_call_nothing_that_is_not(rounds: int, change: float) -> None:
    """A change as large as the noise, and a large one that one round contradicts."""
    generator = np.random.default_rng(SEED)
    baseline, candidate = np.full(rounds, change), generator.normal(0, 0.001, rounds)
    if change > 0.1:
        candidate[0] = change + 0.001
    found = round_effect(baseline, candidate)
    assert found.smallest_p > 0.05
    assert found.p_value > 0.05


def test_equal_sides_are_no_crash() -> None:
    """A clock that stands still: nothing differs, and the interval is that point."""
    found = round_effect(np.zeros(6), np.zeros(6))
    assert (found.estimate, found.low, found.high) == (0, 0, 0)
    assert found.p_value > 0.05
