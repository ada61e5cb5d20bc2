"""The CSV files of the Arm profiling kit: timelines as event tables, statistics and kernels as typed rows.

A timeline lists events flat, in microseconds and milliseconds that were printed as decimal fractions. It has one of
two sets of columns: the one that the kit writes (``start_us``, ``end_us``, ``duration_ms``), and the one that its
documents describe (``timestamp_ms``, ``duration_ms``). What a timeline does not hold is rebuilt where that is certain,
and said: the call tree comes from the times, instructions are numbered in the order they ran.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from opscope.core.errors import EmptyTraceError, InvariantError, TraceFormatError, did_you_mean
from opscope.core.system.memory import file_bytes
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.table.segment import coded_from
from opscope.core.units import counted_text, share_text, time_text
from opscope.program.kernels.symbols import KernelName, parse_kernel
from opscope.readers.lifecycle import FRAMEWORK, PORTABLE, UNNAMED_DELEGATE, XNNPACK, delegate_by_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from opscope.core.table.events import Values

TIMELINE = "model_id name type delegate_backend start_us end_us duration_ms pct_total node_id run_index block".split()
DESCRIBED = "name duration_ms run_index timestamp_ms parent_id op_type backend".split()
STATS = "model_id name type delegate_backend count total_ms avg_ms pct_total".split()
KERNELS = "model_id kernel_name category count dtype xnn_op variant ukernel_shape arch_chain has_sme has_sme2".split()
_KNOWN = frozenset((*TIMELINE, *DESCRIBED, *STATS, *KERNELS))
# Columns that no other tool's table is likely to have; one of them makes a header the kit's.
_DISTINCTIVE = frozenset(
    "start_us end_us duration_ms timestamp_ms run_index delegate_backend total_ms avg_ms pct_total kernel_name".split()
)
_TIMES = ("start_us", "end_us", "duration_ms")
_TIMES_DESCRIBED = ("timestamp_ms", "duration_ms")
_NEEDED = ("name", "run_index")
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?\Z", re.ASCII)
_LIMIT = 1 << 62
_MICRO, _MILLI = 1_000, 1_000_000
_PERCENT = 0.01
# How far out the framework's events are when two have the same times; operators are innermost.
_LEVELS = {Scope.EXECUTE: 0, Scope.LOAD: 0, Scope.INIT: 1}
_CALLS = (Scope.DELEGATE_CALL, Scope.OPERATOR_CALL, Scope.CONTROL)
_CALL, _LEAF = 2, 3
_UNNAMED = ("delegated", UNNAMED_DELEGATE)


class StatsRow(msgspec.Struct, frozen=True):
    """One line of the kit's operator statistics: all events of one type and backend."""

    name: str  # type of the events, without number
    backend: str  # `portable` also for the framework's own events, as the kit writes it
    count: int  # distinct events of an inference
    total_ns: int  # their mean durations added up, nested events included
    share: float  # `pct_total` as a fraction: of the sum of all lines, which counts nested time more than once


class KitKernelRow(msgspec.Struct, frozen=True):
    """One line of the kit's list of kernels."""

    kernel: KernelName  # its name and the parts of it, read from the name, not from the other columns
    category: str  # what the library registered it for
    registrations: int  # lines of the log that name it; the kit's `count`, which is not a count of calls


class _TextColumns(NamedTuple):
    """A CSV file as columns of text, with the number of the line that each row begins in."""

    where: str
    columns: dict[str, list[str]]
    lines: list[int]

    def error(self, problem: str, row: int, hint: str | None = None) -> TraceFormatError:
        """Return the error that names a line of the file."""
        return TraceFormatError(f"line {self.lines[row]:,}: {problem}", where=self.where, hint=hint or _DAMAGED)


_DAMAGED = "the file was truncated or edited; rewrite it from its .etdump, or give the .etdump itself"


