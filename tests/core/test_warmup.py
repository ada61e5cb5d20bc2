"""Where warm-up ends: a series, and how many of its first samples are set aside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.stats.steady import detect_warmup

STEADY = [100, 101, 99, 100, 100, 101, 99, 100]


@pytest.mark.parametrize(
    ("slow", "expected"),
    [([], 0), ([500], 1), ([500, 300], 2), ([500, 300, 120], 3)],
    ids=["none", "one", "two", "three"],
)
def test_slow_first_samples_are_warmup(slow, expected):
    """As many as are slower than the series later is."""
    assert detect_warmup([*slow, *STEADY]) == expected


def test_warmup_ends_at_the_first_sample_that_is_not_slow():
    """A slow sample behind it is noise, not warm-up."""
    assert detect_warmup([500, 100, 500, *STEADY]) == 1


def test_a_fast_first_sample_is_no_warmup():
    """Only slowness is."""
    assert detect_warmup([10, *STEADY]) == 0


def test_three_per_cent_slower_is_tolerated():
    """A series without any spread tolerates 3 % and no more."""
    assert detect_warmup([1029, *[1000] * 7]) == 0
    assert detect_warmup([1031, *[1000] * 7]) == 1


def test_a_noisy_series_tolerates_its_own_noise():
    """Settled samples deviate by 10 from their median 100, so slow begins at 100 + 4.5 * 1.4826 * 10 = 166.7."""
    settled = [90, 110, 100, 110, 90]
    assert detect_warmup([166, 100, 100, 100, *settled]) == 0
    assert detect_warmup([167, 100, 100, 100, *settled]) == 1


def test_behind_a_slow_first_sample_less_suffices():
    """Then slow begins at 100 + 2.5 * 1.4826 * 10 = 137.1."""
    settled = [90, 110, 100, 110, 90]
    assert detect_warmup([300, 138, 100, 100, *settled]) == 2
    assert detect_warmup([300, 137, 100, 100, *settled]) == 1


def test_noise_that_rounding_hides_is_no_warmup():
    """Whole microseconds of 30: one or two more are rounding and noise, though half of all samples are equal."""
    settled = [30_000, 30_000, 31_000, 30_000, 30_000, 29_000, 30_000]
    assert detect_warmup([32_000, *settled, *settled]) == 0
    assert detect_warmup([40_000, *settled, *settled]) == 1


def test_a_slower_mode_is_no_warmup():
    """The first sample is slow, and so is every third one behind it."""
    assert detect_warmup([150, *[100, 101, 150] * 10]) == 0


def test_a_slower_level_is_warmup_though_its_noise_is_as_large():
    """The first 20 of 60 are 5 % slower within noise of 2 %, so that no single one of them stands out."""
    noise = [0, 2, -1, 1, -2, 3, -3, 1, 0, -1, 2, -2, 1, -1, 3, 0, -3, 2, -2, 0]
    series = [105 + value for value in noise] + [100 + value for value in noise * 2]
    assert abs(detect_warmup(series) - 20) <= 2


def test_at_most_half_of_a_series_is_warmup():
    """The second half is what the first is judged by."""
    assert detect_warmup([500] * 5 + [100] * 5) == 5
    assert detect_warmup([500] * 8 + [100] * 2) == 0


def test_a_series_that_gets_slower_has_no_warmup():
    """Throttling is not warming up."""
    assert detect_warmup(list(range(100, 200, 10))) == 0


@pytest.mark.parametrize(("samples", "expected"), [([], 0), ([9], 0), ([9, 9], 1), ([9, 1, 1], 1)])
def test_of_a_few_samples_only_the_first_is_warmup(samples, expected):
    """Fewer than four say nothing about themselves; a single one is kept, for it is all there is."""
    assert detect_warmup(samples) == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=30))
def test_something_is_always_left_to_measure(samples):
    """Warm-up never takes more than half of a series."""
    assert 0 <= detect_warmup(samples) <= len(samples) / 2


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=4, max_size=30), st.sampled_from([2, 1024]))
def test_the_unit_does_not_matter(samples, factor):
    """A clock with another unit gives the same answer."""
    assert detect_warmup([value * factor for value in samples]) == detect_warmup(samples)
