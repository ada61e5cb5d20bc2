"""Differences of outputs of two programs, and agreement of the classes that they predict."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.compare.outputs import compare_samples, compare_single_input, output_differences
from opscope.core.stats.distributions import binomial_interval

NAN, INF = math.nan, math.inf


def test_the_difference_of_two_vectors() -> None:
    """By hand: 3, 4 against 3, 3: one apart, a quarter of the largest, a fifth of the norm."""
    (found,) = output_differences([np.array([[3.0, 4.0]])], [np.array([[3.0, 3.0]])])
    assert (found.values, found.max_abs, found.max_rel) == (2, 1.0, 0.25)
    assert found.rms_rel == pytest.approx(0.2)
    assert found.cosine == pytest.approx(21 / (5 * math.sqrt(18)))
    assert not found.equal


def test_equal_outputs() -> None:
    """Nothing differs, NaN and infinities at the same places included."""
    values = np.array([1.0, NAN, -INF, 2.0], np.float32)
    (found,) = output_differences([values], [values.copy()])
    assert (found.baseline_nonfinite, found.candidate_nonfinite, found.unlike_nonfinite) == (2, 2, 0)
    assert (found.max_abs, found.max_rel) == (0.0, 0.0)
    assert found.cosine == pytest.approx(1.0)
    assert found.equal


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    """Of four values one is finite on both sides; infinities of other signs are not the same."""
    (found,) = output_differences([np.array([1.0, NAN, INF, 2.0])], [np.array([1.5, 0.0, -INF, NAN])])
    assert (found.baseline_nonfinite, found.candidate_nonfinite, found.unlike_nonfinite) == (2, 2, 3)
    assert (found.max_abs, found.max_rel, found.cosine) == (0.5, 0.5, 1.0)


def test_nothing_finite_has_no_figures() -> None:
    """A figure that is not defined is null, and outputs of NaN on one side are not equal."""
    (found,) = output_differences([np.array([1.0])], [np.array([NAN])])
    assert (found.max_abs, found.max_rel, found.rms_rel, found.cosine) == (None, None, None, None)
    assert not found.equal


def test_a_baseline_of_zeros() -> None:
    """There is nothing to be relative to; two sides of zeros are equal."""
    apart, same = output_differences([np.zeros(2), np.zeros(2)], [np.array([0.0, 1e-3]), np.zeros(2)])
    assert (apart.max_abs, apart.max_rel, apart.rms_rel, apart.cosine) == (pytest.approx(1e-3), None, None, None)
    assert (same.max_abs, same.max_rel, same.cosine) == (0.0, 0.0, None)
    assert same.equal


def test_integers_and_truth_values() -> None:
    """Unsigned ones do not wrap around."""
    (found, flags) = output_differences(
        [np.array([1, 10], np.uint8), np.array([True, False])], [np.array([2, 10], np.uint8), np.array([True, True])]
    )
    assert found.max_abs == pytest.approx(1.0)
    assert found.max_rel == pytest.approx(0.1)
    assert flags.max_abs == pytest.approx(1.0)


def test_large_values_do_not_overflow() -> None:
    """Squares of such values are infinite."""
    (found,) = output_differences([np.array([1e300, 1e300])], [np.array([1e300, 0.0])])
    assert found.max_rel == pytest.approx(1.0)
    assert found.cosine == pytest.approx(math.sqrt(0.5))


def test_an_empty_output() -> None:
    """It has no values and nothing that differs."""
    found = compare_single_input([np.zeros((0, 3))], [np.zeros((0, 3))])
    assert (found.outputs[0].values, found.outputs[0].max_abs, found.equal) == (0, None, True)


def test_other_shapes_are_not_compared() -> None:
    """One output of two is refused by itself; where no output fits, nothing is compared."""
    one = compare_single_input([np.ones(2), np.ones(3)], [np.ones(2), np.ones(4)])
    assert one.inputs == 1
    assert one.outputs[1].problem == "its shape is [3] in the baseline and [4] in the candidate"
    none = compare_single_input([np.ones((1, 3))], [np.ones((1, 4))])
    assert (none.inputs, none.outputs) == (0, [])
    assert none.reason == "output 0: its shape is [1, 3] in the baseline and [1, 4] in the candidate"
    count = compare_single_input([np.ones(2)], [np.ones(2), np.ones(2)])
    assert count.reason == "the baseline has 1 output, the candidate 2"
    assert compare_single_input([], []).reason == "the programs return no tensors"


def test_top1_agreement_and_accuracy() -> None:
    """Four inputs, three classes: the sides agree on two; and each is right on three."""
    baseline = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0]], np.float32)
    candidate = np.array([[8, 0, 0], [0, 0, 7], [0, 0, 7], [0, 8, 0]], np.float32)
    found = compare_samples([baseline], [candidate], np.array([0, 1, 2, 1]))
    assert found.inputs == 4
    assert found.top1 is not None
    assert found.top1.classes == 3
    assert (found.top1.agreement.count, found.top1.agreement.n) == (2, 4)
    assert found.top1.baseline is not None
    assert found.top1.candidate is not None
    assert (found.top1.baseline.count, found.top1.candidate.count) == (3, 3)


def test_unlabelled_inputs_count_for_agreement_alone() -> None:
    """A label of -1 says that the class is not known."""
    outputs = np.eye(3)
    some = compare_samples([outputs], [outputs], np.array([0, -1, 1])).top1
    none = compare_samples([outputs], [outputs], np.array([-1, -1, -1])).top1
    assert some is not None
    assert none is not None
    assert some.baseline is not None
    assert (some.agreement.n, some.baseline.count, some.baseline.n) == (3, 1, 2)
    assert none.baseline is None


def test_a_side_with_nan_predicts_no_class() -> None:
    """Two sides of NaN do not agree on a class either."""
    outputs = np.array([[1.0, NAN], [0.0, 1.0]])
    found = compare_samples([outputs], [outputs], np.array([1, 1])).top1
    assert found is not None
    assert found.baseline is not None
    assert (found.agreement.count, found.baseline.count) == (1, 1)


def test_an_output_that_is_the_class() -> None:
    """Where a program ends with argmax."""
    found = compare_samples([np.array([[3], [5]])], [np.array([[3], [4]])], np.array([3, 5])).top1
    assert found is not None
    assert found.candidate is not None
    assert (found.classes, found.agreement.count, found.candidate.count) == (None, 1, 1)


@pytest.mark.parametrize(
    ("shape", "labels", "said"),
    [
        ((2, 1, 4, 4), [0, 1], r"\[1, 4, 4\] for each input"),
        ((2, 1), [0, 1], "a single number"),
        ((2, 3), [0, 3], "a label is 3, .* 3 values, for the classes 0 to 2"),
    ],
)
def test_outputs_without_classes(shape: tuple[int, ...], labels: list[int], said: str) -> None:
    """The difference is told all the same."""
    found = compare_samples([np.ones(shape)], [np.ones(shape)], np.array(labels))
    assert found.top1 is None
    assert found.outputs[0].equal
    assert found.reason is not None
    assert found.inputs == 2
    assert re.search(said, found.reason)


def test_exact_binomial_intervals() -> None:
    """8 of 10, none and all of 10; the latter two in closed form, 1 - 0.025 ** (1 / 10)."""
    assert binomial_interval(8, 10) == pytest.approx((0.44390, 0.97479), abs=1e-5)
    end = 0.025**0.1
    assert binomial_interval(0, 10) == pytest.approx((0.0, 1 - end))
    assert binomial_interval(10, 10) == pytest.approx((end, 1.0))


@given(st.integers(1, 200), st.data())
def test_intervals_hold_the_proportion_and_mirror(count: int, data: st.DataObject) -> None:
    """Successes and failures are alike."""
    hits = data.draw(st.integers(0, count))
    low, high = binomial_interval(hits, count)
    assert low <= hits / count <= high
    assert binomial_interval(count - hits, count) == pytest.approx((1 - high, 1 - low), abs=1e-9)
