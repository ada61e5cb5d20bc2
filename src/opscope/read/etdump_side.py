"""Allocation and debug events of an ETDump. They are rare and small, and are read one by one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from opscope.read.flatbuffer import FlatBuffer, Tables
from opscope.table.side import Allocation, LoggedValue, SideEvents

if TYPE_CHECKING:
    from opscope.read.flatbuffer import Ints

# ValueType of the schema, in order.
_KINDS = ("null", "int", "bool", "float", "double", "tensor", "tensor_list", "string")
_NUMBER_SLOTS = {"int": (3, "<q"), "float": (4, "<f"), "double": (5, "<d"), "bool": (6, "<?")}
_TENSOR_SLOT, _OUTPUT_SLOT = 1, 7


def side_events(block: Tables, entries: Tables, owner: Ints, first_run: int) -> SideEvents:
    """Everything without times in some blocks.

    Args:
        block: the blocks.
        entries: their events.
        owner: the block that each event stands in.
        first_run: number of the first block in the file.
    """
    allocations, logged = (np.flatnonzero(entries.reference(slot) > 0) for slot in (1, 2))
    runs = owner + first_run
    return SideEvents(
        tuple(_allocations(block, entries, allocations, owner, first_run)),
        tuple(_logged(entries.buffer, int(at), int(runs[row])) for row, at in _at(entries, logged, 2)),
    )


def _at(entries: Tables, rows: Ints, slot: int) -> list[tuple[int, int]]:
    return list(zip(rows.tolist(), entries.reference(slot)[rows].tolist(), strict=True))


def _allocations(block: Tables, entries: Tables, rows: Ints, owner: Ints, first_run: int) -> list[Allocation]:
    if not len(rows):
        return []
    events = Tables(entries.buffer, entries.reference(1)[rows])
    names = {run: _allocators(block.only(run)) for run in set(owner[rows].tolist())}
    columns = zip(owner[rows].tolist(), events.int32(0).tolist(), events.uint64(1).tolist(), strict=True)
    return [Allocation(run + first_run, names[run].get(number, str(number)), size) for run, number, size in columns]


def _allocators(block: Tables) -> dict[int, str]:
    at, _ = block.children(2)
    if not len(at):
        return {}
    codes, texts = Tables(block.buffer, at).strings(0)
    # Allocators are numbered from 1 in the order of the list, as ETDumpGen does.
    return {number: texts[code] for number, code in enumerate(codes.tolist(), 1) if code >= 0}


def _logged(buffer: FlatBuffer, at: int, run: int) -> LoggedValue:
    event = Tables(buffer, np.array([at]))
    value = _only(event, 2)
    kind = "null" if value is None else _kind(value)
    tensor = _only(value, _TENSOR_SLOT) if value is not None and kind == "tensor" else None
    return LoggedValue(
        run=run,
        name=_text(event, 5),
        chain=int(event.uint64(0)[0]),
        instruction=_identifier(event, 1),
        delegate_id=_identifier(event, 3),
        delegate_label=_text(event, 4),
        kind=kind,
        number=_number(value, kind) if value is not None else None,
        shape=_sizes(tensor) if tensor is not None else None,
        dtype=int(tensor.uint8(0)[0]) if tensor is not None else None,
        offset=_long(tensor, 3) if tensor is not None else None,
        output=_output(value) if value is not None else None,
    )


def _only(table: Tables, slot: int) -> Tables | None:
    at = table.reference(slot)
    return Tables(table.buffer, at) if at[0] else None


def _kind(value: Tables) -> str:
    number = int(value.uint8(0)[0])
    return _KINDS[number] if number < len(_KINDS) else "unknown"


def _identifier(event: Tables, slot: int) -> int | None:
    number = int(event.int32(slot, -1)[0])
    return None if number < 0 else number


def _text(event: Tables, slot: int) -> str | None:
    codes, texts = event.strings(slot)
    return texts[codes[0]] if codes[0] >= 0 else None


def _number(value: Tables, kind: str) -> float | int | None:
    if kind not in _NUMBER_SLOTS:
        return None
    slot, form = _NUMBER_SLOTS[kind]
    holder = _only(value, slot)
    return None if holder is None else _scalar(holder, 0, form)


def _output(value: Tables) -> bool | None:
    holder = _only(value, _OUTPUT_SLOT)
    return None if holder is None else bool(_scalar(holder, 0, "<?"))


def _scalar(table: Tables, slot: int, form: str) -> float | int:
    """One number of a table, 0 where it is absent as the schema's default."""
    at, size = int(table.field(slot)[0]), struct.calcsize(form)
    if not at:
        return 0
    if at + size > table.buffer.size:
        raise table.buffer.error("a number reaches past the end of the file", at)
    number: float | int = struct.unpack(form, table.buffer.bytes[at : at + size].tobytes())[0]
    return number


def _long(table: Tables, slot: int) -> int:
    return int(_scalar(table, slot, "<q"))


def _sizes(tensor: Tables) -> tuple[int, ...]:
    first, count = (int(part[0]) for part in tensor.vector(1, 8))
    raw = tensor.buffer.bytes[first : first + 8 * count].tobytes()
    return struct.unpack(f"<{count}q", raw)
