"""Kinds of kernel calls, told apart by the vector cycles of a call and by gaps between durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analyze.aie_cycles import split_spans

if TYPE_CHECKING:
    from opscope.analyze.aie_calls import Calls
    from opscope.analyze.aie_findings import TileFinding
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace


class Kind(msgspec.Struct, frozen=True):
    """Calls that do the same, as far as the trace tells.

    Attributes:
        name: ``kernel 1`` and so on, the one with the most cycles first; ``zero-fill`` without vector cycles.
        n: number of calls.
        vector_cycles: in each call; None where INSTR_VECTOR was not traced.
        first_cycles: duration of the first call.
        median_cycles: of the durations.
        p10_cycles: the duration that one call in ten stays below.
        p90_cycles: the duration that nine calls in ten stay below.
        min_cycles: shortest.
        max_cycles: longest.
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
    evidence: str


@dataclass(frozen=True)
class Kinds:
    """All kinds of a tile.

    Attributes:
        kinds: those found; none without calls.
        labels: kind of each call as its place in ``kinds``; shape (calls,).
        findings: what limits this.
    """

    kinds: tuple[Kind, ...]
    labels: Ints
    findings: tuple[TileFinding, ...] = ()


def find_kinds(tile: TileTrace, calls: Calls) -> Kinds:
    """Tell the kinds of calls apart."""
    vector = split_spans(tile, calls.start, calls.end).vector
    values, labels = np.unique(vector, return_inverse=True)
    kinds = [
        _kind(f"kernel {number + 1}", int(value), calls.durations[labels == number])
        for number, value in enumerate(values)
    ]
    return Kinds(tuple(kinds), labels.astype(np.int64))


def _kind(name: str, vector: int | None, durations: Ints) -> Kind:
    p10, median, p90 = np.percentile(durations, [10, 50, 90]).tolist()
    least, most = int(durations.min()), int(durations.max())
    return Kind(name, len(durations), vector, int(durations[0]), median, p10, p90, least, most, "")
