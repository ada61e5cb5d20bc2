"""Kinds of kernel calls, told apart by the vector cycles of a call and by gaps between durations; none is dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.stats.modes import modes
from opscope.core.units import counted_text
from opscope.npu.analysis.calls import START
from opscope.npu.analysis.cycles import EVENTS, Activity, activity, event_cover, split_by
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.specification import RunSpecification

    Mask = NDArray[np.bool_]


_REPEATS = 3
"""Calls that must have the same vector cycles for these to be a constant of their kernel."""
_REPEATS_SHARE = 1e-3
_MOST_CONSTANTS = 16
_SAME = 0.02
"""Kinds whose vector cycles differ by less do the same work."""
_COVERED = 0.9
"""Share of the calls that have a constant; below, vector cycles depend on the data and are distinguished by gaps."""
_VECTOR_GAP = 1.25
_LOST_SHARE = 0.1
"""Share of its vector cycles that the capture of a call may lack anywhere in the trace; at its edges any."""
_LENGTH_SLACK = 1.1
_GAP_BY_LENGTH = 1.5
_GAP_AGAINST_VECTOR = 2.0
_GAP_OF_ONE = 2.0


class CallGroup(NamedTuple):
    """Calls of one kind."""

    calls: Ints  # their places, ascending
    vector: int | None  # the vector cycles of a call; None where they were not traced
    why: str  # what holds them together, in words
    partial: Ints  # places of those that lack vector cycles


def by_vector(vector: Ints, lengths: Ints) -> list[CallGroup]:
    """Group calls by vector cycles: constants of a kernel, or else ranges with a gap between them.

    Constants that hardly differ are one kernel whose vector cycles depend on the data.
    """
    values, place, counts = np.unique(vector, return_inverse=True, return_counts=True)
    constant = (counts >= max(_REPEATS, _REPEATS_SHARE * len(vector))) | (values == 0)
    if constant.sum() > _MOST_CONSTANTS or counts[constant].sum() < _COVERED * len(vector):
        return by_vector_gap(vector)
    own = values[constant]
    group = np.concatenate([[0], np.cumsum((own[1:] > (1 + _SAME) * own[:-1]) | (own[:-1] == 0))])
    home = np.full(len(values), -1)
    home[constant] = group
    for number in np.flatnonzero(np.bincount(group) > 1).tolist():
        least, most = own[group == number][[0, -1]] * np.array([1 - _SAME, 1 + _SAME])
        home[(values >= least) & (values <= most)] = number
    homes = home[place]
    strays = np.flatnonzero(homes < 0)
    for number, least in zip(*np.unique(group, return_index=True), strict=True):
        lacking = _lacks_vector_cycles(strays, vector, lengths, homes == number, int(own[least]))
        homes[strays[lacking & (homes[strays] < 0)]] = number
    groups = []
    for number in range(int(group[-1]) + 1):
        calls = np.flatnonzero(homes == number)
        several = (group == number).sum() > 1
        groups.append(
            _range_group(vector, calls) if several else _constant_group(vector, calls, int(own[group == number][0]))
        )
    rest = np.flatnonzero(homes < 0)
    others = by_vector_gap(vector[rest]) if len(rest) else []
    return groups + [call_group._replace(calls=rest[call_group.calls]) for call_group in others]


def _lacks_vector_cycles(strays: Ints, vector: Ints, lengths: Ints, is_own: Mask, value: int) -> Mask:
    """Return which calls last as long as those of a kernel, and have fewer vector cycles than its constant."""
    least, most = lengths[is_own].min() / _LENGTH_SLACK, lengths[is_own].max() * _LENGTH_SLACK
    as_long = (least <= lengths[strays]) & (lengths[strays] <= most)
    at_edge = (strays == 0) | (strays == len(vector) - 1)
    fewer = (vector[strays] < value) & (at_edge | (vector[strays] >= (1 - _LOST_SHARE) * value))
    return np.asarray(as_long & fewer, bool)


def _constant_group(vector: Ints, calls: Ints, value: int) -> CallGroup:
    partial = calls[vector[calls] != value]
    whole = len(calls) - len(partial)
    why = f"{value:,} vector cycles in each of {whole:,} calls" if value else f"no vector cycles in {whole:,} calls"
    if len(partial):
        why += f"; {len(partial):,} take as long but lack some that were not captured"
    return CallGroup(calls, value, why, partial)


def by_vector_gap(vector: Ints) -> list[CallGroup]:
    """Groups between which vector cycles differ by more than a quarter."""
    values, place = np.unique(vector, return_inverse=True)
    apart = (values[1:] > _VECTOR_GAP * values[:-1]) | (values[:-1] == 0)
    group = np.concatenate([[0], np.cumsum(apart)])[place]
    return [_range_group(vector, np.flatnonzero(group == number)) for number in range(int(group.max()) + 1)]


def _range_group(vector: Ints, calls: Ints) -> CallGroup:
    own = vector[calls]
    least, most = int(own.min()), int(own.max())
    if least == most:
        return _constant_group(vector, calls, least)
    why = f"{least:,} to {most:,} vector cycles in {len(calls):,} calls, with no gap of 25 % between them"
    return CallGroup(calls, int(np.sort(own)[len(own) // 2]), why, calls[:0])


def by_length(group: CallGroup, lengths: Ints) -> list[CallGroup]:
    """Divide a group where lengths leave a wide gap.

    Equal vector cycles outweigh all but a gap of twice the length with three calls on either side. Without vector
    cycles a gap of half the length is enough, or of twice the length for a single call.
    """
    order = np.argsort(lengths[group.calls], kind="stable")
    cuts = _group_starts(np.maximum(lengths[group.calls][order], 1), told_by_vector=bool(group.vector))
    if not cuts:
        return [group]
    parts = np.split(order, cuts)
    why = f"{group.why}; one of {counted_text(len(parts), 'group')} separated by large gaps in duration"
    listed = [np.sort(group.calls[part]) for part in parts]
    return [CallGroup(own, group.vector, why, group.partial[np.isin(group.partial, own)]) for own in listed]


def _group_starts(ordered: Ints, *, told_by_vector: bool) -> list[int]:
    """Places in ordered lengths before which a group begins."""
    ratio = ordered[1:] / ordered[:-1]
    wide = np.flatnonzero(ratio >= (_GAP_AGAINST_VECTOR if told_by_vector else _GAP_BY_LENGTH)) + 1
    bounds, cuts, before = [*wide.tolist(), len(ordered)], [], 0
    for cut, following in pairwise(bounds):
        fewest = min(cut - before, following - cut)
        enough = fewest >= _REPEATS if told_by_vector else fewest > 1 or ratio[cut - 1] >= _GAP_OF_ONE
        if enough:
            cuts.append(cut)
            before = cut
    return cuts


VECTOR = EVENTS["vector"]
ZERO_FILL = "zero-fill"
"""Name of calls without vector cycles that are shorter than those of a kernel with such."""
_ALIKE = 0.5
"""Vector cycles, or duration, of a kind that works as kernel 1 does, as a share of that one's."""


