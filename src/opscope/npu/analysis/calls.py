"""Starts and ends of calls that do not pair: what each of them is, by the lengths of the calls around it."""

from __future__ import annotations

import enum
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
    from opscope.core.table.tiles import SlotTrace, Spans, TileTrace

    Mask = NDArray[np.bool_]
    _Part = tuple[Ints, Ints, Ints]


class Marks(NamedTuple):
    """Starts and ends in stream order, of shape (events,), and what became of them: ascending places among them."""

    time: Ints  # in cycles
    is_end: Mask  # whether it is an end
    swapped: int  # ends that the stream has behind a start in the same cycle, and that were put before it
    first: Ints  # start of each call; its end is the next mark
    backwards: Ints  # starts whose end has a smaller time; neither is in a call
    overlapping: Ints  # starts of pairs that lie before calls which the stream has earlier; neither mark is in a call
    loose: Ints  # marks that no other pairs with
    pairs: Ints  # starts of all pairs, those that were given up included


def paired_marks(starts: Spans, ends: Spans) -> Marks:
    """Both slots in stream order, starts and ends put together.

    A unit reports all slots of a cycle at once, in the order of their numbers. When a call ends in the cycle in which
    the next one starts, the start may so stand first; inside a call the end is taken first.
    """
    order = np.argsort(np.concatenate([starts.begin_order, ends.begin_order]), kind="stable")
    time = np.concatenate([starts.start, ends.start])[order]
    is_end = order >= len(starts.start)
    swapped = _inside(time, is_end)
    is_end[swapped], is_end[swapped + 1] = True, False
    pairs = np.flatnonzero(~is_end[:-1] & is_end[1:])
    loose = np.ones(len(time), bool)
    loose[pairs] = loose[pairs + 1] = False
    start, end = time[pairs], time[pairs + 1]
    forwards = end >= start
    first, backwards = pairs[forwards], pairs[~forwards]
    kept = _in_order(start[forwards], end[forwards])
    return Marks(time, is_end, len(swapped), first[kept], backwards, first[~kept], np.flatnonzero(loose), pairs)


def _inside(time: Ints, is_end: Mask) -> Ints:
    """Starts with an end behind them in the same cycle that stand inside a call."""
    both = np.flatnonzero(~is_end[:-1] & is_end[1:] & (time[:-1] == time[1:]))
    if not len(both):
        return both
    goes_on = np.concatenate([[False], np.diff(both) == 2])  # noqa: PLR2004 - directly behind the pair before
    head = both[np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(both))))]
    inside: Ints = both[(head > 0) & ~is_end[np.maximum(head - 1, 0)]]
    return inside


def _in_order(start: Ints, end: Ints) -> Mask:
    """The most calls that follow each other in time as they do in the stream; the longest chain, end before start."""
    if not (start[1:] < end[:-1]).any():
        return np.ones(len(start), bool)
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (begun, ended) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        length = bisect_right(ends, begun)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(ended)
            last.append(number)
        elif ended < ends[length]:
            ends[length], last[length] = ended, number
    return _chain(last, before)


def _chain(last: list[int], before: list[int]) -> Mask:
    kept = np.zeros(len(before), bool)
    number = last[-1] if last else -1
    while number >= 0:
        kept[number] = True
        number = before[number]
    return kept


_SHOWN = 20
"""Anomalies of one rule that get a finding of their own."""


class PairingRule(str, enum.Enum):
    """What can be wrong with a start or an end."""

    END_MISSING = "call_end_missing"
    START_MISSING = "call_start_missing"
    START_REPEATED = "call_start_repeated"
    END_REPEATED = "call_end_repeated"
    ENDS_INSIDE = "trace_ends_in_call"
    BEGINS_INSIDE = "trace_begins_in_call"
    BACKWARDS = "call_ends_before_start"
    OVERLAPS = "call_before_earlier_one"


_CODES = {rule: code for code, rule in enumerate(PairingRule)}


class Anomalies(NamedTuple):
    """Starts and ends in no call, and pairs that are none, in stream order; arrays of shape (anomalies,)."""

    rule: Ints  # what each is, as its place in `PairingRule`
    mark: Ints  # the start or end; of a pair, its start
    pair: Ints  # the start of the pair beside it, which may be its own; -1 without one
    after: Ints  # calls before it in the stream
    call: Ints  # the call whose start or end it may be, counted from 0; -1 for none

    @property
    def ambiguous(self) -> int:
        """Calls that may have another start or end."""
        return len(np.unique(self.call[self.call >= 0]))


