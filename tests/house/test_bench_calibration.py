"""The benchmark that shows how often verdicts are wrong: what it simulates, and how it judges."""

from __future__ import annotations

import numpy as np
import pytest
from bench import noise, simulated, verdicts
from bench.identical import read_runs
from bench.shares import Share


def _experiments(count: int, change: float) -> tuple[np.ndarray, np.ndarray]:
    baseline, candidate = noise.draw_interleaved(noise.NOISES[0], 6, count, np.random.default_rng(1))
    return baseline, candidate * (1 + change)


@pytest.mark.parametrize("paired", [True, False])
def test_calls_of_many_experiments_are_those_of_each_one(paired: bool) -> None:
    """The shortcut that makes thousands of comparisons affordable changes no verdict."""
    sides = _experiments(15, 0.03)
    each = [verdicts.sign_of(verdicts.effect_of(*pair, paired=paired)) for pair in zip(*sides, strict=True)]
    assert verdicts.call_signs(*sides, paired=paired).tolist() == each
    assert 0 < sum(each) < 15


def test_sides_of_a_round_run_next_to_each_other_in_both_orders() -> None:
    """Drift falls on both sides of an interleaved experiment, and on one side when they run one after the other."""
    steady = noise.Noise("", noise.draw_drift(1.0, 0.0), noise.draw_normal(0.0))
    baseline, candidate = (side[..., 0] for side in noise.draw_interleaved(steady, 6, 50, np.random.default_rng(0)))
    step = 1e6 / 11
    assert np.allclose(np.abs(candidate - baseline), step, atol=1)
    assert 0.3 < np.mean(candidate > baseline) < 0.7
    before, after = noise.draw_one_after_other(steady, 6, 50, np.random.default_rng(0))
    assert before.max() < after.min()


def test_wandering_series_remember_what_they_say_and_keep_their_spread() -> None:
    """A series that dies out or explodes would be another noise at its end than at its beginning."""
    series = noise.draw_wandering(0.9, 0.1)(np.random.default_rng(2), (4_000, 30))
    assert series.std(axis=0) == pytest.approx(np.full(30, 0.1), rel=0.06)
    assert np.corrcoef(series[:, 10], series[:, 11])[0, 1] == pytest.approx(0.9, abs=0.02)


def test_cells_repeat() -> None:
    """A cell is drawn from a stream of its own, so that a table can be made again."""
    cell = simulated.Cell(noise=6, rounds=6, comparisons=60)
    assert simulated.false_calls(cell) == simulated.false_calls(cell)


def test_share_has_the_interval_of_wilson() -> None:
    """The worked example of Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263."""
    assert Share(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_real_runs_are_read_as_they_were_measured() -> None:
    """Sixty experiments of two sides, ten rounds and twenty inferences under each condition, in ns."""
    runs = read_runs()
    assert {durations.shape for durations in runs.values()} == {(60, 2, 10, 20)}
    assert np.median(runs["toy_cnn"]) == pytest.approx(684_900)
