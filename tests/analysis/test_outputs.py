"""Outputs of variants: equal up to rounding of the number type, or not."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.analysis.compare.outputs import compare_outputs


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
