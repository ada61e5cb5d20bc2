"""Damage to a tile's trace: packets that were lost, repeated or swapped, and times that cannot be.

Packets of a trace have no sequence number, and their payload no checksum. What shows damage is framing, where the trace
is in raw words; starts and ends of calls that do not pair; iterations that lack calls; and vector cycles, which are
a constant of the kernel. From a loss on all times are too early by an unknown amount.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import Pairing
    from opscope.npu.analysis.iterations import CallGap, Iterations
    from opscope.npu.analysis.kinds import Kinds

_NEAR = 2
"""Median periods within which several signs are of one loss."""
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
        times_kept: whether later times are right all the same, as its iteration lasts as long as others.
    """

    cycle: int
    last_cycle: int
    why: str
    kind: str
    times_kept: bool = False


def damage_signs(tile: TileTrace, pairing: Pairing, kinds: Kinds) -> list[LostPackets]:
    """Return single signs of damage, in no order: missing words, unpaired marks, calls that lack vector cycles."""
    return [
        *(LostPackets(lost.cycle, lost.cycle, lost.why, "lost") for lost in tile.lost),
        *(LostPackets(cycle, cycle, why, "damaged") for cycle, why in pairing.broken),
        *(LostPackets(cycle, cycle, why, "lost") for cycle, why in kinds.lacking),
    ]


def find_damage(
    tile: TileTrace, pairing: Pairing, kinds: Kinds, iterations: Iterations
) -> tuple[tuple[LostPackets, ...], tuple[Message, ...]]:
    """Return the places where packets were lost, ascending, and findings on them."""
    calls = pairing.calls
    period = int(np.median(np.diff(calls.start))) if len(calls) > 1 else 0
    gaps = iterations.gaps if iterations.is_rare else ()
    extents = _sure_extents(iterations, tile.last)
    signs = [_with_times_kept(sign, extents, tile) for sign in damage_signs(tile, pairing, kinds)]
    lost = tuple(_with_times_kept(packets, extents, tile) for packets in _merge_signs(signs, gaps, period))
    late = () if iterations.iterations and iterations.iterations[0].has_sure_ends else gaps
    return lost, (
        *_report_lost_packets(tile, lost, iterations.missing_calls if gaps else 0),
        *_report_late_start(tile, late, lost),
    )


def _sure_extents(iterations: Iterations, last: int) -> list[tuple[int, int]]:
    """Return from where to where iterations with losses and sure ends reach: from a start to the next."""
    rows = iterations.iterations
    bounds = [0, *(row.start for row in rows[1:]), last]
    return [
        (begin, end)
        for row, begin, end in zip(rows, bounds, bounds[1:], strict=False)
        if row.has_sure_ends and not row.complete
    ]


def _with_times_kept(lost: LostPackets, extents: Sequence[tuple[int, int]], tile: TileTrace) -> LostPackets:
    """Tell whether a loss lies in an iteration whose ends are sure, and took no words with it."""
    is_inside = any(begin <= lost.cycle and lost.last_cycle <= end for begin, end in extents)
    has_words = any(lost.cycle <= words.cycle <= lost.last_cycle for words in tile.lost)
    return msgspec.structs.replace(lost, times_kept=is_inside and not has_words)


def _merge_signs(points: Sequence[LostPackets], gaps: Sequence[CallGap], period: int) -> tuple[LostPackets, ...]:
    """Join the signs of one loss: those near each other, and iterations that lack calls with what is in them."""
    packets: list[LostPackets] = []
    for point in sorted(points, key=lambda point: point.cycle):
        near = packets and point.cycle - packets[-1].last_cycle <= _NEAR * period
        if near and point.times_kept is packets[-1].times_kept:
            packets[-1] = _join_signs(packets[-1], point)
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


def _join_signs(one: LostPackets, other: LostPackets) -> LostPackets:
    kind = "lost" if "lost" in {one.kind, other.kind} else one.kind
    why = one.why if other.why in one.why else f"{one.why}; {other.why}"
    return LostPackets(one.cycle, max(one.last_cycle, other.last_cycle), why, kind)


_WHAT = {"lost": "lost", "repeated": "repeated", "damaged": "lost, repeated or swapped"}


def _report_lost_packets(tile: TileTrace, lost: Sequence[LostPackets], missing: int) -> Iterator[Message]:
    unsure = [packets for packets in lost if not packets.times_kept]
    if not unsure:
        return
    first = unsure[0]
    more = f" and in {counted_text(len(unsure) - 1, 'more place', ',')}" if len(unsure) > 1 else ""
    count = f"; {counted_text(missing, 'working call')} missing before the end" if missing else ""
    yield tile_finding(
        "packets_lost",
        Severity.HIGH,
        title=f"packets were {_WHAT[first.kind]} {where_text(first)}{more}",
        evidence=f"{first.why}{count}; later times are {'too early' if first.kind == 'lost' else 'unreliable'}",
        where=place(tile, f"cycle {first.cycle}"),
        step=f"{_DECODE if first.kind == 'repeated' else _AGAIN}; {_COMPARE}",
    )


def _report_late_start(tile: TileTrace, gaps: Sequence[CallGap], lost: Sequence[LostPackets]) -> Iterator[Message]:
    for gap in gaps:
        if gap.at_start and gap.missing > 0 and not any(packets.cycle <= gap.last_cycle for packets in lost):
            yield tile_finding(
                "calls_missing_at_start",
                Severity.MEDIUM,
                title="calls are missing at the start: packets were lost, or tracing began late",
                evidence=f"{gap.why}; {counted_text(gap.missing, 'working call')} missing",
                where=place(tile, f"cycle {gap.last_cycle}"),
                step="start tracing before the first call; if it was, capture again",
            )


def where_text(packets: LostPackets) -> str:
    """Name the cycle of a loss, or the two that it lies between."""
    if packets.cycle == packets.last_cycle:
        return f"at cycle {packets.cycle:,}" if packets.cycle else "at the start of the trace"
    return f"between cycles {packets.cycle:,} and {packets.last_cycle:,}"
