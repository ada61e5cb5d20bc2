"""How fast a tile multiplies: from the calls that were seen, never from work that the trace does not hold.

The window runs from the start of the first call to the end of the last. A rate above the peak of the device is no rate:
then sizes, type or device are not those of the run, and nothing is said but that.

Its ceilings are what the core can multiply, and what its streams can feed. A call of m x k x n multiply-accumulates
needs its tiles of A and B, and every K/k calls a tile of C leaves. A stream of b bytes per cycle that moves s bytes for
each call allows m k n b / s multiply-accumulates a cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text, rate_text
from opscope.npu.analysis.findings import place, tile_finding
from opscope.program.cost.gemm import Operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.bound import TileBound
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.analysis.ports import Port
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.program.cost.gemm import Tiling


_ROUNDING = 1e-9


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


class MacRate(TileRate, frozen=True, kw_only=True):
    """The rate of a tile, with what it was found from."""

    calls: int  # whole calls that multiply
    # multiply-accumulates for each cycle with a vector instruction; null without a rate, or when that was not traced
    per_vector_cycle: float | None = None
    findings: tuple[Message, ...] = ()  # what is wrong or doubtful


def rate(tile: TileTrace, calls: CallSpans, work: MacCalls, said: RunSpecification) -> MacRate:
    """The rates of a tile."""
    window = int(calls.end[-1] - calls.start[0]) if len(calls) else 0
    seen = MacRate(
        calls=work.number,
        macs=work.number * said.tiling.macs_per_call if said.tiling else None,
        peak_mac_per_cycle=said.peak,
        findings=work.findings,
    )
    reason = _no_rate(work, said)
    if reason is not None:
        return msgspec.structs.replace(seen, macs=None, rate_reason=reason)
    known = _with_coverage(tile, _with_rates(seen, work, window), said)
    excess = _report_rate_above_peak(tile, known, said)
    if excess is None:
        return msgspec.structs.replace(known, gmac_per_s=_gmac_range(known.mac_per_cycle, said))
    findings = (*known.findings, excess)
    return msgspec.structs.replace(
        seen, macs=None, calls_needed=known.calls_needed, rate_reason=excess.title, findings=findings
    )


def iteration_rates(
    iterations: Sequence[Iteration], work: MacCalls, said: RunSpecification
) -> list[tuple[int | None, float | None]]:
    """Multiply-accumulates of each iteration, in all and a cycle, from the start of its first call to its last end.

    None where none of its calls multiplies, without a tiling, and where the rate would be above the peak.
    """
    rates: list[tuple[int | None, float | None]] = []
    for one in iterations:
        number = int(work.multiplies[one.first_call : one.last_call + 1].sum()) + one.lost_calls
        macs = number * said.tiling.macs_per_call if said.tiling else 0
        known = macs > 0 and one.cycles > 0 and not _is_above(macs / one.cycles, said.ceiling)
        rates.append((macs, macs / one.cycles) if known else (None, None))
    return rates


def _no_rate(work: MacCalls, said: RunSpecification) -> str | None:
    if not work.number:
        return work.reason
    if said.tiling is None:
        return "the sizes m, k, n of a call are not given, so its work is unknown"
    return None if work.cycles > 0 else "the multiplying calls take zero cycles"


def _with_rates(seen: MacRate, work: MacCalls, window: int) -> MacRate:
    macs = float(seen.macs or 0)
    whole, inside = macs / window, macs / work.cycles
    return msgspec.structs.replace(
        seen,
        mac_per_cycle=whole,
        in_call_mac_per_cycle=inside,
        per_vector_cycle=macs / work.vector_cycles if work.vector_cycles else None,
        utilisation=whole / seen.peak_mac_per_cycle if seen.peak_mac_per_cycle else None,
    )


def _is_above(found: float, peak: int) -> bool:
    return found > peak * (1 + _ROUNDING)


def _report_rate_above_peak(tile: TileTrace, known: MacRate, said: RunSpecification) -> Message | None:
    inside = known.in_call_mac_per_cycle or 0.0
    if not _is_above(inside, said.ceiling):
        return None
    return tile_finding(
        "above_peak",
        Severity.HIGH,
        title=f"the rate would exceed the peak of {said.ceiling} MAC per cycle, so it is omitted",
        evidence=f"with these sizes the calls would do {rate_text(inside)} MAC per cycle: the run used others",
        where=place(tile),
        step="check m, k, n, dtype and arch against the traced design",
    )


def _with_coverage(tile: TileTrace, known: MacRate, said: RunSpecification) -> MacRate:
    """Add the coverage, and what the counts and the vector cycles say against the given values."""
    findings = [*known.findings, *_report_other_type(tile, known, said)]
    each = said.tiling.calls_per_core if said.tiling else None
    if each is None:
        return msgspec.structs.replace(known, findings=tuple(findings))
    needed = each * (said.runs or 1)
    if known.calls > needed:
        runs = counted_text(said.runs or 1, "run")
        findings.append(
            tile_finding(
                "more_calls_than_needed",
                Severity.INFO,
                title="the trace has more calls than the product needs",
                evidence=(
                    f"{known.calls:,} multiplying calls were seen, {runs} of the product need {needed:,} on this core"
                ),
                where=place(tile),
                step="give the number of iterations with warm-up if there were more; else check M, K, N, row and col",
            )
        )
    coverage = min(1.0, known.calls / needed)
    return msgspec.structs.replace(known, calls_needed=needed, coverage=coverage, findings=tuple(findings))


def _report_other_type(tile: TileTrace, known: MacRate, said: RunSpecification) -> list[Message]:
    each, own = known.per_vector_cycle or 0.0, known.peak_mac_per_cycle
    if said.device is None or said.dtype is None or own is None or not _is_above(each, own):
        return []
    floating = said.dtype.startswith("bf")
    peaks = said.device.mac_per_cycle.items()
    faster = [name for name, peak in peaks if peak >= each and name.startswith("bf") is floating]
    return [
        tile_finding(
            "other_type",
            Severity.MEDIUM,
            title=f"the vector unit does more per cycle than the peak in {said.dtype}",
            evidence=(
                f"{rate_text(each)} MAC per vector cycle, the peak is {own}: the kernel computes in a different "
                f"type{', such as ' + ' or '.join(faster) if faster else ', or the sizes are wrong'}"
            ),
            where=place(tile),
            step=f"utilisation is relative to the peak in {said.dtype}; give the kernel's type with --dtype",
        )
    ]


def _gmac_range(mac_per_cycle: float | None, said: RunSpecification) -> GmacRange | None:
    """The rate in seconds at the clock that was given, else over all that it may be, with that at an assumed one."""
    if mac_per_cycle is None:
        return None
    assumed = said.assumed_clock
    if said.clock_mhz is not None:
        low, high, basis = said.clock_mhz, said.clock_mhz, "the clock that was given"
    elif said.device is not None:
        low, high = min(said.device.clock_levels), max(said.device.clock_levels)
        basis = f"no clock was given: the lowest and highest level of the driver of {said.device.name}"
    elif assumed is not None:
        low, high, basis = assumed.low_mhz, assumed.high_mhz, f"no clock was given: {assumed.source}"
    else:
        return None
    gmac_range = GmacRange(mac_per_cycle * low / 1e3, mac_per_cycle * high / 1e3, low, high, basis)
    if assumed is None:
        return gmac_range
    return msgspec.structs.replace(gmac_range, assumed=mac_per_cycle * assumed.mhz / 1e3, assumed_mhz=assumed.mhz)


PEAK = "peak"
"""Name of the ceiling of the vector unit."""


class Ceiling(msgspec.Struct, frozen=True):
    """The most that a part of a tile allows.

    Attributes:
        name: ``peak``, or the operand whose stream it is.
        mac_per_cycle: that it allows.
        bytes_per_call: that the stream moves for each call; null for the peak.
        mac_per_byte: of this stream; null for the peak.
        basis: where its bytes come from.
    """

    name: str
    mac_per_cycle: float
    bytes_per_call: float | None
    mac_per_byte: float | None
    basis: str


class TileRoofline(msgspec.Struct, frozen=True, kw_only=True):
    """A tile under its ceilings.

    Attributes:
        mac_per_byte: multiply-accumulates for each byte that the streams of the ceilings move; null when not known.
        ridge_mac_per_byte: of one stream, from which on it can feed the peak; null without a peak.
        ceilings: of the vector unit and of each stream, lowest first.
        attainable: the lowest of them, in multiply-accumulates a cycle; null without any.
        by: name of the lowest; null likewise.
        steady: multiply-accumulates a cycle in the median period; null when not known.
        window: the same in the whole window; null likewise.
        reached: share of what is attainable in the median period; null likewise.
        reason: why there is none; null when there is.
    """

    mac_per_byte: float | None = None
    ridge_mac_per_byte: float | None = None
    ceilings: tuple[Ceiling, ...] = ()
    attainable: float | None = None
    by: str | None = None
    steady: float | None = None
    window: float | None = None
    reached: float | None = None
    reason: str | None = None


def roofline(rate: MacRate, bound: TileBound | None, ports: tuple[Port, ...], said: RunSpecification) -> TileRoofline:
    """Place a tile under its ceilings."""
    if rate.mac_per_cycle is None:
        return TileRoofline(reason=rate.rate_reason)
    if said.tiling is None or said.stream_bytes is None or said.dtype is None:
        return TileRoofline(reason="architecture or operand type is not given")
    macs = said.tiling.macs_per_call
    ceilings = _stream_ceilings(said.tiling, said.dtype, said.stream_bytes, ports)
    moved = sum(own.bytes_per_call or 0.0 for own in ceilings)
    if said.peak is not None:
        ceilings.append(Ceiling(PEAK, float(said.peak), None, None, f"{said.peak} MAC per cycle in {said.dtype}"))
    ceilings.sort(key=lambda ceiling: ceiling.mac_per_cycle)
    period = bound.measured_period_cycles if bound else None
    steady = macs / period if period else None
    lowest = ceilings[0]
    return TileRoofline(
        mac_per_byte=macs / moved,
        ridge_mac_per_byte=said.peak / said.stream_bytes if said.peak else None,
        ceilings=tuple(ceilings),
        attainable=lowest.mac_per_cycle,
        by=lowest.name,
        steady=steady,
        window=rate.mac_per_cycle,
        reached=steady / lowest.mac_per_cycle if steady else None,
    )


def _stream_ceilings(said: Tiling, dtype: str, stream_bytes: int, ports: tuple[Port, ...]) -> list[Ceiling]:
    """Return a ceiling for each operand's bytes per call: of its port if that is known, else from the sizes."""
    known = {port.operands[0]: port for port in ports if len(port.operands) == 1 and port.cycles_per_call}
    ceilings = []
    for operand in Operand:
        port = known.get(operand.value)
        share = said.calls_per_output if operand is Operand.C else 1
        if port is not None and port.cycles_per_call is not None:
            size, basis = port.cycles_per_call * stream_bytes, f"the transfers of {port.name}"
        elif share is not None:
            size, basis = said.buffer_bytes(operand, dtype)[0] / share, _FROM_SIZES
        else:
            continue
        each = said.macs_per_call / size
        ceilings.append(Ceiling(operand.value, each * stream_bytes, size, each, basis))
    return ceilings


_FROM_SIZES = "the sizes; its port was not traced, or not distinguished"
