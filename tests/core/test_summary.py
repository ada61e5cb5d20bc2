"""A sample described: every figure worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.stats.summary import Outliers, summarise

SAMPLES = st.lists(st.integers(1, 10**9), min_size=1, max_size=40)


def test_location_and_spread():
    """Of 1, 2, 3, 4 and 100 the squared deviations from 22 add up to 7610."""
    found = summarise([1, 2, 3, 4, 100])
    assert (found.n, found.median, found.mean, found.min, found.max) == (5, 3, 22, 1, 100)
    assert found.stdev == pytest.approx(math.sqrt(7610 / 4))
    assert found.cv == pytest.approx(math.sqrt(7610 / 4) / 22)


def test_the_median_absolute_deviation_shrugs_off_an_outlier():
    """Distances from the median 3 are 2, 1, 0, 1 and 97; their median is 1."""
    assert summarise([1, 2, 3, 4, 100]).mad == 1


def test_quantiles_interpolate_linearly():
    """The 90th percentile of five values lies at rank 3.6: between 4 and 100."""
    found = summarise([1, 2, 3, 4, 100])
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx((3, 61.6, 80.8, 96.16))


def test_the_median_of_an_even_number_lies_halfway():
    """Between the two in the middle."""
    assert summarise([1, 2, 4, 10]).median == 3


def test_outliers_lie_beyond_one_and_a_half_interquartile_ranges():
    """The quartiles are 2 and 4, so the fences stand at -1 and 7, and 100 is counted but kept."""
    found = summarise([1, 2, 3, 4, 100])
    assert found.outliers == Outliers(count=1, low=-1, high=7)
    assert found.max == 100


def test_a_value_on_the_fence_is_no_outlier():
    """The fences belong to the inside."""
    assert summarise([1, 2, 3, 4, 7]).outliers == Outliers(count=0, low=-1, high=7)


def test_one_sample_has_no_spread():
    """Standard deviation, variation and interval are absent, not 0 and not nan."""
    found = summarise([5])
    assert (found.median, found.p99, found.mad) == (5, 5, 0)
    assert (found.stdev, found.cv, found.ci95_median) == (None, None, None)


def test_five_samples_cannot_give_an_interval_of_the_median():
    """All five lie on one side of the median in 1 of 16 experiments: more than 5 %."""
    assert summarise([1, 2, 3, 4, 5]).ci95_median is None


def test_six_samples_give_the_widest_interval():
    """Smallest to largest."""
    assert summarise([4, 1, 6, 2, 5, 3]).ci95_median == (1, 6)


def test_ten_samples_leave_out_one_on_each_side():
    """The second and the ninth enclose the median in 97.9 % of experiments."""
    assert summarise([10, 20, 30, 40, 50, 60, 70, 80, 90, 100]).ci95_median == (20, 90)


def test_no_variation_where_all_samples_agree():
    """A clock that is too coarse gives 0, which is a measurement."""
    found = summarise([7] * 8)
    assert (found.stdev, found.cv, found.mad, found.ci95_median) == (0, 0, 0, (7, 7))


def test_variation_relative_to_zero_is_absent():
    """Samples that all read 0 have no relative spread."""
    assert summarise([0, 0, 0]).cv is None


def test_no_sample_is_an_error():
    """Not measured is not a number."""
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


@settings(deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples, random):
    """A summary describes a set of values."""
    assert summarise(random.sample(samples, len(samples))) == summarise(samples)


@settings(deadline=None)
@given(SAMPLES)
def test_quantiles_are_ordered(samples):
    """Smallest, median, tail and largest never change places, and the interval encloses the median."""
    found = summarise(samples)
    ordered = [found.min, found.median, found.p90, found.p95, found.p99, found.max]
    assert ordered == sorted(ordered)
    if found.ci95_median:
        low, high = found.ci95_median
        assert low <= found.median <= high


def test_trimmed_means_leave_out_both_ends() -> None:
    """Of 40 samples 5 % are two at either end; of 19, less than one, so nothing is left out."""
    samples = [*range(1, 39), 1_000, 10_000]
    found = summarise(samples)
    assert found.trimmed_mean_5 == pytest.approx(sum(range(3, 39)) / 36)
    assert found.trimmed_mean_10 == pytest.approx(sum(range(5, 37)) / 32)
    few = summarise(list(range(19)))
    assert few.trimmed_mean_5 == few.mean
