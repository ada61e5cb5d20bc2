"""Where warm-up ends: a series, and how many of its first samples are set aside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.stats.warmup import detect_warmup

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


def test_five_per_cent_slower_is_tolerated():
    """A series without any spread tolerates 5 % and no more."""
    assert detect_warmup([105, *[100] * 7]) == 0
    assert detect_warmup([106, *[100] * 7]) == 1


def test_a_noisy_series_tolerates_its_own_noise():
    """Settled samples deviate by 10 from their median 100, so slow begins at 100 + 4 * 1.4826 * 10 = 159.3."""
    settled = [90, 110, 100, 110, 90]
    assert detect_warmup([159, 100, 100, 100, *settled]) == 0
    assert detect_warmup([160, 100, 100, 100, *settled]) == 1


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
