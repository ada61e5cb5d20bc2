"""Kernels that a process called or registered: the file of a kernel counter, and XNNPACK's log.

The file that a kernel counter leaves is little endian, of fixed size:

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

Lines of XNNPACK's log are those of a library that was built with log level 4 or higher::

    Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_ukernel_...'. (init_f32_gemm_config, src/configs/gemm.c:97)

Older versions end behind the kernel. On Android the lines come through logcat, whose tag takes the place of
``Note (XNNPACK)``; the formats brief, tag, process, time and threadtime are read. All other lines are passed
over.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.system.memory import file_bytes
from opscope.program.kernels.kernel_calls import KernelCalls, OperatorCalls
from opscope.program.kernels.symbols import KernelEntry, KernelLog, parse_kernel

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
        """Return the position of the rows."""
        return _HEADER.size + (self.names_size + 7) // 8 * 8

    @property
    def counts(self) -> int:
        """Return the position of the numbers."""
        return self.table + _ROW.itemsize * self.rows

    @property
    def end(self) -> int:
        """Return the length of the file."""
        return self.counts + 8 * self.kernels * self.rows


def read_kernel_counts(path: Path) -> KernelCalls:
    """Return the calls that a counter left in a file."""
    return parse_kernel_counts(file_bytes(path), path)


def parse_kernel_counts(data: bytes, path: Path) -> KernelCalls:
    """Return the calls in the bytes of a file; ``path`` is for messages."""
    if not data.strip(b"\0"):
        hint = "the counter was not loaded, or the process ended before XNNPACK ran anything"
        raise EmptyTraceError("the file holds no counts", where=path, hint=hint)
    header = _read_header(data, path)
    names = _read_names(data, header, path)
    rows = np.frombuffer(data, _ROW, header.used, header.table)
    counts = np.frombuffer(data, "<u8", header.kernels * header.used, header.counts)
    table = counts.reshape(header.used, header.kernels)
    every = [_operator_calls(rows[number], table[number], names) for number in range(1, header.used)]
    return KernelCalls(
        kernels=names,
        outside=_calls_by_kernel(table[0], names),
        operators=tuple(operator for operator in every if operator.runs or operator.calls),
        delegate_calls=header.calls,
        problem=next((text for flag, text in _PROBLEMS.items() if header.flags & flag), None),
    )


def _read_header(data: bytes, path: Path) -> _Header:
    """Return the header of a file of kernel counts; raise an error where it contradicts the file."""
    if not data.startswith(MAGIC) or len(data) < _HEADER.size:
        raise TraceFormatError("not a file of kernel counts", where=path, offset=0)
    header = _Header(*_HEADER.unpack_from(data))
    if not 0 < header.kernels <= _MOST_KERNELS or not 0 < header.rows <= _MOST_ROWS:
        raise TraceFormatError("impossible numbers of kernels or rows", where=path, offset=8)
    if not 0 < header.used <= header.rows or header.names_size > len(data) or len(data) != header.end:
        raise TraceFormatError(f"{len(data):,} bytes contradict the file's header", where=path, offset=16)
    return header


def _read_names(data: bytes, header: _Header, path: Path) -> tuple[str, ...]:
    """Return the names of the kernels; raise an error where they are damaged."""
    text = data[_HEADER.size : _HEADER.size + header.names_size].split(b"\0")
    names = tuple(name.decode("ascii", "replace") for name in text[: header.kernels])
    if len(names) != header.kernels or not all(names) or len(set(names)) != len(names):
        raise TraceFormatError("the names of the kernels are damaged", where=path, offset=_HEADER.size)
    return names


def _operator_calls(row: NDArray[np.void], counts: NDArray[np.uint64], names: tuple[str, ...]) -> OperatorCalls:
    """Return the calls of an operator, a row of the table."""
    position = int(row["position"])
    return OperatorCalls(
        delegate=int(row["delegate"]),
        position=None if position == _NONE else position,
        runs=int(row["runs"]),
        calls=_calls_by_kernel(counts, names),
    )


def _calls_by_kernel(counts: NDArray[np.uint64], names: tuple[str, ...]) -> dict[str, int]:
    """Return the counts that are not 0, by the names of the kernels."""
    return {names[number]: int(counts[number]) for number in counts.nonzero()[0]}


_TIME = r"(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+"
_LOGCAT = "|".join(
    (
        rf"(?:{_TIME} +)?[VDIWEF]/XNNPACK *(?:\( *\d+\))?: ",  # brief, tag, time
        rf"{_TIME} +\d+ +\d+ [VDIWEF] XNNPACK *: ",  # threadtime
        r"[VDIWEF]\( *\d+\) ",  # process
    )
)
_BEGIN = re.compile(rf"^(?:{_LOGCAT})?(?:Note \(XNNPACK\): )?Using (?=\w)")
_KERNEL = re.compile(r"(?P<category>\w[\w -]{0,63}?) microkernel '(?P<kernel>[^']+)'(?P<rest>.*)\Z")
_REST = re.compile(r"\.?(?: \((?P<function>[^,()]*), (?P<source>[^()]*:\d+)\))?(?: +\(XNNPACK\))?\s*\Z")
_NOTICE = re.compile(r"\w[\w -]{0,63}? micro")


def is_kernel_log(head: bytes) -> bool:
    """Return whether a file that starts with these bytes names kernels of XNNPACK."""
    return bool(parse_kernel_log(head).entries)


def read_kernel_log(path: Path) -> KernelLog:
    """Return the kernels that the process of a log registered.

    None is not an error, but says nothing about what ran.
    """
    return parse_kernel_log(file_bytes(path))


def parse_kernel_log(data: bytes) -> KernelLog:
    """Return the kernels in a log; lines may end with LF or CRLF, bytes that are no UTF-8 are replaced."""
    entries, incomplete = [], []
    lines = data.decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        begin = _BEGIN.match(line)
        if not begin:
            continue
        text = line[begin.end() :].removesuffix("\r")
        entry = _parse_entry(text, number)
        if entry:
            entries.append(entry)
        elif _NOTICE.match(text) or number == len(lines):
            incomplete.append(number)
    return KernelLog(tuple(entries), tuple(incomplete))


def _parse_entry(text: str, number: int) -> KernelEntry | None:
    """Return the kernel that a line names, if it is complete."""
    match = _KERNEL.match(text)
    rest = _REST.match(match["rest"]) if match else None
    if not match or not rest:
        return None
    return KernelEntry(parse_kernel(match["kernel"]), match["category"], number, rest["function"], rest["source"])
