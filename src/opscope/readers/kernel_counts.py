"""The file that a kernel counter leaves: little endian, of fixed size.

====== ==================================================================================================
bytes  meaning
====== ==================================================================================================
8      ``OPKCNT01``
4 x 4  number of kernels K, of rows R, of rows in use, flags (1: delegates ran at once, 2: no row was left)
8 x 2  bytes of the names that follow; calls of delegates
names  of the kernels, each with a zero byte behind it, filled up to a multiple of 8
16 R   rows: delegate, operator (each 4 bytes, all ones: none), runs (8 bytes)
8 K R  counts: row by row, one number for each kernel
====== ==================================================================================================
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.input_files import file_bytes
from opscope.program.kernels.calls import KernelCalls, OperatorCalls

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC = b"OPKCNT01"
_HEADER = struct.Struct("<8s4I2Q")
_ROW = np.dtype([("delegate", "<u4"), ("position", "<u4"), ("runs", "<u8")])
_NONE = 0xFFFFFFFF
_MOST_KERNELS, _MOST_ROWS = 1 << 16, 1 << 16
_OVERLAPPED, _FULL = 1, 2
_PROBLEMS = {
    _OVERLAPPED: "delegates ran concurrently in several threads, so calls cannot be assigned to operators",
    _FULL: "too many operators for the counter, so calls cannot be assigned to operators",
}


class _Header(NamedTuple):
    magic: bytes
    kernels: int
    rows: int
    used: int
    flags: int
    names_size: int
    calls: int

    @property
    def table(self) -> int:
        """Where the rows begin."""
        return _HEADER.size + (self.names_size + 7) // 8 * 8

    @property
    def counts(self) -> int:
        """Where the numbers begin."""
        return self.table + _ROW.itemsize * self.rows

    @property
    def end(self) -> int:
        """How long the file is."""
        return self.counts + 8 * self.kernels * self.rows


def read_kernel_counts(path: Path) -> KernelCalls:
    """The calls that a counter left in a file."""
    return parse_kernel_counts(file_bytes(path), path)


def parse_kernel_counts(data: bytes, path: Path) -> KernelCalls:
    """The calls in the bytes of a file; ``path`` is for messages."""
    if not data.strip(b"\0"):
        hint = "the counter was not loaded, or the process ended before XNNPACK ran anything"
        raise EmptyTraceError("the file holds no counts", where=path, hint=hint)
    header = _header(data, path)
    names = _names(data, header, path)
    rows = np.frombuffer(data, _ROW, header.used, header.table)
    counts = np.frombuffer(data, "<u8", header.kernels * header.used, header.counts)
    table = counts.reshape(header.used, header.kernels)
    every = [_operator(rows[number], table[number], names) for number in range(1, header.used)]
    return KernelCalls(
        kernels=names,
        outside=_calls(table[0], names),
        operators=tuple(operator for operator in every if operator.runs or operator.calls),
        delegate_calls=header.calls,
        problem=next((text for flag, text in _PROBLEMS.items() if header.flags & flag), None),
    )


def _header(data: bytes, path: Path) -> _Header:
    if not data.startswith(MAGIC) or len(data) < _HEADER.size:
        raise TraceFormatError("not a file of kernel counts", where=path, offset=0)
    header = _Header(*_HEADER.unpack_from(data))
    if not 0 < header.kernels <= _MOST_KERNELS or not 0 < header.rows <= _MOST_ROWS:
        raise TraceFormatError("impossible numbers of kernels or rows", where=path, offset=8)
    if not 0 < header.used <= header.rows or header.names_size > len(data) or len(data) != header.end:
        raise TraceFormatError(f"{len(data):,} bytes contradict the file's header", where=path, offset=16)
    return header


def _names(data: bytes, header: _Header, path: Path) -> tuple[str, ...]:
    text = data[_HEADER.size : _HEADER.size + header.names_size].split(b"\0")
    names = tuple(name.decode("ascii", "replace") for name in text[: header.kernels])
    if len(names) != header.kernels or not all(names) or len(set(names)) != len(names):
        raise TraceFormatError("the names of the kernels are damaged", where=path, offset=_HEADER.size)
    return names


def _operator(row: NDArray[np.void], counts: NDArray[np.uint64], names: tuple[str, ...]) -> OperatorCalls:
    position = int(row["position"])
    return OperatorCalls(
        delegate=int(row["delegate"]),
        position=None if position == _NONE else position,
        runs=int(row["runs"]),
        calls=_calls(counts, names),
    )


def _calls(counts: NDArray[np.uint64], names: tuple[str, ...]) -> dict[str, int]:
    return {names[number]: int(counts[number]) for number in counts.nonzero()[0]}
