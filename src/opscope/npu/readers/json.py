"""Traces of AI Engine tiles in the JSON that Chrome and Perfetto show, as mlir-aie and tools like it write them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import (
    NO_SPANS,
    SLOTS,
    UNUSED,
    AddressedEvents,
    SlotTrace,
    Spans,
    TileTrace,
    TileTraceSet,
    TraceMode,
    Unit,
)
from opscope.core.units import counted_text
from opscope.npu.devices import event_names
from opscope.npu.readers.json_text import (
    CutOffError,
    EventColumns,
    Gathered,
    Position,
    Values,
    first_element,
    gather_span,
    no_core,
    unknown_events,
)
from opscope.readers.compressed import advise_dontneed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.npu.readers.words import Slots

    Mask = NDArray[np.bool_]


class SlotEvents(NamedTuple):
    """The events of one slot in stream order; arrays of one length."""

    number: int  # of the slot
    name: str  # of its event, as recorded
    time: Ints  # in cycles
    begin: Mask  # whether the slot became active
    order: Ints  # place among all events of the trace

    def without_last(self) -> SlotEvents:
        """Drop the last event."""
        return self._replace(time=self.time[:-1], begin=self.begin[:-1], order=self.order[:-1])


class Paired(NamedTuple):
    """Spans of a slot."""

    spans: Spans  # in stream order
    without_begin: int  # ends that close nothing; they are in no span
    begun_again: int  # begins while the slot was active; the span before is left open and ends there
    backwards: int  # spans that would end before they start; they are left out


def paired(events: SlotEvents, last: int) -> Paired:
    """Put begins and ends together."""
    time, begin, order = events.time, events.begin, events.order
    begins = np.flatnonzero(begin)
    following = np.minimum(begins + 1, max(len(time) - 1, 0))
    final = begins + 1 >= len(time)
    unfinished = final | begin[following]
    start = time[begins]
    end = np.where(final, np.maximum(start, last), time[following])
    kept = end >= start
    spans = Spans(start, end, unfinished, order[begins], np.where(unfinished, -1, order[following]))
    if not kept.all():
        spans = spans.only(kept)
    return Paired(
        spans=spans,
        without_begin=int((~begin).sum()) - int((~unfinished).sum()),
        begun_again=int((unfinished & ~final).sum()),
        backwards=int((~kept).sum()),
    )


FORMAT = "aie-json"
_MOST_MAPPED = 1 << 24
_HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\[\s*(?:\{\s*(?:"|\Z)|\]|\Z)|\{\s*(?:"|\Z))')
_TILE = re.compile(
    r"(core|mem|shim|shimtile|intfc|memtile)_trace for tile\s*\(?\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)?\s*\Z"
)
_UNITS = {"intfc": Unit.SHIM, "shimtile": Unit.SHIM} | {unit.value: unit for unit in Unit}
_RECORDS = (b'"ph"', b"traceEvents", b"_trace for tile", b"process_name")
_NO_TILE = "an AI Engine trace names its tiles in process_name records, such as 'core_trace for tile2,4'"


class EmptyTilesError(EmptyTraceError):
    """A trace that names tiles, or nothing, and holds no event of them."""

    def __init__(
        self, problem: str, tiles: Sequence[TileTrace] = (), *, where: Path | None = None, hint: str | None = None
    ) -> None:
        super().__init__(problem, where=where, hint=hint)
        self.tiles = list(tiles)


class AieJsonReader:
    """Reads traces of AI Engine tiles in JSON."""

    name: ClassVar[str] = FORMAT

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts like JSON of objects."""
        return bool(_HEAD.match(head))

    def confirms(self, start: bytes) -> bool:
        """Return whether JSON holds, as far as it is here, what records of a trace do."""
        return any(word in start for word in _RECORDS)

    def read_tiles(self, data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:  # noqa: ARG002 - it has its own
        """The tiles of a trace; raises as :meth:`read` does."""
        return read_json(data, path)

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read the spans of every tile into one table."""
        return read_json(data, path).table()


def read_json(data: bytes | memoryview, path: Path) -> TileTraceSet:
    """Read the tiles of a trace in JSON."""
    values, gathered = Values(memoryview(data), path), Gathered()
    end = _gather_records(values, gathered)
    if not any(map(_TILE.search, gathered.processes.values())):
        missing = "; the file is truncated" if end.cut else ""
        kind = TraceFormatError if gathered.processes or gathered.counts or end.cut else EmptyTilesError
        raise kind(f"it names no AI Engine tile{missing}", where=path, hint=_NO_TILE)
    columns = gathered.columns()
    if not len(columns.time) and not gathered.addressed:
        raise _no_events(gathered, path)
    return _trace_set(gathered, columns, end, values)


def _gather_records(values: Values, into: Gathered) -> Position:
    """Read all records."""
    try:
        position = Position(first_element(values))
    except CutOffError:
        return Position(len(values.data), cut=True)
    kept = 0
    while not position.closed and not position.cut:
        if position.at - kept > _MOST_MAPPED:
            advise_dontneed(values.data, position.at)
            kept = position.at
        position = gather_span(values, position.at, into)
    return position


def _no_events(gathered: Gathered, path: Path) -> TraceFormatError:
    unreadable, others = gathered.counts["unreadable"], gathered.counts["other_records"]
    if gathered.fraction is not None:
        problem = f"no event can be read: the times of {gathered.counts['fractional']:,} have fractions, "
        return TraceFormatError(f"{problem}such as {gathered.fraction:g}", where=path, hint=_SCALED)
    if unreadable:
        problem = f"no event can be read: {unreadable:,} lack a name, or a whole ts, pid or tid"
        return TraceFormatError(problem, where=path, hint="times are cycles, as mlir-aie writes them, not microseconds")
    if others:
        problem = f"its tiles have no events, only {others:,} records that are neither begin nor end"
        return EmptyTraceError(problem, where=path, hint="write begin and end events (B and E), as mlir-aie does")
    tiles = [tile for pid, name in sorted(gathered.processes.items()) if (tile := _tile_of(pid, name))]
    return EmptyTilesError("its tiles have no events", tiles, where=path, hint=_EMPTY)


def _tile_of(pid: int, recorded: str) -> TileTrace | None:
    """The trace of the unit and tile that a process is called by, without events; None for another process."""
    match = _TILE.search(recorded)
    return TileTrace(int(match[2]), int(match[3]), _UNITS[match[1]], pid, recorded, (), 0) if match else None


def _trace_set(gathered: Gathered, columns: EventColumns, end: Position, values: Values) -> TileTraceSet:
    orders = _last_and_backward_times(gathered, columns)
    slots: dict[int, list[SlotEvents]] = {pid: [] for pid in gathered.processes}
    for pid, events in _by_slot(gathered, columns):
        slots.setdefault(pid, []).append(events)
    tiles, strangers = [], 0
    for pid, slot_events in sorted(slots.items()):
        tile = _tile_of(pid, gathered.processes.get(pid, ""))
        if tile is None:
            strangers += sum(len(events.time) for events in slot_events)
        elif pid in gathered.addressed:
            tiles.append(_addressed_tile(tile, slot_events, gathered.addressed[pid]))
        else:
            tiles.append(_traced_tile(tile, slot_events, *orders.get(pid, (0, 0))))
    if not any(tile.events for tile in tiles):
        problem = f"none of its {gathered.events:,} events makes a span on a named tile"
        raise EmptyTraceError(problem, where=values.path, hint=_ODD)
    return TileTraceSet(tuple(tiles), FORMAT, tuple(_file_warnings(gathered, tiles, strangers, end, values)))


def _addressed_tile(tile: TileTrace, events: list[SlotEvents], addressed: list[tuple[int, int]]) -> TileTrace:
    """Return the trace of a unit in EVENT_PC mode, whose records have program counters and an order for a time."""
    names = {slot.number: slot.name for slot in events if slot.name != UNUSED}
    slots = [SlotTrace(tid, event_names().current(name), name, NO_SPANS) for tid, name in sorted(names.items())]
    slot, address = (np.array(column, np.int64) for column in zip(*addressed, strict=True))
    return replace(tile, slots=tuple(slots), mode=TraceMode.EVENT_PC, addressed=AddressedEvents(slot, address))


def _by_slot(gathered: Gathered, columns: EventColumns) -> Iterator[tuple[int, SlotEvents]]:
    count = len(gathered.slots)
    small = columns.code.astype(np.uint16) if count < 1 << 16 else columns.code  # sorted in time proportional to it
    order = np.argsort(small, kind="stable")
    time, begin = columns.time[order], columns.begin[order]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(columns.code, minlength=count))]).tolist()
    for (pid, tid, name), (a, b) in zip(gathered.slots, pairwise(bounds), strict=True):
        yield pid, SlotEvents(tid, name, time[a:b], begin[a:b], order[a:b])


def _last_and_backward_times(gathered: Gathered, columns: EventColumns) -> dict[int, tuple[int, int]]:
    """The largest time of each process, and how many of its events are earlier than the one before."""
    if not len(columns.time):
        return {}
    pids = list(dict.fromkeys(pid for pid, _, _ in gathered.slots))
    place = {pid: number for number, pid in enumerate(pids)}
    owner = np.array([place[pid] for pid, _, _ in gathered.slots], np.int32)[columns.code]
    time = columns.time
    if (owner[1:] < owner[:-1]).any():
        rows = np.argsort(owner, kind="stable")
        owner, time = owner[rows], time[rows]
    first = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    last = np.maximum.reduceat(time, first)
    back = np.bincount(owner[1:][(time[1:] < time[:-1]) & (owner[1:] == owner[:-1])], minlength=len(pids))
    found = owner[first].tolist()
    return {pids[own]: (largest, int(back[own])) for own, largest in zip(found, last.tolist(), strict=True)}


def _traced_tile(tile: TileTrace, events: list[SlotEvents], last: int, backwards: int) -> TileTrace:
    invented = _invented_event(events, last)
    if invented is not None:
        events = [slot_events.without_last() if slot_events is invented else slot_events for slot_events in events]
        last = max(int(slot_events.time.max(initial=0)) for slot_events in events)
    made = [(slot_events, paired(slot_events, last)) for slot_events in events]
    slots = sorted(
        (
            SlotTrace(slot_events.number, event_names().current(slot_events.name), slot_events.name, pair.spans)
            for slot_events, pair in made
            if len(pair.spans.start) or slot_events.name != UNUSED
        ),
        key=lambda slot: slot.number,
    )
    return replace(
        tile,
        slots=tuple(slots),
        last=last,
        warnings=(
            *_tile_warnings(tile, backwards, slots, [pair for _, pair in made]),
            *([] if invented is None else [_padding_warning(tile, invented.name)]),
        ),
    )


def _invented_event(events: list[SlotEvents], last: int) -> SlotEvents | None:
    """The slot whose last event stands for zeros after the end of the buffer; None when none does.

    Older decoders read a zero byte as "slot 0 is active in one cycle": the trace then ends with a begin of slot 0, one
    cycle after all else, in which what is still active ends.
    """
    used = [slot_events for slot_events in events if len(slot_events.time)]
    slot_events = max(used, key=lambda slot_events: int(slot_events.order[-1]), default=None)
    if slot_events is None or slot_events.number != 0:
        return None
    at_end = sum(int((each.begin & (each.time == last)).sum()) for each in events)
    before = max(int(each.time[each.time < last].max(initial=-1)) for each in events)
    alone = bool(slot_events.begin[-1]) and int(slot_events.time[-1]) == last and at_end == 1
    return slot_events if alone and 0 <= before == last - 1 else None


def _padding_warning(tile: TileTrace, name: str) -> TraceWarning:
    message = (
        f"{tile.recorded}: the last event, a begin of {name} one cycle after all others, is not real (older decoders "
        "misread trailing zeros); skipped"
    )
    return TraceWarning("padding_as_event", message, "nothing to do; current decoders do not write it")


def _tile_warnings(tile: TileTrace, backwards: int, slots: list[SlotTrace], pairs: list[Paired]) -> list[TraceWarning]:
    numbers = [slot.number for slot in slots if len(slot.spans.start)]
    counts = (
        (backwards, "times_backwards", "events are earlier than the one before them in the file"),
        (sum(pair.without_begin for pair in pairs), "ends_without_begin", "end events close nothing; skipped"),
        (sum(pair.begun_again for pair in pairs), "begins_repeated", "begin events come while their slot is active"),
        (sum(pair.backwards for pair in pairs), "spans_backwards", "spans would end before they start; skipped"),
        (len(numbers) - len(set(numbers)), "slots_renamed", "slots have events of more than one name"),
        (sum(not 0 <= number < SLOTS for number in numbers), "slots_beyond", "slots have impossible numbers"),
    )
    warnings = [TraceWarning(code, f"{tile.recorded}: {count:,} {what}", _ODD) for count, code, what in counts if count]
    return [*warnings, *unknown_events(tile.recorded, tile.unit, slots)]


_SCALED = (
    "times are whole cycles, as mlir-aie writes them; these were rescaled, perhaps to microseconds: give the original"
)
_EMPTY = "the trace buffer was empty, or the file is truncated"
_ODD = "the tool that wrote the file decoded it differently, or the file was edited"


def _file_warnings(
    gathered: Gathered, tiles: Iterable[TileTrace], strangers: int, end: Position, values: Values
) -> list[TraceWarning]:
    places = [(tile.unit, tile.tile) for tile in tiles]
    counts = (
        (gathered.counts["unreadable"], "events_unreadable", "events lack a name, a time or a slot; skipped"),
        (gathered.counts["other_records"], "other_records", "records are neither begin, end nor metadata; skipped"),
        (gathered.counts["renamed"], "metadata_repeated", "names are redefined; the last one counts"),
        (strangers, "events_of_no_tile", "events belong to processes without a tile name; skipped"),
        (len(places) - len(set(places)), "tiles_repeated", "tile units occur more than once; separated by pid"),
    )
    warnings = [TraceWarning(code, f"{count:,} {what}", _ODD) for count, code, what in counts if count]
    if gathered.fraction is not None:
        count = gathered.counts["fractional"]
        message = f"{counted_text(count, 'event', ',')} with fractional times, such as {gathered.fraction:g}; skipped"
        warnings.insert(0, TraceWarning("times_fractional", message, _SCALED))
    if end.cut:
        message = (
            f"the event list is truncated: {gathered.events:,} events are complete, "
            f"and the file ends at byte {len(values.data):,}"
        )
        warnings.insert(0, TraceWarning("truncated", message, "write or copy the file again; the intact part was read"))
    return [*warnings, *no_core(unit for unit, _ in places)]
