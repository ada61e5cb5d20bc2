"""Outputs of variants: equal up to rounding of the number type, or not."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.analysis.compare.outputs import compare_outputs
from opscope.analysis.preflight.exported import usual_tolerance


@pytest.mark.parametrize(
    ("dtype", "error", "agree"),
    [("fp32", 1e-6, True), ("fp32", 1e-3, False), ("fp16", 1e-3, True), ("fp16", 5e-2, False), (None, 1e-3, True)],
)
def test_the_tolerance_knows_the_number_type(dtype: str | None, error: float, agree: bool) -> None:
    """Single precision must agree to 1e-4 of the largest value, half precision to 2e-2."""
    reference = np.array([[0.5, -10.0]])
    found = compare_outputs([reference], [reference + 10 * error], dtype)
    assert found.agree is agree
    assert found.max_rel_error == pytest.approx(error)


def test_values_that_are_not_finite_never_agree() -> None:
    """A NaN on either side is a problem that names the side, not a small error."""
    found = compare_outputs([np.array([1.0])], [np.array([np.nan])], "fp32")
    assert not found.agree
    assert found.max_rel_error is None
    assert "candidate" in (found.problem or "")


def test_shapes_must_be_equal() -> None:
    """Another shape is another result."""
    found = compare_outputs([np.zeros((2, 3))], [np.zeros((3, 2))], "fp32")
    assert not found.agree
    assert "(2, 3)" in (found.problem or "")


def test_zero_outputs_compare_by_absolute_error() -> None:
    """Without a magnitude to compare to, the absolute error counts."""
    assert compare_outputs([np.zeros(4)], [np.zeros(4)], "fp32").agree
    assert not compare_outputs([np.zeros(4)], [np.full(4, 1.0)], "fp32").agree


def test_the_same_values_that_are_not_finite_are_no_variants_fault() -> None:
    """NaN and infinities in the same places on both sides come of the inputs; elsewhere they do not."""
    left = np.array([np.nan, np.inf, 1.0])
    same = compare_outputs([left], [left.copy()], "fp32", guesses=["x=float32[3]"])
    assert same.inputs_at_fault
    assert (same.problem or "").startswith("the inputs were guessed as x=float32[3]")
    other = compare_outputs([left], [np.array([np.nan, -np.inf, 1.0])], "fp32")
    assert not other.inputs_at_fault
    assert not other.agree


@pytest.mark.parametrize(
    ("dtype", "operators", "expected"),
    [("fp32", 5, 1e-4), ("fp32", 30, 1e-4), ("fp32", 120, 2e-4), ("fp16", 120, 4e-2), ("int8", 120, 0.5)],
)
def test_the_tolerance_of_an_export_grows_with_the_root_of_its_depth(
    dtype: str, operators: int, expected: float
) -> None:
    """For floating point alone: rounding errors are as good as independent, quantising loses far more."""
    assert usual_tolerance(dtype, [], operators) == pytest.approx(expected)
