"""ExecuTorch programs (.pte): a FlatBuffer with identifier ``ET12`` or another version, and segments behind it.

Source of the layout: ``schema/program.fbs`` of ExecuTorch 1.5.1; the extended header is described in
``schema/extended_header.h``. The file is mapped, and weights and payloads are never decoded here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from opscope.errors import TraceFormatError
from opscope.program.plan import Executable, NamedData, Program, Span, Subsegments
from opscope.read.execution_plan import DataPlaces, read_plans
from opscope.read.fields import UINT32, UINT64, nested, numbers, referred, texts, vectors
from opscope.read.flatbuffer import FlatBuffer, Tables
from opscope.read.mapped import mapped_file

if TYPE_CHECKING:
    from pathlib import Path

_IDENTIFIER = b"ET"
_IDENTIFIER_AT, _IDENTIFIER_END = 4, 8
_EXTENDED = b"eh00"
_EXTENDED_AT = 8
_LENGTH_WITHOUT_SEGMENT_SIZE, _LENGTH_WITH_SEGMENT_SIZE = 24, 32
_HINT = "export the model again, or copy the file again: it is truncated, damaged or no .pte"

# Program
_VERSION, _EXECUTION_PLAN, _INLINE, _SEGMENTS, _CONSTANTS, _MUTABLE, _NAMED = 0, 1, 3, 4, 5, 6, 7
_SEGMENT_OFFSET, _SEGMENT_SIZE = 0, 1
_SUBSEGMENT_INDEX, _SUBSEGMENT_OFFSETS = 0, 1
_KEY, _KEY_SEGMENT = 0, 1
_INLINE_DATA = 0


def is_program(head: bytes) -> bool:
    """Whether a file that starts with these bytes (at least 8) is a program."""
    identifier = head[_IDENTIFIER_AT:_IDENTIFIER_END]
    return identifier[:2] == _IDENTIFIER and len(identifier) == _IDENTIFIER_END - _IDENTIFIER_AT


def read_program(path: Path) -> Program:
    """The methods and instructions of a .pte, after checking that the file is whole.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is no .pte, truncated, or damaged.
    """
    return read_executable(path).outline()


def read_executable(path: Path) -> Executable:
    """Everything that a .pte says about a model except the bytes of weights and payloads.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is no .pte, truncated, or damaged.
    """
    return decode_executable(mapped_file(path), str(path))


def decode_executable(data: bytes | memoryview, where: str) -> Executable:
    """The program in these bytes; ``where`` names them in errors.

    Raises:
        TraceFormatError: they are no .pte, truncated, or damaged.
    """
    identifier = bytes(data[_IDENTIFIER_AT:_IDENTIFIER_END])
    if not identifier.startswith(_IDENTIFIER):
        raise TraceFormatError("not an ExecuTorch program: the identifier ET is missing", where=where, hint=_HINT)
    header = _header(data, where)
    root = FlatBuffer(memoryview(data)[: header.program_size], where).root()
    segments = _segments(root, header.segment_base, len(data))
    plans = nested(root, _EXECUTION_PLAN)[0]
    if not len(plans):
        raise TraceFormatError("the program has no method", where=where, hint=_HINT)
    constants = _subsegments(referred(root, _CONSTANTS)[0])
    return Executable(
        identifier=identifier.decode("latin-1"),
        version=numbers(root, _VERSION, UINT32)[0],
        plans=read_plans(plans, DataPlaces(_inline(root), segments)),
        segments=segments,
        named_data=_named_data(root, len(segments)),
        constants=constants[0] if constants else None,
        mutable_data=_subsegments(nested(root, _MUTABLE)[0]),
    )


class _Header(NamedTuple):
    """Length of the program in bytes, and where the first segment starts."""

    program_size: int
    segment_base: int


def _header(data: bytes | memoryview, where: str) -> _Header:
    """The extended header; a file without one is a program from its first to its last byte."""
    if data[_EXTENDED_AT : _EXTENDED_AT + 4] != _EXTENDED:
        return _Header(len(data), 0)
    if len(data) < _EXTENDED_AT + _LENGTH_WITH_SEGMENT_SIZE:
        raise TraceFormatError("truncated within its header", where=where, offset=len(data), hint=_HINT)
    length, program_size, segment_base = struct.unpack_from("<IQQ", data, _EXTENDED_AT + 4)
    if length < _LENGTH_WITHOUT_SEGMENT_SIZE:
        problem = f"the extended header is said to have {length} bytes"
        raise TraceFormatError(problem, where=where, offset=_EXTENDED_AT + 4, hint=_HINT)
    whole = program_size
    if segment_base and length >= _LENGTH_WITH_SEGMENT_SIZE:
        whole = max(whole, segment_base + struct.unpack_from("<Q", data, _EXTENDED_AT + 24)[0])
    if whole > len(data):
        problem = f"truncated: {whole:,} bytes were written, {len(data):,} are here"
        raise TraceFormatError(problem, where=where, offset=len(data), hint=_HINT)
    return _Header(program_size, segment_base)


def _segments(root: Tables, base: int, size: int) -> tuple[Span, ...]:
    table = nested(root, _SEGMENTS)[0]
    places = zip(numbers(table, _SEGMENT_OFFSET, UINT64), numbers(table, _SEGMENT_SIZE, UINT64), strict=True)
    spans = tuple(Span(base + offset, length) for offset, length in places)
    if any(span.offset + span.size > size for span in spans):
        raise root.buffer.error("a segment reaches past the end of the file", size)
    return spans


def _inline(root: Tables) -> tuple[Span, ...]:
    """Places of the payloads inside the program, undecoded."""
    first, count = nested(root, _INLINE)[0].vector(_INLINE_DATA, 1)
    return tuple(Span(*place) for place in zip(first.tolist(), count.tolist(), strict=True))


def _subsegments(table: Tables) -> tuple[Subsegments, ...]:
    columns = numbers(table, _SUBSEGMENT_INDEX, UINT32), vectors(table, _SUBSEGMENT_OFFSETS, UINT64)
    return tuple(Subsegments(*row) for row in zip(*columns, strict=True))


def _named_data(root: Tables, segments: int) -> tuple[NamedData, ...]:
    table = nested(root, _NAMED)[0]
    found = tuple(NamedData(*row) for row in zip(texts(table, _KEY), numbers(table, _KEY_SEGMENT, UINT32), strict=True))
    if any(data.segment >= segments for data in found):
        raise root.buffer.error(f"named data are in a segment that does not exist, there are {segments}")
    return found