class KitTimelineReader:
    """Reads the kit's timelines, of all runs or of one."""

    name: ClassVar[str] = "kit-timeline-csv"

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts with a header of the kit's columns."""
        line, _, rest = bytes(head).removeprefix(b"\xef\xbb\xbf").partition(b"\n")
        words = [word.strip().strip('"') for word in line.decode("ascii", "replace").rstrip("\r").split(",")]
        complete_words = words if rest or bytes(head).endswith(b"\n") else words[:-1]
        return (
            len(complete_words) > 1
            and _KNOWN.issuperset(complete_words)
            and not _DISTINCTIVE.isdisjoint(complete_words)
        )

    def read(self, data: bytes, path: Path) -> EventTable:
        """Return all events of a timeline, with one inference for each ``Method::execute``."""
        return read_timeline(bytes(data), str(path))


def read_timeline(data: bytes, where: str) -> EventTable:
    """Return the events of a timeline; see :meth:`KitTimelineReader.read`."""
    rows = _read_rows(data, where)
    described = _time_columns(rows) == _TIMES_DESCRIBED
    _require_columns(rows, (*_NEEDED, *_time_columns(rows)), "a timeline")
    if not rows.lines:
        raise EmptyTraceError("the timeline holds no events", where=where, hint="the source trace was empty")
    events = _read_described_events(rows) if described else _read_kit_events(rows)
    ordered = _order_events(events)
    try:
        table = EventTable.build(_table_columns(events, ordered), Clock.NS, _timeline_warnings(rows, events, ordered))
    except InvariantError as error:
        raise TraceFormatError(f"its events do not nest: {error.problem}", where=where, hint=_DAMAGED) from error
    return table


def stats_rows(path: Path) -> tuple[StatsRow, ...]:
    """Return the lines of an operator statistics file."""
    rows = _read_rows(file_bytes(path), str(path))
    _require_columns(rows, ("name", "count", "total_ms", "pct_total"), "operator statistics")
    count, total = _scaled_integers(rows, "count", 1), _scaled_integers(rows, "total_ms", _MILLI)
    backend = _texts_or_empty(rows, "delegate_backend")
    values = zip(rows.columns["name"], backend, count, total, _percent_shares(rows), strict=True)
    return tuple(StatsRow(*row) for row in values)


def kernel_rows(path: Path) -> tuple[KitKernelRow, ...]:
    """Return the lines of a list of kernels."""
    rows = _read_rows(file_bytes(path), str(path))
    _require_columns(rows, ("kernel_name", "category", "count"), "a list of kernels")
    kernels = [parse_kernel(name) for name in rows.columns["kernel_name"]]
    count = _scaled_integers(rows, "count", 1)
    values = zip(kernels, rows.columns["category"], count, strict=True)
    return tuple(KitKernelRow(*row) for row in values)


def _read_rows(data: bytes, where: str) -> _TextColumns:
    """Return the file as columns of text; every line must have as many cells as the header."""
    if data and not data.endswith((b"\n", b"\r")):
        raise TraceFormatError("truncated: the last line is incomplete", where=where, offset=len(data), hint=_DAMAGED)
    lines: list[int] = []
    cells: list[list[str]] = []
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        for row in reader:
            if row:
                cells.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise TraceFormatError("not valid UTF-8", where=where, offset=error.start, hint=_DAMAGED) from error
    except csv.Error as error:
        raise TraceFormatError(f"line {len(lines) + 1:,}: {error}", where=where, hint=_DAMAGED) from error
    if not cells:
        raise EmptyTraceError("the file has no header line", where=where, hint=_DAMAGED)
    return _rows_as_columns(cells, lines, where)


