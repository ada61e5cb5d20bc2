"""Traces of AI Engine tiles in memory: for each tile and unit, arrays of the spans in which its events were active.

All times are cycles of the tile's own timer, counted from the start of its trace. A span lasts from ``start`` up to and
without ``end``; an event of one cycle has an ``end`` one larger than its ``start``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.errors import EmptyTraceError
from opscope.core.table.events import Clock, EventTable, TraceWarning
from opscope.core.table.scope import Scope
from opscope.core.table.segment import SCOPES, Coded, coded_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints

SLOTS = 8
"""Event slots of a trace unit."""
UNUSED = "NONE"
"""Name of a slot without an event."""


class Unit(str, enum.Enum):
    """Which trace unit of a tile."""

    CORE = "core"
    """The processor of a compute tile."""
    MEM = "mem"
    """The memory module of a compute tile."""
    MEMTILE = "memtile"
    """A memory tile."""
    SHIM = "shim"
    """An interface tile."""


class TraceMode(str, enum.Enum):
    """What a trace unit records, by the two bits of its Start command."""

    EVENT_TIME = "event_time"
    """When each event was active."""
    EVENT_PC = "event_pc"
    """At which program address each event occurred, without times."""
    EXECUTION = "execution"
    """Which branches the core took, without events."""
    UNKNOWN = "unknown"


class AddressedEvents(NamedTuple):
    """Events of a unit that records addresses, in the order in which they occurred; arrays of one length."""

    slot: Ints  # number of each event's slot
    address: Ints  # program counter


class Spans(NamedTuple):
    """When an event was active, in stream order; arrays of one length."""

    start: Ints  # first cycle
    # first cycle in which it was inactive again; of a span without an end, the tile's last time, or the start of
    # the slot's next span
    end: Ints
    open: NDArray[np.bool_]  # whether the end is missing in the trace
    begin_order: Ints  # place of the begin among all events of the trace
    end_order: Ints  # place of the end; -1 where it is missing

    def only(self, kept: NDArray[np.bool_]) -> Spans:
        """Some of them."""
        orders = self.begin_order[kept], self.end_order[kept]
        return Spans(self.start[kept], self.end[kept], self.open[kept], *orders)


@dataclass(frozen=True)
class SlotTrace:
    """The spans of one event slot."""

    number: int  # of the slot
    name: str  # of its event, as the hardware's tables have it
    recorded: str  # the name in the trace, which may be an earlier one
    spans: Spans  # when the event was active

    @property
    def cycles(self) -> int:
        """Cycles in which the event was active."""
        return int((self.spans.end - self.spans.start).sum())


class LostWords(NamedTuple):
    """A place where a capture lacks words: times from there on are too early by an unknown amount."""

    cycle: int  # in the tile's own time
    why: str  # what shows it, in words


@dataclass(frozen=True)
class TileTrace:
    """What one trace unit of one tile recorded."""

    row: int  # of the tile, 0 is the interface row
    column: int  # of the tile
    unit: Unit  # core, memory module, memory tile or interface tile
    pid: int  # number that the trace gives it; of raw words, its place in order of appearance
    recorded: str  # what the trace calls it
    slots: tuple[SlotTrace, ...]  # those with a name or with spans, by number
    last: int  # the largest time that its trace reaches, 0 without any
    # value of the tile's timer at the start of its trace; None where the trace does not tell
    start_timer: int | None = None
    warnings: tuple[TraceWarning, ...] = ()  # what limits this tile's meaning
    lost: tuple[LostWords, ...] = ()  # where the capture lacks words, ascending; only raw words tell
    # whether the buffer had room left behind the trace, so that it did not fill; None where that is not known
    room: bool | None = None
    mode: TraceMode = TraceMode.EVENT_TIME  # what it records; there are spans only of times
    addressed: AddressedEvents | None = None  # events with addresses, where it records these

    @property
    def tile(self) -> str:
        """The tile as ``ROW,COL``."""
        return f"{self.row},{self.column}"

    @property
    def spans(self) -> int:
        """Number of spans in all slots."""
        return sum(len(slot.spans.start) for slot in self.slots)

    @property
    def events(self) -> int:
        """Number of begins and ends of these spans, or of events with addresses."""
        addressed = 0 if self.addressed is None else len(self.addressed.slot)
        return addressed + sum(2 * len(slot.spans.start) - int(slot.spans.open.sum()) for slot in self.slots)

    def slot(self, name: str) -> SlotTrace | None:
        """The first slot with this event; None when it was not traced."""
        return next((slot for slot in self.slots if slot.name == name), None)


@dataclass(frozen=True)
class TileTraceSet:
    """All tiles of a trace, in order of their pid."""

    tiles: tuple[TileTrace, ...]  # one for each trace unit of each tile
    format: str  # of the file
    # what limits the meaning of the whole; those of single tiles stand with them
    warnings: tuple[TraceWarning, ...] = ()
    clock: Clock = Clock.CYCLES  # unit of all times

    @property
    def cores(self) -> tuple[TileTrace, ...]:
        """The traces of cores."""
        return tuple(tile for tile in self.tiles if tile.unit is Unit.CORE)

    @property
    def events(self) -> int:
        """Number of begins and ends in all tiles."""
        return sum(tile.events for tile in self.tiles)

    @property
    def all_warnings(self) -> tuple[TraceWarning, ...]:
        """Those of the file, then those of each tile."""
        return (*self.warnings, *(warning for tile in self.tiles for warning in tile.warnings))

    def table(self) -> EventTable:
        """The documented table: one row a span in order of the begins, one process a tile, none enclosing another.

        ``block`` is the tile as recorded, ``name`` the event. There is no backend, method or chain. A span without an
        end lasts to the last cycle known. Tiles without spans have no process.

        Raises:
            EmptyTraceError: no tile has times.
        """
        if not any(tile.spans for tile in self.tiles):
            raise EmptyTraceError("the trace has addresses and no times", hint="opscope aie reads what needs no time")
        tables = [_table(tile) for tile in self.tiles if tile.spans]
        return EventTable.concat(tables).with_warnings(*self.all_warnings)


NO_SPANS = Spans(*(np.empty(0, kind) for kind in (np.int64, np.int64, bool, np.int64, np.int64)))
"""The spans of an event that was never active."""


def _table(tile: TileTrace) -> EventTable:
    used = [slot for slot in tile.slots if len(slot.spans.start)]
    start, end, order = (
        np.concatenate([getattr(slot.spans, field) for slot in used]) for field in ("start", "end", "begin_order")
    )
    known = coded_from([slot.name for slot in used])
    names = np.repeat(known.codes, [len(slot.spans.start) for slot in used])
    rows, count = np.argsort(order, kind="stable"), len(order)
    columns = {
        "run": np.zeros(count, np.int64),
        "scope": Coded(np.full(count, SCOPES.index(Scope.TILE_EVENT.value), np.int64), SCOPES),
        "name": Coded(names[rows], known.texts),
        "block": Coded.constant(tile.recorded, count),
        "start": start[rows],
        "duration": (end - start)[rows],
        "parent": np.full(count, -1, np.int64),
    }
    return EventTable.build(columns, Clock.CYCLES)