def anomalies(marks: Marks) -> Anomalies:
    """All of them."""
    is_end, lengths = marks.is_end[marks.loose], _lengths(marks)
    parts = [
        _starts(marks.loose[~is_end], marks, lengths),
        _ends(marks.loose[is_end], marks, lengths),
        _pairs(marks.backwards, PairingRule.BACKWARDS),
        _pairs(marks.overlapping, PairingRule.OVERLAPS),
    ]
    rule, mark, pair = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(mark, kind="stable")
    rule, mark, pair = rule[order], mark[order], pair[order]
    repeats = (rule == _CODES[PairingRule.START_REPEATED]) | (rule == _CODES[PairingRule.END_REPEATED])
    number = np.minimum(np.searchsorted(marks.first, pair), max(len(marks.first) - 1, 0))
    kept = np.isin(pair, marks.first) & repeats
    return Anomalies(rule, mark, pair, np.searchsorted(marks.first, mark), np.where(kept, number, -1))


def _lengths(marks: Marks) -> tuple[int, int] | None:
    """Shortest and longest call beside which nothing is wrong; None without one."""
    loose = np.zeros(len(marks.time) + 2, bool)
    loose[marks.loose + 1] = True
    clean = marks.first[~loose[marks.first] & ~loose[marks.first + 3]]
    if not len(clean):
        return None
    durations = marks.time[clean + 1] - marks.time[clean]
    return int(durations.min()), int(durations.max())


def _fit(lengths: tuple[int, int] | None, whole: Ints, apart: Ints) -> Mask:
    """Whether a second start or end can belong to the same call."""
    if lengths is None:
        return np.ones(len(whole), bool)
    least, most = lengths
    return (whole <= most) | (apart < least)


def _starts(at: Ints, marks: Marks, lengths: tuple[int, int] | None) -> _Part:
    pair = np.append(marks.pairs, -1)[np.searchsorted(marks.pairs, at)]
    time = marks.time
    fits = (pair >= 0) & _fit(lengths, time[pair + 1] - time[at], time[pair] - time[at])
    rule = np.where(fits, _CODES[PairingRule.START_REPEATED], _CODES[PairingRule.END_MISSING])
    return np.where(at == len(time) - 1, _CODES[PairingRule.ENDS_INSIDE], rule), at, pair


def _ends(at: Ints, marks: Marks, lengths: tuple[int, int] | None) -> _Part:
    pair = np.append(marks.pairs, -1)[np.searchsorted(marks.pairs, at) - 1]
    time = marks.time
    fits = (pair >= 0) & _fit(lengths, time[at] - time[pair], time[at] - time[pair + 1])
    rule = np.where(fits, _CODES[PairingRule.END_REPEATED], _CODES[PairingRule.START_MISSING])
    return np.where(at == 0, _CODES[PairingRule.BEGINS_INSIDE], rule), at, pair


def _pairs(starts: Ints, rule: PairingRule) -> _Part:
    return np.full(len(starts), _CODES[rule]), starts, starts


_LOST = "look for lost packets, and for a path through the kernel that skips event0() or event1()"
_BACKWARDS = "times run backwards here: decode the raw words again"
_WORDS = {
    PairingRule.END_MISSING: ("the end of a call is missing", _LOST),
    PairingRule.START_MISSING: ("the start of a call is missing", _LOST),
    PairingRule.START_REPEATED: (
        "a call has two starts: it may have begun at the second",
        "call event0() once per call, at its start; if few calls have two, look for lost packets",
    ),
    PairingRule.END_REPEATED: (
        "a call has two ends: it may have lasted to the second",
        "call event1() once per call, at its end; if few calls have two, look for lost packets",
    ),
    PairingRule.ENDS_INSIDE: (
        "the trace ends inside a call",
        "use a larger trace buffer or fewer events",
    ),
    PairingRule.BEGINS_INSIDE: ("the trace begins inside a call", "start the trace before the first call"),
    PairingRule.BACKWARDS: ("a call would end before it starts", _BACKWARDS),
    PairingRule.OVERLAPS: ("a call is earlier than its predecessor in the stream", _BACKWARDS),
}
"""What is wrong, and what to do."""
_MINOR = {PairingRule.ENDS_INSIDE, PairingRule.BEGINS_INSIDE}