def _rows_as_columns(cells: list[list[str]], lines: list[int], where: str) -> _TextColumns:
    """Return the cells by column; raise an error where a line has another number of cells than the header."""
    header = [name.strip() for name in cells[0]]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise TraceFormatError(f"the column {twice[:40]!r} occurs twice in the header", where=where, hint=_DAMAGED)
    rows = _TextColumns(where, {}, lines[1:])
    for row, values in enumerate(cells[1:]):
        if len(values) != len(header):
            raise rows.error(f"{counted_text(len(values), 'cell')} under a header of {len(header)}", row)
    rows.columns.update((name, [row[column] for row in cells[1:]]) for column, name in enumerate(header))
    return rows


def _time_columns(rows: _TextColumns) -> tuple[str, ...]:
    """Return the columns that hold the times of this timeline, of the kit's or of its documents."""
    return _TIMES_DESCRIBED if "timestamp_ms" in rows.columns and "start_us" not in rows.columns else _TIMES


def _require_columns(rows: _TextColumns, required: Iterable[str], file_kind: str) -> None:
    """Raise an error that names the columns a file lacks, if any."""
    missing = [name for name in required if name not in rows.columns]
    if not missing:
        return
    present = [name[:40] for name in rows.columns]
    problem = f"not {file_kind}: no column {', '.join(missing)}; it has {', '.join(present) or 'none'}"
    totals_hint = "this file has totals, not events: give the timeline next to it" if "total_ms" in present else None
    raise TraceFormatError(problem, where=rows.where, hint=totals_hint or did_you_mean(missing[0], present))


def _texts_or_empty(rows: _TextColumns, name: str) -> list[str]:
    """Return a column of text, or empty cells where the file has no such column."""
    return rows.columns.get(name) or [""] * len(rows.lines)


def _scaled_integers(rows: _TextColumns, name: str, scale: int) -> list[int]:
    """Return a column of decimal fractions times ``scale``, as the nearest integers, without floating point."""
    return [_scaled_integer(rows, name, row, text, scale) for row, text in enumerate(rows.columns[name])]


def _scaled_integer(rows: _TextColumns, name: str, row: int, text: str, scale: int) -> int:
    """Return a decimal fraction times ``scale`` as the nearest integer; raise an error where it is no number."""
    stripped = text.strip(" ")
    if not _NUMBER.match(stripped):
        raise rows.error(f"{name} is {repr(text[:40]) if text else 'empty'}, no number", row)
    value = Decimal(stripped) * scale
    if abs(value) >= _LIMIT:
        raise rows.error(f"{name} is {text[:40]!r}, larger than any time", row)
    return int(value.to_integral_value())


def _percent_shares(rows: _TextColumns) -> list[float]:
    """Return ``pct_total`` as fractions."""
    return [value / 10**14 for value in _scaled_integers(rows, "pct_total", 10**12)]


class _Events(NamedTuple):
    """The events of a timeline as they stand in the file.

    ``slack`` is what printing a start as a floating-point number may have moved it by, in ns.
    """

    name: list[str]
    backend: list[str] | None
    block: list[str]
    run: list[int]
    start: list[int]
    duration: list[int]
    slack: list[int]


def _read_kit_events(rows: _TextColumns) -> _Events:
    """Return the events of a timeline of the kit's columns; raise an error where its times contradict each other."""
    start, end = _scaled_integers(rows, "start_us", _MICRO), _scaled_integers(rows, "end_us", _MICRO)
    duration = _scaled_integers(rows, "duration_ms", _MILLI)
    slack = [_float_spacing(max(abs(a), abs(b)), _MICRO) for a, b in zip(start, end, strict=True)]
    for row, (a, b, stated, slack_ns) in enumerate(zip(start, end, duration, slack, strict=True)):
        if abs(b - a - stated) > 2 * slack_ns:
            problem = f"duration_ms says {time_text(stated)}, end_us - start_us is {time_text(b - a)}"
            raise rows.error(problem, row)
    return _check_events(rows, start, duration, slack, "delegate_backend")


