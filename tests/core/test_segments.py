"""Levels, drifts and outliers of a series of runs: what is found, what is not, and how often it is wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.core.stats.segments import FEWEST_RUNS, SeriesSegment, outliers, segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RUNS = 30
TRIES = 200


def scattered(shape: Callable[[int], float], scatter: float, seed: int, runs: int = RUNS) -> NDArray[np.float64]:
    """Runs of a shape with normal noise on their logarithms."""
    noise = np.random.default_rng(seed).normal(0, scatter, runs)
    return np.exp(np.array([shape(run) for run in range(runs)]) + noise)


def share(shape: Callable[[int], float], scatter: float, wanted: Callable[[list[SeriesSegment]], bool]) -> float:
    """Share of noises with which what is wanted is found."""
    return sum(wanted(segments(scattered(shape, scatter, seed))) for seed in range(TRIES)) / TRIES


def changed(found: list[SeriesSegment]) -> bool:
    """Anything but one level."""
    return len(found) > 1 or found[0].drifts


def flat(_run: int) -> float:
    """No change."""
    return 0.0


def step(size: float) -> Callable[[int], float]:
    """A step in the middle."""
    return lambda run: math.log1p(size) * (run >= RUNS // 2)


def drift(size: float) -> Callable[[int], float]:
    """An even rise from the first to the last run."""
    return lambda run: math.log1p(size) * run / (RUNS - 1)


@pytest.mark.parametrize("scatter", [0.003, 0.01, 0.02])
def test_noise_is_seldom_called_a_change(scatter: float) -> None:
    """At most 2 in 100 series, and of 200 not many more by chance."""
    assert share(flat, scatter, changed) <= 0.045


@pytest.mark.parametrize(
    ("size", "scatter", "least"),
    [(0.06, 0.003, 1.0), (0.06, 0.01, 0.99), (0.06, 0.02, 0.8), (0.1, 0.02, 0.97), (0.2, 0.003, 1.0), (0.2, 0.02, 1.0)],
)
def test_a_slow_drift_is_found(size: float, scatter: float, least: float) -> None:
    """6, 10 and 20 % over thirty runs."""
    assert share(drift(size), scatter, changed) >= least


@pytest.mark.parametrize(
    ("size", "scatter", "least"), [(0.03, 0.003, 1.0), (0.03, 0.01, 0.97), (0.03, 0.02, 0.66), (0.05, 0.02, 0.97)]
)
def test_a_step_is_found(size: float, scatter: float, least: float) -> None:
    """3 and 5 % in the middle of thirty runs."""
    assert share(step(size), scatter, changed) >= least


def test_a_step_is_no_drift_and_stands_at_its_place() -> None:
    """5 % at 1 % scatter: two levels, and the border within two runs of the truth in 9 of 10 series."""

    def placed(found: list[SeriesSegment]) -> bool:
        return len(found) == 2 and not any(one.drifts for one in found) and abs(found[1].first - RUNS // 2) <= 2

    assert share(step(0.05), 0.01, placed) >= 0.9


def test_a_drift_is_one_drift_with_its_size() -> None:
    """20 % at 0.3 % scatter is not cut to steps."""
    (one,) = segments(scattered(drift(0.2), 0.003, 1))
    assert one.drifts
    assert one.ends / one.begins == pytest.approx(1.2, abs=0.01)


def test_a_drift_that_ends_in_a_step_is_both() -> None:
    """Fourteen runs rise by 10 %, then the level falls below where it began."""
    values = scattered(lambda run: 0.1 * run / 13 if run < 14 else -0.1, 0.003, 2)
    rising, fallen = segments(values)
    assert (rising.drifts, fallen.drifts, fallen.first) == (True, False, 14)


def test_a_level_between_two_others_is_found() -> None:
    """Ten slow runs in the middle of forty: three levels."""
    found = segments(scattered(lambda run: 0.06 * (15 <= run < 25), 0.01, 3, 40))
    assert [one.first for one in found] == pytest.approx([0, 15, 25], abs=1)


def test_one_night_that_is_off_is_an_outlier_and_no_change() -> None:
    """30 % more in one run; the level is that of the others."""
    values = scattered(flat, 0.01, 4)
    values[20] *= 1.3
    found = segments(values)
    assert not changed(found)
    assert outliers(values, found) == [20]


def test_changes_too_small_to_act_on_are_not_told() -> None:
    """A step of 0.5 % is clear at 0.05 % scatter, and left alone."""
    assert not changed(segments(scattered(step(0.005), 0.0005, 5)))


def test_noise_that_is_correlated_from_run_to_run_widens_the_limits() -> None:
    """An autoregressive process with a correlation of 0.8 wanders by itself: at most two in five series are called."""
    called = 0
    for seed in range(TRIES):
        noise = np.random.default_rng(seed).normal(0, 0.02, 120)
        for run in range(1, 120):
            noise[run] = 0.8 * noise[run - 1] + 0.6 * noise[run]
        called += changed(segments(np.exp(noise)))
    assert called / TRIES < 0.4


def test_few_runs_and_equal_runs_are_one_level() -> None:
    """Nothing is looked for below twelve runs, and equal values hold no change."""
    assert segments(np.array([])) == []
    assert segments(np.array([1.0] * 5 + [2.0] * 6)) == [SeriesSegment(0, 11, 2.0, 2.0)]
    assert segments(np.full(40, 7.0)) == [SeriesSegment(0, 40, pytest.approx(7.0), pytest.approx(7.0))]


def test_runs_of_a_coarse_clock_have_their_step_too() -> None:
    """More than half of the values equal: the deviation of the middle is zero."""
    values = np.array([100.0] * 20 + [105.0] * 10)
    assert [one.first for one in segments(values)] == [0, 20]


@given(
    st.lists(st.floats(0.5, 2.0), min_size=FEWEST_RUNS, max_size=80),
    st.floats(1e-3, 1e9),
)
def test_segments_cover_the_series_in_any_unit(values: list[float], unit: float) -> None:
    """They follow each other without gaps, and a unit changes their values alone."""
    series = np.array(values)
    found = segments(series)
    assert [one.first for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == len(series)
    assert all(one.end - one.first >= 3 for one in found)
    scaled = segments(series * unit)
    assert [(one.first, one.end, one.drifts) for one in scaled] == [(one.first, one.end, one.drifts) for one in found]