class KindRow(msgspec.Struct, frozen=True):
    """Calls of one kind, and their durations from INSTR_EVENT_0 to INSTR_EVENT_1.

    Attributes:
        kind: its name.
        n: calls.
        vector_cycles: in each call; null where INSTR_VECTOR was not traced.
        median_cycles: of the durations.
        p10_cycles: that one call in ten stays below.
        p90_cycles: that nine in ten stay below.
        min_cycles: shortest.
        max_cycles: longest.
        first_cycles: of the first call.
        evidence: why these calls are one kind.
        multiplies: whether its calls count as the product's work.
    """

    kind: str  # `kernel 1` and so on, the one with the most cycles first; or `zero-fill`
    n: int
    vector_cycles: int | None
    median_cycles: float
    p10_cycles: float
    p90_cycles: float
    min_cycles: int
    max_cycles: int
    first_cycles: int
    evidence: str
    multiplies: bool

    @property
    def fills(self) -> bool:
        """Return whether it is a zero-fill."""
        return self.kind.startswith(ZERO_FILL)


@dataclass(frozen=True)
class Kinds:
    """All kinds of a tile."""

    kinds: tuple[KindRow, ...]  # those found, the one with the most cycles first; none without calls
    labels: Ints  # kind of each call as its place in `kinds`; shape (calls,)
    findings: tuple[Message, ...] = ()  # what limits this
    # start and reason of the calls between others that lack vector cycles of their kind's constant
    lacking: tuple[tuple[int, str], ...] = ()

    @property
    def work(self) -> NDArray[np.bool_]:
        """Return which calls count as those of the tiling; shape (calls,)."""
        return self._of_kinds([kind.multiplies for kind in self.kinds])

    @property
    def fills(self) -> NDArray[np.bool_]:
        """Return which calls are zero-fills; shape (calls,)."""
        return self._of_kinds([kind.fills for kind in self.kinds])

    def counting(self, names: Collection[str]) -> Kinds:
        """Let the kinds of these names count as the work of the tiling; without names nothing changes."""
        if not names:
            return self
        kinds = tuple(msgspec.structs.replace(kind, multiplies=kind.kind in names) for kind in self.kinds)
        return replace(self, kinds=kinds)

    def _of_kinds(self, chosen: Sequence[bool]) -> NDArray[np.bool_]:
        return np.array(chosen, bool)[self.labels]