def _read_described_events(rows: _TextColumns) -> _Events:
    """Return the events of a timeline of the columns that the kit's documents describe."""
    start, duration = _scaled_integers(rows, "timestamp_ms", _MILLI), _scaled_integers(rows, "duration_ms", _MILLI)
    slack = [_float_spacing(abs(value), _MILLI) for value in start]
    return _check_events(rows, start, duration, slack, "backend")


def _check_events(rows: _TextColumns, start: list[int], duration: list[int], slack: list[int], backend: str) -> _Events:
    """Return the events, after a check that each has a name and no negative number."""
    run, texts = _scaled_integers(rows, "run_index", 1), rows.columns.get(backend)
    for row, (name, number, length) in enumerate(zip(rows.columns["name"], run, duration, strict=True)):
        if not name:
            raise rows.error("the event has no name", row)
        if number < 0 or length < 0:
            raise rows.error("run_index is negative" if number < 0 else "duration_ms is negative", row)
    return _Events(rows.columns["name"], texts, _texts_or_empty(rows, "block"), run, start, duration, slack)


def _float_spacing(nanoseconds: int, unit: int) -> int:
    """Return the distance of neighbouring floats at a time that was printed in ``unit``, at least 1 ns."""
    return max(1, math.ceil(math.ulp(nanoseconds / unit) * unit))


class _Order(NamedTuple):
    """Rows in the order of the table, with block, parent's position (or -1), scope and start of each."""

    rows: list[int]
    block: list[int]
    parent: list[int]
    scope: list[Scope]
    start: list[int]


def _order_events(events: _Events) -> _Order:
    """Sort blocks by run and appearance, loading apart; events of a block by start, enclosing ones first."""
    appeared = {name: number for number, name in enumerate(dict.fromkeys(events.block))}
    running = [FRAMEWORK.get(name) not in {Scope.LOAD, Scope.INIT} for name in events.name]
    keys = list(zip(events.run, (appeared[name] for name in events.block), running, strict=True))
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    level = [_LEVELS.get(FRAMEWORK[name], _CALL) if name in FRAMEWORK else _LEAF for name in events.name]
    rows = sorted(
        range(len(keys)),
        key=lambda row: (keys[row], events.start[row], -events.duration[row], level[row]),
    )
    order = _Order(rows, [numbers[keys[row]] for row in rows], [], [], [])
    for position in range(len(rows)):
        _append_nested(events, order, level, position)
    return order


def _append_nested(events: _Events, order: _Order, level: Sequence[int], position: int) -> None:
    """Find the parent of the event at ``position``: the innermost earlier event that it lies in."""
    row = order.rows[position]
    parent = position - 1
    while parent >= 0 and not _lies_in(events, order, level, row, parent, order.block[position]):
        parent = order.parent[parent]
    start = events.start[row]
    if parent >= 0:
        latest = order.start[parent] + events.duration[order.rows[parent]] - events.duration[row]
        start = max(order.start[parent], min(start, latest))
    order.parent.append(parent)
    order.start.append(start)
    order.scope.append(_event_scope(events, row, order.scope[parent] if parent >= 0 else None))


def _lies_in(events: _Events, order: _Order, level: Sequence[int], row: int, parent: int, block: int) -> bool:
    """Return whether an event lies in another one; what printing its start may have moved it by is allowed for."""
    outer = order.rows[parent]
    if order.block[parent] != block or level[outer] >= level[row]:
        return False
    slack = events.slack[row]
    end = events.start[row] + events.duration[row]
    return (
        events.start[row] >= order.start[parent] - slack
        and end <= order.start[parent] + events.duration[outer] + slack
        and events.duration[row] <= events.duration[outer]
    )


def _event_scope(events: _Events, row: int, parent: Scope | None) -> Scope:
    """Return the scope by name for the framework's events.

    By backend, or without one by the surrounding call, for leaves.
    """
    known = FRAMEWORK.get(events.name[row])
    if known:
        return known
    if events.backend is None:
        return Scope.DELEGATE_OP if parent is Scope.DELEGATE_CALL else Scope.KERNEL
    return Scope.KERNEL if events.backend[row] in {"", PORTABLE} else Scope.DELEGATE_OP


