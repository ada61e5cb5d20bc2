"""Which calls of a tile multiply and accumulate: the kind with vector cycles that the tiling describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analyze.aie_calls import START
from opscope.analyze.aie_findings import TileFinding, place
from opscope.analyze.findings import Severity
from opscope.units import counted_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.analyze.aie_calls import Calls
    from opscope.analyze.aie_given import Given
    from opscope.analyze.aie_kinds import Kind, Kinds
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

_SAME = 0.02
"""Kinds whose vector cycles differ by less do the same work."""


class Work(NamedTuple):
    """The calls that multiply and accumulate, in order of time.

    Attributes:
        multiplies: whether each call of the tile does; shape (calls,).
        start: of those that do, in cycles.
        end: likewise.
        begun: calls without an end at the end of the trace, 0 or 1.
        kinds: names of their kinds.
        vector_cycles: in all of them together; None where INSTR_VECTOR was not traced.
        reason: how they were chosen, or why there are none.
        findings: what makes the choice doubtful.
    """

    multiplies: NDArray[np.bool_]
    start: Ints
    end: Ints
    begun: int
    kinds: tuple[str, ...]
    vector_cycles: int | None
    reason: str
    findings: tuple[TileFinding, ...] = ()

    @property
    def number(self) -> int:
        """Calls that multiply."""
        return len(self.start)

    @property
    def cycles(self) -> int:
        """In all of them."""
        return int((self.end - self.start).sum())

    @property
    def median_cycles(self) -> float | None:
        """Of their durations; None without calls."""
        return float(np.median(self.end - self.start)) if self.number else None


def multiplying(tile: TileTrace, calls: Calls, kinds: Kinds, said: Given) -> Work:
    """Choose the calls that multiply.

    Kinds without vector cycles do not, as a zero-fill. Among the others the one with the most cycles counts, and with
    it all that have the same vector cycles. Kinds with too few to do a tile's work at the peak rate are passed over
    while there are others. Further kinds that work alike count where only together they are the K/k calls for each
    zero-fill. Without INSTR_VECTOR in the trace the kind with the most cycles counts.

    Args:
        tile: of the calls.
        calls: all of the tile.
        kinds: of these calls.
        said: tiling and peak, where they are known.
    """
    able = [index for index, kind in enumerate(kinds.kinds) if kind.vector_cycles is None or kind.vector_cycles > 0]
    if not able:
        reason = "no call has vector cycles, so none is known to multiply" if len(calls) else "the tile has no calls"
        return _work(tile, calls, np.zeros(len(calls), np.bool_), [], reason)
    chosen = _chosen(calls, kinds, able, said)
    names = [kinds.kinds[index] for index in chosen]
    others = [kinds.kinds[index] for index in able if index not in chosen]
    work = _work(tile, calls, np.isin(kinds.labels, chosen), names, _reason(names, others))
    return work._replace(findings=tuple(_doubts(tile, names, others)))


def _chosen(calls: Calls, kinds: Kinds, able: list[int], said: Given) -> list[int]:
    sufficient = [index for index in able if (kinds.kinds[index].vector_cycles or 0) >= _least(said)]
    spent = {index: int(calls.durations[kinds.labels == index].sum()) for index in able}
    main = max(sufficient or able, key=lambda index: spent[index])
    same = [index for index in able if _alike(kinds.kinds[index], kinds.kinds[main])]
    wider = sorted({*same, *(index for index in able if kinds.kinds[index].works)})
    each = said.tiling.calls_per_output if said.tiling else None
    fills = sum(kind.n for kind in kinds.kinds if kind.fills)
    if each is None or not fills:
        return same
    return min((same, wider), key=lambda chosen: abs(sum(kinds.kinds[index].n for index in chosen) / fills - each))


def _work(tile: TileTrace, calls: Calls, multiplies: NDArray[np.bool_], kinds: list[Kind], reason: str) -> Work:
    names = tuple(kind.name for kind in kinds)
    vector = sum((kind.vector_cycles or 0) * kind.n for kind in kinds) or None
    begun = _begun(tile, calls) if kinds else 0
    return Work(multiplies, calls.start[multiplies], calls.end[multiplies], begun, names, vector, reason)


def _begun(tile: TileTrace, calls: Calls) -> int:
    """Whether the trace ends within a call."""
    starts = tile.slot(START)
    if starts is None or not len(calls):
        return 0
    return int((starts.spans.start >= calls.end[-1]).any())


def _least(said: Given) -> float:
    """Vector cycles that a call's work takes at the peak rate; 0 where that is not known."""
    return 0.0 if said.tiling is None or said.peak is None else said.tiling.macs_per_call / said.peak


def _alike(kind: Kind, main: Kind) -> bool:
    if kind is main:
        return True
    if kind.vector_cycles is None or main.vector_cycles is None:
        return False
    return abs(kind.vector_cycles - main.vector_cycles) <= _SAME * main.vector_cycles


def _reason(chosen: list[Kind], others: list[Kind]) -> str:
    names = " and ".join(kind.name for kind in chosen)
    if chosen[0].vector_cycles is None:
        return f"INSTR_VECTOR was not traced: {names} has the most cycles of all kinds"
    found = f"{names}: {chosen[0].vector_cycles:,} vector cycles a call"
    return f"{found}, the most cycles of all kinds with vector cycles" if others else found


def _doubts(tile: TileTrace, chosen: list[Kind], others: list[Kind]) -> list[TileFinding]:
    if not others:
        return []
    names = ", ".join(f"{kind.name} with {counted_text(kind.n, 'call')}" for kind in others)
    title = "several kinds of calls could multiply"
    evidence = f"only {' and '.join(kind.name for kind in chosen)} counts as such; not counted: {names}"
    step = "if they multiply, too, rates and coverage are too low: mark only the kernel in question with events"
    return [TileFinding("several_multiplying_kinds", Severity.INFO, title, evidence, place(tile), step)]