def findings_of(tile: TileTrace, marks: Marks, listed: Anomalies) -> Iterator[Message]:
    """One for each anomaly with its place; from the 21st of a rule on only their number and extent."""
    lengths = _lengths(marks)
    said = "no other call is complete, so both are equally likely"
    if lengths is not None:
        said = f"the other calls take {lengths[0]:,} to {lengths[1]:,}"
    for code in np.unique(listed.rule).tolist():
        rule = list(PairingRule)[code]
        severity, (title, step) = Severity.INFO if rule in _MINOR else Severity.MEDIUM, _WORDS[rule]
        own = np.flatnonzero(listed.rule == code)
        for number in own[:_SHOWN].tolist():
            mark, after = int(listed.mark[number]), int(listed.after[number])
            where = place(tile, _after(after), f"cycle {marks.time[mark]}")
            evidence = _evidence(rule, mark, int(listed.pair[number]), marks, said)
            yield tile_finding(rule.value, severity, title, evidence, where, step)
        rest = own[_SHOWN:]
        if len(rest):
            times, more = marks.time[listed.mark[rest]], f"{title}: {len(rest):,} more times"
            where = place(tile, _after(int(listed.after[rest[0]])), f"cycles {times[0]} to {times[-1]}")
            yield tile_finding(rule.value, severity, more, f"{len(own):,} in all", where, step)


def _evidence(rule: PairingRule, mark: int, pair: int, marks: Marks, said: str) -> str:
    """The figures that an anomaly rests on."""
    time = marks.time
    if rule is PairingRule.ENDS_INSIDE:
        return "no start or end follows"
    if rule is PairingRule.BEGINS_INSIDE:
        return "no start before it"
    if rule in {PairingRule.BACKWARDS, PairingRule.OVERLAPS}:
        return f"it starts at cycle {time[mark]:,} and ends at cycle {time[mark + 1]:,}"
    if pair < 0:
        other = "another end before it" if marks.is_end[mark] else "another start follows, but no end,"
        return f"{other} at cycle {time[mark - 1 if marks.is_end[mark] else mark + 1]:,}"
    own, start, end = int(time[mark]), int(time[pair]), int(time[pair + 1])
    if marks.is_end[mark]:
        around = (
            f"the last start is at cycle {start:,}: {own - start:,} cycles to here, {end - start:,} to the first end"
        )
    else:
        around = (
            f"the next end is at cycle {end:,}: {end - own:,} cycles from here, {end - start:,} from the last start"
        )
    return f"{around}; {said}"


def _after(calls: int) -> str:
    return f"after call {calls}" if calls else "before the first call"


START = "INSTR_EVENT_0"
"""Event that the kernel raises at the start of a call, by event0()."""
END = "INSTR_EVENT_1"
"""Event at the end of a call, by event1()."""
UNNAMED = "SLOT "
"""How slots of raw words are called for which no events were named."""
_NAME = "name them in order: --slots NAME,NAME,..."
_CALL_BOTH = "check that the kernel ran, and that it calls event0() at its start and event1() at its end"


@dataclass(frozen=True)
class CallSpans:
    """Calls in order of time, none overlapping another; arrays of shape (calls,), in cycles."""

    start: Ints  # begin of INSTR_EVENT_0
    end: Ints  # begin of INSTR_EVENT_1, not smaller

    @property
    def durations(self) -> Ints:
        """From start to end; shape (calls,)."""
        return self.end - self.start

    def __len__(self) -> int:
        return len(self.start)


class CallCounts(msgspec.Struct, frozen=True):
    """What became of INSTR_EVENT_0 and INSTR_EVENT_1: calls, events of no call, and calls that could be others."""

    paired: int
    dropped: int
    ambiguous: int


class Pairing(msgspec.Struct, frozen=True):
    """What became of the starts and ends; 2 * paired + dropped is their number."""

    calls: CallSpans  # those that paired; ambiguous ones last from the last start to the first end
    counts: CallCounts
    # one for each anomaly, with its place; many of one kind are counted together from the 21st on
    findings: tuple[Message, ...] = ()
    # cycle and reason of the anomalies between other calls that the kernel cannot be blamed for, since hardly any
    # call has one: there packets were lost, repeated or swapped
    broken: tuple[tuple[int, str], ...] = ()
    unpaired: tuple[int, ...] = ()  # cycles of all anomalies between other calls, ascending


def pair_calls(tile: TileTrace) -> Pairing:
    """Pair the starts and ends of calls in stream order; nothing is repaired, and all that is left out is named."""
    start, end = _slot(tile, START), _slot(tile, END)
    if start is None or end is None:
        return _without_calls(tile, start or end)
    marks = paired_marks(start.spans, end.spans)
    calls = CallSpans(marks.time[marks.first], marks.time[marks.first + 1])
    listed = anomalies(marks)
    return Pairing(
        calls=calls,
        counts=CallCounts(len(calls), len(marks.time) - 2 * len(calls), listed.ambiguous),
        findings=(*findings_of(tile, marks, listed), *_remarks(tile, (start, end), marks, calls)),
        broken=tuple(_broken(marks, listed, len(calls))),
        unpaired=tuple(sorted(marks.time[listed.mark[_inner(listed)]].tolist())),
    )


