"""The records of a trace in JSON, whatever its layout: a bare list, or the list ``traceEvents`` of an object.

Nothing is held but a window of the text. A list that is cut off is read as far as its records are whole.
What they say is gathered a record or a stretch of records at a time, before tiles are made of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from opscope.core.errors import TraceFormatError
from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import Unit
from opscope.core.units import counted_text
from opscope.npu.devices import event_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import SlotTrace


_LARGEST = 1 << 62
TIMER = 1 << 56
"""Cycles after which a tile's timer starts again: no trace has larger times."""
_BEGIN, _END, _METADATA, _INSTANT = "B", "E", "M", "i"
_Whole = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]


class Event(msgspec.Struct, gc=False):
    """A begin or end of which nothing is missing or odd."""

    name: str
    ph: Literal["B", "E"]
    ts: Annotated[int, msgspec.Meta(ge=0, lt=TIMER)]
    pid: _Whole
    tid: _Whole


class RecordArgs(msgspec.Struct, gc=False):
    """The arguments of a record: metadata have a name, events of a unit in EVENT_PC mode a program counter."""

    name: object = None
    pc: object = None


class Record(msgspec.Struct, gc=False):
    """A record of the list, as far as this format uses it."""

    name: object = None
    ph: object = None
    ts: object = None
    pid: object = None
    tid: object = None
    args: RecordArgs | None = None


class EventColumns(NamedTuple):
    """All begins and ends of a file, in stream order; arrays of one length."""

    code: NDArray[np.int32]  # place of the slot in the list of slots
    time: Ints  # in cycles
    begin: NDArray[np.bool_]  # whether the slot became active


class Gathered:
    """Everything that was read so far."""

    def __init__(self) -> None:
        # codes by process, thread and name: two names on one slot are two slots
        self.slots: dict[tuple[int, int, str], int] = {}
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        # slot and program counter of each event of a process that records addresses, in order
        self.addressed: dict[int, list[tuple[int, int]]] = {}
        self.counts: Counter[str] = Counter()
        self.fraction: float | None = None
        self._parts: list[EventColumns] = []

    @property
    def events(self) -> int:
        """Begins and ends so far."""
        return sum(len(part.time) for part in self._parts)

    def code(self, pid: int, tid: int, name: str) -> int:
        """Code of a slot."""
        return self.slots.setdefault((pid, tid, name), len(self.slots))

    def add_events(self, events: list[Event]) -> None:
        """Take over begins and ends in order."""
        keys = [(event.pid, event.tid, event.name) for event in events]
        codes = {key: self.code(*key) for key in dict.fromkeys(keys)}
        times, begins = [event.ts for event in events], [event.ph == _BEGIN for event in events]
        self._parts.append(_event_columns([codes[key] for key in keys], times, begins))

    def add(self, records: Iterable[Record]) -> None:
        """Take over records in order."""
        events = [row for record in records if (row := self._event_row(record))]
        if events:
            self._parts.append(_event_columns(*zip(*events, strict=True)))

    def columns(self) -> EventColumns:
        """Join what was gathered into columns."""
        return EventColumns(
            *(np.concatenate(column) for column in zip(_event_columns([], [], []), *self._parts, strict=True))
        )

    def _event_row(self, record: Record) -> tuple[int, int, bool] | None:
        phase = record.ph
        if phase not in (_BEGIN, _END):  # no set: it may be a list or an object, which have no hash
            self._add_other(record)
            return None
        time, pid, tid = whole(record.ts), whole(record.pid), whole(record.tid)
        if isinstance(record.ts, float) and time is None and isfinite(record.ts) and abs(record.ts) < _LARGEST:
            self.counts["fractional"] += 1
            self.fraction = record.ts if self.fraction is None else self.fraction
            return None
        if time is None or not 0 <= time < TIMER or pid is None or tid is None or not isinstance(record.name, str):
            self.counts["unreadable"] += 1
            return None
        return self.code(pid, tid, record.name), time, phase == _BEGIN

    def _add_other(self, record: Record) -> None:
        args = record.args or RecordArgs()
        name, pid, tid, address = args.name, whole(record.pid), whole(record.tid), whole(args.pc)
        if (
            record.ph == _INSTANT
            and pid is not None
            and tid is not None
            and address is not None
            and isinstance(record.name, str)
        ):
            self.code(pid, tid, record.name)
            self.addressed.setdefault(pid, []).append((tid, address))
            return
        if record.ph != _METADATA:
            self.counts["other_records"] += 1
            return
        if not isinstance(name, str) or pid is None:
            return
        if record.name == "process_name":
            self.counts["renamed"] += self.processes.get(pid, name) != name
            self.processes[pid] = name
        elif record.name == "thread_name" and tid is not None:
            self.counts["renamed"] += self.threads.get((pid, tid), name) != name
            self.threads[pid, tid] = name
            self.code(pid, tid, name)


