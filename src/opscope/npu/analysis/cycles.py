"""Where the cycles of a tile went: each cycle from first call to last counted once, in a call or between two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.npu.analysis.activity import EVENTS, Activity, activity
from opscope.npu.analysis.calls import unnamed
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans

_OUTSIDE = 0.01
"""Share of the vector cycles between calls from which the calls do not enclose the work."""


class CycleSplit(msgspec.Struct, frozen=True):
    """Cycles by what the core did in them.

    Attributes:
        vector: it issued a vector instruction.
        memory_stall: it waited for its data memory.
        stream_stall: it waited for a stream.
        cascade_stall: it waited for the cascade.
        lock_stall: it waited for a lock.
        other: none of these was seen: scalar code, loads and stores, or an event that was not traced.
    """

    vector: int
    memory_stall: int
    stream_stall: int
    cascade_stall: int
    lock_stall: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(msgspec.structs.astuple(self))


class Cycles(msgspec.Struct, frozen=True):
    """Cycles of the window by what the core did; together they are the window.

    Attributes:
        in_call: from the start of a call to its end.
        between_calls: from there to the next start.
    """

    in_call: CycleSplit
    between_calls: CycleSplit

    @property
    def window(self) -> int:
        """All of them, from the start of the first call to the end of the last; 0 without calls."""
        return self.in_call.total + self.between_calls.total

    def of(self, category: str) -> int:
        """Cycles of a category, within calls and between them."""
        return int(getattr(self.in_call, category)) + int(getattr(self.between_calls, category))


def split_spans(tile: TileTrace, starts: Ints, ends: Ints) -> dict[str, Ints]:
    """Cycles of spans of time by category, arrays of shape (spans,); each cycle of a span is counted once."""
    return split_by(activity(tile), starts, ends)


def split_by(known: Activity, starts: Ints, ends: Ints) -> dict[str, Ints]:
    """The same with the activity of the tile at hand."""
    none = np.zeros(len(starts), np.int64)
    found = {
        category: known.covers[category].within(starts, ends) if category in known.covers else none
        for category in EVENTS
    }
    return {**found, "other": ends - starts - sum(found.values())}


def together(spans: Mapping[str, Ints]) -> CycleSplit:
    """Cycles of all spans."""
    return CycleSplit(**{category: int(own.sum()) for category, own in spans.items()})


def split_each(tile: TileTrace, starts: Sequence[int], ends: Sequence[int]) -> list[CycleSplit]:
    """Cycles of each span of time by category."""
    found = split_spans(tile, np.array(starts, np.int64), np.array(ends, np.int64))
    cycles = zip(*(own.tolist() for own in found.values()), strict=True)
    return [CycleSplit(**dict(zip(found, own, strict=True))) for own in cycles]


def account(tile: TileTrace, calls: CallSpans, known: Activity | None = None) -> Cycles:
    """Account for every cycle from the start of the first call to the end of the last, each counted once."""
    known = known or activity(tile)
    window = split_by(known, calls.start[:1], calls.end[-1:])
    inside = together(split_by(known, calls.start, calls.end))
    between = {category: int(own.sum()) - getattr(inside, category) for category, own in window.items()}
    return Cycles(inside, CycleSplit(**between))


def claimed_twice(calls: CallSpans, known: Activity) -> dict[tuple[str, ...], int]:
    """Cycles of the window that several categories claim, by which do; they are counted for the first of these only."""
    window = calls.start[:1], calls.end[-1:]
    each = {categories: int(own.within(*window).sum()) for categories, own in known.claims.items()}
    return {categories: cycles for categories, cycles in each.items() if cycles}


def cycle_findings(tile: TileTrace, calls: CallSpans, known: Activity, cycles: Cycles) -> Iterator[Message]:
    """What limits an account of cycles."""
    yield from _missing(tile, known.missing)
    yield from _claimed(tile, claimed_twice(calls, known), known, calls)
    yield from _outside(tile, cycles)


def _missing(tile: TileTrace, missing: tuple[str, ...]) -> Iterator[Message]:
    if missing and not unnamed(tile):
        title = f"{', '.join(missing)} not traced: such cycles are counted as other"
        traced = f"traced: {', '.join(slot.name[:40] for slot in tile.slots)}"
        step = "give them a slot where other cycles are many"
        yield tile_finding("cycle_events_missing", Severity.INFO, title, traced, place(tile), step)


def _claimed(
    tile: TileTrace, claimed: dict[tuple[str, ...], int], known: Activity, calls: CallSpans
) -> Iterator[Message]:
    if claimed:
        starts = (own.start[(own.end > calls.start[0]) & (own.start < calls.end[-1])] for own in known.claims.values())
        where = place(tile, f"cycle {int(np.concatenate(list(starts)).min())}")
        title = "events overlap that exclude each other; such cycles are counted for the first of them only"
        seen = "; ".join(
            f"{cycles:,} cycles of {' and '.join(EVENTS[category] for category in categories)}"
            for categories, cycles in claimed.items()
        )
        step = "decode the raw words again: a lost packet or an event without end does this"
        yield tile_finding("cycles_claimed_twice", Severity.MEDIUM, title, seen, where, step)


def _outside(tile: TileTrace, cycles: Cycles) -> Iterator[Message]:
    outside, vector = cycles.between_calls.vector, cycles.of("vector")
    if outside > _OUTSIDE * vector:
        title = "vector instructions run between calls: the calls do not enclose all the work"
        seen = f"{outside:,} of {vector:,} vector cycles"
        step = "call event0() before and event1() after all work of the kernel"
        yield tile_finding("vector_between_calls", Severity.MEDIUM, title, seen, place(tile), step)
