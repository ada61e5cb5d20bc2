"""Values of a program: tensors, scalars and lists, all of one type read together.

Source of the slots and union numbers: ``schema/program.fbs`` of ExecuTorch 1.5.1. A list of integers names the values
that hold them; that is what the exporter writes and the runtime reads, the schema does not say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from opscope.program.dtypes import program_type
from opscope.program.plan import (
    Allocation,
    Dynamism,
    ListKind,
    Nothing,
    Scalar,
    Scalars,
    Tensor,
    UnknownValue,
    Value,
    ValueList,
)
from opscope.read.fields import (
    BOOL,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    UINT32,
    Number,
    grouped,
    nested,
    numbers,
    referred,
    texts,
    union,
    vectors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.read.flatbuffer import Tables

N = TypeVar("N", bool, int, float)

# Tensor
_SCALAR_TYPE, _SIZES, _DIM_ORDER, _DATA_BUFFER, _ALLOCATION, _DYNAMISM, _EXTRA = 0, 2, 3, 5, 6, 8, 9
_MEMORY_ID, _OFFSET_LOW, _OFFSET_HIGH = 0, 1, 2
_QUALIFIED_NAME, _DATA_LOCATION = 1, 2
_EXTERNAL = 1
_MOST_DIMENSIONS = 16  # runtime/core/exec_aten/util/tensor_dimension_limit.h
_CONTENT = 0  # slot of the only field of every other type
_DYNAMISMS = {0: Dynamism.STATIC, 1: Dynamism.BOUNDED, 2: Dynamism.UNBOUNDED}


def read_values(plans: Tables, slot: int) -> list[tuple[Value, ...]]:
    """The values of each plan.

    Raises:
        TraceFormatError: an offset, a shape or a list is impossible.
    """
    table, owner = nested(plans, slot)
    values: list[Value] = [UnknownValue(0)] * len(table)
    for number, rows, tables in union(table, 0):
        read = _READERS.get(number)
        found = [UnknownValue(number)] * len(rows) if read is None else read(tables)
        for row, value in zip(rows, found, strict=True):
            values[row] = value
    by_plan = grouped(values, owner, len(plans))
    for each in by_plan:
        _check_members(each, table)
    return by_plan


def _check_members(values: tuple[Value, ...], table: Tables) -> None:
    for value in values:
        if isinstance(value, ValueList):
            least = -1 if value.kind is ListKind.OPTIONAL_TENSORS else 0
            if any(not least <= number < len(values) for number in value.members):
                raise table.buffer.error(f"a list names a value that is not among the {len(values)}")


def _tensors(tables: Tables) -> list[Value]:
    sizes = vectors(tables, _SIZES, INT32)
    orders = vectors(tables, _DIM_ORDER, UINT8)
    for shape, order in zip(sizes, orders, strict=True):
        _check_shape(tables, shape, order)
    named = _extra(tables)
    columns = zip(
        map(program_type, numbers(tables, _SCALAR_TYPE, UINT8)),
        sizes,
        orders,
        (_DYNAMISMS.get(code, Dynamism.UNKNOWN) for code in numbers(tables, _DYNAMISM, UINT8)),
        numbers(tables, _DATA_BUFFER, UINT32),
        _allocations(tables),
        (name for name, _ in named),
        (external for _, external in named),
        strict=True,
    )
    return [Tensor(*row) for row in columns]


def _check_shape(tables: Tables, sizes: tuple[int, ...], order: tuple[int, ...]) -> None:
    if min(sizes, default=0) < 0 or len(sizes) > _MOST_DIMENSIONS:
        raise tables.buffer.error(f"a tensor has the impossible shape {_listed(sizes)}")
    if order and sorted(order) != list(range(len(sizes))):
        raise tables.buffer.error(f"{_listed(order)} is no order of the {len(sizes)} dimensions of a tensor")


def _listed(items: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, items[:8]))
    return f"[{shown}, ...]" if len(items) > 8 else f"[{shown}]"  # noqa: PLR2004 - enough to recognise it by


def _allocations(tables: Tables) -> list[Allocation | None]:
    out: list[Allocation | None] = [None] * len(tables)
    details, rows = referred(tables, _ALLOCATION)
    columns = [numbers(details, slot, UINT32) for slot in (_MEMORY_ID, _OFFSET_LOW, _OFFSET_HIGH)]
    for row, buffer, low, high in zip(rows, *columns, strict=True):
        out[row] = Allocation(buffer, high << 32 | low)
    return out


def _extra(tables: Tables) -> list[tuple[str, bool]]:
    """Qualified name, and whether the data are in another file."""
    out = [("", False)] * len(tables)
    extra, rows = referred(tables, _EXTRA)
    places = numbers(extra, _DATA_LOCATION, UINT8)
    for row, name, place in zip(rows, texts(extra, _QUALIFIED_NAME), places, strict=True):
        out[row] = (name, place == _EXTERNAL)
    return out


def _nothing(tables: Tables) -> list[Value]:
    return [Nothing()] * len(tables)


def _text(tables: Tables) -> list[Value]:
    return [Scalar(text) for text in texts(tables, _CONTENT)]


def _scalar(number: Number[N]) -> Callable[[Tables], list[Value]]:
    def read(tables: Tables) -> list[Value]:
        return [Scalar(value) for value in numbers(tables, _CONTENT, number)]

    return read


def _scalars(number: Number[N]) -> Callable[[Tables], list[Value]]:
    def read(tables: Tables) -> list[Value]:
        return [Scalars(items) for items in vectors(tables, _CONTENT, number)]

    return read


def _list(kind: ListKind, number: Number[int]) -> Callable[[Tables], list[Value]]:
    def read(tables: Tables) -> list[Value]:
        return [ValueList(kind, members) for members in vectors(tables, _CONTENT, number)]

    return read


# KernelTypes
_READERS: dict[int, Callable[[Tables], list[Value]]] = {
    1: _nothing,
    2: _scalar(INT64),
    3: _scalar(BOOL),
    4: _scalar(FLOAT64),
    5: _tensors,
    6: _text,
    7: _list(ListKind.INTEGERS, INT64),
    8: _scalars(FLOAT64),
    9: _scalars(BOOL),
    10: _list(ListKind.TENSORS, INT32),
    11: _list(ListKind.OPTIONAL_TENSORS, INT32),
}
