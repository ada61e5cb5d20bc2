"""Traces of AI Engine tiles in the JSON that Chrome and Perfetto show, as mlir-aie and tools like it write them."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

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
    from collections.abc import Sequence
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
        return re.search(rb"_trace for tile", data) is not None

    def read_tiles(self, data: memoryview, path: Path, slots: Slots | None) -> TileTraceSet:  # noqa: ARG002 - it has its own
        """Return the tiles of a trace; raises as :meth:`read` does."""
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
    processes = sorted(gathered.processes.items())
    units = [(pid, process, tile) for pid, process in processes if (tile := _name_tile(pid, process.name))]
    if not units:
        missing = "; the file is truncated" if scanner.is_cut else ""
        kind = TraceFormatError if processes or gathered.counts or scanner.is_cut else EmptyTilesError
        raise kind(f"it names no AI Engine tile{missing}", where=path, hint=_NO_TILE)
    events = sum(len(process.time) for _, process in processes)
    if not events and not any(process.addressed for _, process in processes):
        raise _no_events(gathered, [tile for _, _, tile in units], path)
    tiles = [_read_tile(tile, process) for _, process, tile in units]
    if not any(tile.events for tile in tiles):
        raise EmptyTraceError(f"none of its {events:,} events makes a span on a named tile", where=path, hint=_ODD)
    strangers = events - sum(len(process.time) for _, process, _ in units)
    cut = f"{events:,} events are complete, and the file ends at byte {len(data):,}" if scanner.is_cut else ""
    return TileTraceSet(tuple(tiles), FORMAT, tuple(_file_warnings(gathered, tiles, strangers, cut)))


@dataclass
class _Process:
    """Statements of the records on a process, before a trace unit is made of it."""

    name: str = ""
    threads: dict[int, str] = field(default_factory=dict)
    # codes by thread and name: two names on one slot are two slots
    slots: dict[tuple[int, str], int] = field(default_factory=dict)
    # begins and ends in stream order: the slot's code, the time in cycles, and whether it begins
    code: array[int] = field(default_factory=lambda: array("i"))
    time: array[int] = field(default_factory=lambda: array("q"))
    begin: array[int] = field(default_factory=lambda: array("b"))
    # slot and program counter of each event of a process that records addresses, in order
    addressed: list[tuple[int, int]] = field(default_factory=list)

    def slot_code(self, tid: int, name: str) -> int:
        """Return the code of a slot; a new one for a new slot."""
        return self.slots.setdefault((tid, name), len(self.slots))


class _Gathered:
    """Everything that the records say."""

    def __init__(self) -> None:
        self.processes: defaultdict[int, _Process] = defaultdict(_Process)
        self.counts: Counter[str] = Counter()
        self.fraction: float | None = None

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
            self.processes[pid].slot_code(tid, str(record.name))
            self.processes[pid].addressed.append((tid, address))
        elif record.ph != "M":
            self.counts["other_records"] += 1
        elif isinstance(name, str) and pid is not None:
            process = self.processes[pid]
            if record.name == "process_name":
                self.counts["renamed"] += (process.name or name) != name
                process.name = name
            elif record.name == "thread_name" and tid is not None:
                self.counts["renamed"] += process.threads.setdefault(tid, name) != name
                process.threads[tid] = name
                process.slot_code(tid, name)

    def _add_event(self, record: Record, pid: int | None, tid: int | None) -> None:
        time, stated = _whole_number(record.ts), record.ts
        if isinstance(stated, float) and time is None and isfinite(stated) and abs(stated) < _LARGEST:
            self.counts["fractional"] += 1
            self.fraction = stated if self.fraction is None else self.fraction
            return
        if time is None or not 0 <= time < _TIMER or pid is None or tid is None or not isinstance(record.name, str):
            self.counts["unreadable"] += 1
            return
        process = self.processes[pid]
        process.code.append(process.slot_code(tid, record.name))
        process.time.append(time)
        process.begin.append(record.ph == "B")


def _whole_number(value: object) -> int | None:
    """Return a number as a whole number of at most 2^62. None when it is none."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return value
    return None


def _no_events(gathered: _Gathered, tiles: Sequence[TileTrace], path: Path) -> TraceFormatError:
    unreadable, other_records = gathered.counts["unreadable"], gathered.counts["other_records"]
    if gathered.fraction is not None:
        problem = f"no event can be read: the times of {gathered.counts['fractional']:,} have fractions, "
        return TraceFormatError(f"{problem}such as {gathered.fraction:g}", where=path, hint=_SCALED)
    if unreadable:
        problem = f"no event can be read: {unreadable:,} lack a name, or a whole ts, pid or tid"
        return TraceFormatError(problem, where=path, hint="times are cycles, as mlir-aie writes them, not microseconds")
    if other_records:
        problem = f"its tiles have no events, only {other_records:,} records that are neither begin nor end"
        return EmptyTraceError(problem, where=path, hint="write begin and end events (B and E), as mlir-aie does")
    return EmptyTilesError("its tiles have no events", tiles, where=path, hint=_EMPTY)


def _name_tile(pid: int, recorded: str) -> TileTrace | None:
    """Return the trace of the unit that a process is called by, without events. None for another process."""
    match = _TILE.search(recorded)
    return TileTrace(int(match[2]), int(match[3]), _UNITS[match[1]], pid, recorded, (), 0) if match else None


