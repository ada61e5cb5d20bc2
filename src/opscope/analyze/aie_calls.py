"""Kernel calls of a tile: INSTR_EVENT_0 and INSTR_EVENT_1 paired in stream order, with all that does not pair named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analyze.aie_findings import TileFinding

if TYPE_CHECKING:
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

START = "INSTR_EVENT_0"
END = "INSTR_EVENT_1"


@dataclass(frozen=True)
class Calls:
    """Calls in order of time, none overlapping another; arrays of shape (calls,), in cycles.

    Attributes:
        start: begin of INSTR_EVENT_0.
        end: begin of INSTR_EVENT_1.
    """

    start: Ints
    end: Ints

    @property
    def durations(self) -> Ints:
        """From start to end; shape (calls,)."""
        return self.end - self.start

    def __len__(self) -> int:
        return len(self.start)


class Pairing(msgspec.Struct, frozen=True):
    """What became of the starts and ends; 2 * paired + dropped is their number.

    Attributes:
        calls: those that paired.
        paired: number of calls.
        dropped: starts and ends that belong to no call.
        ambiguous: calls of which a start or end could also be another, dropped one.
        findings: one for each anomaly.
    """

    calls: Calls
    paired: int
    dropped: int
    ambiguous: int
    findings: tuple[TileFinding, ...] = ()


def pair_calls(tile: TileTrace) -> Pairing:
    """Pair the starts and ends of calls in stream order: each start with an end that follows it directly."""
    slots = [tile.slot(name) for name in (START, END)]
    spans = [slot.spans for slot in slots if slot]
    if len(spans) < len(slots):
        none = np.empty(0, np.int64)
        return Pairing(Calls(none, none), 0, sum(len(own.start) for own in spans), 0)
    order = np.argsort(np.concatenate([own.begin_order for own in spans]), kind="stable")
    time = np.concatenate([own.start for own in spans])[order]
    is_end = order >= len(spans[0].start)
    first = np.flatnonzero(~is_end[:-1] & is_end[1:])
    calls = Calls(time[first], time[first + 1])
    return Pairing(calls, len(first), len(time) - 2 * len(first), 0)
