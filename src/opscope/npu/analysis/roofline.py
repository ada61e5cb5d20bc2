"""A tile under its ceilings: what the core can multiply, and what its streams can feed.

A call of m x k x n multiply-accumulates needs its tiles of A and B, and every K/k calls a tile of C leaves. A stream of
b bytes per cycle that moves s bytes for each call allows m k n b / s multiply-accumulates a cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.gemm import Operand

if TYPE_CHECKING:
    from opscope.npu.analysis.bound import TileBound
    from opscope.npu.analysis.ports import Port
    from opscope.npu.analysis.rates import MacRate
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.program.cost.gemm import Tiling

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
        return TileRoofline(reason=rate.reason)
    if said.tiling is None or said.stream_bytes is None or said.dtype is None:
        return TileRoofline(reason="architecture or operand type is not given")
    macs = said.tiling.macs_per_call
    ceilings = _streams(said.tiling, said.dtype, said.stream_bytes, ports)
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


def _streams(said: Tiling, dtype: str, stream_bytes: int, ports: tuple[Port, ...]) -> list[Ceiling]:
    """Those of each operand's bytes for one call: of its port where that is known, else from the sizes."""
    known = {port.operands[0]: port for port in ports if len(port.operands) == 1 and port.cycles_per_call}
    found = []
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
        found.append(Ceiling(operand.value, each * stream_bytes, size, each, basis))
    return found


_FROM_SIZES = "the sizes; its port was not traced, or not distinguished"
