"""What a trace in JSON says, gathered a record or a stretch of records at a time, before tiles are made of it."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints

_LARGEST = 1 << 62
TIMER = 1 << 56
"""Cycles after which a tile's timer starts again: no trace has larger times."""
_BEGIN, _END, _METADATA = "B", "E", "M"
_Whole = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]


class Event(msgspec.Struct, gc=False):
    """A begin or end of which nothing is missing or odd."""

    name: str
    ph: Literal["B", "E"]
    ts: Annotated[int, msgspec.Meta(ge=0, lt=TIMER)]
    pid: _Whole
    tid: _Whole


class RecordArgs(msgspec.Struct, gc=False):
    """The arguments of a record, of which metadata use the name."""

    name: object = None


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
        self._parts.append(_columns([codes[key] for key in keys], times, begins))

    def add(self, records: Iterable[Record]) -> None:
        """Take over records in order."""
        events = [row for record in records if (row := self._row(record))]
        if events:
            self._parts.append(_columns(*zip(*events, strict=True)))

    def columns(self) -> EventColumns:
        """All begins and ends."""
        return EventColumns(
            *(np.concatenate(column) for column in zip(_columns([], [], []), *self._parts, strict=True))
        )

    def _row(self, record: Record) -> tuple[int, int, bool] | None:
        phase = record.ph
        if phase not in (_BEGIN, _END):  # no set: it may be a list or an object, which have no hash
            self._other(record)
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

    def _other(self, record: Record) -> None:
        if record.ph != _METADATA:
            self.counts["other_records"] += 1
            return
        name, pid, tid = record.args.name if record.args else None, whole(record.pid), whole(record.tid)
        if not isinstance(name, str) or pid is None:
            return
        if record.name == "process_name":
            self.counts["renamed"] += self.processes.get(pid, name) != name
            self.processes[pid] = name
        elif record.name == "thread_name" and tid is not None:
            self.counts["renamed"] += self.threads.get((pid, tid), name) != name
            self.threads[pid, tid] = name
            self.code(pid, tid, name)


def _columns(code: Sequence[int], time: Sequence[int], begin: Sequence[bool]) -> EventColumns:
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
    return Record(**known, args=RecordArgs(args.get("name")) if isinstance(args, dict) else None)
