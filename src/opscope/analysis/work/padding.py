"""Why tiles of a matrix unit hold more products than an operator needs: sizes that are rounded up to whole tiles.

A tile sums up products of as many rows and columns as a vector has sums, and kernels take several tiles together: sizes
are rounded up to them, channels to the factors that an outer product takes at once, and a bias may be one more step. An
explanation counts only if it gives the executed products exactly.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TILES = (1, 2, 4)
_FACTORS = (1, 2, 4)
_TAPS = (1, 3, 5, 7, 9, 15, 21, 25, 27, 35, 49, 81, 121)
_SUM_BITS = (32, 16)


class PaddedSize(msgspec.Struct, frozen=True):
    """A size that kernels round up.

    Attributes:
        name: what it counts: `output channels`, `rows`, `input channels`.
        needed: by the model.
        executed: by the kernel.
    """

    name: str
    needed: int
    executed: int


def padded_sizes(macs: int, capacity: int, shape: Sequence[int], axis: int, tile_bits: int) -> list[PaddedSize]:
    """Sizes of a product or convolution that were rounded up; none where no explanation is exact.

    Args:
        macs: that the model needs.
        capacity: products that the executed instructions hold.
        shape: of the output.
        axis: of its channels.
        tile_bits: length of a row of a tile.
    """
    numbers = prod(shape)
    if not numbers or macs % numbers or capacity <= macs:
        return []
    found = [
        [size for size in sizes if size.executed > size.needed]
        for sizes in _explained(macs // numbers, capacity, numbers // shape[axis], shape[axis], tile_bits)
    ]
    return min(found, key=lambda sizes: (len(sizes), sum(one.executed for one in sizes)), default=[])


def _explained(depth: int, capacity: int, rows: int, channels: int, tile_bits: int) -> Iterator[list[PaddedSize]]:
    """Sizes that give the executed products exactly, a bias as one more step included."""
    taps = [one for one in _TAPS if depth % one == 0]
    for bits, wide, high, own, factor, bias in product(_SUM_BITS, _TILES, (0, *_TILES), taps, _FACTORS, (0, 1)):
        lanes = tile_bits // bits
        columns = _up(channels, wide * lanes)
        lines = _up(rows, high * lanes) if high else rows
        inputs = _up(depth // own, factor)
        if columns * lines * (own * inputs + bias) == capacity:
            yield [
                PaddedSize("output channels", channels, columns),
                PaddedSize("rows", rows, lines),
                PaddedSize("input channels", depth // own, inputs),
            ]


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
