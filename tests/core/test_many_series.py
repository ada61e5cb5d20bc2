"""Many series at once: what noise does, what it does not do, and which series nothing is said of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opscope.core.stats.distributions import normal_cdf, t_cdf
from opscope.core.stats.many_series import (
    CONFIRMING,
    SHORTEST,
    judge_newest,
    levels,
    noise_tail,
    normal_distance,
)
from opscope.core.stats.segments import firm_segments

RUNS = 24


def normal(series: int, scatter: float = 0.01, seed: int = 0) -> np.ndarray:
    """Independent normal noise."""
    return np.random.default_rng(seed).normal(0, scatter, (series, RUNS))


@pytest.mark.parametrize("count", [12, 13, 29, 64])
def test_levels_are_those_of_the_one_finder(count: int) -> None:
    """Whatever is passed over, many series at once have the segments that each has by itself."""
    generator = np.random.default_rng(count)
    logs = generator.normal(0, 0.02, (60, count))
    logs[:20, count // 2 :] += 0.1
    logs[20:40] = generator.normal(0, 0.001, (20, count))
    logs[40:50] += np.linspace(0, 0.3, count)
    found = levels(np.concatenate([logs, np.zeros((len(logs), CONFIRMING))], axis=1))
    for row, own in enumerate(logs):
        expected = [number for number, one in enumerate(firm_segments(np.exp(own))) for _ in range(one.first, one.end)]
        assert found.segment[row].tolist() == expected
    assert found.segment.any()


@pytest.mark.parametrize("degrees", [4, 10, 30])
@pytest.mark.parametrize("distance", [0.5, 2.0, 4.0, 8.0])
def test_distances_are_as_rare_as_those_of_normal_noise(degrees: int, distance: float) -> None:
    """Wallace's approximation: within a tenth of the exact tail's logarithm."""
    found = float(normal_distance(np.array([distance]), np.array([degrees]))[0])
    exact = math.log(1 - t_cdf(distance, degrees))
    assert math.log(1 - normal_cdf(found)) == pytest.approx(exact, rel=0.1)


def test_one_night_shows_what_normal_noise_never_does() -> None:
    """Of 200 series with a scatter of 1 % one is slower by 12 % in the newest run: that one, after one run."""
    logs = normal(200)
    logs[17, -1] += math.log(1.12)
    found = judge_newest(logs)
    assert np.flatnonzero(found.rises < 0.01).tolist() == [17]
    assert math.expm1(found.runs.excess[17, -1]) == pytest.approx(0.12, abs=0.03)


def test_heavy_tails_ask_for_a_second_and_a_third_night() -> None:
    """Where single nights are off by chance (t, 2 degrees), 12 % show after three nights and not after one."""
    noise = np.random.default_rng(1).standard_t(2, (2_000, RUNS)) * 0.003
    once, thrice = noise.copy(), noise.copy()
    once[5, -1] += math.log(1.12)
    thrice[5, -3:] += math.log(1.12)
    assert judge_newest(once).rises[5] > 0.05
    assert judge_newest(thrice).rises[5] < 0.01


def test_a_known_level_is_not_news() -> None:
    """A series that became slower twelve runs ago and stays there is not slower now."""
    logs = normal(100)
    logs[3, -12:] += math.log(1.2)
    found = judge_newest(logs)
    assert found.rises[3] > 0.5
    assert math.exp(found.runs.level[3]) == pytest.approx(1.2, abs=0.02)


def test_a_change_that_is_too_young_for_a_level_does_not_hide_others() -> None:
    """Half of the series became slower five runs ago; another one that does now is shown all the same."""
    logs = normal(200, scatter=0.003)
    logs[100:, -5:] += math.log(1.1)
    logs[7, -1] += math.log(1.05)
    assert judge_newest(logs).rises[7] < 0.01


def test_nothing_is_said_of_short_series_and_zeros() -> None:
    """Seven runs are too few, and the logarithm of zero is none; a series beside them is judged."""
    logs = normal(3)
    logs[0, : RUNS - 7] = math.nan
    logs[1, -1] = math.nan
    found = judge_newest(logs)
    assert found.runs.judged.tolist() == [False, False, True]
    assert found.rises[:2].tolist() == [1.0, 1.0]


def test_series_without_scatter_have_a_floor() -> None:
    """A clock of whole microseconds can show no scatter; distances are finite all the same."""
    logs = np.zeros((50, RUNS))
    logs[0, -1] = math.log(1.001)
    found = judge_newest(logs)
    assert found.runs.distance[0, -1] == pytest.approx(1.0, abs=0.1)
    assert np.isfinite(found.rises).all()


def test_beyond_what_was_seen_probabilities_fall_and_stay_above_those_of_normal_noise() -> None:
    """The tail of 20,000 normal values: decreasing, and never too small at twice their range."""
    tail = noise_tail(np.random.default_rng(0).normal(0, 1, 20_000))
    distances = np.linspace(0, 8, 200)
    reached = tail.reached(distances)
    assert (np.diff(reached) <= 0).all()
    assert (reached[distances > 3] >= 0.8 * np.array([1 - normal_cdf(one) for one in distances[distances > 3]])).all()
    assert tail.reached(np.array([tail.distance(1e-6)]))[0] == pytest.approx(1e-6)


def test_little_is_known_of_few_runs() -> None:
    """Two series of ten runs: a slowdown of 10 % at a scatter of 1 % is not a regression yet."""
    logs = np.random.default_rng(0).normal(0, 0.01, (2, 10))
    logs[0, -1] += math.log(1.1)
    assert judge_newest(logs).rises[0] > 1 / 60


def test_series_that_are_barely_long_enough_are_judged_without_knowing_the_tails() -> None:
    """Eight runs: five before the newest three, and nothing to replay."""
    found = judge_newest(np.zeros((2, SHORTEST)))
    assert found.runs.judged.all()
    assert [tail.fitted for tail in found.tails] == [0, 0, 0]
