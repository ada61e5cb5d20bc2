"""Kinds of kernel calls, and which of them multiply.

Vector cycles of a call and gaps between durations tell kinds apart; none is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.stats.modes import modes
from opscope.core.units import counted_text
from opscope.npu.analysis.calls import START, CallSpans
from opscope.npu.analysis.cycles import EVENTS, event_cover
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import Pairing
    from opscope.npu.analysis.cycles import Activity
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
_ALIKE = 0.5
"""Vector cycles, or duration, of a kind that works as kernel 1 does, as a share of that one's."""
_SEVERAL_STEP = "if they also multiply, rates and coverage are too low: mark only the kernel of interest with events"
VECTOR = EVENTS["vector"]
ZERO_FILL = "zero-fill"
"""Name of calls without vector cycles that are shorter than those of a kernel with such."""


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


@dataclass(frozen=True, eq=False)
class Kinds:
    """All kinds of a tile's calls, and those of them that multiply."""

    kinds: tuple[KindRow, ...]  # the one with the most cycles first; none without calls
    labels: Ints  # kind of each call as its position in `kinds`; shape (calls,)
    reason: str  # why these kinds multiply, or why none does
    findings: tuple[Message, ...] = ()  # what limits this
    # start and reason of the calls between others that lack vector cycles of their kind's constant
    lacking: tuple[tuple[int, str], ...] = ()

    @property
    def work(self) -> Mask:
        """Return which calls multiply, so that they count as those of the tiling; shape (calls,)."""
        return np.array([kind.multiplies for kind in self.kinds], bool)[self.labels]

    @property
    def fills(self) -> Mask:
        """Return which calls are zero-fills; shape (calls,)."""
        return np.array([kind.fills for kind in self.kinds], bool)[self.labels]

    @property
    def vector_cycles(self) -> int | None:
        """Vector cycles of all calls that multiply. None if INSTR_VECTOR was not traced or never active."""
        return sum((kind.vector_cycles or 0) * kind.n for kind in self.kinds if kind.multiplies) or None

    def with_work(self, indices: Sequence[int]) -> Kinds:
        """Let the kinds at some positions multiply, and no others."""
        kinds = (msgspec.structs.replace(kind, multiplies=index in indices) for index, kind in enumerate(self.kinds))
        return replace(self, kinds=tuple(kinds))


@dataclass(frozen=True, eq=False)
class CoreCalls:
    """The calls of a core."""

    tile: TileTrace  # its trace
    pairing: Pairing  # its calls, and marks that are in none
    active: Activity  # what it did when
    kinds: Kinds  # of its calls

    @property
    def calls(self) -> CallSpans:
        """Calls of any kind, in order of time."""
        return self.pairing.calls

    @property
    def work(self) -> CallSpans:
        """The calls that multiply."""
        multiplies = self.kinds.work
        return CallSpans(self.calls.start[multiplies], self.calls.end[multiplies])

    @property
    def damage_signs(self) -> list[tuple[int, str, str]]:
        """Cycle, reason and kind of each sign of damage, in no order.

        Missing words and calls that lack vector cycles are ``lost``, unpaired marks ``damaged``: what happened to them
        is not known.
        """
        return [
            *((lost.cycle, lost.why, "lost") for lost in self.tile.lost),
            *((cycle, why, "damaged") for cycle, why in self.pairing.broken),
            *((cycle, why, "lost") for cycle, why in self.kinds.lacking),
        ]

    @property
    def has_begun_call(self) -> bool:
        """Return whether another call starts behind the last one, and does not end."""
        starts = self.tile.slot(START)
        return bool(len(self.calls) and starts and (starts.spans.start >= self.calls.end[-1]).any())


class CallGroup(NamedTuple):
    """Calls of one kind."""

    calls: Ints  # their positions, ascending
    vector: int | None  # the vector cycles of a call; None where they were not traced
    why: str  # what holds them together, in words
    partial: Ints  # positions of those that lack vector cycles


