"""Quantiles against published tables and closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.stats.distributions import median_ranks, normal_cdf, t_cdf, t_quantile

# NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2, "Critical Values of the Student's t Distribution",
# https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
NIST = {
    #     0.90   0.95   0.975   0.99    0.995
    1: (3.078, 6.314, 12.706, 31.821, 63.657),
    2: (1.886, 2.920, 4.303, 6.965, 9.925),
    3: (1.638, 2.353, 3.182, 4.541, 5.841),
    5: (1.476, 2.015, 2.571, 3.365, 4.032),
    9: (1.383, 1.833, 2.262, 2.821, 3.250),
    10: (1.372, 1.812, 2.228, 2.764, 3.169),
    20: (1.325, 1.725, 2.086, 2.528, 2.845),
    30: (1.310, 1.697, 2.042, 2.457, 2.750),
    60: (1.296, 1.671, 2.000, 2.390, 2.660),
    100: (1.290, 1.660, 1.984, 2.364, 2.626),
}
DEGREES = st.integers(1, 200)
PROBABILITIES = st.floats(0.001, 0.999)


def enclosed(count: int, ranks: tuple[int, int]) -> float:
    """Probability that the median lies between two order statistics, by exact counting."""
    low, high = ranks
    return sum(math.comb(count, below) for below in range(low + 1, high + 1)) / 2**count


@pytest.mark.parametrize("degrees", NIST)
def test_t_quantiles_are_those_of_the_nist_table(degrees):
    """To the three decimals that are printed there."""
    found = [round(t_quantile(probability, degrees), 3) for probability in (0.90, 0.95, 0.975, 0.99, 0.995)]
    assert found == pytest.approx(NIST[degrees], abs=1e-9)


@pytest.mark.parametrize("value", [-30.0, -1.0, 0.0, 0.5, 12.706])
def test_t_with_one_degree_is_the_cauchy_distribution(value):
    """Its distribution function is 1/2 + atan(x)/pi."""
    assert t_cdf(value, 1) == pytest.approx(0.5 + math.atan(value) / math.pi, abs=1e-13)


@pytest.mark.parametrize("value", [-30.0, -1.0, 0.0, 0.5, 4.303])
def test_t_with_two_degrees_has_a_closed_form(value):
    """Its distribution function is 1/2 + x / (2 sqrt(2 + x^2))."""
    assert t_cdf(value, 2) == pytest.approx(0.5 + value / (2 * math.sqrt(2 + value * value)), abs=1e-13)


def test_t_with_many_degrees_is_nearly_normal():
    """The 97.5 % quantile approaches 1.959964."""
    assert t_quantile(0.975, 1_000_000) == pytest.approx(1.959964, abs=1e-5)


def test_the_median_of_t_is_zero():
    """The distribution is symmetric."""
    assert t_quantile(0.5, 4) == pytest.approx(0, abs=1e-12)


@settings(deadline=None)
@given(PROBABILITIES, DEGREES)
def test_the_quantile_inverts_the_distribution_function(probability, degrees):
    """The value at a probability has that probability."""
    assert t_cdf(t_quantile(probability, degrees), degrees) == pytest.approx(probability, abs=1e-9)


@settings(deadline=None)
@given(PROBABILITIES, DEGREES)
def test_t_is_symmetric(probability, degrees):
    """Lower quantiles are the negative upper ones."""
    assert t_quantile(1 - probability, degrees) == pytest.approx(-t_quantile(probability, degrees), abs=1e-6)


@pytest.mark.parametrize(("value", "expected"), [(0, 0.5), (1, 0.841345), (-1.959964, 0.025), (1.644854, 0.95)])
def test_normal_probabilities(value, expected):
    """The values everybody knows."""
    assert normal_cdf(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(6, (0, 5)), (7, (0, 6)), (8, (0, 7)), (9, (1, 7)), (10, (1, 8)), (20, (5, 14)), (25, (7, 17)), (100, (39, 60))],
)
def test_ranks_that_enclose_the_median(count, expected):
    """Of 10 samples the 2nd and 9th, of 20 the 6th and 15th, of 100 the 40th and 61st enclose it with 95 %."""
    assert median_ranks(count, 0.95) == expected


@pytest.mark.parametrize(("count", "confidence"), [(0, 0.95), (1, 0.95), (5, 0.95), (7, 0.99)])
def test_too_few_samples_have_no_ranks(count, confidence):
    """Even smallest and largest do not reach the confidence: 2 * 0.5^5 is more than 5 %, 2 * 0.5^7 more than 1 %."""
    assert median_ranks(count, confidence) is None


def test_a_single_sample_reaches_no_confidence_but_two_reach_half():
    """Two samples lie on different sides of the median in half of all experiments."""
    assert median_ranks(1, 0.5) is None
    assert median_ranks(2, 0.5) == (0, 1)


@settings(deadline=None)
@given(st.integers(6, 300), st.sampled_from([0.8, 0.9, 0.95]))
def test_ranks_are_the_closest_that_reach_the_confidence(count, confidence):
    """The interval keeps its promise; one rank less on each side would break it."""
    low, high = median_ranks(count, confidence)
    assert low + high == count - 1
    assert enclosed(count, (low, high)) >= confidence - 1e-12
    assert enclosed(count, (low + 1, high - 1)) < confidence
