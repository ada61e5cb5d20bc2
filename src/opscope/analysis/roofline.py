"""Operators under the ceilings of their machine: which applies, how much of it is reached, and what limits them.

Method, thresholds and what a ceiling is worth: ``docs/concepts/roofline.md``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.table.places import RecordedOperator
from opscope.core.units import size_text
from opscope.program.ceilings import VIEWS, KernelClass, operator_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.program.ceilings import Ceilings


EXPLAINED = 0.5
"""Smallest share of an operator's time from which a ceiling explains it."""
LITTLE_NS = 2_000.0
"""Time at its ceiling below which a call has little work; docs/concepts/roofline.md has the reason."""
TILE = 8
"""Number of outputs that kernels compute side by side, or a divisor of it."""


_WIDTHS = {"f32": 4, "f16": 2, "qs8": 1}
_PASSES = "copies or sums of the same size"


class Bound(str, enum.Enum):
    """Limit of an operator."""

    COMPUTE = "compute"
    """Arithmetic, at the best rate of its number type, takes at least half of the time, and longer than memory."""
    MEMORY = "memory"
    """Moving its bytes once takes at least half of the time, and longer than arithmetic."""
    OVERHEAD = "overhead"
    """Neither takes half of the time, but together with the fixed cost of starting an operator one does."""
    INEFFICIENT = "inefficient"
    """Ceilings and the cost of starting explain less than half; the likely reason stands beside it."""
    UNRESOLVED = "unresolved"
    """The duration is known too roughly to tell."""


class Shortfall(str, enum.Enum):
    """Likely reason why an operator is far below both ceilings."""

    PORTABLE = "portable"
    """A portable kernel ran it, which uses no vectors."""
    LITTLE_WORK = "little work"
    """At its ceiling a call would take a few microseconds: what each call costs beside its work shows."""
    CHANNELS = "channels"
    """Its output channels do not fill a kernel's tile."""
    MOVES = "moves"
    """It gathers or scatters its elements instead of passing over them in a row."""
    SHAPE = "shape"
    """None of the other reasons: perhaps its shape suits the kernel badly, or other work slowed it."""


class RateUnit(str, enum.Enum):
    """Unit that a ceiling counts per second."""

    MACS = "MAC/s"
    ELEMENTS = "elements/s"
    BYTES = "bytes/s"


class CeilingRate(msgspec.Struct, frozen=True):
    """Rate of a ceiling.

    Attributes:
        per_s: the rate.
        unit: what is counted.
        measured_with: what ran to measure it.
    """

    per_s: float
    unit: RateUnit
    measured_with: str


class Interval(msgspec.Struct, frozen=True):
    """Range of a true value, since durations may be cut off; ``high`` is null if nothing bounds it."""

    low: float
    high: float | None