def _event_columns(code: Sequence[int], time: Sequence[int], begin: Sequence[bool]) -> EventColumns:
    return EventColumns(np.array(code, np.int32), np.array(time, np.int64), np.array(begin, bool))


def whole(value: object) -> int | None:
    """A number as a whole number of at most 2^62; None when it is none."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return value
    return None


def record_of(value: Any) -> Record:  # noqa: ANN401 - any JSON value
    """An element of the list as a record; a record of nothing when it is not an object."""
    if not isinstance(value, dict):
        return Record()
    known = {name: value[name] for name in ("name", "ph", "ts", "pid", "tid") if name in value}
    args = value.get("args")
    return Record(**known, args=RecordArgs(args.get("name"), args.get("pc")) if isinstance(args, dict) else None)


LIST_KEY = "traceEvents"
_WINDOW = 1 << 12
_GROWTH = 8
_STRETCH = 1 << 15
_SPACE = re.compile(rb"[ \t\r\n]*")
_FILLED = re.compile(rb"(?!\0*[^\0])")
_SEPARATOR = re.compile(rb"[ \t\r\n]*(?:,[ \t\r\n]*)?")
_PART_OF_NUMBER = re.compile(r"\.|[eE][+-]?")
"""What stands behind the whole part of a number that is cut off."""
_PARTS_OF_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_LONGEST_ESCAPE = 12
_DECODER = json.JSONDecoder()
_ELEMENTS = re.compile(rb"(.*\})[ \t\r\n]*,[ \t\r\n]*(?=\{)", re.DOTALL)
"""Up to where the last element is likely to start; a comma between objects in an element looks the same."""
_EVENTS = msgspec.json.Decoder(list[Event])
_RECORDS = msgspec.json.Decoder(list[Record])
_NO_LIST = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_HINT = "the file was edited or is not a trace; rewrite it"
_NO_COMMA = "not valid JSON: a comma is missing"
_MARK = b"\xef\xbb\xbf"
_MOST_LISTED = 5
_MOST_LETTERS = 40


class CutOffError(Exception):
    """The file ends inside a value."""


class Values:
    """The bytes of a file, and how messages call it."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path = data, path

    def value(self, at: int) -> tuple[Any, int]:
        """The value that starts at a byte, and the byte behind it."""
        size = _WINDOW
        while True:
            text, final = str(self.data[at : at + size], "latin-1"), at + size >= len(self.data)
            try:
                value, end = _DECODER.raw_decode(text)
            except json.JSONDecodeError as error:
                if final:
                    self._raise_cut_or_damaged(error, text, at)
            except (RecursionError, ValueError) as error:
                deep = isinstance(error, RecursionError)
                problem = "values are nested too deeply" if deep else "a number is too long"
                raise self.error(problem, at) from error
            else:
                if end < len(text) or final:
                    return self._read_again(value, at, at + end), at + end
            size *= _GROWTH

    def _raise_cut_or_damaged(self, error: json.JSONDecodeError, text: str, at: int) -> None:
        rest = text[error.pos :].rstrip(" \t\r\n\0")
        begun = any(word.startswith(rest) for word in _PARTS_OF_WORDS)
        escape = "escape" in error.msg and len(rest) < _LONGEST_ESCAPE
        number = _PART_OF_NUMBER.fullmatch(rest) is not None
        if begun or escape or number or error.msg.startswith("Unterminated string"):
            raise CutOffError from error
        raise self.error(f"not valid JSON: {error.msg}", at + error.pos) from error

    def _read_again(self, value: Any, at: int, end: int) -> Any:  # noqa: ANN401 - any JSON value
        """The value with its text decoded as UTF-8, where it has any beyond ASCII."""
        stored = bytes(self.data[at:end])
        if stored.isascii():
            return value
        try:
            return json.loads(stored)
        except ValueError as error:
            raise self.error("a string is not valid UTF-8", at) from error

    def after_space(self, at: int) -> int:
        """The next byte that is no white space."""
        return _match_end(_SPACE, self.data, at)

    def after_separator(self, at: int) -> int:
        """The start of the next element behind one."""
        return _match_end(_SEPARATOR, self.data, at)

    def byte(self, at: int) -> bytes:
        """Return one byte; nothing behind the end, where zero bytes that fill the file up do not count."""
        return b"" if _FILLED.match(self.data, at) else bytes(self.data[at : at + 1])

    def error(self, problem: str, at: int) -> TraceFormatError:
        """An error that names the file and the byte."""
        return TraceFormatError(problem, where=self.path, offset=at, hint=_HINT)


