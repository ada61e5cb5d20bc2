"""How far a model is from what its machine was seen to reach: all operators under the ceilings of their variant.

Method, thresholds and what a ceiling is worth: ``docs/concepts/roofline.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.roofline.operator_ceiling import EXPLAINED, Bound, Interval, OperatorWork, Placement, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.program.ceilings.ceilings import Ceilings

__all__ = ["Bound", "BoundTime", "Interval", "OperatorWork", "Placement", "Roofline", "roofline"]


class BoundTime(msgspec.Struct, frozen=True):
    """All operators that the same limits; ``bound`` null: those that could not be placed."""

    bound: Bound | None
    operators: int
    time_ns: float
    headroom_ns: Interval


class Roofline(msgspec.Struct, frozen=True):
    """Operators under the ceilings of their variant, for one inference.

    Attributes:
        operators: in the order they were given.
        bounds: time by what limits it, longest first.
        time_ns: of all operators.
        placed_ns: of those whose ceilings are all known.
        ceiling_ns: what these would take at their ceilings.
        headroom_ns: what that would save, operators above their ceiling counted as 0.
        footprint_bytes: distinct bytes that an inference passes over: all weights and the largest activations.
        weights_per_s: bandwidth at that footprint, with which weights are read; null when not measured.
        explained: share of the time from which on a ceiling explains it.
        unsteady: share of the ceilings whose runs scattered; near 0 on a quiet machine.
    """

    operators: list[Placement]
    bounds: list[BoundTime]
    time_ns: float
    placed_ns: float
    ceiling_ns: float
    headroom_ns: Interval
    footprint_bytes: int
    weights_per_s: float | None
    explained: float
    unsteady: float


def roofline(works: Sequence[OperatorWork], ceilings: Ceilings) -> Roofline:
    """Place operators under the ceilings."""
    # Distinct bytes of an inference: the memory of activations is used again, that of weights is not.
    weights = sum((work.weight_bytes or 0) / (work.calls or 1.0) for work in works)
    activations = max(((work.activation_bytes or 0) / (work.calls or 1.0) for work in works), default=0.0)
    footprint = round(weights + activations)
    placed = [place(work, ceilings, footprint) for work in works]
    headrooms = [placement.headroom_ns for placement in placed if placement.headroom_ns]
    pairs = list(zip(works, placed, strict=True))
    found = []
    for bound in dict.fromkeys(placement.bound for placement in placed):
        own = [(work, placement) for work, placement in pairs if placement.bound is bound]
        headroom = _sum(placement.headroom_ns for _, placement in own if placement.headroom_ns)
        found.append(BoundTime(bound, len(own), sum(work.time_ns for work, _ in own), headroom))
    return Roofline(
        operators=placed,
        bounds=sorted(found, key=lambda row: -row.time_ns),
        time_ns=sum(work.time_ns for work in works),
        placed_ns=sum(work.time_ns for work, one in zip(works, placed, strict=True) if one.headroom_ns),
        ceiling_ns=sum(one.ceiling_ns or 0.0 for one in placed if one.headroom_ns),
        headroom_ns=_sum(headrooms),
        footprint_bytes=footprint,
        weights_per_s=ceilings.bandwidth(footprint) if footprint else None,
        explained=EXPLAINED,
        unsteady=ceilings.unsteady(),
    )


def _sum(intervals: Iterable[Interval]) -> Interval:
    listed = list(intervals)
    return Interval(sum(one.low for one in listed), sum(one.high or 0.0 for one in listed))