def _table_columns(events: _Events, order: _Order) -> dict[str, Values]:
    """Return the columns of the event table."""
    duration = np.array([events.duration[row] for row in order.rows], np.int64)
    delegate = np.array([scope is Scope.DELEGATE_OP for scope in order.scope], bool)
    is_whole_us = bool(delegate.any()) and not (duration[delegate] % _MICRO).any()
    instruction = np.array(_number_calls(order), np.int64)
    pairs = list(zip(order.rows, order.scope, strict=True))
    names = {events.name[row] for row, scope in pairs if scope is Scope.DELEGATE_OP}
    unnamed = delegate_by_names(names)
    return {
        "run": np.array(order.block, np.int64),
        "scope": coded_from([scope.value for scope in order.scope]),
        "name": coded_from([events.name[row] for row in order.rows]),
        "backend": coded_from([_event_backend(events, row, scope, unnamed) for row, scope in pairs]),
        "block": coded_from([events.block[row] for row in order.rows]),
        "chain": np.where(instruction < 0, -1, 0),
        "instruction": instruction,
        "start": np.array(order.start, np.int64),
        "duration": duration,
        "resolution": np.where(delegate & is_whole_us, _MICRO, 1),
        "synthetic_start": delegate & is_whole_us,
        "parent": np.array(order.parent, np.int64),
    }


def _number_calls(order: _Order) -> list[int]:
    """Number calls in the order they ran in their inference; what lies in a call has its number."""
    instructions: list[int] = []
    count: dict[int, int] = {}
    for scope, parent in zip(order.scope, order.parent, strict=True):
        if parent >= 0 and scope in _CALLS:
            instructions.append(count.get(parent, 0))
            count[parent] = instructions[-1] + 1
        else:
            instructions.append(instructions[parent] if parent >= 0 else -1)
    return instructions


def _event_backend(events: _Events, row: int, scope: Scope, unnamed: str) -> str | None:
    """Return the backend of an event: portable for kernels, none for the framework's own events."""
    if scope is Scope.KERNEL:
        return PORTABLE
    if scope is not Scope.DELEGATE_OP:
        return None
    stated_backend = events.backend[row] if events.backend else ""
    if stated_backend.lower() in {"xnnpack", "xnnpackbackend"}:
        return XNNPACK
    return unnamed if stated_backend in {"", *_UNNAMED} else stated_backend


def _timeline_warnings(rows: _TextColumns, events: _Events, order: _Order) -> list[TraceWarning]:
    """Return the warnings on what was rebuilt, rounded, missing or inconsistent."""
    rebuilt = "a timeline does not record instructions: calls are numbered in the order they ran"
    hint = "analyse the .etdump if you have it; loops and several methods cannot be distinguished here"
    return [
        TraceWarning("instructions_rebuilt", rebuilt, hint),
        *_warn_of_quantised(events, order),
        *_warn_of_outside(events, order),
        *_missing_rows(rows, events),
        *_warn_of_percentages(rows, events, order),
    ]


def _missing_rows(rows: _TextColumns, events: _Events) -> list[TraceWarning]:
    """Warn of missing rows: shares of a run, or of the whole file, add up to all of it or, nested, to more."""
    if "pct_total" not in rows.columns:
        return []
    shares, added = _percent_shares(rows), Counter[int]()
    for run, share in zip(events.run, shares, strict=True):
        added[run] += share  # type: ignore[assignment]  # of numbers, whole or not
    rounding = sum(map(_rounding_error, rows.columns["pct_total"]))
    least = min(added.values())
    if abs(sum(shares) - 1) <= rounding or least >= 1 - rounding:
        return []
    message = f"rows are missing: pct_total of a run adds up to {share_text(least)}"
    return [TraceWarning("truncated", message, _DAMAGED)]


