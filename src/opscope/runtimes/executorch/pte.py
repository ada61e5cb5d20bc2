"""Read ExecuTorch programs (.pte): a FlatBuffer with identifier ``ET12`` or another version, and segments after it.

Source of the layout: ``schema/program.fbs`` of ExecuTorch 1.5.1; the extended header is described in
``schema/extended_header.h``. The file is mapped, and weights and payloads are never decoded here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from opscope.core.errors import TraceFormatError
from opscope.program.structure.dtypes import program_type
from opscope.program.structure.plan import (
    Chain,
    Delegate,
    Dynamism,
    Executable,
    InstructionKind,
    ListKind,
    MethodPlan,
    PlannedStep,
    PlannedTensor,
    Span,
    UnknownValue,
    Value,
    ValueList,
)
from opscope.readers.compressed import mapped_file
from opscope.readers.flatbuffer import (
    BOOL,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    FlatBuffer,
    Number,
    Tables,
    grouped,
    nested,
    numbers,
    referred,
    texts,
    union,
    vectors,
)
from opscope.readers.other_files import not_recognised

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


N = TypeVar("N", bool, int, float)

# Tensor
_SCALAR_TYPE, _SIZES, _DIM_ORDER, _DATA_BUFFER, _ALLOCATION, _DYNAMISM, _EXTRA = 0, 2, 3, 5, 6, 8, 9
_QUALIFIED_NAME, _DATA_LOCATION = 1, 2
_EXTERNAL = 1
_MOST_DIMENSIONS = 16  # runtime/core/exec_aten/util/tensor_dimension_limit.h
_CONTENT = 0  # slot of the only field of every other type
_DYNAMISMS = {0: Dynamism.STATIC, 1: Dynamism.BOUNDED, 2: Dynamism.UNBOUNDED}


def read_values(plans: Tables, slot: int) -> list[tuple[Value, ...]]:
    """Read the values of each plan."""
    table, owner = nested(plans, slot)
    values: list[Value] = [UnknownValue(0)] * len(table)
    for number, rows, tables in union(table, 0):
        read = _READERS.get(number)
        typed_values = [UnknownValue(number)] * len(rows) if read is None else read(tables)
        for row, value in zip(rows, typed_values, strict=True):
            values[row] = value
    by_plan = grouped(values, owner, len(plans))
    for plan_values in by_plan:
        _check_members(plan_values, table)
    return by_plan


def _check_members(values: tuple[Value, ...], table: Tables) -> None:
    for value in values:
        if isinstance(value, ValueList):
            least = -1 if value.kind is ListKind.OPTIONAL_TENSORS else 0
            if any(not least <= number < len(values) for number in value.members):
                raise table.buffer.error(f"a list refers to a value outside the {len(values)}")


def _read_tensors(tables: Tables) -> list[Value]:
    sizes = vectors(tables, _SIZES, INT32)
    orders = vectors(tables, _DIM_ORDER, UINT8)
    for shape, order in zip(sizes, orders, strict=True):
        if min(shape, default=0) < 0 or len(shape) > _MOST_DIMENSIONS:
            raise tables.buffer.error(f"a tensor has the impossible shape {_list_items(shape)}")
        if order and sorted(order) != list(range(len(shape))):
            raise tables.buffer.error(
                f"{_list_items(order)} is not a permutation of the {len(shape)} dimensions of a tensor"
            )
    names_and_locations = _read_extra(tables)
    columns = zip(
        map(program_type, numbers(tables, _SCALAR_TYPE, UINT8)),
        sizes,
        orders,
        (_DYNAMISMS.get(code, Dynamism.UNKNOWN) for code in numbers(tables, _DYNAMISM, UINT8)),
        numbers(tables, _DATA_BUFFER, UINT32),
        _read_is_planned(tables),
        (name for name, _ in names_and_locations),
        (external for _, external in names_and_locations),
        strict=True,
    )
    return [PlannedTensor(*row) for row in columns]


def _list_items(items: tuple[int, ...]) -> str:
    text = ", ".join(map(str, items[:8]))
    return f"[{text}, ...]" if len(items) > 8 else f"[{text}]"  # noqa: PLR2004 - enough to recognise it by


def _read_is_planned(tables: Tables) -> list[bool]:
    """Return for each tensor whether memory planning placed it."""
    planned_rows = set(referred(tables, _ALLOCATION)[1])
    return [row in planned_rows for row in range(len(tables))]


def _read_extra(tables: Tables) -> list[tuple[str, bool]]:
    """Return for each tensor its qualified name, and whether its data are in another file."""
    out = [("", False)] * len(tables)
    extra, rows = referred(tables, _EXTRA)
    locations = numbers(extra, _DATA_LOCATION, UINT8)
    for row, name, location in zip(rows, texts(extra, _QUALIFIED_NAME), locations, strict=True):
        out[row] = (name, location == _EXTERNAL)
    return out


def _scalar_reader(number: Number[N]) -> Callable[[Tables], list[Value]]:
    return lambda tables: [*numbers(tables, _CONTENT, number)]


def _vector_reader(number: Number[N]) -> Callable[[Tables], list[Value]]:
    return lambda tables: [*vectors(tables, _CONTENT, number)]


def _list_reader(kind: ListKind, number: Number[int]) -> Callable[[Tables], list[Value]]:
    return lambda tables: [ValueList(kind, members) for members in vectors(tables, _CONTENT, number)]


# KernelTypes
_READERS: dict[int, Callable[[Tables], list[Value]]] = {
    1: lambda tables: [None] * len(tables),
    2: _scalar_reader(INT64),
    3: _scalar_reader(BOOL),
    4: _scalar_reader(FLOAT64),
    5: _read_tensors,
    6: lambda tables: [*texts(tables, _CONTENT)],
    7: _list_reader(ListKind.INTEGERS, INT64),
    8: _vector_reader(FLOAT64),
    9: _vector_reader(BOOL),
    10: _list_reader(ListKind.TENSORS, INT32),
    11: _list_reader(ListKind.OPTIONAL_TENSORS, INT32),
}


# ExecutionPlan
_NAME, _VALUES, _INPUTS, _OUTPUTS, _CHAINS, _OPERATORS, _DELEGATES, _BUFFER_SIZES = 0, 2, 3, 4, 5, 6, 7, 8
_OPERATOR_NAME, _OPERATOR_OVERLOAD = 0, 1
_DELEGATE_ID, _DELEGATE_PROCESSED = 0, 1
_CHAIN_INPUTS, _CHAIN_OUTPUTS, _CHAIN_INSTRUCTIONS = 0, 1, 2
_INSTRUCTION = 0
_LOCATION, _INDEX = 0, 1

# InstructionArguments: kind, slot of the target (-1: none), slots of single arguments, slot of a list of arguments
_KINDS: dict[int, tuple[InstructionKind, int, tuple[int, ...], int]] = {
    1: (InstructionKind.KERNEL, 0, (), 1),
    2: (InstructionKind.DELEGATE, 0, (), 1),
    3: (InstructionKind.MOVE, -1, (0, 1), -1),
    4: (InstructionKind.JUMP, 1, (0,), -1),
    5: (InstructionKind.FREE, -1, (0,), -1),
}


DataPlaces: TypeAlias = tuple[tuple[Span, ...], tuple[Span, ...]]
"""Spans that payloads of delegates can have: inside the program (location 0) and in segments (1)."""
_LOCATIONS = ("inline", "segments")


def read_plans(plans: Tables, data_spans: DataPlaces) -> tuple[MethodPlan, ...]:
    """Read the methods and check that every number in them refers to something."""
    count = len(plans)
    delegates, delegate_owner = nested(plans, _DELEGATES)
    chains, chain_owner = nested(plans, _CHAINS)
    instructions, owner = nested(chains, _CHAIN_INSTRUCTIONS)
    inputs, outputs = (vectors(chains, slot, INT32) for slot in (_CHAIN_INPUTS, _CHAIN_OUTPUTS))
    steps = grouped(_read_steps(instructions), owner, len(chains))
    columns = zip(
        texts(plans, _NAME),
        read_values(plans, _VALUES),
        vectors(plans, _INPUTS, INT32),
        vectors(plans, _OUTPUTS, INT32),
        _read_operators(plans),
        grouped(_read_delegates(delegates, data_spans), delegate_owner, count),
        grouped([Chain(*row) for row in zip(inputs, outputs, steps, strict=True)], chain_owner, count),
        vectors(plans, _BUFFER_SIZES, INT64),
        strict=True,
    )
    read = tuple(MethodPlan(*row) for row in columns)
    for plan in read:
        # Every number must refer to something; a plan without values has none to check against.
        for step in (step for chain in plan.chains for step in chain.steps):
            _check_target(plan, step, plans)
        if plan.values:
            _check_references(plan.values, _collect_references(plan), plans)
    return read


def _read_operators(plans: Tables) -> list[tuple[str, ...]]:
    operators, owner = nested(plans, _OPERATORS)
    parts = zip(texts(operators, _OPERATOR_NAME), texts(operators, _OPERATOR_OVERLOAD), strict=True)
    return grouped([".".join(part for part in pair if part) for pair in parts], owner, len(plans))


def _read_delegates(delegates: Tables, data_spans: DataPlaces) -> list[Delegate]:
    data: list[Span | None] = [None] * len(delegates)
    processed, rows = referred(delegates, _DELEGATE_PROCESSED)
    locations = processed.uint8(_LOCATION).tolist()
    indexes = processed.int32(_INDEX).tolist()
    for row, location, index in zip(rows, locations, indexes, strict=True):
        data[row] = _find_span(delegates, data_spans, location, index)
    return [Delegate(*row) for row in zip(texts(delegates, _DELEGATE_ID), data, strict=True)]


def _find_span(delegates: Tables, data_spans: DataPlaces, location: int, index: int) -> Span:
    if location >= len(data_spans):
        raise delegates.buffer.error(f"a delegate's data has the unknown location kind {location}")
    known = data_spans[location]
    if not 0 <= index < len(known):
        kind = _LOCATIONS[location]
        raise delegates.buffer.error(f"a delegate's data is number {index} of {len(known)} ({kind})")
    return known[index]


def _read_steps(instructions: Tables) -> list[PlannedStep]:
    steps = [PlannedStep(InstructionKind.UNKNOWN, -1, ())] * len(instructions)
    for member in union(instructions, _INSTRUCTION):
        if member.number in _KINDS:
            kind, target, single, listed = _KINDS[member.number]
            targets = numbers(member.tables, target, INT32) if target >= 0 else [-1] * len(member.rows)
            if listed >= 0:
                arguments = vectors(member.tables, listed, INT32)
            else:
                arguments = list(zip(*(numbers(member.tables, slot, INT32) for slot in single), strict=True))
            for row, step in zip(
                member.rows, [PlannedStep(kind, *row) for row in zip(targets, arguments, strict=True)], strict=True
            ):
                steps[row] = step
    return steps


def _check_target(plan: MethodPlan, step: PlannedStep, plans: Tables) -> None:
    known = {InstructionKind.KERNEL: len(plan.operators), InstructionKind.DELEGATE: len(plan.delegates)}
    if step.kind in known and not 0 <= step.target < known[step.kind]:
        problem = f"an instruction calls {step.kind.value} {step.target}, there are {known[step.kind]}"
        raise plans.buffer.error(problem)


def _collect_references(plan: MethodPlan) -> list[int]:
    lists = [plan.inputs, plan.outputs]
    for chain in plan.chains:
        lists += [chain.inputs, chain.outputs, *(step.arguments for step in chain.steps)]
    return [number for members in lists for number in members]


def _check_references(values: tuple[Value, ...], references: list[int], plans: Tables) -> None:
    references_array = np.array(references, np.int64)
    wrong = references_array[(references_array < 0) | (references_array >= len(values))]
    if len(wrong):
        raise plans.buffer.error(f"value {int(wrong[0])} is used, there are {len(values)}")


_IDENTIFIER = b"ET"
_BUNDLED, _BUNDLED_PROGRAM = b"BP", 2
"""Identifier of bundled programs, and the slot of the program in them."""
BUNDLED_HINT = "the file is truncated, corrupted, or not a .bpte: copy it again from the source"
_IDENTIFIER_AT, _IDENTIFIER_END = 4, 8
_EXTENDED = b"eh00"
_EXTENDED_AT = 8
_LENGTH_WITHOUT_SEGMENT_SIZE, _LENGTH_WITH_SEGMENT_SIZE = 24, 32
_HINT = "give a model (.pte, .tflite, .onnx); if it is one, export or copy it again: it is truncated or corrupted"

# Program
_VERSION, _EXECUTION_PLAN, _INLINE, _SEGMENTS, _NAMED = 0, 1, 3, 4, 7
_SEGMENT_OFFSET, _SEGMENT_SIZE = 0, 1
_KEY, _KEY_SEGMENT = 0, 1
_INLINE_DATA = 0


def is_program(head: bytes) -> bool:
    """Return whether a file that starts with these bytes (at least 8) is a program, or one bundled with inputs."""
    identifier = head[_IDENTIFIER_AT:_IDENTIFIER_END]
    has_mark = identifier[:2] in {_IDENTIFIER, _BUNDLED}
    return has_mark and len(identifier) == _IDENTIFIER_END - _IDENTIFIER_AT


def is_bundled(path: Path) -> bool:
    """Return whether a file is a bundled program, by its first bytes."""
    return _has_bundle(mapped_file(path))


def program_bytes(path: Path) -> memoryview:
    """Return the bytes of a .pte, or of the one in a .bpte.

    Raises:
        TraceFormatError: a bundle holds no program.
    """
    data = mapped_file(path)
    if not _has_bundle(data):
        return data
    first, count = FlatBuffer(data, str(path)).root().vector(_BUNDLED_PROGRAM, 1)
    if not count[0]:
        raise TraceFormatError("the bundle holds no program", where=path, hint=BUNDLED_HINT)
    return data[int(first[0]) : int(first[0] + count[0])]


def _has_bundle(data: memoryview) -> bool:
    return bytes(data[_IDENTIFIER_AT : _IDENTIFIER_AT + len(_BUNDLED)]) == _BUNDLED


def read_executable(path: Path) -> Executable:
    """Read everything that a .pte says about a model except the bytes of weights and payloads."""
    data = program_bytes(path)
    if not is_program(bytes(data[:_IDENTIFIER_END])):
        raise not_recognised(path, hint=_HINT)
    return decode_executable(data, str(path))


def decode_executable(data: bytes | memoryview, where: str) -> Executable:
    """Decode a program; ``where`` names its source in errors. Raises TraceFormatError if it is damaged."""
    identifier = bytes(data[_IDENTIFIER_AT:_IDENTIFIER_END])
    if not identifier.startswith(_IDENTIFIER):
        raise TraceFormatError("not an ExecuTorch program: the identifier ET is missing", where=where, hint=_HINT)
    program_size, segment_base = _read_header(data, where)
    root = FlatBuffer(memoryview(data)[:program_size], where).root()
    size = len(data)
    table = nested(root, _SEGMENTS)[0]
    segment_fields = zip(numbers(table, _SEGMENT_OFFSET, UINT64), numbers(table, _SEGMENT_SIZE, UINT64), strict=True)
    segments = tuple(Span(segment_base + offset, length) for offset, length in segment_fields)
    if any(span.offset + span.size > size for span in segments):
        raise root.buffer.error("a segment extends past the end of the file", size)
    plans = nested(root, _EXECUTION_PLAN)[0]
    if not len(plans):
        raise TraceFormatError("the program has no method", where=where, hint=_HINT)
    first, count = nested(root, _INLINE)[0].vector(_INLINE_DATA, 1)
    return Executable(
        identifier=identifier.decode("latin-1"),
        version=numbers(root, _VERSION, UINT32)[0],
        plans=read_plans(
            plans,
            (tuple(Span(*inline_span) for inline_span in zip(first.tolist(), count.tolist(), strict=True)), segments),
        ),
        segments=segments,
        named_data=_named_data(root, len(segments)),
    )


def _read_header(data: bytes | memoryview, where: str) -> tuple[int, int]:
    """Return the length of the program in bytes, and the start of the first segment, by the extended header.

    A file without that header is a program from its first to its last byte.
    """
    if data[_EXTENDED_AT : _EXTENDED_AT + 4] != _EXTENDED:
        return len(data), 0
    if len(data) < _EXTENDED_AT + _LENGTH_WITH_SEGMENT_SIZE:
        raise TraceFormatError("truncated within its header", where=where, offset=len(data), hint=_HINT)
    length, program_size, segment_base = struct.unpack_from("<IQQ", data, _EXTENDED_AT + 4)
    if length < _LENGTH_WITHOUT_SEGMENT_SIZE:
        problem = f"the extended header states {length} bytes"
        raise TraceFormatError(problem, where=where, offset=_EXTENDED_AT + 4, hint=_HINT)
    written_size = program_size
    if segment_base and length >= _LENGTH_WITH_SEGMENT_SIZE:
        written_size = max(written_size, segment_base + struct.unpack_from("<Q", data, _EXTENDED_AT + 24)[0])
    if written_size > len(data):
        problem = f"truncated: {written_size:,} bytes were written, {len(data):,} are here"
        raise TraceFormatError(problem, where=where, offset=len(data), hint=_HINT)
    return program_size, segment_base


def _named_data(root: Tables, segments: int) -> dict[str, int]:
    table = nested(root, _NAMED)[0]
    segment_of_key = dict(zip(texts(table, _KEY), numbers(table, _KEY_SEGMENT, UINT32), strict=True))
    if any(segment >= segments for segment in segment_of_key.values()):
        raise root.buffer.error(f"named data is in a missing segment; there are {segments}")
    return segment_of_key