def find_kinds(tile: TileTrace, calls: CallSpans, active: Activity, specification: RunSpecification) -> Kinds:
    """Tell the kinds of calls apart, and choose those that multiply.

    Kinds without vector cycles do not, as a zero-fill. Among the others the one with the most cycles counts, and with
    it all that have the same vector cycles. Kinds with too few to do a tile's work at the peak rate are passed over
    while there are others. Further kinds that work alike count where only together they are the K/k calls for each
    zero-fill. Without any vector cycles, as INSTR_VECTOR was not traced or the kernel is scalar, the kind with the most
    cycles counts.
    """
    if not len(calls):
        return Kinds((), np.empty(0, np.int64), "the tile has no calls")
    vector = event_cover(tile, VECTOR)
    spent = active.split(calls.start, calls.end)
    lengths = spent["vector"] + spent["other"]
    findings: list[Message] = []
    if vector is None:
        every, vector_cycles = np.arange(len(calls)), None
        rough = [CallGroup(every, None, f"{VECTOR} was not traced, so only durations are known", every[:0])]
    else:
        vector_cycles = vector.within(calls.start, calls.end)
        rough = _group_by_vector(vector_cycles, lengths)
    groups = [part for group in rough for part in _divide_by_length(group, lengths)]
    groups.sort(key=lambda group: (-int(calls.durations[group.calls].sum()), int(group.calls[0])))
    labels = np.empty(len(calls), np.int64)
    for number, group in enumerate(groups):
        labels[group.calls] = number
    if vector is None:
        findings.append(
            tile_finding(
                "kinds_without_vector",
                Severity.INFO,
                title=f"{VECTOR} was not traced: kinds of calls are distinguished by duration only",
                evidence=counted_text(len(groups), "kind", ","),
                where=place(tile),
                step=f"trace {VECTOR} too: its cycles per call are a constant of each kernel",
            )
        )
    kinds = _describe_groups(groups, calls.durations, lengths)
    able = [index for index, kind in enumerate(kinds) if kind.vector_cycles or not any(k.vector_cycles for k in kinds)]
    chosen = _choose_kinds(kinds, {index: int(calls.durations[labels == index].sum()) for index in able}, specification)
    other_kinds = [kinds[index] for index in able if index not in chosen]
    if other_kinds:
        names = ", ".join(f"{kind.kind} with {counted_text(kind.n, 'call')}" for kind in other_kinds)
        findings.append(
            tile_finding(
                "several_multiplying_kinds",
                Severity.INFO,
                title="several kinds of calls may multiply",
                evidence=f"only {_names_text(kinds, chosen)} is counted; not counted: {names}",
                where=place(tile),
                step=_SEVERAL_STEP,
            )
        )
    lacking = tuple(_find_lacking_calls(calls, groups, vector_cycles))
    reason = _choice_text(kinds, chosen, has_others=bool(other_kinds))
    return Kinds(kinds, labels, reason, tuple(findings), lacking).with_work(chosen)


def _group_by_vector(vector: Ints, lengths: Ints) -> list[CallGroup]:
    """Group calls by vector cycles: constants of a kernel, or else ranges with a gap between them.

    Constants that hardly differ are one kernel whose vector cycles depend on the data.
    """
    values, positions, counts = np.unique(vector, return_inverse=True, return_counts=True)
    constant = (counts >= max(_REPEATS, _REPEATS_SHARE * len(vector))) | (values == 0)
    if constant.sum() > _MOST_CONSTANTS or counts[constant].sum() < _COVERED * len(vector):
        return _group_by_vector_gap(vector)
    constants = values[constant]
    group = np.concatenate([[0], np.cumsum((constants[1:] > (1 + _SAME) * constants[:-1]) | (constants[:-1] == 0))])
    home = np.full(len(values), -1)
    home[constant] = group
    members = [constants[group == number] for number in range(int(group[-1]) + 1)]
    for number, similar in enumerate(members):
        if len(similar) > 1:
            home[(values >= similar[0] * (1 - _SAME)) & (values <= similar[-1] * (1 + _SAME))] = number
    homes = home[positions]
    strays = np.flatnonzero(homes < 0)
    for number, similar in enumerate(members):
        lacking = _lacks_vector_cycles(strays, vector, lengths, homes == number, int(similar[0]))
        homes[strays[lacking & (homes[strays] < 0)]] = number
    groups = []
    for number, similar in enumerate(members):
        calls = np.flatnonzero(homes == number)
        value = int(similar[0]) if len(similar) == 1 else None
        groups.append(_range_group(vector, calls) if value is None else _constant_group(vector, calls, value))
    rest = np.flatnonzero(homes < 0)
    further = _group_by_vector_gap(vector[rest]) if len(rest) else []
    return groups + [call_group._replace(calls=rest[call_group.calls]) for call_group in further]


