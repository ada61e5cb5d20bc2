"""Number types: one table of names and widths, and the codes by which each format refers to them.

Sources: ``schema/scalar_type.fbs`` and ``backends/xnnpack/serialization/runtime_schema.fbs`` of ExecuTorch
1.5.1, ``torch/_export/serde/schema.py`` of torch 2.13. The code of a type differs between a program and an
ETRecord.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class NumberType(msgspec.Struct, frozen=True):
    """The type of a tensor's elements."""

    name: str  # torch's name, or XNNPACK's without its prefix
    bits: int | None  # width of one element; None for a type that this version does not know

    def bytes_of(self, sizes: Iterable[int]) -> int | None:
        """Return the least bytes of a tensor of these sizes, packed without gaps; None if the width is unknown."""
        return None if self.bits is None else (math.prod(sizes) * self.bits + 7) // 8


def used_bits(types: Iterable[NumberType]) -> frozenset[int]:
    """Return the widths with which products use weights of these types: narrower weights count as 8 bits."""
    return frozenset(max(8, number_type.bits) for number_type in types if number_type.bits)


# Name, bits, and the codes in a program and in XNNPACK. Of XNNPACK's own types, c is one scale per
# channel, b per block, d is quantised at run time, p is packed.
_TABLE = [
    (name, int(bits), codes)
    for name, bits, *codes in map(
        str.split,
        """
        bool               8   11    -
        uint8              8    0    -
        int8               8    1    -
        uint16            16   27    -
        int16             16    2    -
        bits16            16   22    -
        uint32            32   28    -
        int32             32    3   12
        uint64            64   29    -
        int64             64    4    -
        float8_e5m2        8   23    -
        float8_e4m3fn      8   24    -
        float8_e5m2fnuz    8   25    -
        float8_e4m3fnuz    8   26    -
        float16           16    5    -
        bfloat16          16   15    -
        float32           32    6    -
        float64           64    7    -
        quint2x4           2   17    -
        quint4x2           4   16    -
        quint8             8   13    4
        qint8              8   12    3
        qint32            32   14    5
        bf16              16    -   14
        fp16              16    -    2
        fp32              32    -    1
        pfp32             32    -   13
        qbint4             4    -   10
        qcint4             4    -    8
        qcint8             8    -    6
        qdint8             8    -    9
        qpint8             8    -   11
        qcint32           32    -    7
        """.strip().splitlines(),
    )
]
_PROGRAM, _XNNPACK = (
    {int(codes[column]): NumberType(name, bits) for name, bits, codes in _TABLE if codes[column] != "-"}
    for column in range(2)
)


def program_type(code: int) -> NumberType:
    """Return the number type of a tensor in a .pte."""
    return _find_type(_PROGRAM, code)


def xnnpack_type(code: int) -> NumberType:
    """Return the number type of a value in an XNNPACK payload."""
    return _find_type(_XNNPACK, code)


def _find_type(known: dict[int, NumberType], code: int) -> NumberType:
    return known.get(code) or NumberType(f"unknown-{code}", None)


_FEWEST_AXES = 3
"""Least number of axes of an image: batch, channels and at least one dimension."""


def axes_between(sizes: Sequence[int], target_sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the axes of a tensor in the order in which another one has them; None if no known order fits.

    Equal sizes mean the same order. Otherwise the channels are moved from after the batch to the end, or back,
    whichever fits; other orders that the sizes would allow are not assumed. Axis ``i`` of the other tensor is axis
    ``axes[i]`` of this one.
    """
    count = len(sizes)
    if count != len(target_sizes):
        return None
    orders = [tuple(range(count))]
    if count >= _FEWEST_AXES:
        orders += [(0, *range(2, count), 1), (0, count - 1, *range(1, count - 1))]
    return next((axes for axes in orders if [sizes[axis] for axis in axes] == list(target_sizes)), None)
