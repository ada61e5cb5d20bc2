"""An ETDump read the slow and obvious way, event by event, to compare the columns of the real reader with.

It follows the schema and nothing else. A layout that the real reader refuses does not come here; one that it accepts
must give the same events here, so that a damaged file never is a wrong table.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = 4
_NAME, _CHAIN, _INSTRUCTION, _DELEGATE, _LABEL, _START, _END = 0, 1, 2, 3, 4, 6, 7


class PlainEvent(NamedTuple):
    """A profiling event as the file has it: block, identifiers and times."""

    run: int
    name: str
    chain: int | None
    instruction: int | None
    delegate_id: int | None
    start: int
    duration: int


def plain_events(data: bytes) -> Iterator[PlainEvent]:
    """All profiling events in file order.

    Raises:
        struct.error: something points outside of the file.
    """
    origin = _WORD if data[8:12] == b"ED00" else 0
    root = _follow(data, origin)
    for run, block in enumerate(_tables(data, root, 1)):
        for event in _tables(data, block, 3):
            profile = _field(data, event, 0)
            if profile:
                yield _event(data, _follow(data, profile), run)


def _event(data: bytes, table: int, run: int) -> PlainEvent:
    chain = _number(data, table, _CHAIN, "<i", 0)
    instruction = _number(data, table, _INSTRUCTION, "<i", -1)
    number = _number(data, table, _DELEGATE, "<i", -1)
    start, end = (_number(data, table, slot, "<Q", 0) for slot in (_START, _END))
    name = _text(data, table, _NAME)
    label = _text(data, table, _LABEL)
    shown = name if name is not None else label
    return PlainEvent(
        run,
        f"delegate operator {number}" if shown is None else shown,
        chain if chain >= 0 else None,
        instruction if min(chain, instruction) >= 0 else None,
        number if number >= 0 else None,
        start,
        end - start,
    )


def _field(data: bytes, table: int, slot: int) -> int:
    """Position of a field, 0 where absent."""
    layout = table - _unpack("<i", data, table)
    entry = _WORD + 2 * slot
    if entry + 2 > _unpack("<H", data, layout):
        return 0
    offset = _unpack("<H", data, layout + entry)
    return table + offset if offset else 0


def _number(data: bytes, table: int, slot: int, form: str, default: int) -> int:
    at = _field(data, table, slot)
    return _unpack(form, data, at) if at else default


def _text(data: bytes, table: int, slot: int) -> str | None:
    at = _field(data, table, slot)
    if not at:
        return None
    first = _follow(data, at)
    length = _unpack("<I", data, first)
    return data[first + _WORD : first + _WORD + length].decode("utf-8", "replace")


def _tables(data: bytes, table: int, slot: int) -> Iterator[int]:
    at = _field(data, table, slot)
    if at:
        vector = _follow(data, at)
        for place in range(vector + _WORD, vector + _WORD + _WORD * _unpack("<I", data, vector), _WORD):
            yield _follow(data, place)


def _follow(data: bytes, at: int) -> int:
    return at + _unpack("<I", data, at)


def _unpack(form: str, data: bytes, at: int) -> int:
    if at < 0:
        raise struct.error("before the file")
    return int(struct.unpack_from(form, data, at)[0])
