"""Axes of one tensor in two orders: channels behind the batch, or last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEWEST_AXES = 3
"""Batch, channels and at least one place."""


def axes_between(sizes: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of a tensor in the order in which another one has them; None where no known order fits.

    Equal sizes are the same order. Otherwise the channels are moved from behind the batch to the end, or the other way
    round, whichever fits; of the other orders that the sizes would allow nothing is taken for granted.

    Returns:
        ``axes``, so that axis ``i`` of the other tensor is axis ``axes[i]`` of this one.
    """
    count = len(sizes)
    if count != len(other):
        return None
    orders = [tuple(range(count))]
    if count >= _FEWEST_AXES:
        orders += [(0, *range(2, count), 1), (0, count - 1, *range(1, count - 1))]
    return next((axes for axes in orders if [sizes[axis] for axis in axes] == list(other)), None)
