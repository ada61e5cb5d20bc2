"""Number types: one table of names and widths, and the codes by which each format refers to them.

Sources: ``schema/scalar_type.fbs`` and ``backends/xnnpack/serialization/runtime_schema.fbs`` of ExecuTorch 1.5.1,
``torch/_export/serde/schema.py`` of torch 2.13. The code of a type differs between a program and an ETRecord.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class NumberType(msgspec.Struct, frozen=True):
    """The type of a tensor's elements.

    Attributes:
        name: torch's name, or XNNPACK's without its prefix.
        bits: width of one element; None for a type that this version does not know.
    """

    name: str
    bits: int | None

    def bytes_of(self, sizes: Iterable[int]) -> int | None:
        """Least bytes that a tensor of these sizes takes, packed without gaps; None when the width is unknown."""
        return None if self.bits is None else (math.prod(sizes) * self.bits + 7) // 8


_BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "uint16": 16,
    "int16": 16,
    "bits16": 16,
    "uint32": 32,
    "int32": 32,
    "uint64": 64,
    "int64": 64,
    "float8_e5m2": 8,
    "float8_e4m3fn": 8,
    "float8_e5m2fnuz": 8,
    "float8_e4m3fnuz": 8,
    "float8_e8m0fnu": 8,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "quint2x4": 2,
    "quint4x2": 4,
    "quint8": 8,
    "qint8": 8,
    "qint32": 32,
    # XNNPACK's own: c is one scale per channel, b per block, d is quantised at run time, p is packed.
    "bf16": 16,
    "fp16": 16,
    "fp32": 32,
    "pfp32": 32,
    "qbint4": 4,
    "qcint4": 4,
    "qcint8": 8,
    "qdint8": 8,
    "qpint8": 8,
    "qcint32": 32,
}

_PROGRAM = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    12: "qint8",
    13: "quint8",
    14: "qint32",
    15: "bfloat16",
    16: "quint4x2",
    17: "quint2x4",
    22: "bits16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}

_EXPORT = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}

_XNNPACK = {
    1: "fp32",
    2: "fp16",
    3: "qint8",
    4: "quint8",
    5: "qint32",
    6: "qcint8",
    7: "qcint32",
    8: "qcint4",
    9: "qdint8",
    10: "qbint4",
    11: "qpint8",
    12: "int32",
    13: "pfp32",
    14: "bf16",
}


def program_type(code: int) -> NumberType:
    """The number type of a tensor in a .pte."""
    return _typed(_PROGRAM, code)


def export_type(code: int) -> NumberType:
    """The number type of a tensor in an ETRecord."""
    return _typed(_EXPORT, code)


def xnnpack_type(code: int) -> NumberType:
    """The number type of a value in an XNNPACK payload."""
    return _typed(_XNNPACK, code)


def _typed(codes: dict[int, str], code: int) -> NumberType:
    name = codes.get(code)
    return NumberType(f"unknown-{code}", None) if name is None else NumberType(name, _BITS[name])
