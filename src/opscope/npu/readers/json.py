"""Traces of AI Engine tiles in the JSON that Chrome and Perfetto show, as mlir-aie and tools like it write them."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import isfinite
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
from opscope.npu.readers.json_text import RecordScanner
from opscope.npu.readers.slots import no_core, unknown_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.npu.readers.json_text import Record
    from opscope.npu.readers.slots import Slots

FORMAT = "aie-json"
_HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\[\s*(?:\{\s*(?:"|\Z)|\]|\Z)|\{\s*(?:"|\Z))')
_TILE = re.compile(
    r"(core|mem|shim|shimtile|intfc|memtile)_trace for tile\s*\(?\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)?\s*\Z"
)
_NAMED_TILE = rb"_trace for tile"
_UNITS = {"intfc": Unit.SHIM, "shimtile": Unit.SHIM} | {unit.value: unit for unit in Unit}
_RECORDS = (b'"ph"', b"traceEvents", b"_trace for tile", b"process_name")
_LARGEST = 1 << 62
_TIMER = 1 << 56
"""Cycles after which a tile's timer starts again: no trace has larger times."""
_NO_TILE = "an AI Engine trace names its tiles in process_name records, such as 'core_trace for tile2,4'"
_SCALED = (
    "times are whole cycles, as mlir-aie writes them; these were rescaled, perhaps to microseconds: give the original"
)
_EMPTY = "the trace buffer was empty, or the file is truncated"
_ODD = "the tool that wrote the file decoded it differently, or the file was edited"


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

    def holds_own(self, data: bytes | memoryview) -> bool:
        """Return whether JSON names a tile, so that it is no trace of another tool."""
        return re.search(_NAMED_TILE, data) is not None

    def read_tiles(self, data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:  # noqa: ARG002 - it has its own
        """The tiles of a trace; raises as :meth:`read` does."""
        return read_json(data, path)

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read the spans of every tile into one table."""
        return read_json(data, path).table()


def read_json(data: bytes | memoryview, path: Path) -> TileTraceSet:
    """Read the tiles of a trace in JSON."""
    scanner, gathered = RecordScanner(memoryview(data), path), _Gathered()
    for records in scanner.records():
        for record in records:
            gathered.add(record)
    if not any(map(_TILE.search, gathered.processes.values())):
        missing = "; the file is truncated" if scanner.is_cut else ""
        kind = TraceFormatError if gathered.processes or gathered.counts or scanner.is_cut else EmptyTilesError
        raise kind(f"it names no AI Engine tile{missing}", where=path, hint=_NO_TILE)
    if not len(gathered.time) and not gathered.addressed:
        raise _no_events(gathered, path)
    tiles, strangers = _tiles_of(gathered)
    if not any(tile.events for tile in tiles):
        problem = f"none of its {len(gathered.time):,} events makes a span on a named tile"
        raise EmptyTraceError(problem, where=path, hint=_ODD)
    warnings = _file_warnings(gathered, tiles, strangers, cut_at=len(data) if scanner.is_cut else None)
    return TileTraceSet(tuple(tiles), FORMAT, tuple(warnings))


class _Gathered:
    """Everything that the records say, before tiles are made of it."""

    def __init__(self) -> None:
        # codes by process, thread and name: two names on one slot are two slots
        self.slots: dict[tuple[int, int, str], int] = {}
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        # slot and program counter of each event of a process that records addresses, in order
        self.addressed: dict[int, list[tuple[int, int]]] = {}
        # begins and ends in stream order: the slot's code, the time in cycles, and whether it begins
        self.code, self.time, self.begin = array("i"), array("q"), array("b")
        self.last: dict[int, int] = {}  # largest time of each process
        self.backwards: Counter[int] = Counter()  # events of each process that are earlier than the one before
        self.counts: Counter[str] = Counter()
        self.fraction: float | None = None
        self._before: dict[int, int] = {}

    def add(self, record: Record) -> None:
        """Take over a record."""
        pid, tid = _whole_number(record.pid), _whole_number(record.tid)
        if record.ph == "B" or record.ph == "E":  # noqa: PLR1714 - no set: it may be a list, which has no hash
            self._add_event(record, pid, tid)
            return
        args = record.args if isinstance(record.args, dict) else {}
        address, name = _whole_number(args.get("pc")), args.get("name")
        is_addressed = record.ph == "i" and isinstance(record.name, str)
        if is_addressed and pid is not None and tid is not None and address is not None:
            self._slot_code(pid, tid, str(record.name))
            self.addressed.setdefault(pid, []).append((tid, address))
        elif record.ph != "M":
            self.counts["other_records"] += 1
        elif isinstance(name, str) and pid is not None:
            self._add_name(record, pid, tid, name)

    def _add_event(self, record: Record, pid: int | None, tid: int | None) -> None:
        time, given = _whole_number(record.ts), record.ts
        if isinstance(given, float) and time is None and isfinite(given) and abs(given) < _LARGEST:
            self.counts["fractional"] += 1
            self.fraction = given if self.fraction is None else self.fraction
            return
        if time is None or not 0 <= time < _TIMER or pid is None or tid is None or not isinstance(record.name, str):
            self.counts["unreadable"] += 1
            return
        self.code.append(self._slot_code(pid, tid, record.name))
        self.time.append(time)
        self.begin.append(record.ph == "B")
        before = self._before.get(pid, 0)
        self._before[pid], self.last[pid] = time, max(time, self.last.get(pid, 0))
        if time < before:
            self.backwards[pid] += 1

    def _add_name(self, record: Record, pid: int, tid: int | None, name: str) -> None:
        if record.name == "process_name":
            self.counts["renamed"] += self.processes.get(pid, name) != name
            self.processes[pid] = name
        elif record.name == "thread_name" and tid is not None:
            self.counts["renamed"] += self.threads.get((pid, tid), name) != name
            self.threads[pid, tid] = name
            self._slot_code(pid, tid, name)

    def _slot_code(self, pid: int, tid: int, name: str) -> int:
        return self.slots.setdefault((pid, tid, name), len(self.slots))


def _whole_number(value: object) -> int | None:
    """Return a number as a whole number of at most 2^62. None when it is none."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return value
    return None


def _no_events(gathered: _Gathered, path: Path) -> TraceFormatError:
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


class _SlotEvents(NamedTuple):
    """The events of one slot in stream order; arrays of one length."""

    number: int  # of the slot
    name: str  # of its event, as recorded
    time: Ints  # in cycles
    begin: NDArray[np.bool_]  # whether the slot became active
    order: Ints  # place among all events of the trace

    def without_last(self) -> _SlotEvents:
        """Drop the last event."""
        return self._replace(time=self.time[:-1], begin=self.begin[:-1], order=self.order[:-1])


def _tiles_of(gathered: _Gathered) -> tuple[list[TileTrace], int]:
    """Return the traced units by pid, and how many events belong to none."""
    slots: dict[int, list[_SlotEvents]] = {pid: [] for pid in gathered.processes}
    code, time, begin = (
        np.array(gathered.code, np.int32),
        np.array(gathered.time, np.int64),
        np.array(gathered.begin, bool),
    )
    order = np.argsort(code, kind="stable")
    bounds = np.cumsum([0, *np.bincount(code, minlength=len(gathered.slots)).tolist()]).tolist()
    for (pid, tid, name), (low, high) in zip(gathered.slots, pairwise(bounds), strict=True):
        own = order[low:high]
        slots.setdefault(pid, []).append(_SlotEvents(tid, name, time[own], begin[own], own))
    tiles, strangers = [], 0
    for pid, events in sorted(slots.items()):
        tile = _tile_of(pid, gathered.processes.get(pid, ""))
        if tile is None:
            strangers += sum(len(slot_events.time) for slot_events in events)
        elif pid in gathered.addressed:
            tiles.append(_addressed_tile(tile, events, gathered.addressed[pid]))
        else:
            tiles.append(_traced_tile(tile, events, gathered.last.get(pid, 0), gathered.backwards[pid]))
    return tiles, strangers


def _addressed_tile(tile: TileTrace, events: list[_SlotEvents], addressed: list[tuple[int, int]]) -> TileTrace:
    """Return the trace of a unit in EVENT_PC mode, whose records have program counters and an order for a time."""
    names = {slot.number: slot.name for slot in events if slot.name != UNUSED}
    slots = [SlotTrace(tid, event_names().current(name), name, NO_SPANS) for tid, name in sorted(names.items())]
    slot, address = (np.array(column, np.int64) for column in zip(*addressed, strict=True))
    return replace(tile, slots=tuple(slots), mode=TraceMode.EVENT_PC, addressed=AddressedEvents(slot, address))


def _traced_tile(tile: TileTrace, events: list[_SlotEvents], last: int, backwards: int) -> TileTrace:
    warnings, invented = [], _invented_event(events, last)
    if invented is not None:
        events = [slot_events.without_last() if slot_events is invented else slot_events for slot_events in events]
        last = max(int(slot_events.time.max(initial=0)) for slot_events in events)
        warnings.append(_padding_warning(tile, invented.name))
    counts = Counter(times_backwards=backwards)
    slots = []
    for slot_events in events:
        spans = _pair_events(slot_events, last, counts)
        if len(spans.start) or slot_events.name != UNUSED:
            name = event_names().current(slot_events.name)
            slots.append(SlotTrace(slot_events.number, name, slot_events.name, spans))
    slots.sort(key=lambda slot: slot.number)
    return replace(tile, slots=tuple(slots), last=last, warnings=(*_tile_warnings(tile, counts, slots), *warnings))


def _invented_event(events: list[_SlotEvents], last: int) -> _SlotEvents | None:
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
    is_alone = bool(slot_events.begin[-1]) and int(slot_events.time[-1]) == last and at_end == 1
    return slot_events if is_alone and 0 <= before == last - 1 else None


def _padding_warning(tile: TileTrace, name: str) -> TraceWarning:
    message = (
        f"{tile.recorded}: the last event, a begin of {name} one cycle after all others, is not real (older decoders "
        "misread trailing zeros); skipped"
    )
    return TraceWarning("padding_as_event", message, "nothing to do; current decoders do not write it")


def _pair_events(events: _SlotEvents, last: int, counts: Counter[str]) -> Spans:
    """Put begins and ends together in stream order, and count what does not fit.

    A begin while the slot is active leaves the span before open, which ends there. An end that closes nothing, and a
    span that would end before it starts, are left out.
    """
    time, begin, order = events.time, events.begin, events.order
    begins = np.flatnonzero(begin)
    following = np.minimum(begins + 1, max(len(time) - 1, 0))
    is_final = begins + 1 >= len(time)
    is_open = is_final | begin[following]
    start = time[begins]
    end = np.where(is_final, np.maximum(start, last), time[following])
    kept = end >= start
    counts["ends_without_begin"] += int((~begin).sum()) - int((~is_open).sum())
    counts["begins_repeated"] += int((is_open & ~is_final).sum())
    counts["spans_backwards"] += int((~kept).sum())
    return Spans(start, end, is_open, order[begins], np.where(is_open, -1, order[following])).only(kept)


def _tile_warnings(tile: TileTrace, counts: Counter[str], slots: list[SlotTrace]) -> list[TraceWarning]:
    numbers = [slot.number for slot in slots if len(slot.spans.start)]
    counts["slots_renamed"] = len(numbers) - len(set(numbers))
    counts["slots_beyond"] = sum(not 0 <= number < SLOTS for number in numbers)
    said = {
        "times_backwards": "events are earlier than the one before them in the file",
        "ends_without_begin": "end events close nothing; skipped",
        "begins_repeated": "begin events come while their slot is active",
        "spans_backwards": "spans would end before they start; skipped",
        "slots_renamed": "slots have events of more than one name",
        "slots_beyond": "slots have impossible numbers",
    }
    warnings = [
        TraceWarning(code, f"{tile.recorded}: {counts[code]:,} {what}", _ODD)
        for code, what in said.items()
        if counts[code]
    ]
    return [*warnings, *unknown_events(tile.recorded, tile.unit, slots)]


def _file_warnings(
    gathered: _Gathered, tiles: Iterable[TileTrace], strangers: int, cut_at: int | None
) -> list[TraceWarning]:
    places = [(tile.unit, tile.tile) for tile in tiles]
    warnings = []
    if cut_at is not None:
        message = (
            f"the event list is truncated: {len(gathered.time):,} events are complete, "
            f"and the file ends at byte {cut_at:,}"
        )
        warnings.append(TraceWarning("truncated", message, "write or copy the file again; the intact part was read"))
    if gathered.fraction is not None:
        count = gathered.counts["fractional"]
        message = f"{counted_text(count, 'event', ',')} with fractional times, such as {gathered.fraction:g}; skipped"
        warnings.append(TraceWarning("times_fractional", message, _SCALED))
    counts = (
        (gathered.counts["unreadable"], "events_unreadable", "events lack a name, a time or a slot; skipped"),
        (gathered.counts["other_records"], "other_records", "records are neither begin, end nor metadata; skipped"),
        (gathered.counts["renamed"], "metadata_repeated", "names are redefined; the last one counts"),
        (strangers, "events_of_no_tile", "events belong to processes without a tile name; skipped"),
        (len(places) - len(set(places)), "tiles_repeated", "tile units occur more than once; separated by pid"),
    )
    warnings += [TraceWarning(code, f"{count:,} {what}", _ODD) for count, code, what in counts if count]
    return [*warnings, *no_core(unit for unit, _ in places)]