def find_kinds(tile: TileTrace, calls: CallSpans, known: Activity | None = None) -> Kinds:
    """Tell the kinds of calls apart."""
    if not len(calls):
        return Kinds((), np.empty(0, np.int64))
    vector = event_cover(tile, VECTOR)
    spent = split_by(known or activity(tile), calls.start, calls.end)
    lengths = spent["vector"] + spent["other"]
    if vector is None:
        every = np.arange(len(calls))
        rough = [CallGroup(every, None, f"{VECTOR} was not traced, so only durations are known", every[:0])]
        counts = None
    else:
        counts = vector.within(calls.start, calls.end)
        rough = by_vector(counts, lengths)
    groups = [part for group in rough for part in by_length(group, lengths)]
    groups.sort(key=lambda call_group: (-int(calls.durations[call_group.calls].sum()), int(call_group.calls[0])))
    labels = np.empty(len(calls), np.int64)
    for number, group in enumerate(groups):
        labels[group.calls] = number
    kinds = _name_kinds(groups, calls.durations, lengths)
    return Kinds(
        kinds,
        labels,
        () if counts is not None else (_report_unknown_vector(tile, groups),),
        tuple(_find_lacking_calls(calls, groups, counts)),
    )


def _find_lacking_calls(
    calls: CallSpans, groups: Sequence[CallGroup], vector: Ints | None
) -> Iterator[tuple[int, str]]:
    """Calls that lack vector cycles, but for the first and the last of the trace."""
    for group in groups:
        for call in group.partial[(group.partial > 0) & (group.partial < len(calls) - 1)].tolist():
            seen = 0 if vector is None else int(vector[call])
            yield int(calls.start[call]), f"call {call + 1} has {seen:,} of its kernel's {group.vector:,} vector cycles"


def _name_kinds(groups: Sequence[CallGroup], durations: Ints, lengths: Ints) -> tuple[KindRow, ...]:
    lead = next((group for group in groups if group.vector), groups[0])
    usual = float(np.median(durations[lead.calls]))
    kinds: list[KindRow] = []
    for group in groups:
        own = float(np.median(durations[group.calls]))
        fills = group.vector == 0 and bool(lead.vector) and own < usual
        name = _next_name(ZERO_FILL, kinds) if fills else _next_name("kernel", kinds)
        alike = own >= _ALIKE * usual
        if lead.vector and group.vector is not None:
            alike = group.vector >= _ALIKE * lead.vector
        kinds.append(_kind_row(name, group, durations[group.calls], lengths[group.calls], works=alike and not fills))
    return tuple(kinds)


