"""How long a core waits for locks between calls, and which of these waits are of another size than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opscope.analyze.aie_activity import EVENTS, event_cover

if TYPE_CHECKING:
    from opscope.analyze.aie_calls import Calls
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

LOCK = EVENTS["lock_stall"]
_LONGER = 4
"""How many times the longest usual wait a long one lasts at least."""


def lock_gaps(tile: TileTrace, calls: Calls) -> Ints | None:
    """LOCK_STALL cycles between each call and the next; shape (calls - 1,). None when it was not traced."""
    stalls = event_cover(tile, LOCK)
    return None if stalls is None else stalls.within(calls.end[:-1], calls.start[1:])


def long_gaps(gaps: Ints | None, calls: Calls) -> Ints:
    """Calls before which the core waited long; ascending.

    A wait is long when it lasts at least as long as the median call and four times as long as the longest of the
    others, and when there are not more of them than of the others.
    """
    if gaps is None or not len(gaps):
        return np.empty(0, np.int64)
    ordered = np.sort(gaps)
    wide = ordered[1:] >= _LONGER * np.maximum(ordered[:-1], 1)
    enough = (ordered[1:] >= np.median(calls.durations)) & (2 * np.arange(1, len(ordered)) >= len(ordered))
    cuts = np.flatnonzero(wide & enough)
    if not len(cuts):
        return np.empty(0, np.int64)
    return np.flatnonzero(gaps >= ordered[cuts[-1] + 1]) + 1


def support(gaps: Ints | None, starts: Ints) -> str:
    """Whether waits tell the calls that begin an iteration from the others, in words.

    Args:
        gaps: as ``lock_gaps`` has them.
        starts: first call of each iteration, the trace's first call among them or not.
    """
    if gaps is None:
        return f"{LOCK} was not traced, so it says nothing on this"
    begins = np.zeros(len(gaps) + 1, bool)
    begins[starts] = True
    before, elsewhere = gaps[begins[1:]], gaps[~begins[1:]]
    if not len(before) or not len(elsewhere):
        return f"{LOCK} says nothing on this: there are no two sorts of gaps"
    if before.min() > elsewhere.max():
        return f"{LOCK} supports it: {before.min():,} cycles or more before an iteration, {elsewhere.max():,} elsewhere"
    medians = f"median {np.median(before):,.0f} cycles before an iteration, {np.median(elsewhere):,.0f} elsewhere"
    return f"{LOCK} does not tell these gaps from others: {medians}"
