"""The benchmark that shows how often verdicts are wrong: what it simulates, and how it judges."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

_BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module", autouse=True)
def _bench_on_path():
    sys.path.insert(0, str(_BENCH))
    yield
    sys.path.remove(str(_BENCH))


def _experiments(count: int, change: float) -> tuple[np.ndarray, np.ndarray]:
    noise = importlib.import_module("calibration_noise")
    baseline, candidate = noise.interleaved(noise.NOISES[0], 6, count, np.random.default_rng(1))
    return baseline, candidate * (1 + change)


@pytest.mark.parametrize("paired", [True, False])
def test_calls_of_many_experiments_are_those_of_each_one(paired: bool) -> None:
    """The shortcut that makes thousands of comparisons affordable changes no verdict."""
    methods = importlib.import_module("calibration_methods")
    sides = _experiments(15, 0.03)
    each = [methods.sign(methods.effect(*pair, paired=paired)) for pair in zip(*sides, strict=True)]
    assert methods.opscope(*sides, paired=paired).tolist() == each
    assert 0 < sum(each) < 15


def test_u_test_counts_pairs_and_halves_ties() -> None:
    """The ranks' sum is the number of pairs in which the candidate is slower, ties being half, up to a constant."""
    methods = importlib.import_module("calibration_methods")
    generator = np.random.default_rng(3)
    for shift in (0.0, 1.0, 3.0):
        left, right = generator.integers(0, 9, 30).astype(float), generator.integers(0, 9, 25) + shift
        wins = np.sum(right[:, None] > left) + 0.5 * np.sum(right[:, None] == left)
        _, ties = np.unique(np.concatenate([left, right]), return_counts=True)
        variance = 30 * 25 / 12 * (56 - np.sum(ties**3 - ties) / (55 * 54))
        beyond = (wins - 30 * 25 / 2) / variance**0.5
        expected = int(np.sign(beyond)) if abs(beyond) > 1.96 else 0
        assert methods.pooled_ranks(left[None, None], right[None, None]).tolist() == [expected]


@pytest.mark.parametrize("name", ["means", "one process each", "U test"])
def test_methods_call_a_large_change_in_its_direction(name: str) -> None:
    """A method that could never call anything would look well calibrated."""
    methods = importlib.import_module("calibration_methods")
    baseline, candidate = _experiments(5, 0.5)
    assert methods.NAIVE[name](baseline, candidate).tolist() == [1] * 5
    assert methods.NAIVE[name](candidate, baseline).tolist() == [-1] * 5


def test_sides_of_a_round_run_next_to_each_other_in_both_orders() -> None:
    """Drift falls on both sides of an interleaved experiment, and on one side when they run one after the other."""
    noise = importlib.import_module("calibration_noise")
    steady = noise.Noise("", noise.drift(1.0, 0.0), noise.normal(0.0))
    baseline, candidate = (side[..., 0] for side in noise.interleaved(steady, 6, 50, np.random.default_rng(0)))
    step = 1e6 / 11
    assert np.allclose(np.abs(candidate - baseline), step, atol=1)
    assert 0.3 < np.mean(candidate > baseline) < 0.7
    before, after = noise.one_after_other(steady, 6, 50, np.random.default_rng(0))
    assert before.max() < after.min()


def test_wandering_series_remember_what_they_say_and_keep_their_spread() -> None:
    """A series that dies out or explodes would be another noise at its end than at its beginning."""
    noise = importlib.import_module("calibration_noise")
    series = noise.wandering(0.9, 0.1)(np.random.default_rng(2), (4_000, 30))
    assert series.std(axis=0) == pytest.approx(np.full(30, 0.1), rel=0.06)
    assert np.corrcoef(series[:, 10], series[:, 11])[0, 1] == pytest.approx(0.9, abs=0.02)


def test_cells_repeat() -> None:
    """A cell is drawn from a stream of its own, so that a table can be made again."""
    simulated = importlib.import_module("calibration_simulated")
    cell = simulated.Cell(noise=6, rounds=6, comparisons=60, beside=True)
    assert simulated.false_calls(cell) == simulated.false_calls(cell)


def test_share_has_the_interval_of_wilson() -> None:
    """The worked example of Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263."""
    shares = importlib.import_module("calibration_shares")
    assert shares.Share(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_kept_runs_come_back_as_they_were(tmp_path: Path) -> None:
    """Figures made from the file are those of the session that measured it."""
    runs = importlib.import_module("calibration_runs")
    durations = np.random.default_rng(4).integers(1, 1 << 30, (3, 2, 4, 5)).astype(np.uint32) // 100 * 100
    measured = {"toy_cnn, busy neighbour": runs.Runs(durations, np.array([0.5, 1.0, 2.0], np.float32))}
    runs.save(measured, tmp_path / "runs.npz")
    back = runs.load(tmp_path / "runs.npz")
    assert list(back) == list(measured)
    assert back["toy_cnn, busy neighbour"].durations.tolist() == durations.tolist()
    assert back["toy_cnn, busy neighbour"].load.tolist() == [0.5, 1.0, 2.0]