def _next_name(what: str, before: Sequence[KindRow]) -> str:
    """The next name of its sort; the only zero-fill, or the first one, has no number."""
    number = sum(kind.kind.startswith(what) for kind in before) + 1
    return what if what == ZERO_FILL and number == 1 else f"{what} {number}"


def _kind_row(name: str, group: CallGroup, durations: Ints, lengths: Ints, *, works: bool) -> KindRow:
    p10, median, p90 = np.percentile(durations, [10, 50, 90]).tolist()
    return KindRow(
        kind=name,
        n=len(durations),
        vector_cycles=group.vector,
        median_cycles=median,
        p10_cycles=p10,
        p90_cycles=p90,
        min_cycles=int(durations.min()),
        max_cycles=int(durations.max()),
        first_cycles=int(durations[0]),
        evidence="; ".join([group.why, *_evidence_texts(name, group, durations, lengths)]),
        multiplies=works,
    )


def _evidence_texts(name: str, group: CallGroup, durations: Ints, lengths: Ints) -> Iterator[str]:
    if name.startswith(ZERO_FILL):
        yield "shorter than kernel 1: clears memory, or only loads and stores"
    elif group.vector == 0:
        yield "scalar code"
    least, most = int(lengths.min()), int(lengths.max())
    if (lengths != durations).any():
        yield f"{least:,} cycles without stalls" if least == most else f"{least:,} to {most:,} cycles without stalls"
    around = modes(np.maximum(durations, 1).astype(np.float64), 1.0)
    if len(around) > 1:
        low, high = (round(mode.location) for mode in around)
        yield f"durations cluster around {low:,} and {high:,}, which alone does not make two kinds"


def _report_unknown_vector(tile: TileTrace, groups: Sequence[CallGroup]) -> Message:
    return tile_finding(
        "kinds_without_vector",
        Severity.INFO,
        title=f"{VECTOR} was not traced: kinds of calls are distinguished by duration only",
        evidence=counted_text(len(groups), "kind", ","),
        where=place(tile),
        step=f"trace {VECTOR} too: its cycles per call are a constant of each kernel",
    )


def unsorted(calls: CallSpans, reason: str) -> Kinds:
    """Make one kind of all calls, where nothing tells them apart."""
    if not len(calls):
        return Kinds((), np.empty(0, np.int64))
    every = CallGroup(np.arange(len(calls)), None, reason, np.empty(0, np.int64))
    return Kinds(_name_kinds([every], calls.durations, calls.durations), np.zeros(len(calls), np.int64))


class MacCalls(NamedTuple):
    """The calls that multiply and accumulate, in order of time."""

    multiplies: NDArray[np.bool_]  # whether each call of the tile does; shape (calls,)
    start: Ints  # of those that do, in cycles
    end: Ints
    begun: int  # calls without an end at the end of the trace, 0 or 1
    kinds: tuple[str, ...]  # names of their kinds
    vector_cycles: int | None  # in all of them together; None where INSTR_VECTOR was not traced
    reason: str  # how they were chosen, or why there are none
    findings: tuple[Message, ...] = ()  # what makes the choice doubtful

    @property
    def number(self) -> int:
        """Calls that multiply."""
        return len(self.start)

    @property
    def cycles(self) -> int:
        """Cycles in the calls."""
        return int((self.end - self.start).sum())

    @property
    def median_cycles(self) -> float | None:
        """Median duration of the calls. None without calls."""
        return float(np.median(self.end - self.start)) if self.number else None