def _rounding_error(percent: str) -> float:
    """Return how much printing a percentage may have taken from it, as a fraction."""
    decimals = len(percent.strip().partition(".")[2].partition("e")[0])
    return 10.0 ** -(min(decimals, 12) + 2) if decimals else 0.01


def _warn_of_quantised(events: _Events, order: _Order) -> list[TraceWarning]:
    """Warn of delegate durations that are all whole microseconds."""
    spent = [events.duration[r] for r, s in zip(order.rows, order.scope, strict=True) if s is Scope.DELEGATE_OP]
    if not spent or any(duration % _MICRO for duration in spent):
        return []
    message = (
        "the delegate's operators have whole microseconds: durations were truncated, and start times were not measured"
    )
    return [TraceWarning("quantised_durations", message, "use means over many inferences, not single short operators")]


def _warn_of_outside(events: _Events, order: _Order) -> list[TraceWarning]:
    """Warn of events that lie outside of any inference."""
    allowed = {Scope.EXECUTE, Scope.LOAD, Scope.INIT}
    outside_scopes = [s for s, parent in zip(order.scope, order.parent, strict=True) if parent < 0 and s not in allowed]
    if not outside_scopes:
        return []
    message = f"{len(outside_scopes):,} of {len(events.name):,} events are outside any inference"
    return [TraceWarning("unfinished_inference", message, "they stay in the table but are not counted")]


def _warn_of_percentages(rows: _TextColumns, events: _Events, order: _Order) -> list[TraceWarning]:
    """Warn where ``pct_total`` is a share of something else than end-to-end latency."""
    if "pct_total" not in rows.columns:
        return []
    shares, runs, executed_by_run = _percent_shares(rows), Counter[int](), Counter[int]()
    for name, run, duration in zip(events.name, events.run, events.duration, strict=True):
        runs[run] += duration
        executed_by_run[run] += duration if name == "Method::execute" else 0
    wrong = [
        r for r, run in enumerate(events.run) if abs(shares[r] * runs[run] - events.duration[r]) > _PERCENT * runs[run]
    ]
    total, executed = sum(runs.values()), sum(executed_by_run.values())
    if wrong:
        is_share = not executed or all(_is_share_of_latency(shares[r], events, r, executed_by_run) for r in wrong)
        return [] if is_share or _is_share_of_self_time(shares, events, order) else [_warn_of_inconsistent(len(wrong))]
    if not executed or total <= executed * (1 + _PERCENT):
        return []
    message = (
        f"pct_total is a share of all rows of a run, which counts nested time {total / executed:.1f} times: "
        f"Method::execute reads {share_text(executed / total)} there and is all of the latency"
    )
    return [TraceWarning("kit_percentages", message, "use opscope's shares, which add up to end-to-end latency")]


def _is_share_of_latency(share: float, events: _Events, row: int, executed_by_run: Counter[int]) -> bool:
    """Return whether a share times the latency of its inference is the duration of the event."""
    executed = executed_by_run[events.run[row]]
    return abs(share * executed - events.duration[row]) <= _PERCENT * executed


def _is_share_of_self_time(shares: Sequence[float], events: _Events, order: _Order) -> bool:
    """Return whether the column holds shares of self time in the whole file, as `opscope convert` writes it."""
    self_times = [events.duration[row] for row in order.rows]
    for row, parent in zip(order.rows, order.parent, strict=True):
        if parent >= 0:
            self_times[parent] -= events.duration[row]
    total = sum(self_times)
    return all(
        abs(shares[row] * total - time) <= _PERCENT * total for row, time in zip(order.rows, self_times, strict=True)
    )


def _warn_of_inconsistent(count: int) -> TraceWarning:
    """Warn of percentages that match neither the run's nor the latency's durations."""
    message = f"pct_total of {count:,} events matches neither the run's nor the latency's duration_ms"
    return TraceWarning("kit_percentages_wrong", message, "opscope computes shares from durations instead")
