"""Traces of matrix products on AI Engine cores for tests, with all times known: zero-fill, calls, and three ports."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from aie_traces import Span, Tile, json_text
from opscope.core.table.tiles import TileTrace
from opscope.npu.readers.json import read_json

NAMES = (
    *("PORT_RUNNING_0", "PORT_RUNNING_1", "PORT_RUNNING_2", "INSTR_EVENT_0"),
    *("INSTR_EVENT_1", "MEMORY_STALL", "LOCK_STALL", "INSTR_VECTOR"),
)
LEAD = 1000
"""Cycles before the first multiplying call, in which the first buffers arrive."""


class Gemm(NamedTuple):
    """A core that makes output tiles; a period is the longest of call and transfers, and one cycle more.

    Attributes:
        outputs: output tiles.
        each: multiplying calls for each.
        call: cycles of one, without the cycle in which it starts.
        vector: cycles with vector instructions in it.
        fill: cycles of the zero-fill before each output tile; 0 for none.
        transfers: cycles of a buffer of A, of B and of C.
        rest: cycles that each output tile takes more, waiting for a lock.
        begin: cycle from which all times count.
        cut: cycle at which the trace ends; None when it is whole.
        row: of the tile.
        column: of the tile.
    """

    outputs: int = 3
    each: int = 4
    call: int = 300
    vector: int = 200
    fill: int = 20
    transfers: tuple[int, int, int] = (128, 512, 256)
    rest: int = 0
    begin: int = 1
    cut: int | None = None
    row: int = 2
    column: int = 0

    @property
    def period(self) -> int:
        """From the start of a multiplying call to the next within an output tile."""
        return max(self.call + self.fill + 10, *self.transfers[:2]) + 1

    def tile(self) -> Tile:
        """The trace unit."""
        spans = [span for number in range(self.outputs * self.each) for span in self._call(number)]
        if self.cut is not None:
            spans = [_cut(span, self.cut) for span in spans if span.start < self.cut]
        return Tile("core", self.row, self.column, NAMES, tuple(sorted(spans, key=lambda span: span.start)))

    def start(self, number: int) -> int:
        """When a multiplying call starts."""
        return self.begin + LEAD + number * self.period + (number // self.each) * self.rest

    def place(self, cycle: int) -> int:
        """The place within its output tile, from 0, of the call that a cycle falls into; without rests."""
        return (cycle - self.begin - LEAD) // self.period % self.each

    def _call(self, number: int) -> list[Span]:
        start, (a, b, c) = self.start(number), self.transfers
        arrived = start - max(a, b) - 1
        spans = [Span(0, arrived, arrived + a), Span(1, arrived, arrived + b)]
        if number % self.each == 0:
            spans += self._fill(start)
        spans += [Span(3, start, start + 1), *self._vector(start + 5)]
        end = start + self.call
        spans += [Span(4, end, end + 1)]
        if number % self.each == self.each - 1:
            spans += [Span(2, end + 2, end + 2 + c)]
        return spans

    def _vector(self, start: int) -> list[Span]:
        return [Span(7, start, start + self.vector)] if self.vector else []

    def _fill(self, start: int) -> list[Span]:
        waited = [Span(6, start - self.fill - 5 - self.rest, start - self.fill - 5)] if self.rest else []
        if not self.fill:
            return waited
        first = start - self.fill - 3
        return [*waited, Span(3, first, first + 1), Span(4, first + self.fill, first + self.fill + 1)]


def _cut(span: Span, at: int) -> Span:
    return span if span.end is None or span.end <= at else Span(span.slot, span.start, None)


def traced(*cores: Gemm) -> tuple[TileTrace, ...]:
    """The cores, written as a trace in JSON and read."""
    return read(*(core.tile() for core in cores))


def read(*tiles: Tile) -> tuple[TileTrace, ...]:
    """Trace units, written as a trace in JSON and read."""
    return read_json(b"".join(json_text(tiles)), Path("gemm.json")).tiles