def multiplying(tile: TileTrace, calls: CallSpans, kinds: Kinds, said: RunSpecification) -> MacCalls:
    """Choose the calls that multiply.

    Kinds without vector cycles do not, as a zero-fill. Among the others the one with the most cycles counts, and with
    it all that have the same vector cycles. Kinds with too few to do a tile's work at the peak rate are passed over
    while there are others. Further kinds that work alike count where only together they are the K/k calls for each
    zero-fill. Without any vector cycles, as INSTR_VECTOR was not traced or the kernel is scalar, the kind with the most
    cycles counts.
    """
    if not len(calls):
        return none_multiplying(tile, calls, "the tile has no calls")
    is_scalar = not any(kind.vector_cycles for kind in kinds.kinds)
    able = [index for index, kind in enumerate(kinds.kinds) if is_scalar or kind.vector_cycles]
    chosen = _choose_kinds(calls, kinds, able, said)
    names = [kinds.kinds[index] for index in chosen]
    others = [kinds.kinds[index] for index in able if index not in chosen]
    work = _mac_calls(tile, calls, np.isin(kinds.labels, chosen), names, _choice_text(names, others))
    return work._replace(findings=tuple(_report_other_multipliers(tile, names, others)))


def _choose_kinds(calls: CallSpans, kinds: Kinds, able: list[int], said: RunSpecification) -> list[int]:
    at_peak = 0.0 if said.tiling is None or said.peak is None else said.tiling.macs_per_call / said.peak
    sufficient = [index for index in able if (kinds.kinds[index].vector_cycles or 0) >= at_peak]
    spent = {index: int(calls.durations[kinds.labels == index].sum()) for index in able}
    main = max(sufficient or able, key=lambda index: spent[index])
    same = [index for index in able if _is_alike(kinds.kinds[index], kinds.kinds[main])]
    wider = sorted({*same, *(index for index in able if kinds.kinds[index].multiplies)})
    each = said.tiling.calls_per_output if said.tiling else None
    fills = sum(kind.n for kind in kinds.kinds if kind.fills)
    if each is None or not fills:
        return same
    return min((same, wider), key=lambda chosen: abs(sum(kinds.kinds[index].n for index in chosen) / fills - each))


def _mac_calls(
    tile: TileTrace, calls: CallSpans, multiplies: NDArray[np.bool_], kinds: list[KindRow], reason: str
) -> MacCalls:
    names = tuple(kind.kind for kind in kinds)
    vector = sum((kind.vector_cycles or 0) * kind.n for kind in kinds) or None
    starts = tile.slot(START)
    within = starts is not None and len(calls) > 0 and (starts.spans.start >= calls.end[-1]).any()
    begun = int(bool(kinds and within))
    return MacCalls(multiplies, calls.start[multiplies], calls.end[multiplies], begun, names, vector, reason)


def none_multiplying(tile: TileTrace, calls: CallSpans, reason: str) -> MacCalls:
    """No call that is known to multiply, and why."""
    return _mac_calls(tile, calls, np.zeros(len(calls), np.bool_), [], reason)


def _is_alike(kind: KindRow, main: KindRow) -> bool:
    if kind is main:
        return True
    if not kind.vector_cycles or not main.vector_cycles:
        return False
    return abs(kind.vector_cycles - main.vector_cycles) <= _SAME * main.vector_cycles


def _choice_text(chosen: list[KindRow], others: list[KindRow]) -> str:
    names = " and ".join(kind.kind for kind in chosen)
    if not chosen[0].vector_cycles:
        why = "INSTR_VECTOR was not traced" if chosen[0].vector_cycles is None else "no call has vector cycles"
        return f"{why}: {names} has the most cycles of all kinds"
    found = f"{names}: {chosen[0].vector_cycles:,} vector cycles per call"
    return f"{found}, the most cycles of all kinds with vector cycles" if others else found


def _report_other_multipliers(tile: TileTrace, chosen: list[KindRow], others: list[KindRow]) -> list[Message]:
    if not others:
        return []
    names = ", ".join(f"{kind.kind} with {counted_text(kind.n, 'call')}" for kind in others)
    return [
        tile_finding(
            "several_multiplying_kinds",
            Severity.INFO,
            title="several kinds of calls may multiply",
            evidence=f"only {' and '.join(kind.kind for kind in chosen)} is counted; not counted: {names}",
            where=place(tile),
            step="if they also multiply, rates and coverage are too low: mark only the kernel of interest with events",
        )
    ]
