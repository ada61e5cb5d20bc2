"""Least bytes that a call of a portable kernel moves: each tensor once, and only the part of it that is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.dimensions import NotKnownError, at_least, elements
from opscope.program.node_traffic import Traffic, stored_bytes
from opscope.program.portable_cost import COLLECT, EMBEDDINGS, touches_no_data, window_elements

if TYPE_CHECKING:
    from opscope.program.call import Call


def call_traffic(call: Call) -> Traffic:
    """Bytes of one call.

    Raises:
        NotKnownError: a shape or a width is unknown.
    """
    if touches_no_data(call):
        return Traffic(0, 0, 0)
    if call.in_place or call.operator == COLLECT:
        return _placed(call)
    needed = {number: _needed(call, number) for number in call.inputs}
    weights = sum(size for number, size in needed.items() if call.tensor(number).constant)
    return Traffic(sum(needed.values()) - weights, sum(map(call.bytes_of, call.outputs)), weights)


def _needed(call: Call, number: int) -> int:
    """Bytes of an input that the outputs depend on."""
    whole = call.bytes_of(number)
    if call.operator in EMBEDDINGS:
        return min(whole, _rows(call, number))
    seen = window_elements(call) if call.tensors_at(0) == (number,) else None
    return whole if seen is None else min(whole, stored_bytes(call.tensor(number).dtype, (seen,)))


def _rows(call: Call, number: int) -> int:
    """Bytes of the rows of a table, of its scales or of its zero points that the indices name, each once."""
    position = EMBEDDINGS[call.operator]
    if number in call.tensors_at(position):
        return call.bytes_of(number)
    rows = at_least(call.shape_of(number), 1)[0]
    return elements(call.shape(position)) * (call.bytes_of(number) // rows) if rows else 0


def _placed(call: Call) -> Traffic:
    """What is put into the first argument is read, and as many elements of it are written."""
    given = [number for number in call.inputs if number not in call.tensors_at(0)]
    if not given:
        raise NotKnownError
    into = call.tensors_at(0) if call.operator == "copy" else given[-1:]
    return Traffic(sum(map(call.bytes_of, given)), sum(map(call.bytes_of, into)), 0)
