"""Bundled programs (.bpte): a program together with inputs for its methods. Their expected outputs are not read.

Source of the layout: ``devtools/bundled_program/schema/bundled_program_schema.fbs`` of ExecuTorch 1.5.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Tensor
from opscope.core.errors import RunError, TraceFormatError
from opscope.experiment.tensors import from_bytes
from opscope.program.structure.dtypes import program_type
from opscope.readers.compressed import mapped_file
from opscope.readers.flatbuffer import (
    BOOL,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    FlatBuffer,
    grouped,
    nested,
    numbers,
    texts,
    union,
    vectors,
)

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.experiment.inputs import InputValue
    from opscope.experiment.tensors import Array
    from opscope.readers.flatbuffer import Tables

_IDENTIFIER = b"BP"
_SUITES, _PROGRAM = 1, 2
_METHOD, _CASES = 0, 1
_INPUTS = 0
_TYPE, _SIZES, _DATA, _ORDER = 0, 1, 2, 3
_TENSOR, _INT, _BOOL, _DOUBLE = 1, 2, 3, 4
_HINT = "the file is truncated, corrupted, or not a .bpte: copy it again from the source"


class BundledProgram(NamedTuple):
    """A program and what comes with it."""

    program: bytes  # the .pte, byte for byte
    inputs: dict[str, tuple[InputValue, ...]]  # of the first test case of each method, by the method's name


def is_bundled(path: Path) -> bool:
    """Whether a file is a bundled program, by its first bytes."""
    return bytes(mapped_file(path)[4:6]) == _IDENTIFIER


def read_bundled(path: Path) -> BundledProgram:
    """A bundled program."""
    data = mapped_file(path)
    root = FlatBuffer(data, str(path)).root()
    first, count = root.vector(_PROGRAM, 1)
    if not count[0]:
        raise TraceFormatError("the bundle holds no program", where=path, hint=_HINT)
    suites = nested(root, _SUITES)[0]
    cases, suite_of = nested(suites, _CASES)
    values, case_of = nested(cases, _INPUTS)
    by_case = grouped(_values(values, path), case_of, len(cases))
    by_suite = grouped(by_case, suite_of, len(suites))
    inputs = {name: own[0] for name, own in zip(texts(suites, _METHOD), by_suite, strict=True) if own}
    return BundledProgram(bytes(data[int(first[0]) : int(first[0] + count[0])]), inputs)


def _values(table: Tables, path: Path) -> list[InputValue]:
    values: list[InputValue] = [None] * len(table)
    for number, rows, tables in union(table, 0):
        found = _read(number, tables, path)
        for row, value in zip(rows, found, strict=True):
            values[row] = value
    return values


def _read(number: int, tables: Tables, path: Path) -> list[InputValue]:
    """Values of one type; None for those of a type that this version does not know."""
    if number == _TENSOR:
        return [*_tensors(tables, path)]
    if number == _INT:
        return [*numbers(tables, 0, INT64)]
    if number == _BOOL:
        return [*numbers(tables, 0, BOOL)]
    return [*numbers(tables, 0, FLOAT64)] if number == _DOUBLE else [None] * len(tables)


def _tensors(tables: Tables, path: Path) -> list[Array]:
    firsts, counts = tables.vector(_DATA, 1)
    columns = (
        map(program_type, numbers(tables, _TYPE, UINT8)),
        vectors(tables, _SIZES, INT32),
        vectors(tables, _ORDER, UINT8),
        firsts.tolist(),
        counts.tolist(),
    )
    data = mapped_file(path)
    try:
        return [
            from_bytes(bytes(data[first : first + count]), Tensor(list(sizes), dtype.name), order or range(len(sizes)))
            for dtype, sizes, order, first, count in zip(*columns, strict=True)
        ]
    except (RunError, ValueError, IndexError) as error:
        raise TraceFormatError(f"a tensor of its inputs is damaged: {error}", where=path, hint=_HINT) from error
