"""Rates at which a tile multiplies: from the calls that were seen, never from work that the trace does not hold.

The window runs from the start of the first call to the end of the last. A rate above the peak of the device is no rate:
then sizes, type or device are not those of the run, and nothing is said but that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, rate_text
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.specification import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.kinds import CoreCalls, Kinds
    from opscope.npu.analysis.specification import RunSpecification


class GmacRange(msgspec.Struct, frozen=True):
    """Billions of multiply-accumulates a second, at the lowest and the highest clock that is possible.

    Attributes:
        low: at ``low_mhz``.
        high: at ``high_mhz``; the same where the clock is known.
        low_mhz: of the array.
        high_mhz: likewise.
        basis: where the clock comes from.
        assumed: at the clock that is assumed, between the two; null where one was given, or none is assumed.
        assumed_mhz: that clock; null likewise.
    """

    low: float
    high: float
    low_mhz: float
    high_mhz: float
    basis: str
    assumed: float | None = None
    assumed_mhz: float | None = None


class TileRate(msgspec.Struct, frozen=True, kw_only=True):
    """Multiply-accumulates of a tile, and how fast it did them.

    Attributes:
        mac_per_cycle: from the start of the first call, of any kind, to the end of the last; null where that is not
            known, as ``rate_reason`` says.
        in_call_mac_per_cycle: within the calls that multiply; null likewise.
        utilisation: ``mac_per_cycle`` as a fraction of the peak; null where either is not known.
        peak_mac_per_cycle: most that one core can do in a cycle; null without architecture and type.
        gmac_per_s: the rate in seconds, as a range over the clock's levels where the clock is not known; null without
            either.
        macs: of the calls that multiply; null where not known.
        calls_needed: of this core for all that was to be computed; null where not known.
        coverage: part of these that was seen, at most 1; null where not known.
        rate_reason: why there is no rate; null when there is one.
    """

    mac_per_cycle: float | None = None
    in_call_mac_per_cycle: float | None = None
    utilisation: float | None = None
    peak_mac_per_cycle: int | None = None
    gmac_per_s: GmacRange | None = None
    macs: int | None = None
    calls_needed: int | None = None
    coverage: float | None = None
    rate_reason: str | None = None


def rate(core: CoreCalls, specification: RunSpecification) -> tuple[TileRate, list[Message]]:
    """Return the rates of a tile, and what is wrong or doubtful about them."""
    calls, work = core.calls, core.work
    cycles = int(work.durations.sum())
    if not len(work):
        reason = core.kinds.reason
    elif specification.tiling is None:
        reason = "the sizes m, k, n of a call are not given, so its work is unknown"
    else:
        reason = "" if cycles else "the multiplying calls take zero cycles"
    if reason or specification.tiling is None:
        return TileRate(peak_mac_per_cycle=specification.peak, rate_reason=reason), []
    macs, needed = len(work) * specification.tiling.macs_per_call, specification.tiling.calls_per_core
    needed = needed and needed * (specification.runs or 1)
    findings = list(_report_other_type(core.tile, macs, core.kinds, specification))
    if needed is not None and len(work) > needed:
        findings.append(
            tile_finding(
                "more_calls_than_needed",
                Severity.INFO,
                title="the trace has more calls than the product needs",
                evidence=(
                    f"{len(work):,} multiplying calls were seen, {counted_text(specification.runs or 1, 'run')} of the "
                    f"product need {needed:,} on this core"
                ),
                where=place(core.tile),
                step="give the number of iterations with warm-up if there were more; else check M, K, N, row and col",
            )
        )
    in_call = macs / cycles
    if specification.is_above_ceiling(in_call):
        excess = tile_finding(
            "above_peak",
            Severity.HIGH,
            title=f"the rate would exceed the peak of {specification.ceiling} MAC per cycle, so it is omitted",
            evidence=f"with these sizes the calls would do {rate_text(in_call)} MAC per cycle: the run used others",
            where=place(core.tile),
            step="check m, k, n, dtype and arch against the traced design",
        )
        unknown = TileRate(peak_mac_per_cycle=specification.peak, calls_needed=needed, rate_reason=excess.title)
        return unknown, [*findings, excess]
    mac_per_cycle = macs / int(calls.end[-1] - calls.start[0])
    known = TileRate(
        mac_per_cycle=mac_per_cycle,
        in_call_mac_per_cycle=in_call,
        utilisation=mac_per_cycle / specification.peak if specification.peak else None,
        peak_mac_per_cycle=specification.peak,
        gmac_per_s=_gmac_range(mac_per_cycle, specification),
        macs=macs,
        calls_needed=needed,
        coverage=min(1.0, len(work) / needed) if needed else None,
    )
    return known, findings


def iteration_rates(
    iterations: Sequence[Iteration], kinds: Kinds, specification: RunSpecification
) -> list[tuple[int | None, float | None]]:
    """Return the multiply-accumulates of each iteration, in all and a cycle, from its start to its end.

    None where none of its calls multiplies, without a tiling, and where the rate would be above the peak.
    """
    multiplies = kinds.work
    rates: list[tuple[int | None, float | None]] = []
    for row in iterations:
        calls = int(multiplies[row.first_call : row.last_call + 1].sum()) + row.lost_calls
        macs = calls * specification.tiling.macs_per_call if specification.tiling else 0
        is_known = macs > 0 and row.cycles > 0 and not specification.is_above_ceiling(macs / row.cycles)
        rates.append((macs, macs / row.cycles) if is_known else (None, None))
    return rates


def per_vector_cycle(macs: int | None, kinds: Kinds) -> float | None:
    """Return multiply-accumulates for each cycle with a vector instruction.

    None without a rate, or if that was not traced.
    """
    return macs / kinds.vector_cycles if macs and kinds.vector_cycles else None


def _report_other_type(tile: TileTrace, macs: int, kinds: Kinds, specification: RunSpecification) -> Iterator[Message]:
    rate, peak = per_vector_cycle(macs, kinds) or 0.0, specification.peak
    if specification.device is None or specification.dtype is None or peak is None or rate <= peak * (1 + ROUNDING):
        return
    is_float = specification.dtype.startswith("bf")
    peaks = specification.device.mac_per_cycle.items()
    faster = [name for name, other_peak in peaks if other_peak >= rate and name.startswith("bf") is is_float]
    yield tile_finding(
        "other_type",
        Severity.MEDIUM,
        title=f"the vector unit does more per cycle than the peak in {specification.dtype}",
        evidence=(
            f"{rate_text(rate)} MAC per vector cycle, the peak is {peak}: the kernel computes in a different "
            f"type{', such as ' + ' or '.join(faster) if faster else ', or the sizes are wrong'}"
        ),
        where=place(tile),
        step=f"utilisation is relative to the peak in {specification.dtype}; give the kernel's type with --dtype",
    )


def _gmac_range(mac_per_cycle: float, specification: RunSpecification) -> GmacRange | None:
    """Return the rate in seconds at the given clock, else over all that it may be, with that at an assumed one."""
    assumed = specification.assumed_clock
    if specification.clock_mhz is not None:
        low, high, basis = specification.clock_mhz, specification.clock_mhz, "the clock that was given"
    elif specification.device is not None:
        low, high = min(specification.device.clock_levels), max(specification.device.clock_levels)
        basis = f"no clock was given: the lowest and highest level of the driver of {specification.device.name}"
    elif assumed is not None:
        low, high, basis = assumed.low_mhz, assumed.high_mhz, f"no clock was given: {assumed.source}"
    else:
        return None
    at_assumed = (mac_per_cycle * assumed.mhz / 1e3, assumed.mhz) if assumed else (None, None)
    return GmacRange(mac_per_cycle * low / 1e3, mac_per_cycle * high / 1e3, low, high, basis, *at_assumed)
