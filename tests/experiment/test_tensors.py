"""Tensors in raw files: the same seed gives the same values, and bytes come back as they went."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.core.errors import RunError
from opscope.experiment.tensors import from_bytes, random_inputs, to_bytes
from opscope.program.structure.exported import Tensor

FLOATS = ["float16", "float32", "float64", "bfloat16"]
INTEGERS = ["bool", "uint8", "int8", "int16", "int32", "int64"]


def test_a_seed_means_the_same_inputs_for_ever() -> None:
    """The first values of seed 0 are those of numpy's frozen generator, whatever its version."""
    (values,) = random_inputs([Tensor([3], "float32")], 0)
    assert values.tolist() == pytest.approx([1.7640524, 0.4001572, 0.978738])


def test_inputs_follow_each_other_in_one_stream() -> None:
    """Two inputs of one method differ; another seed gives others."""
    first, second = random_inputs([Tensor([8], "float32")] * 2, 0)
    (other,) = random_inputs([Tensor([8], "float32")], 1)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_integers_are_small_enough_to_index_with() -> None:
    """They are 0 or 1."""
    for array in random_inputs([Tensor([50], name) for name in INTEGERS], 0):
        assert set(array.tolist()) == {0, 1}


def test_a_type_without_values_is_refused() -> None:
    """Quantised types have no values of their own."""
    with pytest.raises(RunError, match="qint8 are not supported"):
        random_inputs([Tensor([1], "qint8")], 0)
    with pytest.raises(RunError, match="qint8 are not supported"):
        from_bytes(b"\0", Tensor([1], "qint8"), [0])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 3, 1], [3, 1, 0, 2]])
def test_bytes_come_back_as_they_went(dtype: str, order: list[int]) -> None:
    """In every type and order of memory, channels last among them."""
    tensor = Tensor([2, 3, 4, 5], dtype)
    (array,) = random_inputs([tensor], 0)
    back = from_bytes(to_bytes(array, dtype, order), tensor, order)
    assert back.shape == (2, 3, 4, 5)
    again = to_bytes(back, dtype, order)
    assert again == to_bytes(array, dtype, order)


def test_channels_last_puts_the_channels_of_a_pixel_side_by_side() -> None:
    """The order names dimensions from the outermost to the innermost."""
    array = np.arange(6, dtype=np.uint8).reshape(1, 2, 1, 3)
    assert list(to_bytes(array, "uint8", [0, 2, 3, 1])) == [0, 3, 1, 4, 2, 5]


def test_a_number_has_no_dimensions() -> None:
    """A tensor of no dimensions is one value."""
    assert from_bytes(to_bytes(np.float32(2.5) * np.ones(()), "float64", []), Tensor([], "float64"), []) == 2.5


def test_missing_bytes_are_refused() -> None:
    """An output shorter than its shape says is an error, not a smaller output."""
    with pytest.raises(RunError, match=r"has 1 value$"):
        from_bytes(b"\0" * 4, Tensor([2], "float32"), [0])


def test_bfloat16_is_rounded_to_the_nearest_and_to_even() -> None:
    """Half of the last place goes to the even neighbour, more than half goes up."""
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], dtype=np.float32)
    words = np.frombuffer(to_bytes(halves, "bfloat16", [0]), np.uint16)
    assert [hex(word) for word in words] == ["0x3f80", "0x3f82", "0x3f81"]