_FEW, _FEW_SHARE, _FEW_OF = 3, 0.05, 4
"""Anomalies, their share of the calls, and calls for each of a few, up to which they are damage to the trace."""


def _broken(marks: Marks, listed: Anomalies, calls: int) -> Iterator[tuple[int, str]]:
    """Anomalies that are neither at an edge of the trace nor frequent."""
    inner = _inner(listed)
    if len(inner) > max(min(_FEW, calls // _FEW_OF), _FEW_SHARE * calls):
        return
    for number in inner.tolist():
        rule = list(PairingRule)[int(listed.rule[number])]
        yield int(marks.time[listed.mark[number]]), _WORDS[rule][0].partition(":")[0]


def _inner(listed: Anomalies) -> Ints:
    """The anomalies that are not at an edge of the trace."""
    return np.flatnonzero(~np.isin(listed.rule, [_CODES[rule] for rule in _MINOR]))


def _slot(tile: TileTrace, event: str) -> SlotTrace | None:
    """The slot with most of an event."""
    return max(
        (slot for slot in tile.slots if slot.name == event), key=lambda slot: len(slot.spans.start), default=None
    )


def _without_calls(tile: TileTrace, only: SlotTrace | None) -> Pairing:
    none = np.empty(0, np.int64)
    lacking = [event for event in (START, END) if tile.slot(event) is None]
    missing, each = " and ".join(lacking), " each" if len(lacking) > 1 else ""
    title = f"calls cannot be found: {missing} was not traced"
    step = f"trace {missing} too{each}, and call event0() and event1() around the kernel"
    if unnamed(tile):
        title, step = "calls cannot be found: the events of its slots are not named", _NAME
    traced = ", ".join(slot.name[:40] for slot in tile.slots) or "nothing"
    message = tile_finding("calls_not_traced", Severity.HIGH, title, f"traced: {traced}", place(tile), step)
    counts = CallCounts(0, len(only.spans.start) if only else 0, 0)
    return Pairing(CallSpans(none, none), counts, (message,))


def unnamed(tile: TileTrace) -> bool:
    """Whether it is of raw words, for which no events were named."""
    return bool(tile.slots) and all(slot.name.startswith(UNNAMED) for slot in tile.slots)


def _remarks(tile: TileTrace, slots: tuple[SlotTrace, SlotTrace], marks: Marks, calls: CallSpans) -> Iterator[Message]:
    """What is odd about the starts and ends as a whole."""
    if not len(calls):
        seen = f"{len(slots[0].spans.start):,} starts and {counted_text(len(slots[1].spans.start), 'end', ',')}"
        title = "no call start has an end" if len(marks.time) else f"no call: {START} and {END} never occurred"
        yield tile_finding("calls_none", Severity.HIGH, title, seen, place(tile), _CALL_BOTH)
    for slot in slots:
        yield from _held(tile, slot)
        yield from _second_slot(tile, slot)
    if marks.swapped:
        title = "calls end in the cycle where the next one starts"
        seen = f"{marks.swapped:,} times; the end was taken first"
        yield tile_finding("call_end_meets_start", Severity.INFO, title, seen, place(tile), "nothing to do")
    empty = np.flatnonzero(calls.durations == 0)
    if len(empty):
        where = place(tile, f"call {empty[0] + 1}", f"cycle {calls.start[empty[0]]}")
        title = "calls start and end in the same cycle"
        yield tile_finding(
            "call_without_cycles", Severity.MEDIUM, title, counted_text(len(empty), "call", ","), where, _CALL_BOTH
        )


def _held(tile: TileTrace, slot: SlotTrace) -> Iterator[Message]:
    held = np.flatnonzero((slot.spans.end - slot.spans.start > 1) & ~slot.spans.open)
    if len(held):
        where = place(tile, f"cycle {slot.spans.start[held[0]]}")
        title = f"{slot.name} lasts longer than a cycle: it was raised in consecutive cycles"
        seen = f"{len(held):,} times; the first cycle counts"
        yield tile_finding("call_event_held", Severity.INFO, title, seen, where, "raise it once per call")


def _second_slot(tile: TileTrace, slot: SlotTrace) -> Iterator[Message]:
    others = [s for s in tile.slots if s.name == slot.name and s is not slot and len(s.spans.start)]
    if others:
        numbers = ", ".join(str(other.number) for other in others)
        title = f"{slot.name} has more than one slot"
        seen = f"slot {slot.number} has most of them and is used; slots {numbers} are not"
        yield tile_finding("call_event_repeated", Severity.INFO, title, seen, place(tile), "free the other slots")
