"""Kinds of kernel calls, told apart by the vector cycles of a call and by gaps between durations; none is dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analyze.aie_activity import EVENTS, Activity, activity, event_cover
from opscope.analyze.aie_cycles import split_by
from opscope.analyze.aie_findings import TileFinding, place
from opscope.analyze.aie_groups import Group, by_length, by_vector
from opscope.analyze.findings import Severity
from opscope.stats.modes import modes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.analyze.aie_calls import Calls
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

VECTOR = EVENTS["vector"]
ZERO_FILL = "zero-fill"
"""Name of calls without vector cycles that are shorter than those of a kernel with such."""
_ALIKE = 0.5
"""Vector cycles, or duration, of a kind that works as kernel 1 does, as a share of that one's."""


class Kind(msgspec.Struct, frozen=True):
    """Calls that do the same, as far as the trace tells.

    Attributes:
        name: ``kernel 1`` and so on, the one with the most cycles first; ``zero-fill`` for calls without vector cycles
            that are shorter than those of a kernel with such.
        n: number of calls.
        vector_cycles: of a call, the middle one where they differ; None where INSTR_VECTOR was not traced.
        first_cycles: duration of the first call.
        median_cycles: of the durations.
        p10_cycles: duration that a tenth of the calls stays below, interpolated.
        p90_cycles: duration that nine tenths stay below, interpolated.
        min_cycles: shortest.
        max_cycles: longest.
        active_cycles: median of the durations without the stalls that were traced.
        works: whether these calls count as those of the tiling; zero-fills and side kernels do not.
        evidence: why these calls are one kind.
    """

    name: str
    n: int
    vector_cycles: int | None
    first_cycles: int
    median_cycles: float
    p10_cycles: float
    p90_cycles: float
    min_cycles: int
    max_cycles: int
    active_cycles: float
    works: bool
    evidence: str

    @property
    def fills(self) -> bool:
        """Whether it is a zero-fill."""
        return self.name.startswith(ZERO_FILL)


@dataclass(frozen=True)
class Kinds:
    """All kinds of a tile.

    Attributes:
        kinds: those found, the one with the most cycles first; none without calls.
        labels: kind of each call as its place in ``kinds``; shape (calls,).
        findings: what limits this.
    """

    kinds: tuple[Kind, ...]
    labels: Ints
    findings: tuple[TileFinding, ...] = ()

    @property
    def work(self) -> NDArray[np.bool_]:
        """Which calls count as those of the tiling; shape (calls,)."""
        return self._of_kinds([kind.works for kind in self.kinds])

    @property
    def fills(self) -> NDArray[np.bool_]:
        """Which calls are zero-fills; shape (calls,)."""
        return self._of_kinds([kind.fills for kind in self.kinds])

    def counting(self, names: Collection[str]) -> Kinds:
        """The same with these kinds as those that count as the tiling's; unchanged without names."""
        if not names:
            return self
        kinds = tuple(msgspec.structs.replace(kind, works=kind.name in names) for kind in self.kinds)
        return replace(self, kinds=kinds)

    def _of_kinds(self, chosen: Sequence[bool]) -> NDArray[np.bool_]:
        return np.array(chosen, bool)[self.labels]


def find_kinds(tile: TileTrace, calls: Calls, known: Activity | None = None) -> Kinds:
    """Tell the kinds of calls apart.

    Args:
        tile: whose events tell.
        calls: of the tile.
        known: activity of the tile, where it is at hand.
    """
    if not len(calls):
        return Kinds((), np.empty(0, np.int64))
    vector = event_cover(tile, VECTOR)
    lengths = calls.durations - split_by(known or activity(tile), calls.start, calls.end).stalls
    if vector is None:
        every = np.arange(len(calls))
        rough = [Group(every, None, f"{VECTOR} was not traced, so durations alone tell", every[:0])]
        counts = None
    else:
        counts = vector.within(calls.start, calls.end)
        rough = by_vector(counts, lengths)
    groups = [part for group in rough for part in by_length(group, lengths)]
    groups.sort(key=lambda own: (-int(calls.durations[own.calls].sum()), int(own.calls[0])))
    labels = np.empty(len(calls), np.int64)
    for number, group in enumerate(groups):
        labels[group.calls] = number
    kinds = _named(groups, calls.durations, lengths)
    return Kinds(kinds, labels, tuple(_findings(tile, calls, groups, counts)))