class OperatorWork(RecordedOperator, frozen=True, kw_only=True):
    """Work of an operator in one inference. All counts are sums over its calls."""

    dtype: str | None = None  # number type, as in `opscope.program.ceilings`; null if unknown
    kernel: KernelClass | None = None  # class of its kernels; null without multiply-accumulates, or when not known
    function: str | None = None  # XNNPACK's operator, or the type of a node; null if unknown
    macs: int | None = None  # multiply-accumulates; null if unknown
    flops: int | None = None  # all operations; null if unknown
    elements: int | None = None  # elements of its input, or of its output when that is larger; null if unknown
    activation_bytes: int | None = None  # bytes read and written besides weights; null if unknown
    weight_bytes: int | None = None  # bytes of constants; null if unknown
    calls: float = 1.0  # events
    time_ns: float  # self time on the scale of the headline, where other work disturbed least; cut off
    uncertainty_ns: float = 0.0  # the true time lies in [time_ns, time_ns + uncertainty_ns)
    portable: bool = False  # whether a portable kernel ran it
    channels: int | None = None  # channels of its output, the last size; null if unknown


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Operator under its ceilings, for one inference.

    Attributes:
        method: method of the operator.
        instruction: instruction of the operator; null for framework time.
        position: position of the operator in its call; null for framework time.
        bound: what limits it; null when a ceiling or its work is not known.
        ceiling: the ceiling that applies, by name; null when none is known.
        compute_ns: arithmetic at its ceiling; null if unknown.
        memory_ns: moving each byte once; null if unknown.
        ceiling_ns: the longer of both, or the one that is known: less than that was never seen.
        overhead_ns: fixed cost of its calls; null if not measured.
        macs_per_s: reached; null without multiply-accumulates.
        bytes_per_s: reached, counting each byte once; null if unknown.
        fraction: fraction of the ceiling that is reached; null unless both times are known.
        headroom_ns: what reaching the ceiling would save, never negative; null unless both times are known, since one
            alone would promise too much.
        above_ceiling: it was faster than its ceiling, which is thus too low for it.
        note: why something is null.
        rate: rate of the ceiling that applies; null when none is known.
        reason: why it is below both ceilings, as far as that is likely; null with another bound.
    """

    method: str
    instruction: int | None
    position: int | None
    bound: Bound | None
    ceiling: str | None
    compute_ns: float | None
    memory_ns: float | None
    ceiling_ns: float | None
    overhead_ns: float | None
    macs_per_s: Interval | None
    bytes_per_s: Interval | None
    fraction: Interval | None
    headroom_ns: Interval | None
    above_ceiling: bool
    note: str | None
    rate: CeilingRate | None = None
    reason: Shortfall | None = None


class _CeilingTime(NamedTuple):
    """Time at a ceiling, its name and rate, or why there is none."""

    ns: float | None
    name: str | None = None
    note: str | None = None
    rate: CeilingRate | None = None


def place_operator(work: OperatorWork, ceilings: Ceilings, footprint: int) -> Placement:
    """Place an operator under the ceilings."""
    compute, memory = _compute_time(work, ceilings), _memory_time(work, ceilings, footprint)
    leading = max((compute, memory), key=lambda time: -1.0 if time.ns is None else time.ns)
    least_ns = leading.ns
    whole_ns = None if compute.ns is None or memory.ns is None else least_ns
    dispatch = ceilings.dispatch_ns()
    overhead = None if dispatch is None else dispatch * work.calls
    total_bytes = _total_bytes(work)
    bound = _find_bound(work, compute, memory, overhead)
    return Placement(
        method=work.method,
        instruction=work.instruction,
        position=work.position,
        bound=bound,
        ceiling=leading.name,
        compute_ns=compute.ns,
        memory_ns=memory.ns,
        ceiling_ns=least_ns,
        overhead_ns=overhead,
        macs_per_s=_rate_per_second(work.macs, work) if work.macs else None,
        bytes_per_s=None if total_bytes is None else _rate_per_second(total_bytes, work),
        fraction=None if whole_ns is None else _share_of_time(whole_ns, work),
        headroom_ns=None if whole_ns is None else _headroom_above(whole_ns, work),
        above_ceiling=least_ns is not None and least_ns > work.time_ns + work.uncertainty_ns,
        note="; ".join(time.note for time in (compute, memory) if time.note) or None,
        rate=leading.rate,
        reason=_likely_shortfall(work, least_ns or 0.0) if bound is Bound.INEFFICIENT else None,
    )


def _has_little_work(work: OperatorWork, ceiling: float) -> bool:
    return ceiling / (work.calls or 1.0) < LITTLE_NS


def _likely_shortfall(work: OperatorWork, ceiling: float) -> Shortfall:
    """Return the likely reason for being far below both ceilings, the most certain first."""
    if work.portable:
        return Shortfall.PORTABLE
    if _has_little_work(work, ceiling):
        return Shortfall.LITTLE_WORK
    if not work.macs:
        return Shortfall.SHAPE if work.flops else Shortfall.MOVES
    if work.channels and (work.channels < TILE or work.channels % TILE):
        return Shortfall.CHANNELS
    return Shortfall.SHAPE


def _compute_time(work: OperatorWork, ceilings: Ceilings) -> _CeilingTime:
    """Return the time of arithmetic at its ceiling; none for operators that only move data."""
    if work.macs is None:
        return _CeilingTime(None, note="its arithmetic is not known")
    if work.macs:
        return _product_time(work, work.macs, ceilings)
    if not work.flops:
        return _CeilingTime(0.0) if work.flops == 0 else _CeilingTime(None, note="its arithmetic is not known")
    ceiling = ceilings.element_ceiling(work.dtype or "")
    if ceiling is None or work.elements is None:
        return _CeilingTime(None, note=f"no ceiling for elements in {work.dtype or 'an unknown type'}")
    rate = CeilingRate(float(ceiling.rate.best), RateUnit.ELEMENTS, ceiling.level)
    return _CeilingTime(work.elements * 1e9 / ceiling.rate.best, f"elements in {ceiling.dtype}", rate=rate)


def _product_time(work: OperatorWork, macs: int, ceilings: Ceilings) -> _CeilingTime:
    ceiling = ceilings.mac_ceiling(work.dtype or "")
    if ceiling is None:
        return _CeilingTime(None, note=f"no ceiling for products in {work.dtype or 'an unknown type'}")
    rate = CeilingRate(float(ceiling.rate.best), RateUnit.MACS, ceiling.level)
    return _CeilingTime(macs * 1e9 / ceiling.rate.best, f"products in {ceiling.dtype}", rate=rate)


def _memory_time(work: OperatorWork, ceilings: Ceilings, footprint: int) -> _CeilingTime:
    """Estimate the time of moving each byte once: activations at cache bandwidth, weights at footprint bandwidth."""
    if (work.function or operator_name(work.name)) in VIEWS:
        return _CeilingTime(0.0)
    if work.activation_bytes is None or work.weight_bytes is None:
        return _CeilingTime(None, note="its bytes are not known")
    working_set = (work.activation_bytes + work.weight_bytes) / (work.calls or 1.0)
    if not working_set:
        return _CeilingTime(0.0)
    near, far = (
        _working_set_bandwidth(work, ceilings, working_set),
        _footprint_bandwidth(ceilings, max(footprint, working_set)),
    )
    if near is None or far is None:
        return _CeilingTime(None, note="no bandwidth was measured")
    activations, weights = work.activation_bytes * 1e9 / near.per_s, work.weight_bytes * 1e9 / far.per_s
    leads = weights > activations
    name = f"weights of {size_text(footprint)}" if leads else f"memory of {size_text(int(working_set))}"
    return _CeilingTime(activations + weights, name, rate=far if leads else near)


def _footprint_bandwidth(ceilings: Ceilings, footprint: float) -> CeilingRate | None:
    """Return the bandwidth of weights, between whose uses the whole footprint passes through the caches."""
    passed = ceilings.bandwidth(footprint)
    return None if passed is None else CeilingRate(passed, RateUnit.BYTES, _PASSES)


def _working_set_bandwidth(work: OperatorWork, ceilings: Ceilings, working_set: float) -> CeilingRate | None:
    """Return the bandwidth at an operator's own working set; the output may take the place of its input."""
    passed = ceilings.bandwidth(working_set)
    updated = ceilings.bandwidth(working_set / 2, in_place=True) if _may_update(work) else None
    if updated is not None and updated > (passed or 0.0):
        return CeilingRate(updated, RateUnit.BYTES, "updates in place")
    return None if passed is None else CeilingRate(passed, RateUnit.BYTES, _PASSES)