def _lacks_vector_cycles(strays: Ints, vector: Ints, lengths: Ints, is_member: Mask, value: int) -> Mask:
    """Return which calls last as long as those of a kernel, and have fewer vector cycles than its constant."""
    least, most = lengths[is_member].min() / _LENGTH_SLACK, lengths[is_member].max() * _LENGTH_SLACK
    as_long = (least <= lengths[strays]) & (lengths[strays] <= most)
    at_edge = (strays == 0) | (strays == len(vector) - 1)
    fewer = (vector[strays] < value) & (at_edge | (vector[strays] >= (1 - _LOST_SHARE) * value))
    return np.asarray(as_long & fewer, bool)


def _constant_group(vector: Ints, calls: Ints, value: int) -> CallGroup:
    partial = calls[vector[calls] != value]
    complete = len(calls) - len(partial)
    why = (
        f"{value:,} vector cycles in each of {complete:,} calls" if value else f"no vector cycles in {complete:,} calls"
    )
    if len(partial):
        why += f"; {len(partial):,} take as long but lack some that were not captured"
    return CallGroup(calls, value, why, partial)


def _group_by_vector_gap(vector: Ints) -> list[CallGroup]:
    """Group calls between which vector cycles differ by more than a quarter."""
    values, positions = np.unique(vector, return_inverse=True)
    apart = (values[1:] > _VECTOR_GAP * values[:-1]) | (values[:-1] == 0)
    group = np.concatenate([[0], np.cumsum(apart)])[positions]
    return [_range_group(vector, np.flatnonzero(group == number)) for number in range(int(group.max()) + 1)]


