"""The interval of a ratio of two sums."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.core.stats.distributions import ratio_interval


def test_equal_pairs_leave_no_doubt() -> None:
    """Twelve times 1,010 over 340: the interval is the ratio."""
    assert ratio_interval(np.full(12, 1010.0), np.full(12, 340.0)) == pytest.approx((1010 / 340, 1010 / 340))


def test_a_mean_has_student_s_interval() -> None:
    """Over constant ones the ratio is the mean, whose jackknife is the textbook's standard error."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    half = 2.570582 * values.std(ddof=1) / np.sqrt(6)

    assert ratio_interval(values, np.ones(6)) == pytest.approx((3.5 - half, 3.5 + half))


def test_it_covers_what_it_should() -> None:
    """In 2,000 samples of twenty pairs the true ratio of 2 lies within in 92 to 97 of 100."""
    random = np.random.default_rng(7)
    below = random.gamma(20, 5, (2000, 20))
    above = 2 * below + random.normal(0, 40, below.shape)
    found = [ratio_interval(one, other) for one, other in zip(above, below, strict=True)]

    assert 0.92 < np.mean([own is not None and own[0] <= 2 <= own[1] for own in found]) < 0.97


@pytest.mark.parametrize(("above", "below"), [([1.0] * 5, [1.0] * 5), ([1.0] * 6, [0.0] * 5 + [1.0]), ([], [])])
def test_too_few_pairs_have_none(above: list[float], below: list[float]) -> None:
    """Five pairs, pairs of which one alone has a denominator, none at all."""
    assert ratio_interval(np.array(above), np.array(below)) is None