def _may_update(work: OperatorWork) -> bool:
    """Return whether an elementwise operator reads one tensor and writes one, as an update in place does."""
    width = _WIDTHS.get(work.dtype or "")
    if work.macs != 0 or not work.flops or width is None or work.elements is None or work.activation_bytes is None:
        return False
    return work.activation_bytes <= 2 * width * work.elements


def _find_bound(
    work: OperatorWork, compute: _CeilingTime, memory: _CeilingTime, overhead: float | None
) -> Bound | None:
    """Return what explains at least half of the time, whatever the true duration within its interval."""
    for time, other_time, bound in ((compute, memory, Bound.COMPUTE), (memory, compute, Bound.MEMORY)):
        longer = time.ns is not None and time.ns >= (other_time.ns or 0.0)
        if longer and time.ns and _share_of_time(time.ns, work).low >= EXPLAINED:
            return bound
    if compute.ns is None or memory.ns is None:
        return None
    ceiling = max(compute.ns, memory.ns)
    if not _is_below_half(ceiling, work):
        return Bound.UNRESOLVED
    with_overhead = ceiling + (overhead or 0.0)
    if _is_below_half(with_overhead, work):
        return Bound.INEFFICIENT
    return Bound.OVERHEAD if _share_of_time(with_overhead, work).low >= EXPLAINED else Bound.UNRESOLVED