def _match_end(pattern: re.Pattern[bytes], data: memoryview, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def first_element(values: Values) -> int:
    """Return the byte at which the first element of the list of records stands."""
    at = values.after_space(len(_MARK) if bytes(values.data[:3]) == _MARK else 0)
    if values.byte(at) == b"[":
        return values.after_space(at + 1)
    if values.byte(at) != b"{":
        raise values.error("no event list", at)
    at = values.after_space(at + 1)
    while values.byte(at) == b'"':
        key, at = values.value(at)
        at = values.after_space(at)
        if values.byte(at) != b":":
            raise CutOffError if not values.byte(at) else values.error("not valid JSON: a colon is missing", at)
        at = values.after_space(at + 1)
        if key == LIST_KEY and values.byte(at) == b"[":
            return values.after_space(at + 1)
        _, behind = values.value(at)
        after = values.after_space(behind)
        if values.byte(after) not in {b"", b",", b"}"}:
            raise values.error(_NO_COMMA, after)
        at = values.after_separator(behind)
    if not values.byte(at):
        raise CutOffError
    raise values.error(f"the object has no list {LIST_KEY!r}", at)


class Position(NamedTuple):
    """How far a list was read."""

    at: int  # start of the next element, or where reading ended
    closed: bool = False  # whether the list ended there
    cut: bool = False  # whether the file did


def gather_span(values: Values, at: int, into: Gathered) -> Position:
    """Read the elements of a window from a start on, at least one.

    Whole elements are decoded at once, as events alone if possible; else one after the other.
    """
    match = _ELEMENTS.match(bytes(values.data[at : at + _STRETCH]))
    if match is None:
        return _gather_each(values, at, at + 1, into)
    if not _gather_at_once(b"[" + match[1] + b"]", into):
        return _gather_each(values, at, at + match.end(), into)
    return Position(at + match.end())


def _gather_at_once(elements: bytes, into: Gathered) -> bool:
    """Take over a list as a whole, and return whether that was possible; nothing of it was otherwise."""
    try:
        str(elements, "utf-8")  # the decoders look only at the texts that they keep
        into.add_events(_EVENTS.decode(elements))
    except msgspec.ValidationError:
        return _gather_records(elements, into)
    except _NO_LIST:
        return False
    return True


def _gather_records(elements: bytes, into: Gathered) -> bool:
    """Take over a list of records of any kind, and return whether that was possible."""
    try:
        into.add(_RECORDS.decode(elements))
    except _NO_LIST:
        return False
    return True


def _gather_each(values: Values, at: int, end: int, into: Gathered) -> Position:
    """Read the elements up to a byte one after the other, at least one."""
    records, position = list[Record](), Position(at)
    while not (position.closed or position.cut) and (position.at < end or not records):
        position = _take_element(values, position.at, records)
    into.add(records)
    return position


def _take_element(values: Values, at: int, records: list[Record]) -> Position:
    """Take over one element; an element that is no object becomes a record of nothing."""
    at = values.after_space(at)
    if values.byte(at) in {b"", b"]"}:
        return Position(at, closed=bool(values.byte(at)), cut=not values.byte(at))
    try:
        value, behind = values.value(at)
    except CutOffError:
        return Position(at, cut=True)
    after = values.after_space(behind)
    if values.byte(after) not in {b"", b",", b"]"}:
        raise values.error(_NO_COMMA, after)
    if not values.byte(after) and not isinstance(value, dict):
        return Position(at, cut=True)
    records.append(record_of(value))
    return Position(values.after_separator(behind) if values.byte(after) == b"," else after)


def no_core(units: Iterable[Unit]) -> list[TraceWarning]:
    """A warning when no unit is a core."""
    if Unit.CORE in units:
        return []
    message = "no core was traced, so there are no kernel calls"
    return [TraceWarning("no_core_trace", message, "trace a core as well: INSTR_EVENT_0 and INSTR_EVENT_1")]


def unknown_events(recorded: str, unit: Unit, slots: Iterable[SlotTrace]) -> list[TraceWarning]:
    """A warning when slots with spans have names that are in no table of their unit."""
    known = event_names().of(unit.value)
    unknown = sorted({slot.recorded for slot in slots if len(slot.spans.start) and slot.name not in known})
    if not unknown:
        return []
    listed = ", ".join(name[:_MOST_LETTERS] for name in unknown[:_MOST_LISTED])
    message = f"{recorded}: {counted_text(len(unknown), 'event', ',')} unknown for this unit: {listed}"
    return [TraceWarning("events_unknown", message, "their spans keep their names")]
