"""Starts and ends of calls that do not pair: what each of them is, by the lengths of the calls around it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analyze.aie_findings import TileFinding, place
from opscope.analyze.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analyze.aie_pairing import Marks, Mask, Matched
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

    _Part = tuple[Ints, Ints, Ints]

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


_CODES = {rule: code for code, rule in enumerate(Rule)}


class Anomalies(NamedTuple):
    """Starts and ends in no call, and pairs that are none, in stream order; arrays of shape (anomalies,).

    Attributes:
        rule: what each is, as its place in ``Rule``.
        mark: the start or end; of a pair, its start.
        pair: the start of the pair beside it, which may be its own; -1 without one.
        after: calls before it in the stream.
        call: the call whose start or end it may be, counted from 0; -1 for none.
    """

    rule: Ints
    mark: Ints
    pair: Ints
    after: Ints
    call: Ints

    @property
    def ambiguous(self) -> int:
        """Calls that may have another start or end."""
        return len(np.unique(self.call[self.call >= 0]))


class _Lengths(NamedTuple):
    """Shortest and longest call beside which nothing is wrong; None without one."""

    least: int | None
    most: int | None

    def fit(self, whole: Ints, apart: Ints) -> Mask:
        """Whether a second start or end can belong to the same call.

        Args:
            whole: cycles of the call if it does.
            apart: cycles between the two starts, or the two ends.
        """
        if self.least is None or self.most is None:
            return np.ones(len(whole), bool)
        return (whole <= self.most) | (apart < self.least)

    @property
    def said(self) -> str:
        """In words."""
        if self.least is None or self.most is None:
            return "no other call is whole, so neither is more likely"
        return f"the other calls last {self.least:,} to {self.most:,}"


def anomalies(marks: Marks, found: Matched) -> Anomalies:
    """All of them."""
    is_end, lengths = marks.is_end[found.loose], _lengths(marks, found)
    parts = [
        _starts(found.loose[~is_end], marks, found, lengths),
        _ends(found.loose[is_end], marks, found, lengths),
        _pairs(found.backwards, Rule.BACKWARDS),
        _pairs(found.overlapping, Rule.OVERLAPS),
    ]
    rule, mark, pair = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(mark, kind="stable")
    rule, mark, pair = rule[order], mark[order], pair[order]
    repeats = (rule == _CODES[Rule.START_REPEATED]) | (rule == _CODES[Rule.END_REPEATED])
    number = np.minimum(np.searchsorted(found.first, pair), max(len(found.first) - 1, 0))
    kept = np.isin(pair, found.first) & repeats
    return Anomalies(rule, mark, pair, np.searchsorted(found.first, mark), np.where(kept, number, -1))


def _lengths(marks: Marks, found: Matched) -> _Lengths:
    loose = np.zeros(len(marks.time) + 2, bool)
    loose[found.loose + 1] = True
    clean = found.first[~loose[found.first] & ~loose[found.first + 3]]
    if not len(clean):
        return _Lengths(None, None)
    durations = marks.time[clean + 1] - marks.time[clean]
    return _Lengths(int(durations.min()), int(durations.max()))


def _starts(at: Ints, marks: Marks, found: Matched, lengths: _Lengths) -> _Part:
    pair = np.append(found.pairs, -1)[np.searchsorted(found.pairs, at)]
    time = marks.time
    fits = (pair >= 0) & lengths.fit(time[pair + 1] - time[at], time[pair] - time[at])
    rule = np.where(fits, _CODES[Rule.START_REPEATED], _CODES[Rule.END_MISSING])
    return np.where(at == len(time) - 1, _CODES[Rule.ENDS_INSIDE], rule), at, pair


def _ends(at: Ints, marks: Marks, found: Matched, lengths: _Lengths) -> _Part:
    pair = np.append(found.pairs, -1)[np.searchsorted(found.pairs, at) - 1]
    time = marks.time
    fits = (pair >= 0) & lengths.fit(time[at] - time[pair], time[at] - time[pair + 1])
    rule = np.where(fits, _CODES[Rule.END_REPEATED], _CODES[Rule.START_MISSING])
    return np.where(at == 0, _CODES[Rule.BEGINS_INSIDE], rule), at, pair


def _pairs(starts: Ints, rule: Rule) -> _Part:
    return np.full(len(starts), _CODES[rule]), starts, starts


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


def findings_of(tile: TileTrace, marks: Marks, found: Matched, listed: Anomalies) -> Iterator[TileFinding]:
    """One for each anomaly with its place; from the 21st of a rule on only their number and extent."""
    said = _lengths(marks, found).said
    for code in np.unique(listed.rule).tolist():
        rule = list(Rule)[code]
        own = np.flatnonzero(listed.rule == code)
        for number in own[:_SHOWN].tolist():
            mark, after = int(listed.mark[number]), int(listed.after[number])
            where = place(tile, _after(after), f"cycle {marks.time[mark]}")
            yield _finding(rule, _TITLES[rule], _evidence(rule, mark, int(listed.pair[number]), marks, said), where)
        rest = own[_SHOWN:]
        if len(rest):
            times = marks.time[listed.mark[rest]]
            where = place(tile, _after(int(listed.after[rest[0]])), f"cycles {times[0]} to {times[-1]}")
            yield _finding(rule, f"{_TITLES[rule]}: {len(rest):,} more times", f"{len(own):,} in all", where)


def _evidence(rule: Rule, mark: int, pair: int, marks: Marks, said: str) -> str:
    """The figures that an anomaly rests on."""
    time = marks.time
    if rule is Rule.ENDS_INSIDE:
        return "no start or end follows"
    if rule is Rule.BEGINS_INSIDE:
        return "no start is before it"
    if rule in {Rule.BACKWARDS, Rule.OVERLAPS}:
        return f"it starts at cycle {time[mark]:,} and ends at cycle {time[mark + 1]:,}"
    if pair < 0:
        other = "another end is before it" if marks.is_end[mark] else "another start follows, and no end,"
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


def _finding(rule: Rule, title: str, evidence: str, where: str) -> TileFinding:
    severity = Severity.INFO if rule in _MINOR else Severity.MEDIUM
    return TileFinding(rule.value, severity, title, evidence, where, _STEPS[rule])


def _after(calls: int) -> str:
    return f"after call {calls}" if calls else "before the first call"
