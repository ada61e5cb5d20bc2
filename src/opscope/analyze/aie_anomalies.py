"""Starts and ends of calls that do not pair: what each of them is, by the lengths of the calls around it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analyze.aie_findings import TileFinding, place
from opscope.analyze.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analyze.aie_pairing import Marks, Matched
    from opscope.table.tiles import TileTrace

_SHOWN = 20
"""Anomalies of one rule that get a finding of their own."""


class Rule(str, enum.Enum):
    """What can be wrong with a start or an end."""

    END_MISSING = "call_end_missing"
    START_MISSING = "call_start_missing"
    START_REPEATED = "call_start_repeated"
    END_REPEATED = "call_end_repeated"
    ENDS_INSIDE = "trace_ends_in_call"
    BEGINS_INSIDE = "trace_begins_in_call"
    BACKWARDS = "call_ends_before_start"
    OVERLAPS = "call_before_earlier_one"


class Anomaly(NamedTuple):
    """A start or end in no call, or a pair that is none.

    Attributes:
        rule: what it is.
        after: number of calls before it in the stream.
        time: of the start or end, in cycles.
        reads: what it rests on.
        ambiguous: the call whose start or end it may be, counted from 0; -1 for none.
    """

    rule: Rule
    after: int
    time: int
    reads: str
    ambiguous: int = -1


class _Lengths(NamedTuple):
    """Shortest and longest call beside which nothing is wrong; None without one."""

    least: int | None
    most: int | None

    def fit(self, whole: int, apart: int) -> bool:
        """Whether a second start or end can belong to the same call.

        Args:
            whole: cycles of the call if it does.
            apart: cycles between the two starts, or the two ends.
        """
        return self.least is None or self.most is None or whole <= self.most or apart < self.least

    @property
    def said(self) -> str:
        """In words."""
        if self.least is None or self.most is None:
            return "no other call is whole, so neither is more likely"
        return f"the other calls last {self.least:,} to {self.most:,}"


def anomalies(marks: Marks, found: Matched) -> list[Anomaly]:
    """All of them, in stream order."""
    lengths, time = _lengths(marks, found), marks.time
    listed = [(at, _loose(at, marks, found, lengths)) for at in found.loose.tolist()]
    for starts, rule in ((found.backwards, Rule.BACKWARDS), (found.overlapping, Rule.OVERLAPS)):
        after = np.searchsorted(found.first, starts)
        for at, calls in zip(starts.tolist(), after.tolist(), strict=True):
            reads = f"it starts at cycle {time[at]:,} and ends at cycle {time[at + 1]:,}"
            listed.append((at, Anomaly(rule, calls, int(time[at]), reads)))
    return [anomaly for _, anomaly in sorted(listed, key=lambda pair: pair[0])]


def _lengths(marks: Marks, found: Matched) -> _Lengths:
    loose = np.zeros(len(marks.time) + 2, bool)
    loose[found.loose + 1] = True
    clean = found.first[~loose[found.first] & ~loose[found.first + 3]]
    if not len(clean):
        return _Lengths(None, None)
    durations = marks.time[clean + 1] - marks.time[clean]
    return _Lengths(int(durations.min()), int(durations.max()))


def _loose(at: int, marks: Marks, found: Matched, lengths: _Lengths) -> Anomaly:
    calls = int(np.searchsorted(found.first, at))
    return (_loose_end if marks.is_end[at] else _loose_start)(at, marks, found, lengths)._replace(after=calls)


def _loose_start(at: int, marks: Marks, found: Matched, lengths: _Lengths) -> Anomaly:
    own, following = int(marks.time[at]), int(np.searchsorted(found.pairs, at))
    if at == len(marks.time) - 1:
        return Anomaly(Rule.ENDS_INSIDE, 0, own, "no start or end follows")
    if following == len(found.pairs):
        return Anomaly(Rule.END_MISSING, 0, own, f"another start follows at cycle {marks.time[at + 1]:,}, and no end")
    start, end = (int(marks.time[found.pairs[following] + step]) for step in (0, 1))
    reads = f"the next end is at cycle {end:,}: {end - own:,} cycles from here, {end - start:,} from the last start"
    if lengths.fit(end - own, start - own):
        call = _call(found, found.pairs[following])
        return Anomaly(Rule.START_REPEATED, 0, own, f"{reads}; {lengths.said}", call)
    return Anomaly(Rule.END_MISSING, 0, own, f"{reads}; {lengths.said}")


def _loose_end(at: int, marks: Marks, found: Matched, lengths: _Lengths) -> Anomaly:
    own, before = int(marks.time[at]), int(np.searchsorted(found.pairs, at)) - 1
    if at == 0:
        return Anomaly(Rule.BEGINS_INSIDE, 0, own, "no start is before it")
    if before < 0:
        return Anomaly(Rule.START_MISSING, 0, own, f"another end is before it at cycle {marks.time[at - 1]:,}")
    start, end = (int(marks.time[found.pairs[before] + step]) for step in (0, 1))
    reads = f"the last start is at cycle {start:,}: {own - start:,} cycles to here, {end - start:,} to the first end"
    if lengths.fit(own - start, own - end):
        call = _call(found, found.pairs[before])
        return Anomaly(Rule.END_REPEATED, 0, own, f"{reads}; {lengths.said}", call)
    return Anomaly(Rule.START_MISSING, 0, own, f"{reads}; {lengths.said}")


def _call(found: Matched, pair: int) -> int:
    """Which call a pair is; -1 when it was given up."""
    number = int(np.searchsorted(found.first, pair))
    return number if number < len(found.first) and found.first[number] == pair else -1


_TITLES = {
    Rule.END_MISSING: "the end of a call is missing",
    Rule.START_MISSING: "the start of a call is missing",
    Rule.START_REPEATED: "a call has a second start: it may have begun at this one",
    Rule.END_REPEATED: "a call has a second end: it may have lasted to this one",
    Rule.ENDS_INSIDE: "the trace ends inside a call",
    Rule.BEGINS_INSIDE: "the trace begins inside a call",
    Rule.BACKWARDS: "a call would end before it starts",
    Rule.OVERLAPS: "a call lies before one that the stream has earlier",
}
_LOST = "look for lost packets, and for a path through the kernel that leaves out event0() or event1()"
_STEPS = {
    Rule.END_MISSING: _LOST,
    Rule.START_MISSING: _LOST,
    Rule.START_REPEATED: "call event0() once a call, at its start",
    Rule.END_REPEATED: "call event1() once a call, at its end",
    Rule.ENDS_INSIDE: "a larger trace buffer, or fewer events, reaches further",
    Rule.BEGINS_INSIDE: "start the trace before the first call",
    Rule.BACKWARDS: "times run backwards here: decode the raw words again",
    Rule.OVERLAPS: "times run backwards here: decode the raw words again",
}
_MINOR = {Rule.ENDS_INSIDE, Rule.BEGINS_INSIDE}


def findings_of(tile: TileTrace, listed: list[Anomaly]) -> Iterator[TileFinding]:
    """One for each anomaly with its place; from the 21st of a rule on only their number and extent."""
    for rule in Rule:
        own = [anomaly for anomaly in listed if anomaly.rule is rule]
        for anomaly in own[:_SHOWN]:
            where = place(tile, _after(anomaly.after), f"cycle {anomaly.time}")
            yield _finding(rule, _TITLES[rule], anomaly.reads, where)
        rest = own[_SHOWN:]
        if rest:
            cycles = f"cycles {rest[0].time} to {rest[-1].time}"
            title = f"{_TITLES[rule]}: {len(rest):,} more times"
            yield _finding(rule, title, f"{len(own):,} in all", place(tile, _after(rest[0].after), cycles))


def _finding(rule: Rule, title: str, evidence: str, where: str) -> TileFinding:
    severity = Severity.INFO if rule in _MINOR else Severity.MEDIUM
    return TileFinding(rule.value, severity, title, evidence, where, _STEPS[rule])


def _after(calls: int) -> str:
    return f"after call {calls}" if calls else "before the first call"