def _range_group(vector: Ints, calls: Ints) -> CallGroup:
    counts = np.sort(vector[calls])
    if counts[0] == counts[-1]:
        return _constant_group(vector, calls, int(counts[0]))
    why = f"{counts[0]:,} to {counts[-1]:,} vector cycles in {len(calls):,} calls, with no gap of 25 % between them"
    return CallGroup(calls, int(counts[len(counts) // 2]), why, calls[:0])


def _divide_by_length(group: CallGroup, lengths: Ints) -> list[CallGroup]:
    """Divide a group where lengths leave a wide gap.

    Equal vector cycles outweigh all but a gap of twice the length with three calls on either side. Without vector
    cycles a gap of half the length is enough, or of twice the length for a single call.
    """
    order = np.argsort(lengths[group.calls], kind="stable")
    ordered = np.maximum(lengths[group.calls][order], 1)
    ratio = ordered[1:] / ordered[:-1]
    wide = np.flatnonzero(ratio >= (_GAP_AGAINST_VECTOR if group.vector else _GAP_BY_LENGTH)) + 1
    cuts: list[int] = []
    for cut, following in pairwise([*wide.tolist(), len(ordered)]):
        fewest = min(cut - (cuts[-1] if cuts else 0), following - cut)
        if fewest >= _REPEATS if group.vector else fewest > 1 or ratio[cut - 1] >= _GAP_OF_ONE:
            cuts.append(cut)
    if not cuts:
        return [group]
    why = f"{group.why}; one of {counted_text(len(cuts) + 1, 'group')} separated by large gaps in duration"
    parts = [np.sort(group.calls[part]) for part in np.split(order, cuts)]
    return [CallGroup(part, group.vector, why, group.partial[np.isin(group.partial, part)]) for part in parts]


def _find_lacking_calls(
    calls: CallSpans, groups: Sequence[CallGroup], vector: Ints | None
) -> Iterator[tuple[int, str]]:
    """Return the calls that lack vector cycles, but for the first and the last of the trace."""
    for group in groups:
        for call in group.partial[(group.partial > 0) & (group.partial < len(calls) - 1)].tolist():
            seen = 0 if vector is None else int(vector[call])
            yield int(calls.start[call]), f"call {call + 1} has {seen:,} of its kernel's {group.vector:,} vector cycles"


def _describe_groups(groups: Sequence[CallGroup], durations: Ints, lengths: Ints) -> tuple[KindRow, ...]:
    """Name and describe the kinds; those that are like kernel 1 may multiply."""
    lead = next((group for group in groups if group.vector), groups[0])
    usual = float(np.median(durations[lead.calls]))
    kinds: list[KindRow] = []
    for group in groups:
        spans = durations[group.calls]
        p10, typical, p90 = np.percentile(spans, [10, 50, 90]).tolist()
        fills = group.vector == 0 and bool(lead.vector) and typical < usual
        number = 1 + sum(kind.fills is fills for kind in kinds)
        alike = typical >= _ALIKE * usual
        if lead.vector and group.vector is not None:
            alike = group.vector >= _ALIKE * lead.vector
        kinds.append(
            KindRow(
                kind=f"kernel {number}" if not fills else ZERO_FILL if number == 1 else f"{ZERO_FILL} {number}",
                n=len(spans),
                vector_cycles=group.vector,
                median_cycles=typical,
                p10_cycles=p10,
                p90_cycles=p90,
                min_cycles=int(spans.min()),
                max_cycles=int(spans.max()),
                first_cycles=int(spans[0]),
                evidence="; ".join([group.why, *_evidence_texts(group, spans, lengths[group.calls], fills=fills)]),
                multiplies=alike and not fills,
            )
        )
    return tuple(kinds)


def _evidence_texts(group: CallGroup, durations: Ints, lengths: Ints, *, fills: bool) -> Iterator[str]:
    if fills:
        yield "shorter than kernel 1: clears memory, or only loads and stores"
    elif group.vector == 0:
        yield "scalar code"
    least, most = int(lengths.min()), int(lengths.max())
    if (lengths != durations).any():
        yield f"{least:,} cycles without stalls" if least == most else f"{least:,} to {most:,} cycles without stalls"
    clusters = modes(np.maximum(durations, 1).astype(np.float64), 1.0)
    if len(clusters) > 1:
        low, high = (round(cluster.location) for cluster in clusters)
        yield f"durations cluster around {low:,} and {high:,}, which alone does not make two kinds"


def _choose_kinds(kinds: Sequence[KindRow], spent: dict[int, int], specification: RunSpecification) -> list[int]:
    """Choose the kinds that multiply among those that can; ``spent`` has the cycles of each of these."""
    at_peak = (
        0.0
        if specification.tiling is None or specification.peak is None
        else specification.tiling.macs_per_call / specification.peak
    )
    sufficient = [index for index in spent if (kinds[index].vector_cycles or 0) >= at_peak]
    main = max(sufficient or spent, key=lambda index: spent[index])
    vector = kinds[main].vector_cycles or 0
    same = [
        index
        for index in spent
        if index == main or (vector and abs((kinds[index].vector_cycles or 0) - vector) <= _SAME * vector)
    ]
    wider = sorted({*same, *(index for index in spent if kinds[index].multiplies)})
    per_output = specification.tiling.calls_per_output if specification.tiling else None
    fills = sum(kind.n for kind in kinds if kind.fills)
    if per_output is None or not fills:
        return same
    return min((same, wider), key=lambda chosen: abs(sum(kinds[index].n for index in chosen) / fills - per_output))


def _names_text(kinds: Sequence[KindRow], chosen: Sequence[int]) -> str:
    return " and ".join(kinds[index].kind for index in chosen)


def _choice_text(kinds: Sequence[KindRow], chosen: Sequence[int], *, has_others: bool) -> str:
    vector = kinds[chosen[0]].vector_cycles
    if not vector:
        why = "INSTR_VECTOR was not traced" if vector is None else "no call has vector cycles"
        return f"{why}: {_names_text(kinds, chosen)} has the most cycles of all kinds"
    text = f"{_names_text(kinds, chosen)}: {vector:,} vector cycles per call"
    return f"{text}, the most cycles of all kinds with vector cycles" if has_others else text
