"""A sample described: every figure worked out by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.latency.latency import Latency, OutlierCount, latency_of

SAMPLES = st.lists(st.integers(1, 10**9), min_size=1, max_size=40)


def summarise(samples: list[int]) -> Latency:
    """The calls of one process, without warm-up."""
    return latency_of("untraced", [samples], [[]], [None])


def test_location_and_spread():
    """Of 1, 2, 3, 4 and 100 the squared deviations from 22 add up to 7610."""
    found = summarise([1, 2, 3, 4, 100])
    assert (found.n, found.median_ns, found.mean_ns, found.min_ns, found.max_ns) == (5, 3, 22, 1, 100)
    assert found.stdev_ns == pytest.approx(math.sqrt(7610 / 4))
    assert found.cv == pytest.approx(math.sqrt(7610 / 4) / 22)


def test_the_median_absolute_deviation_shrugs_off_an_outlier():
    """Distances from the median 3 are 2, 1, 0, 1 and 97; their median is 1."""
    assert summarise([1, 2, 3, 4, 100]).mad_ns == 1


def test_quantiles_interpolate_linearly():
    """The 90th percentile of five values lies at rank 3.6: between 4 and 100."""
    found = summarise([1, 2, 3, 4, 100])
    assert (found.p50_ns, found.p90_ns, found.p95_ns, found.p99_ns) == pytest.approx((3, 61.6, 80.8, 96.16))


def test_the_median_of_an_even_number_lies_halfway():
    """Between the two in the middle."""
    assert summarise([1, 2, 4, 10]).median_ns == 3


def test_outliers_lie_beyond_one_and_a_half_interquartile_ranges():
    """The quartiles are 2 and 4, so the fences stand at -1 and 7, and 100 is counted but kept."""
    found = summarise([1, 2, 3, 4, 100])
    assert found.outliers == OutlierCount(count=1, low_ns=-1, high_ns=7)
    assert found.max_ns == 100


def test_a_value_on_the_fence_is_no_outlier():
    """The fences belong to the inside."""
    assert summarise([1, 2, 3, 4, 7]).outliers == OutlierCount(count=0, low_ns=-1, high_ns=7)


def test_one_sample_has_no_spread():
    """Standard deviation, variation and interval are absent, not 0 and not nan."""
    found = summarise([5])
    assert (found.median_ns, found.p99_ns, found.mad_ns) == (5, 5, 0)
    assert (found.stdev_ns, found.cv, found.ci95_median_ns) == (None, None, None)


def test_five_samples_cannot_give_an_interval_of_the_median():
    """All five lie on one side of the median in 1 of 16 experiments: more than 5 %."""
    assert summarise([1, 2, 3, 4, 5]).ci95_median_ns is None


def test_six_samples_give_the_widest_interval():
    """Smallest to largest."""
    assert summarise([4, 1, 6, 2, 5, 3]).ci95_median_ns == (1, 6)


def test_ten_samples_leave_out_one_on_each_side():
    """The second and the ninth enclose the median in 97.9 % of experiments."""
    assert summarise([10, 20, 30, 40, 50, 60, 70, 80, 90, 100]).ci95_median_ns == (20, 90)


def test_no_variation_where_all_samples_agree():
    """A clock that is too coarse gives 0, which is a measurement."""
    found = summarise([7] * 8)
    assert (found.stdev_ns, found.cv, found.mad_ns, found.ci95_median_ns) == (0, 0, 0, (7, 7))


def test_variation_relative_to_zero_is_absent():
    """Samples that all read 0 have no relative spread."""
    assert summarise([0, 0, 0]).cv is None


@settings(deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples, random):
    """A summary describes a set of values."""
    found, shuffled = summarise(samples), summarise(random.sample(samples, len(samples)))
    unordered = {"samples_ns": [], "processes": []}
    assert msgspec.structs.replace(shuffled, **unordered) == msgspec.structs.replace(found, **unordered)


@settings(deadline=None)
@given(SAMPLES)
def test_quantiles_are_ordered(samples):
    """Smallest, median, tail and largest never change places, and the interval encloses the median."""
    found = summarise(samples)
    ordered = [found.min_ns, found.median_ns, found.p90_ns, found.p95_ns, found.p99_ns, found.max_ns]
    assert ordered == sorted(ordered)
    if found.ci95_median_ns:
        low, high = found.ci95_median_ns
        assert low <= found.median_ns <= high


def test_trimmed_means_leave_out_both_ends() -> None:
    """Of 40 samples 5 % are two at either end; of 19, less than one, so nothing is left out."""
    samples = [*range(1, 39), 1_000, 10_000]
    found = summarise(samples)
    assert found.trimmed_mean_5_ns == pytest.approx(sum(range(3, 39)) / 36)
    assert found.trimmed_mean_10_ns == pytest.approx(sum(range(5, 37)) / 32)
    few = summarise(list(range(19)))
    assert few.trimmed_mean_5_ns == few.mean_ns