def _named(groups: Sequence[Group], durations: Ints, lengths: Ints) -> tuple[Kind, ...]:
    lead = next((group for group in groups if group.vector), groups[0])
    usual = float(np.median(durations[lead.calls]))
    kinds: list[Kind] = []
    for group in groups:
        own = float(np.median(durations[group.calls]))
        fills = group.vector == 0 and bool(lead.vector) and own < usual
        name = _name(ZERO_FILL, kinds) if fills else _name("kernel", kinds)
        works = not fills and _works(group, own, lead, usual)
        kinds.append(_kind(name, group, durations[group.calls], lengths[group.calls], works=works))
    return tuple(kinds)


def _name(what: str, before: Sequence[Kind]) -> str:
    """The next name of its sort; the only zero-fill, or the first one, has no number."""
    number = sum(kind.name.startswith(what) for kind in before) + 1
    return what if what == ZERO_FILL and number == 1 else f"{what} {number}"


def _works(group: Group, own: float, lead: Group, usual: float) -> bool:
    if lead.vector and group.vector is not None:
        return group.vector >= _ALIKE * lead.vector
    return own >= _ALIKE * usual


def _kind(name: str, group: Group, durations: Ints, lengths: Ints, *, works: bool) -> Kind:
    p10, median, p90 = np.percentile(durations, [10, 50, 90]).tolist()
    return Kind(
        name=name,
        n=len(durations),
        vector_cycles=group.vector,
        first_cycles=int(durations[0]),
        median_cycles=median,
        p10_cycles=p10,
        p90_cycles=p90,
        min_cycles=int(durations.min()),
        max_cycles=int(durations.max()),
        active_cycles=float(np.median(lengths)),
        works=works,
        evidence="; ".join([group.why, *_remarks(name, group, durations, lengths)]),
    )


def _remarks(name: str, group: Group, durations: Ints, lengths: Ints) -> Iterator[str]:
    if name.startswith(ZERO_FILL):
        yield "shorter than kernel 1, so it clears memory, or loads and stores only"
    elif group.vector == 0:
        yield "scalar code"
    least, most = int(lengths.min()), int(lengths.max())
    if (lengths != durations).any():
        yield f"{least:,} cycles without stalls" if least == most else f"{least:,} to {most:,} cycles without stalls"
    around = modes(np.maximum(durations, 1).astype(np.float64), 1.0)
    if len(around) > 1:
        low, high = (round(mode.location) for mode in around)
        yield f"durations gather around {low:,} and {high:,}, which alone makes no two kinds"


def _findings(tile: TileTrace, calls: Calls, groups: Sequence[Group], vector: Ints | None) -> Iterator[TileFinding]:
    if vector is None:
        title = f"{VECTOR} was not traced: kinds of calls are told by their durations alone"
        step = f"give {VECTOR} a slot: its cycles per call are a constant of each kernel"
        yield TileFinding("kinds_without_vector", Severity.INFO, title, f"{len(groups):,} kinds", place(tile), step)
        return
    for group in groups:
        if len(group.partial):
            call, every = int(group.partial[0]), len(group.calls)
            title = "calls lack vector cycles that others of their kind have"
            seen = f"{len(group.partial):,} of {every:,} calls; this one has {vector[call]:,} of {group.vector:,}"
            where = place(tile, f"call {call + 1}", f"cycle {calls.start[call]}")
            step = "look for lost packets there, or for a trace that began or ended in the call"
            yield TileFinding("vector_cycles_lacking", Severity.INFO, title, seen, where, step)
