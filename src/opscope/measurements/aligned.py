"""Arrays of two programs in one order of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from opscope.program.structure.axes import axes_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


def aligned(arrays: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """The arrays of one side in the order of axes of the other side; one that fits in no known order stays as it is.

    Args:
        arrays: of the one side.
        other: of the other, as many; else nothing is moved.
    """
    if len(arrays) != len(other):
        return list(arrays)
    return [_aligned(array, like.shape) for array, like in zip(arrays, other, strict=True)]


def _aligned(array: Array, sizes: Sequence[int]) -> Array:
    if _without_ones(array.shape) == _without_ones(sizes):
        return array.reshape(sizes)
    axes = axes_between(array.shape, sizes)
    return array if axes is None else np.transpose(array, axes)


def _without_ones(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]
