"""ExecuTorch programs (.pte): a FlatBuffer with identifier ``ET12`` or another version, and segments behind it.

Source of the layout: ``schema/program.fbs`` of ExecuTorch 1.5.1; the extended header is described in
``schema/extended_header.h``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from opscope.errors import TraceFormatError
from opscope.program.plan import Instruction, InstructionKind, Method, Program
from opscope.read.flatbuffer import FlatBuffer, Tables
from opscope.read.registry import file_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.read.flatbuffer import Ints

_IDENTIFIER = b"ET"
_EXTENDED = b"eh00"
_EXTENDED_AT = 8
_LENGTH_WITH_SEGMENT_SIZE = 32
_HINT = "export the model again, or copy the file again: it is truncated, damaged or no .pte"

# Slots of the tables, in the order of the schema; a union takes two.
_EXECUTION_PLAN, _SEGMENTS = 1, 4
_NAME, _CHAINS, _OPERATORS, _DELEGATES = 0, 5, 6, 7
_INSTRUCTIONS = 2
_KINDS = {
    1: InstructionKind.KERNEL,
    2: InstructionKind.DELEGATE,
    3: InstructionKind.MOVE,
    4: InstructionKind.JUMP,
    5: InstructionKind.FREE,
}


def read_program(path: Path) -> Program:
    """The methods and instructions of a .pte, after checking that the file is whole.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is no .pte, truncated, or damaged.
    """
    data = file_bytes(path)
    if data[4:6] != _IDENTIFIER:
        raise TraceFormatError("not an ExecuTorch program: the identifier ET is missing", where=path, hint=_HINT)
    _check_extended_header(data, path)
    buffer = FlatBuffer(data, str(path))
    root = buffer.root()
    _check_segments(data, root)
    plans = Tables(buffer, root.children(_EXECUTION_PLAN)[0])
    if not len(plans):
        raise TraceFormatError("the program has no method", where=path, hint=_HINT)
    return Program(tuple(_method(plans.only(row)) for row in range(len(plans))))


def _check_extended_header(data: bytes, path: Path) -> None:
    if data[_EXTENDED_AT : _EXTENDED_AT + 4] != _EXTENDED:
        return
    if len(data) < _EXTENDED_AT + _LENGTH_WITH_SEGMENT_SIZE:
        raise TraceFormatError("truncated within its header", where=path, offset=len(data), hint=_HINT)
    length, program_size, segment_base = struct.unpack_from("<IQQ", data, _EXTENDED_AT + 4)
    whole = program_size
    if segment_base and length >= _LENGTH_WITH_SEGMENT_SIZE:
        whole = segment_base + struct.unpack_from("<Q", data, _EXTENDED_AT + 24)[0]
    if whole > len(data):
        problem = f"truncated: {whole:,} bytes were written, {len(data):,} are here"
        raise TraceFormatError(problem, where=path, offset=len(data), hint=_HINT)


def _check_segments(data: bytes, root: Tables) -> None:
    segments = Tables(root.buffer, root.children(_SEGMENTS)[0])
    base = struct.unpack_from("<Q", data, 24)[0] if data[_EXTENDED_AT : _EXTENDED_AT + 4] == _EXTENDED else 0
    spans = zip(segments.uint64(0).tolist(), segments.uint64(1).tolist(), strict=True)
    if any(base + offset + size > len(data) for offset, size in spans):
        raise root.buffer.error("a segment reaches past the end of the file", len(data))


def _method(plan: Tables) -> Method:
    buffer = plan.buffer
    operators = _texts(Tables(buffer, plan.children(_OPERATORS)[0]), 0, 1)
    delegates = _texts(Tables(buffer, plan.children(_DELEGATES)[0]), 0)
    chains = Tables(buffer, plan.children(_CHAINS)[0])
    names = _texts(plan, _NAME)
    if not len(chains):
        return Method(names[0], ())
    instructions = Tables(buffer, chains.only(0).children(_INSTRUCTIONS)[0])
    return Method(names[0], tuple(_instructions(instructions, operators, delegates)))


def _instructions(table: Tables, operators: list[str], delegates: list[str]) -> list[Instruction]:
    kinds = table.uint8(0)
    arguments = table.reference(1)
    index = np.full(len(kinds), -1, np.int64)
    called = np.flatnonzero(np.isin(kinds, (1, 2)) & (arguments > 0))
    index[called] = Tables(table.buffer, arguments[called]).int32(0)
    what = [_KINDS.get(kind, InstructionKind.UNKNOWN) for kind in kinds.tolist()]
    names = {InstructionKind.KERNEL: operators, InstructionKind.DELEGATE: delegates}
    for kind, number in zip(what, index.tolist(), strict=True):
        if kind in names and not 0 <= number < len(names[kind]):
            raise table.buffer.error(f"an instruction calls {kind.value} {number}, there are {len(names[kind])}")
    pairs = zip(what, index.tolist(), strict=True)
    return [Instruction(kind, names[kind][number] if kind in names else "") for kind, number in pairs]


def _texts(table: Tables, *slots: int) -> list[str]:
    """One text a row: the text fields that are not empty, joined by dots."""
    columns = [_column(*table.strings(slot)) for slot in slots]
    return [".".join(part for part in row if part) for row in zip(*columns, strict=True)]


def _column(codes: Ints, texts: list[str]) -> list[str]:
    return [texts[code] if code >= 0 else "" for code in codes.tolist()]
