"""Kernel calls of a core: starts and ends paired in stream order, and what each mark is that is in no call."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import SlotTrace, TileTrace

    Mask = NDArray[np.bool_]

START = "INSTR_EVENT_0"
"""Event that the kernel raises at the start of a call, by event0()."""
END = "INSTR_EVENT_1"
"""Event at the end of a call, by event1()."""
UNNAMED = "SLOT "
"""How slots of raw words are called for which no events were named."""
_NAME = "name them in order: --slots NAME,NAME,..."
_CALL_BOTH = "check that the kernel ran, and that it calls event0() at its start and event1() at its end"
_QUARTER = 4
"""A second start or end within a quarter of a call is the same one, recorded twice."""
_FEW, _FEW_SHARE, _FEW_OF = 3, 0.05, 4
"""Faults, their share of the calls, and calls for each of a few, up to which they are damage to the trace."""


class MarkFault(NamedTuple):
    """Fault of a start or an end."""

    rule: str
    severity: Severity
    title: str
    step: str


_LOST = "look for lost packets, and for a path through the kernel that skips event0() or event1()"
_BACKWARDS_STEP = "times run backwards here: decode the raw words again"
_TWICE_STEP = "nothing to do: the first one counts"
FAULTS = (
    MarkFault("call_end_missing", Severity.MEDIUM, "the end of a call is missing", _LOST),
    MarkFault("call_start_missing", Severity.MEDIUM, "the start of a call is missing", _LOST),
    MarkFault("call_start_repeated", Severity.INFO, "the start of a call was recorded twice", _TWICE_STEP),
    MarkFault("call_end_repeated", Severity.INFO, "the end of a call was recorded twice", _TWICE_STEP),
    MarkFault("call_end_repeated", Severity.INFO, "the end of a call was recorded again inside the next", _TWICE_STEP),
    MarkFault(
        "call_start_repeated",
        Severity.MEDIUM,
        "a call has two starts far apart: it may have begun at the first",
        "call event0() once per call, at its start; if few calls have two, look for lost packets",
    ),
    MarkFault(
        "call_end_repeated",
        Severity.MEDIUM,
        "a call has two ends far apart: it may have lasted to the second",
        "call event1() once per call, at its end; if few calls have two, look for lost packets",
    ),
    MarkFault(
        "trace_ends_in_call", Severity.INFO, "the trace ends inside a call", "use a larger trace buffer or fewer events"
    ),
    MarkFault(
        "trace_begins_in_call",
        Severity.INFO,
        "the trace begins inside a call",
        "start the trace before the first call",
    ),
    MarkFault("call_ends_before_start", Severity.MEDIUM, "a call would end before it starts", _BACKWARDS_STEP),
    MarkFault(
        "call_before_earlier_one",
        Severity.MEDIUM,
        "a call is earlier than its predecessor in the stream",
        _BACKWARDS_STEP,
    ),
)
(
    _END_MISSING,
    _START_MISSING,
    _START_TWICE,
    _END_TWICE,
    _END_AGAIN,
    _TWO_STARTS,
    _TWO_ENDS,
    _ENDS_INSIDE,
    _BEGINS_INSIDE,
    _BACKWARDS,
    _OVERLAPS,
) = range(len(FAULTS))
"""Places among the faults."""


@dataclass(frozen=True)
class CallSpans:
    """Calls in order of time, none overlapping another; arrays of shape (calls,), in cycles."""

    start: Ints  # begin of INSTR_EVENT_0
    end: Ints  # begin of INSTR_EVENT_1, not smaller

    @property
    def durations(self) -> Ints:
        """Cycles from start to end; shape (calls,)."""
        return self.end - self.start

    def __len__(self) -> int:
        return len(self.start)


class CallCounts(msgspec.Struct, frozen=True):
    """Outcome of INSTR_EVENT_0 and INSTR_EVENT_1: calls, events of no call, and calls that could be others."""

    paired: int
    dropped: int
    ambiguous: int


class Pairing(msgspec.Struct, frozen=True):
    """Outcome of the starts and ends; 2 * paired + dropped is their number."""

    calls: CallSpans  # those that paired
    counts: CallCounts
    findings: tuple[Message, ...] = ()  # one for each kind of fault, and what is odd as a whole
    # cycle and reason of the faults between other calls that the kernel cannot be blamed for, since hardly any call
    # has one: there packets were lost, repeated or swapped
    broken: tuple[tuple[int, str], ...] = ()
    unpaired: tuple[int, ...] = ()  # cycles of marks between other calls that are in none, ascending; not of repeats
    lone_starts: tuple[int, ...] = ()  # cycles of starts whose end is missing
    lone_ends: tuple[int, ...] = ()  # cycles of ends whose start is missing
    doubtful: tuple[int, ...] = ()  # cycles of all other faults: what happened there is not known


class _Marks(NamedTuple):
    """Starts and ends in stream order; arrays of shape (marks,)."""

    time: Ints  # in cycles
    is_end: Mask  # whether it is an end


class _Faults(NamedTuple):
    """Marks in no call, in stream order; arrays of shape (faults,)."""

    kind: Ints  # place among the faults
    mark: Ints  # place among the marks
    call: Ints  # the call whose start or end it may be, counted from 0; -1 for none


def pair_calls(tile: TileTrace) -> Pairing:
    """Pair the starts and ends of calls in stream order, and name all marks that are left out."""
    start, end = _fullest_slot(tile, START), _fullest_slot(tile, END)
    if start is None or end is None:
        return _without_calls(tile, start or end)
    marks = _ordered_marks(start, end)
    first, last, faults, lengths = _pair_marks(marks)
    calls = CallSpans(marks.time[first], marks.time[last])
    inner = ~np.isin(faults.kind, (_ENDS_INSIDE, _BEGINS_INSIDE, _START_TWICE, _END_TWICE, _END_AGAIN))

    def cycles(chosen: Mask) -> tuple[int, ...]:
        return tuple(sorted(marks.time[faults.mark[chosen]].tolist()))

    is_lone = np.isin(faults.kind, (_END_MISSING, _START_MISSING))
    return Pairing(
        calls=calls,
        counts=CallCounts(len(calls), len(marks.time) - 2 * len(calls), len(np.unique(faults.call[faults.call >= 0]))),
        findings=(
            *_report_faults(tile, marks, faults, first, lengths),
            *_report_odd_calls(tile, marks, calls),
        ),
        broken=tuple(_rare_faults(marks, faults, inner, len(calls))),
        unpaired=cycles(inner),
        lone_starts=cycles(faults.kind == _END_MISSING),
        lone_ends=cycles(faults.kind == _START_MISSING),
        doubtful=cycles(inner & ~is_lone),
    )


def is_unnamed(tile: TileTrace) -> bool:
    """Return whether the tile is of raw words for which no events were named."""
    return bool(tile.slots) and all(slot.name.startswith(UNNAMED) for slot in tile.slots)


def _fullest_slot(tile: TileTrace, event: str) -> SlotTrace | None:
    return max(
        (slot for slot in tile.slots if slot.name == event), key=lambda slot: len(slot.spans.start), default=None
    )


def _ordered_marks(starts: SlotTrace, ends: SlotTrace) -> _Marks:
    """Put starts and ends together in stream order.

    A unit reports all slots of a cycle at once, in the order of their numbers. When a call ends in the cycle in which
    the next one starts, the start may so stand first; inside a call the end is taken first.
    """
    order = np.argsort(np.concatenate([starts.spans.begin_order, ends.spans.begin_order]), kind="stable")
    time = np.concatenate([starts.spans.start, ends.spans.start])[order]
    is_end = order >= len(starts.spans.start)
    swapped = _starts_inside(time, is_end)
    is_end[swapped], is_end[swapped + 1] = True, False
    return _Marks(time, is_end)


def _starts_inside(time: Ints, is_end: Mask) -> Ints:
    """Return the starts inside a call that have an end behind them in the same cycle."""
    both = np.flatnonzero(~is_end[:-1] & is_end[1:] & (time[:-1] == time[1:]))
    if not len(both):
        return both
    goes_on = np.concatenate([[False], np.diff(both) == 2])  # noqa: PLR2004 - directly behind the pair before
    head = both[np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(both))))]
    starts: Ints = both[(head > 0) & ~is_end[np.maximum(head - 1, 0)]]
    return starts


def _pair_marks(marks: _Marks) -> tuple[Ints, Ints, _Faults, tuple[int, int] | None]:
    """Return the marks that start and end calls, all other marks as faults, and the shortest and longest clean call.

    A start pairs with the end directly behind it. Of pairs that run backwards, the longest chain in order is kept.
    """
    time, is_end = marks.time, marks.is_end
    pairs = np.flatnonzero(~is_end[:-1] & is_end[1:])
    is_loose = np.ones(len(time), bool)
    is_loose[pairs] = is_loose[pairs + 1] = False
    forwards = time[pairs + 1] >= time[pairs]
    in_calls = pairs[forwards]
    in_order = _longest_chain(time[in_calls], time[in_calls + 1])
    overlapping, in_calls = in_calls[~in_order], in_calls[in_order]
    lengths = _clean_lengths(time, is_loose, in_calls)
    loose = np.flatnonzero(is_loose)
    kind, pair = _loose_kinds(marks, pairs, loose, lengths)
    first = in_calls.copy()
    twice = (kind == _START_TWICE) & np.isin(pair, in_calls)
    np.minimum.at(first, np.searchsorted(in_calls, pair[twice]), loose[twice])
    last, again = in_calls + 1, (kind == _END_AGAIN) & np.isin(pair, in_calls)
    last[np.searchsorted(in_calls, pair[again])] = loose[again]
    # Where times run backwards a call with other marks may reach into the next one: it keeps the marks of its pair.
    reaching = np.flatnonzero(time[last[:-1]] > time[first[1:]])
    last[reaching], first[reaching + 1] = in_calls[reaching] + 1, in_calls[reaching + 1]
    kind[again & np.isin(pair, in_calls[reaching])] = _TWO_ENDS
    kind[twice & np.isin(pair, in_calls[reaching + 1])] = _TWO_STARTS
    backwards = pairs[~forwards]
    mark = np.concatenate([loose, backwards, overlapping])
    kinds = np.concatenate([kind, np.full(len(backwards), _BACKWARDS), np.full(len(overlapping), _OVERLAPS)])
    doubtful = np.isin(kind, (_TWO_STARTS, _TWO_ENDS)) & np.isin(pair, in_calls)
    call = np.full(len(mark), -1)
    call[: len(loose)] = np.where(doubtful, np.minimum(np.searchsorted(in_calls, pair), max(len(in_calls) - 1, 0)), -1)
    order = np.argsort(mark, kind="stable")
    return first, last, _Faults(kinds[order], mark[order], call[order]), lengths


def _longest_chain(start: Ints, end: Ints) -> Mask:
    """Select the most calls that follow each other in time as they do in the stream."""
    chosen = np.ones(len(start), bool)
    if not (start[1:] < end[:-1]).any():
        return chosen
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (begin, ended) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        length = bisect_right(ends, begin)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(ended)
            last.append(number)
        elif ended < ends[length]:
            ends[length], last[length] = ended, number
    chosen[:] = False
    number = last[-1]
    while number >= 0:
        chosen[number] = True
        number = before[number]
    return chosen


def _clean_lengths(time: Ints, is_loose: Mask, calls: Ints) -> tuple[int, int] | None:
    """Return the shortest and longest call beside which no mark is loose. None without one."""
    around = np.concatenate([[False], is_loose, [False]])
    clean = calls[~around[calls] & ~around[calls + 3]]
    durations = time[clean + 1] - time[clean]
    return (int(durations.min()), int(durations.max())) if len(clean) else None


def _loose_kinds(marks: _Marks, pairs: Ints, loose: Ints, lengths: tuple[int, int] | None) -> tuple[Ints, Ints]:
    """Return what each loose mark is, and the start of the pair beside it; -1 without one.

    A second start or end belongs to a call if that call would be no longer than others, or if the two are nearer than
    the shortest call. Within a quarter of the call it is a repeat, unless the other start makes the likelier length. An
    end that makes a call much shorter than any repeats the end of the call before, if another end makes a usual length.
    """
    time, is_end = marks.time, marks.is_end[loose]
    positions = np.searchsorted(pairs, loose) - is_end
    pair = np.append(pairs, [-1, -1])[np.where(positions < 0, len(pairs), positions)]
    apart = np.where(is_end, time[loose] - time[pair + 1], time[pair] - time[loose])
    total = np.where(is_end, time[loose] - time[pair], time[pair + 1] - time[loose])
    is_near = (pair >= 0) & (apart >= 0)
    likely = np.ones(len(loose), bool)
    is_again = np.zeros(len(loose), bool)
    if lengths is not None:
        least, most = lengths
        is_near &= (total <= most) | (apart < least)
        excess = [np.maximum(length - most, 0) + np.maximum(least - length, 0) for length in (total, total - apart)]
        likely = is_end | (excess[0] <= excess[1])
        is_again = is_end & is_near & (excess[0] == 0) & (excess[1] > 0) & (_QUARTER * (total - apart) <= total)
    is_repeat = is_near & likely & (_QUARTER * apart <= np.where(is_end, total - apart, total))
    kind = np.where(
        is_repeat,
        np.where(is_end, _END_TWICE, _START_TWICE),
        np.where(
            is_near,
            np.where(is_end, _TWO_ENDS, _TWO_STARTS),
            np.where(is_end, _START_MISSING, _END_MISSING),
        ),
    )
    kind[is_again] = _END_AGAIN
    kind[~is_end & (loose == len(time) - 1)] = _ENDS_INSIDE
    kind[is_end & (loose == 0)] = _BEGINS_INSIDE
    return kind, pair


def _rare_faults(marks: _Marks, faults: _Faults, inner: Mask, calls: int) -> Iterator[tuple[int, str]]:
    """Return the faults that are neither at an edge of the trace nor frequent."""
    if inner.sum() > max(min(_FEW, calls // _FEW_OF), _FEW_SHARE * calls):
        return
    for kind, mark in zip(faults.kind[inner].tolist(), faults.mark[inner].tolist(), strict=True):
        yield int(marks.time[mark]), FAULTS[kind].title.partition(":")[0]


def _report_faults(
    tile: TileTrace, marks: _Marks, faults: _Faults, first: Ints, lengths: tuple[int, int] | None
) -> Iterator[Message]:
    for kind in np.unique(faults.kind).tolist():
        fault, marks_at = FAULTS[kind], faults.mark[faults.kind == kind]
        time = marks.time[marks_at]
        evidence = f"{counted_text(len(marks_at), 'time', ',')}, first at cycle {time[0]:,}"
        if lengths is not None:
            evidence += f"; calls without such a fault take {lengths[0]:,} to {lengths[1]:,} cycles"
        before = int(np.searchsorted(first, marks_at[0]))
        yield tile_finding(
            fault.rule,
            fault.severity,
            title=fault.title,
            evidence=evidence,
            where=place(tile, f"after call {before}" if before else "before the first call", f"cycle {time[0]}"),
            step=fault.step,
        )


def _without_calls(tile: TileTrace, only: SlotTrace | None) -> Pairing:
    none = np.empty(0, np.int64)
    missing = " and ".join(event for event in (START, END) if tile.slot(event) is None)
    title = f"calls cannot be found: no slot for {missing}"
    step = f"trace {missing} too, and call event0() and event1() around the kernel"
    if is_unnamed(tile):
        title, step = "calls cannot be found: the events of its slots are not named", _NAME
    traced = ", ".join(slot.name[:40] for slot in tile.slots) or "nothing"
    message = tile_finding(
        "calls_not_traced", Severity.HIGH, title=title, evidence=f"traced: {traced}", where=place(tile), step=step
    )
    counts = CallCounts(0, len(only.spans.start) if only else 0, 0)
    return Pairing(CallSpans(none, none), counts, (message,))


def _report_odd_calls(tile: TileTrace, marks: _Marks, calls: CallSpans) -> Iterator[Message]:
    if not len(calls):
        yield tile_finding(
            "calls_none",
            Severity.HIGH,
            title="no call start has an end" if len(marks.time) else f"no call: {START} and {END} never occurred",
            evidence=f"{int((~marks.is_end).sum()):,} starts and {counted_text(int(marks.is_end.sum()), 'end', ',')}",
            where=place(tile),
            step=_CALL_BOTH,
        )
    empty = np.flatnonzero(calls.durations == 0)
    if len(empty):
        yield tile_finding(
            "call_without_cycles",
            Severity.MEDIUM,
            title="calls start and end in the same cycle",
            evidence=counted_text(len(empty), "call", ","),
            where=place(tile, f"cycle {calls.start[empty[0]]}"),
            step=_CALL_BOTH,
        )
