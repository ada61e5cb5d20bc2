"""What a series of latencies says about itself, on simulated series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.stats.modes import dip, modes
from opscope.core.stats.series import autocorrelation, binned, clock_step, effective_size, mid_ranks, trend
from opscope.core.stats.steady import Shape, level_changes, steadiness

LEVEL = 1e6
SERIES = 200


def noise(kind, count, length, seed=5):
    """Seeded noise of about unit scale; shape (count, length)."""
    rng = np.random.default_rng(seed)
    if kind == "autocorrelated":
        steps = rng.standard_normal((count, length + 50)) * np.sqrt(0.75)
        for index in range(1, length + 50):
            steps[:, index] += 0.5 * steps[:, index - 1]
        return steps[:, 50:]
    draws = {
        "normal": lambda: rng.standard_normal((count, length)),
        "t3": lambda: rng.standard_t(3, (count, length)),
        "t2": lambda: rng.standard_t(2, (count, length)),
        "lognormal": lambda: rng.lognormal(0, 0.5, (count, length)),
        "exponential": lambda: rng.exponential(1, (count, length)),
        "uniform": lambda: rng.uniform(-1.7, 1.7, (count, length)),
    }
    return draws[kind]()


def latencies(kind, count, length, spread=0.02, shape=1.0):
    """Series in nanoseconds around one level, times a shape."""
    return np.maximum(LEVEL * shape * (1 + spread * noise(kind, count, length)), LEVEL / 10)


def stepped(length, start, factor):
    """A level of 1 up to a sample, another one from there."""
    return np.where(np.arange(length) < start, 1.0, factor)


# Of 200 series, 17 is what a true rate of 5 % exceeds in 1 of 100 experiments; a rate of 10 % stays below it in 1 of 4.
@pytest.mark.parametrize("length", [20, 50, 200])
@pytest.mark.parametrize("kind", ["normal", "t3", "autocorrelated"])
def test_flat_series_are_called_flat(kind, length):
    """At most 5 in 100 get another shape or a drift, whatever their noise."""
    found = [steadiness(series) for series in latencies(kind, SERIES, length)]
    assert sum(one.shape is not Shape.FLAT for one in found) <= 17
    assert sum(one.drift_p < 0.05 for one in found if one.drift_p is not None) <= 17


@pytest.mark.parametrize("step", [1.0, 20_000.0], ids=["exact", "rounded"])
@pytest.mark.parametrize("kind", ["normal", "lognormal", "t2", "t3", "exponential", "uniform"])
def test_unimodal_noise_has_one_mode(kind, step):
    """At most 1 in 100 is called bimodal by chance, also when all samples share a dozen values; of 200, 7 may be."""
    found = [modes(np.round(series / step) * step, step) for series in latencies(kind, SERIES, 50, 0.1)]
    assert sum(len(one) > 1 for one in found) <= 7


@pytest.mark.parametrize(("length", "slow"), [(20, 1), (20, 3), (20, 10), (50, 1), (50, 3), (50, 10), (200, 30)])
def test_a_slower_begin_is_warmup(length, slow):
    """20 % slower inferences before a level with 2 % of noise: their number is found."""
    found = [steadiness(series) for series in latencies("normal", 50, length, 0.02, 1.2 / stepped(length, slow, 1.2))]
    assert sum(one.shape is Shape.WARMUP and abs(one.warmup - slow) <= 1 for one in found) >= 47
    assert all(one.settled == one.warmup for one in found if one.shape is Shape.WARMUP)


@pytest.mark.parametrize("slow", [1, 3, 10])
def test_warmup_that_decays_ends_where_noise_hides_it(slow):
    """Twice as slow at first, 4 % slower after the given number of samples, with 1 % of noise."""
    decay = 1 + 0.04 ** (np.arange(60) / slow)
    found = [steadiness(series) for series in latencies("normal", 50, 60, 0.01, decay)]
    assert all(one.shape is Shape.WARMUP for one in found)
    assert abs(np.median([one.warmup for one in found]) - slow) <= max(1, slow / 3)


def test_a_slowdown_is_found_where_it_begins():
    """5 % slower from the middle on: no warm-up, and what is steady is the last level."""
    found = [steadiness(series) for series in latencies("normal", 50, 50, 0.02, stepped(50, 25, 1.05))]
    right = [one for one in found if one.shape is Shape.SLOWDOWN and abs(one.changes[-1] - 25) <= 2]
    assert len(right) >= 46
    assert all(one.warmup == 0 and one.settled == one.changes[-1] for one in right)


@pytest.mark.parametrize(
    "shape",
    [stepped(60, 40, 0.9), stepped(60, 50, 1.1), stepped(60, 20, 1.1) / stepped(60, 40, 1.1)],
    ids=["faster in the last third", "slower for the last sixth", "slower and back"],
)
def test_a_series_that_does_not_settle_is_unsteady(shape):
    """Neither its begin nor its end is the steady part."""
    found = [steadiness(series) for series in latencies("normal", 40, 60, 0.01, shape)]
    assert sum(one.shape is Shape.UNSTEADY and one.settled is None for one in found) >= 38


def test_single_outliers_change_nothing():
    """Two inferences of 60 take up to five times as long, none of them the first."""
    rng = np.random.default_rng(9)
    series = latencies("normal", 100, 60)
    for one in series:
        one[rng.integers(1, 60, 2)] *= rng.uniform(1.5, 5, 2)
    found = [steadiness(one) for one in series]
    assert sum(one.shape is Shape.FLAT and not one.changes for one in found) >= 97
    assert all(len(one.modes) == 1 for one in found)


def test_a_short_disturbance_is_passed_over():
    """Of 100 inferences 8 in the middle are 50 % slower; the level before and behind is one."""
    series = latencies("normal", 1, 100, 0.01)[0]
    series[50:58] *= 1.5
    assert level_changes(series) == []
    series[50:70] = 1.5 * LEVEL * (1 + 0.01 * noise("normal", 1, 20)[0])
    assert level_changes(series) == [50, 70]


def test_drift_is_measured_and_signed():
    """3 % from begin to end within 1 % of noise, upwards and downwards."""
    ramp = 0.03 * np.arange(100) / 99
    for sign in (1, -1):
        found = [trend(series) for series in latencies("normal", 40, 100, 0.01, 1 + sign * ramp)]
        changes, p_values = zip(*found, strict=True)
        assert np.median(changes) == pytest.approx(sign * 0.03, abs=0.003)
        assert sum(p < 0.05 for p in p_values) >= 39


def test_two_modes_are_located_and_weighed():
    """70 % of inferences at one value, 30 % a fifth above, in random order."""
    rng = np.random.default_rng(3)
    series = LEVEL * np.where(rng.random((50, 60)) < 0.7, 1, 1.2) * (1 + 0.01 * rng.standard_normal((50, 60)))
    found = [steadiness(one) for one in series]
    two = [one.modes for one in found if len(one.modes) == 2]
    assert len(two) >= 45
    assert all(lower.location == pytest.approx(LEVEL, rel=0.02) for lower, _ in two)
    assert all(upper.location == pytest.approx(1.2 * LEVEL, rel=0.02) for _, upper in two)
    assert np.median([lower.share for lower, _ in two]) == pytest.approx(0.7, abs=0.03)
    assert sum(one.shape is Shape.FLAT for one in found) >= 45


def test_modes_that_lie_close_are_one():
    """4 % apart without any noise: the median cannot jump by more than that."""
    assert len(modes(np.repeat([100.0, 104.0], 50) + np.linspace(0, 0.1, 100))) == 1
    assert len(modes(np.repeat([100.0, 106.0], 50) + np.linspace(0, 0.1, 100))) == 2


def test_outliers_beside_a_fine_structure_are_no_mode():
    """Two clusters 2 % apart are too near to be modes; four outliers of 30 above them are too few to leave a gap."""
    fine = np.concatenate([np.linspace(1312, 1318, 14), np.linspace(1340, 1352, 12)])
    assert len(modes(np.concatenate([fine, [1562.0, 1787, 1868, 2162]]))) == 1


def test_dip_of_known_samples():
    """Two equal points give the largest dip, evenly spaced ones the smallest: half a sample."""
    clusters = np.concatenate([np.linspace(0, 1e-9, 100), np.linspace(1, 1 + 1e-9, 100)])
    assert dip(clusters) == pytest.approx(0.25, abs=0.005)
    assert dip(np.arange(50.0)) == pytest.approx(1 / 100)
    assert dip(np.array([0.0, 1, 2, 10, 11, 12])) == pytest.approx(1 / 5)
    # Known by linear programming; the hulls of the first run parallel between 6 and 139.
    assert dip(np.array([1.0, 6, 77, 139, 144])) == pytest.approx(0.18913043)
    assert dip(np.array([8.0, 35, 49, 96, 97, 128, 158, 188, 189])) == pytest.approx(0.10869565)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 10**6), min_size=4, max_size=40, unique=True))
def test_the_dip_depends_on_neither_unit_nor_direction(values):
    """Scaled and mirrored samples are as unimodal as they were."""
    ordered = np.sort(np.array(values, np.float64))
    assert 1 / (2 * len(values)) <= dip(ordered) + 1e-12 <= 0.25 + 1e-9
    assert dip(ordered * 8) == pytest.approx(dip(ordered))
    assert dip(-ordered[::-1]) == pytest.approx(dip(ordered))


def test_autocorrelation_and_what_it_costs():
    """Neighbours that agree by half leave a third as many independent samples; independent ones nearly all."""
    correlated = latencies("autocorrelated", 60, 200)
    assert np.median([autocorrelation(one) for one in correlated]) == pytest.approx(0.5, abs=0.05)
    assert np.median([effective_size(one) for one in correlated]) == pytest.approx(200 / 3, rel=0.15)
    free = latencies("t2", 60, 200)
    assert np.median([autocorrelation(one) for one in free]) == pytest.approx(0, abs=0.05)
    assert np.median([effective_size(one) for one in free]) > 170


def test_few_samples_know_little():
    """Null, not a guess: no shape below 12 samples, no drift or correlation below 10, one mode."""
    one = steadiness([7.0])
    assert (one.warmup, one.shape, one.drift, one.drift_p, one.effective_n) == (0, None, None, None, None)
    assert [(mode.location, mode.share) for mode in one.modes] == [(7.0, 1.0)]
    few = steadiness([300, 100, 101, 99, 100])
    assert (few.warmup, few.shape, few.settled, few.autocorrelation) == (1, None, 1, None)


def test_no_sample_is_an_error():
    """Nothing measured is not a steady series."""
    with pytest.raises(ValueError, match="no samples"):
        steadiness([])


def test_equal_samples_are_flat():
    """A clock too coarse to see any noise: no drift, and nothing known of correlation."""
    found = steadiness([5000] * 40)
    assert (found.shape, found.changes, found.drift, found.drift_p) == (Shape.FLAT, [], 0, 1)
    assert (found.autocorrelation, found.effective_n, len(found.modes)) == (None, None, 1)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(1, 10**9) | st.integers(1, 4), min_size=1, max_size=60), st.sampled_from([2, 1024]))
def test_any_series_is_judged_in_any_unit(samples, factor):
    """Nothing fails, nothing is out of range, and a clock with another unit gives the same answer."""
    found = steadiness(samples)
    assert 0 <= found.warmup <= len(samples) / 2
    assert found.changes == sorted(set(found.changes))
    assert all(found.warmup <= change < len(samples) or change > 0 for change in found.changes)
    assert found.drift_p is None or 0 <= found.drift_p <= 1
    assert found.effective_n is None or 0 < found.effective_n <= len(samples)
    assert sum(mode.share for mode in found.modes) == pytest.approx(1)
    scaled = steadiness([sample * factor for sample in samples])
    assert (scaled.warmup, scaled.shape, scaled.changes) == (found.warmup, found.shape, found.changes)


def test_ranks_of_ties_are_shared():
    """Equal samples have one rank."""
    assert mid_ranks(np.array([30.0, 10, 20, 20])).tolist() == [4, 1, 2.5, 2.5]


def test_the_clock_is_known_by_its_step():
    """Whole microseconds in nanoseconds share the factor 1000; fractions say nothing."""
    assert clock_step(np.array([45_000.0, 46_000, 61_000])) == 1000
    assert clock_step(np.array([45_000.5, 46_000])) == 0


def test_a_long_series_is_binned_by_medians():
    """At most as many groups as asked for; what is left over at the end is not a group."""
    places, medians = binned(np.arange(11.0), 4)
    assert places.tolist() == [1, 4, 7]
    assert medians.tolist() == [1, 4, 7]
