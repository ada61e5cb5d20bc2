"""Damage to a tile's trace: packets that were lost, repeated or swapped, and times that cannot be.

Packets of a trace have no sequence number, and their payload no checksum. What shows damage is framing, where the trace
is in raw words; starts and ends of calls that do not pair; iterations that lack calls; vector cycles, which are a
constant of the kernel; and stretches without an event. From a loss on all times are too early by an unknown amount.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, share_text
from opscope.npu.analysis.cycles import EVENTS, cover, event_cover
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans, Pairing
    from opscope.npu.analysis.iterations import CallGap, Iterations
    from opscope.npu.analysis.kinds import Kinds

_SHOWN = 20
"""Losses that get a finding of their own."""
_NEAR = 2
"""Median periods within which several signs are of one loss."""
JUMP = 10
"""How many times the next longest stretch without an event the longest lasts, when time jumps there."""
_SYNC = 1 << 18
_RARE = 2
_USUAL = 10
_AGAIN = "capture again, with fewer events or fewer tiles per stream, so no packet is dropped"
_DECODE = "capture again; if you assembled the buffer from parts, check that none is duplicated"
_COMPARE = "times after it are unreliable: do not compare this tile with others"


class LostPackets(msgspec.Struct, frozen=True):
    """A place where packets of a tile were lost or damaged: times from there on are not sure.

    Attributes:
        cycle: where it is, or the earliest that it can be, in the tile's own time.
        last_cycle: the latest that it can be.
        why: what shows it.
        kind: ``lost`` where calls or words are missing, ``repeated`` where there are more calls than there can be,
            ``damaged`` where it is not known which.
    """

    cycle: int
    last_cycle: int
    why: str
    kind: str


def find_damage(
    tile: TileTrace, pairing: Pairing, kinds: Kinds, iterations: Iterations
) -> tuple[tuple[LostPackets, ...], tuple[Message, ...]]:
    """Places where packets were lost, ascending; and a finding for each, and for times that cannot be."""
    calls = pairing.calls
    points = [LostPackets(lost.cycle, lost.cycle, lost.why, "lost") for lost in tile.lost]
    points += [LostPackets(cycle, cycle, why, "damaged") for cycle, why in pairing.broken]
    points += [LostPackets(at, at, why, "lost") for at, why in kinds.lacking]
    period = int(np.median(np.diff(calls.start))) if len(calls) > 1 else 0
    lost = _merged(points, iterations.gaps, period)
    return lost, (
        *_lost(tile, lost, iterations.missing_calls),
        *_late(tile, iterations.gaps, lost),
        *_jump(tile, calls),
        *_unlike(tile, calls, kinds),
        *_waits(tile, calls),
    )


def _merged(points: Sequence[LostPackets], gaps: Sequence[CallGap], period: int) -> tuple[LostPackets, ...]:
    """Signs of one loss as one place: those near each other, and iterations that lack calls with what is in them."""
    packets: list[LostPackets] = []
    for point in sorted(points, key=lambda point: point.cycle):
        if packets and point.cycle - packets[-1].last_cycle <= _NEAR * period:
            packets[-1] = _joined(packets[-1], point)
        else:
            packets.append(point)
    lasts, apart = [lost_packets.last_cycle for lost_packets in packets], []
    for gap in gaps:
        kind, at = "lost" if gap.missing > 0 else "repeated", bisect_left(lasts, gap.cycle)
        if at < len(lasts) and packets[at].cycle <= gap.last_cycle:
            packets[at] = msgspec.structs.replace(packets[at], why=f"{packets[at].why}; {gap.why}", kind=kind)
        elif not gap.at_start:
            apart.append(LostPackets(gap.cycle, gap.last_cycle, gap.why, kind))
    packets += apart
    return tuple(sorted(packets, key=lambda lost_packets: lost_packets.cycle))


def _joined(one: LostPackets, other: LostPackets) -> LostPackets:
    kind = "lost" if "lost" in {one.kind, other.kind} else one.kind
    why = one.why if other.why in one.why else f"{one.why}; {other.why}"
    return LostPackets(one.cycle, max(one.last_cycle, other.last_cycle), why, kind)


_WHAT = {"lost": "lost", "repeated": "repeated", "damaged": "lost, repeated or swapped"}


def _lost(tile: TileTrace, lost: Sequence[LostPackets], missing: int) -> Iterator[Message]:
    """One finding for each of the first places, one for all others."""
    count = f"; {counted_text(missing, 'working call')} missing before the end" if missing else ""
    for packets in lost[:_SHOWN]:
        title = f"packets were {_WHAT[packets.kind]} {where_text(packets)}"
        evidence = f"{packets.why}{count}; later times are {'too early' if packets.kind == 'lost' else 'unreliable'}"
        where = place(tile, f"cycle {packets.cycle}")
        step = f"{_DECODE if packets.kind == 'repeated' else _AGAIN}; {_COMPARE}"
        yield tile_finding("packets_lost", Severity.HIGH, title, evidence, where, step)
    if len(lost) > _SHOWN:
        rest = lost[_SHOWN:]
        title = f"packets were lost or damaged in {counted_text(len(rest), 'more place', ',')}"
        where = place(tile, f"cycles {rest[0].cycle} to {rest[-1].last_cycle}")
        yield tile_finding("packets_lost", Severity.HIGH, title, f"{len(lost):,} in all", where, _AGAIN)


def _late(tile: TileTrace, gaps: Sequence[CallGap], lost: Sequence[LostPackets]) -> Iterator[Message]:
    """That the first iteration lacks calls, and nothing shows that packets were lost in it."""
    for gap in gaps:
        if gap.at_start and gap.missing > 0 and not any(packets.cycle <= gap.last_cycle for packets in lost):
            title = "calls are missing at the start: packets were lost, or tracing began late"
            evidence = f"{gap.why}; {counted_text(gap.missing, 'working call')} missing"
            step = "start tracing before the first call; if it was, capture again"
            where = place(tile, f"cycle {gap.last_cycle}")
            yield tile_finding("calls_missing_at_start", Severity.MEDIUM, title, evidence, where, step)


def where_text(packets: LostPackets) -> str:
    """At which cycle, or between which."""
    if packets.cycle == packets.last_cycle:
        return f"at cycle {packets.cycle:,}" if packets.cycle else "at the start of the trace"
    return f"between cycles {packets.cycle:,} and {packets.last_cycle:,}"


def _jump(tile: TileTrace, calls: CallSpans) -> Iterator[Message]:
    """That nothing at all happens for much longer than ever else: a damaged command adds idle cycles."""
    if len(calls) < _RARE:
        return
    first, last = int(calls.start[0]), int(calls.end[-1])
    used = [slot.spans for slot in tile.slots if len(slot.spans.start)]
    active = cover(*(np.concatenate([getattr(spans, edge) for spans in used]) for edge in ("start", "end")))
    begin, end = active.end[:-1], active.start[1:]
    within = (begin >= first) & (end <= last)
    idle = np.sort((end - begin)[within])
    if len(idle) < _USUAL or idle[-1] <= max(JUMP * idle[-2], float(np.median(calls.durations))):
        return
    at = int(begin[within][np.argmax((end - begin)[within])])
    size = int(idle[-1])
    title = f"time jumps by {size:,} cycles, {share_text(size / (last - first))} of the window"
    syncs = size // _SYNC
    added = f"; {counted_text(syncs, 'damaged byte')} would add {syncs * _SYNC:,}" if syncs else ""
    evidence = f"no event in these cycles; the next longest gap is {int(idle[-2]):,}{added}"
    step = "compare with another capture: if the core was not idle here, a bit flipped and shares and rates are too low"
    yield tile_finding("time_jumps", Severity.MEDIUM, title, evidence, place(tile, f"cycle {at}"), step)


def _waits(tile: TileTrace, calls: CallSpans) -> Iterator[Message]:
    """Calls that wait for a lock where hardly any other does: two calls that a loss made one have a wait in them."""
    stalls = event_cover(tile, EVENTS["lock_stall"])
    if stalls is None or len(calls) <= _USUAL:
        return
    cycles = stalls.within(calls.start, calls.end)
    own = np.flatnonzero(cycles)
    if not 0 < len(own) <= _RARE:
        return
    title = "only one call waits for a lock"
    evidence = (
        f"{cycles[own[0]]:,} of its {calls.durations[own[0]]:,} cycles; {len(calls) - len(own):,} other calls do not "
        "wait"
    )
    step = "if the kernel takes no lock there, a lost packet had the end of this call and the start of another"
    where = place(tile, f"call {own[0] + 1}", f"cycle {calls.start[own[0]]}")
    yield tile_finding("call_unlike_others", Severity.MEDIUM, title, evidence, where, step)


def _unlike(tile: TileTrace, calls: CallSpans, kinds: Kinds) -> Iterator[Message]:
    """Calls in the middle that are of no kind with others, beside one whose vector cycles are a constant."""
    main = next((kind for kind in kinds.kinds if kind.vector_cycles and kind.n >= _USUAL), None)
    if main is None:
        return
    for number, kind in enumerate(kinds.kinds):
        own = np.flatnonzero(kinds.labels == number)
        if kind.n > _RARE or not kind.vector_cycles or {0, len(calls) - 1} & set(own.tolist()):
            continue
        title = "a call has unique vector cycles"
        evidence = (
            f"{kind.vector_cycles:,} vector cycles in {calls.durations[own[0]]:,} cycles; {main.n:,} others have "
            f"{main.vector_cycles:,}, a constant of the kernel"
        )
        step = "if the kernel is the same there, a packet was lost, repeated or swapped, or a bit flipped"
        where = place(tile, f"call {own[0] + 1}", f"cycle {calls.start[own[0]]}")
        yield tile_finding("call_unlike_others", Severity.MEDIUM, title, evidence, where, step)