def _is_below_half(time: float, work: OperatorWork) -> bool:
    """Return whether a time explains less than half, whatever the true duration."""
    high = _share_of_time(time, work).high
    return high is not None and high < EXPLAINED


def _share_of_time(time: float, work: OperatorWork) -> Interval:
    longest = work.time_ns + work.uncertainty_ns
    return Interval(time / longest if longest else 0.0, time / work.time_ns if work.time_ns else None)


def _rate_per_second(count: int, work: OperatorWork) -> Interval | None:
    """Return a count per second; None if there is no time to divide by."""
    if not work.time_ns + work.uncertainty_ns:
        return None
    return _share_of_time(count * 1e9, work)


def _headroom_above(ceiling: float, work: OperatorWork) -> Interval:
    return Interval(max(0.0, work.time_ns - ceiling), max(0.0, work.time_ns + work.uncertainty_ns - ceiling))


def _total_bytes(work: OperatorWork) -> int | None:
    if work.activation_bytes is None or work.weight_bytes is None:
        return None
    return work.activation_bytes + work.weight_bytes


__all__ = ["Bound", "BoundTime", "Interval", "OperatorWork", "Placement", "Roofline", "roofline"]


class BoundTime(msgspec.Struct, frozen=True):
    """Operators with one limit; ``bound`` is null for those that could not be placed."""

    bound: Bound | None
    operators: int
    time_ns: float
    headroom_ns: Interval


class Roofline(msgspec.Struct, frozen=True):
    """Operators under the ceilings of their variant, for one inference.

    Attributes:
        operators: operators in the order they were given.
        bounds: time by what limits it, longest first.
        time_ns: time of all operators.
        placed_ns: time of those whose ceilings are all known.
        ceiling_ns: what these would take at their ceilings.
        headroom_ns: what that would save, operators above their ceiling counted as 0.
        footprint_bytes: distinct bytes that an inference passes over: all weights and the largest activations.
        weights_per_s: bandwidth at that footprint, with which weights are read; null if not measured.
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
    """Place operators under the ceilings, and sum up what limits them."""
    # Distinct bytes of an inference: the memory of activations is used again, that of weights is not.
    weights = sum((work.weight_bytes or 0) / (work.calls or 1.0) for work in works)
    activations = max(((work.activation_bytes or 0) / (work.calls or 1.0) for work in works), default=0.0)
    footprint = round(weights + activations)
    placements = [place_operator(work, ceilings, footprint) for work in works]
    headrooms = [placement.headroom_ns for placement in placements if placement.headroom_ns]
    pairs = list(zip(works, placements, strict=True))
    bound_times = []
    for bound in dict.fromkeys(placement.bound for placement in placements):
        rows = [(work, placement) for work, placement in pairs if placement.bound is bound]
        headroom = _sum_intervals(placement.headroom_ns for _, placement in rows if placement.headroom_ns)
        bound_times.append(BoundTime(bound, len(rows), sum(work.time_ns for work, _ in rows), headroom))
    return Roofline(
        operators=placements,
        bounds=sorted(bound_times, key=lambda row: -row.time_ns),
        time_ns=sum(work.time_ns for work in works),
        placed_ns=sum(work.time_ns for work, placement in zip(works, placements, strict=True) if placement.headroom_ns),
        ceiling_ns=sum(placement.ceiling_ns or 0.0 for placement in placements if placement.headroom_ns),
        headroom_ns=_sum_intervals(headrooms),
        footprint_bytes=footprint,
        weights_per_s=ceilings.bandwidth(footprint) if footprint else None,
        explained=EXPLAINED,
        unsteady=ceilings.unsteady(),
    )


def _sum_intervals(intervals: Iterable[Interval]) -> Interval:
    listed = list(intervals)
    return Interval(sum(interval.low for interval in listed), sum(interval.high or 0.0 for interval in listed))
