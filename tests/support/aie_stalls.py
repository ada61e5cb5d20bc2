"""Traces for tests of what AI Engine tiles wait for: calls that stall, cores that only wait, and DMAs that wait."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from aie_traces import Span, Tile

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENTS = (
    *("INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR", "LOCK_STALL"),
    *("MEMORY_STALL", "STREAM_STALL", "CASCADE_STALL", "PORT_RUNNING_0"),
)
BEGIN = 100
"""Cycle in which the first call starts."""


class Caller(NamedTuple):
    """A core of which each call begins with vector instructions, and then waits.

    Attributes:
        periods: cycles from the start of each call to that of the next; there is one call more.
        call: cycles of each call.
        vector: cycles with vector instructions at its begin.
        stalls: cycles of each stall in every call, one behind the other, after the vector instructions.
        waits: cycles of lock stall at the end of each period, before the next call.
        moves: cycles at the begin of each period in which PORT_RUNNING_0 is active.
        row: of the tile.
        column: of the tile.
    """

    periods: tuple[int, ...] = (1010,) * 11
    call: int = 1000
    vector: int = 200
    stalls: Mapping[str, int] = {}
    waits: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()
    row: int = 2
    column: int = 0

    def tile(self) -> Tile:
        """The trace unit."""
        starts = list(accumulate(self.periods, initial=BEGIN))
        spans = [span for start in starts for span in self._call(start)]
        waited = zip(starts[1:], self.waits, strict=False)
        spans += [Span(3, start - cycles, start) for start, cycles in waited if cycles]
        spans += [Span(7, start, start + cycles) for start, cycles in zip(starts, self.moves, strict=False) if cycles]
        return Tile("core", self.row, self.column, EVENTS, sorted(spans, key=lambda span: span.start))

    def _call(self, start: int) -> list[Span]:
        now, end = start + 1 + self.vector, start + self.call
        spans = [Span(0, start, start + 1), Span(1, end, end + 1)]
        spans += [Span(2, start + 1, now)] if self.vector else []
        for event, cycles in self.stalls.items():
            spans.append(Span(EVENTS.index(event), now, now + cycles))
            now += cycles
        return spans


def waiting(unit: str, row: int, column: int, waits: Mapping[str, int], last: int = 1000) -> Tile:
    """A unit that waits.

    Args:
        unit: core, mem, memtile or shim.
        row: of the tile.
        column: of the tile.
        waits: cycles of each event, ending with the trace; 0 for one that was traced and never active.
        last: cycle with which the trace ends.
    """
    names = [*waits, *("NONE",) * (8 - len(waits))]
    spans = [Span(slot, last - cycles, last) for slot, cycles in enumerate(waits.values()) if cycles]
    return Tile(unit, row, column, names, spans)
