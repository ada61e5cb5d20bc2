"""The timeline of a core as a table: stretches of successive calls, with when they were and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.units import share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analyze.tiles import Core
    from opscope.analyze.tiles_result import TileRow

MOST = 20
"""Stretches of a table."""


class Stretch(NamedTuple):
    """Successive calls.

    Attributes:
        first: number of the first call, from 1.
        last: of the last one.
        start: first cycle of the first call.
        end: of the last call.
        kinds: how many of each kind, in words.
        median_cycles: of the calls' durations.
        longest_cycles: of them.
        in_calls: part of the cycles from start to end that is within calls.
    """

    first: int
    last: int
    start: int
    end: int
    kinds: str
    median_cycles: float
    longest_cycles: int
    in_calls: float


def stretches(core: Core) -> list[Stretch]:
    """The calls of a core in at most twenty stretches of about as many calls each."""
    calls = core.pairing.calls
    parts = np.array_split(np.arange(len(calls)), min(len(calls), MOST)) if len(calls) else []
    return [_stretch(core, int(part[0]), int(part[-1])) for part in parts]


def _stretch(core: Core, first: int, last: int) -> Stretch:
    calls, part = core.pairing.calls, slice(first, last + 1)
    durations, counts = calls.durations[part], np.bincount(core.kinds.labels[part], minlength=len(core.kinds.kinds))
    named = zip(counts.tolist(), core.kinds.kinds, strict=True)
    start, end = int(calls.start[first]), int(calls.end[last])
    return Stretch(
        first=first + 1,
        last=last + 1,
        start=start,
        end=end,
        kinds=", ".join(f"{count} x {kind.name}" for count, kind in named if count),
        median_cycles=float(np.median(durations)),
        longest_cycles=int(durations.max()),
        in_calls=int(durations.sum()) / (end - start) if end > start else 1.0,
    )


def array_rows(rows: Sequence[TileRow]) -> tuple[list[int], list[tuple[int, list[str]]]]:
    """The heat map as a table: columns, and for each row, the highest first, the share of each core.

    It is the share of the peak where that is known for all, else that of cycles in calls; empty without a core.
    """
    places = {tuple(int(part) for part in row.tile.split(",")): row for row in rows}
    known = all(row.utilisation is not None for row in rows)
    columns = sorted({place[1] for place in places})
    lines = sorted({place[0] for place in places}, reverse=True)
    return columns, [(line, [_share(places.get((line, column)), known) for column in columns]) for line in lines]


def _share(row: TileRow | None, of_peak: bool) -> str:
    if row is None:
        return ""
    inside = row.cycles.in_call.total / row.window_cycles
    return share_text(row.utilisation if of_peak and row.utilisation is not None else inside)