def _read_tile(tile: TileTrace, process: _Process) -> TileTrace:
    """Add to the trace of a unit what its process recorded: spans, or addresses with an order for a time."""
    if process.addressed:
        names = {tid: name for tid, name in process.slots if name != UNUSED}
        slots = [SlotTrace(tid, event_names().current(name), name, NO_SPANS) for tid, name in sorted(names.items())]
        slot, address = (np.array(column, np.int64) for column in zip(*process.addressed, strict=True))
        return replace(tile, slots=tuple(slots), mode=TraceMode.EVENT_PC, addressed=AddressedEvents(slot, address))
    code, time, begin = np.array(process.code), np.array(process.time, np.int64), np.array(process.begin, bool)
    counts, warnings = Counter(times_backwards=int((np.diff(time) < 0).sum())), []
    invented = _name_invented_event(process, code, time, begin)
    if invented is not None:
        code, time, begin = code[:-1], time[:-1], begin[:-1]
        message = (
            f"{tile.recorded}: the last event, a begin of {invented} one cycle after all others, is not real (older "
            "decoders misread trailing zeros); skipped"
        )
        hint = "nothing to do; current decoders do not write it"
        warnings.append(TraceWarning("padding_as_event", message, hint))
    last = int(time.max(initial=0))
    slots, bounds = [], np.cumsum(np.bincount(code, minlength=len(process.slots)))
    orders = np.split(np.argsort(code, kind="stable"), bounds)  # and nothing behind the last slot
    for (tid, name), order in zip(process.slots, orders, strict=False):
        spans = _pair_events(time[order], begin[order], order, last, counts)
        if len(spans.start) or name != UNUSED:
            slots.append(SlotTrace(tid, event_names().current(name), name, spans))
    slots.sort(key=lambda slot: slot.number)
    return replace(tile, slots=tuple(slots), last=last, warnings=(*_tile_warnings(tile, counts, slots), *warnings))


def _name_invented_event(process: _Process, code: Ints, time: Ints, begin: NDArray[np.bool_]) -> str | None:
    """Return the name of a last event that stands for zeros after the end of the buffer. None if it is real.

    Older decoders read a zero byte as "slot 0 is active in one cycle": the trace then ends with a begin of slot 0, one
    cycle after all else, in which what is still active ends.
    """
    last = time.max(initial=0)
    earlier = time[time < last]
    if not len(earlier) or not begin[-1] or time[-1] != last or (begin & (time == last)).sum() != 1:
        return None
    tid, name = list(process.slots)[code[-1]]
    return name if tid == 0 and earlier.max() == last - 1 else None


def _pair_events(time: Ints, begin: NDArray[np.bool_], order: Ints, last: int, counts: Counter[str]) -> Spans:
    """Put begins and ends together in stream order, and count what does not fit.

    A begin while the slot is active leaves the span before open, which ends there. An end that closes nothing, and a
    span that would end before it starts, are left out.
    """
    begins = np.flatnonzero(begin)
    following = np.minimum(begins + 1, max(len(time) - 1, 0))
    is_final = begins + 1 >= len(time)
    is_open = is_final | begin[following]
    start = time[begins]
    end = np.where(is_final, np.maximum(start, last), time[following])
    is_forwards = end >= start
    counts["ends_without_begin"] += int((~begin).sum()) - int((~is_open).sum())
    counts["begins_repeated"] += int((is_open & ~is_final).sum())
    counts["spans_backwards"] += int((~is_forwards).sum())
    return Spans(start, end, is_open, order[begins], np.where(is_open, -1, order[following])).only(is_forwards)


def _tile_warnings(tile: TileTrace, counts: Counter[str], slots: Sequence[SlotTrace]) -> list[TraceWarning]:
    numbers = [slot.number for slot in slots if len(slot.spans.start)]
    counts["slots_renamed"] = len(numbers) - len(set(numbers))
    counts["slots_beyond"] = sum(not 0 <= number < SLOTS for number in numbers)
    problems = {
        "times_backwards": "events are earlier than the one before them in the file",
        "ends_without_begin": "end events close nothing; skipped",
        "begins_repeated": "begin events come while their slot is active",
        "spans_backwards": "spans would end before they start; skipped",
        "slots_renamed": "slots have events of more than one name",
        "slots_beyond": "slots have impossible numbers",
    }
    warnings = [
        TraceWarning(code, f"{tile.recorded}: {counts[code]:,} {problem}", _ODD)
        for code, problem in problems.items()
        if counts[code]
    ]
    return [*warnings, *unknown_events(tile.recorded, tile.unit, slots)]


def _file_warnings(gathered: _Gathered, tiles: Sequence[TileTrace], strangers: int, cut: str) -> list[TraceWarning]:
    units, warnings = [(tile.unit, tile.tile) for tile in tiles], []
    if cut:
        hint = "write or copy the file again; the intact part was read"
        warnings.append(TraceWarning("truncated", f"the event list is truncated: {cut}", hint))
    if gathered.fraction is not None:
        count = counted_text(gathered.counts["fractional"], "event", ",")
        message = f"{count} with fractional times, such as {gathered.fraction:g}; skipped"
        warnings.append(TraceWarning("times_fractional", message, _SCALED))
    counts = (
        (gathered.counts["unreadable"], "events_unreadable", "events lack a name, a time or a slot; skipped"),
        (gathered.counts["other_records"], "other_records", "records are neither begin, end nor metadata; skipped"),
        (gathered.counts["renamed"], "metadata_repeated", "names are redefined; the last one counts"),
        (strangers, "events_of_no_tile", "events belong to processes without a tile name; skipped"),
        (len(units) - len(set(units)), "tiles_repeated", "tile units occur more than once; separated by pid"),
    )
    warnings += [TraceWarning(code, f"{count:,} {problem}", _ODD) for count, code, problem in counts if count]
    return [*warnings, *no_core(tile.unit for tile in tiles)]
