"""A tile under its ceilings: what the core can multiply, and what its streams can feed.

A call of m x k x n multiply-accumulates needs its tiles of A and B, and every K/k calls a tile of C leaves. A stream of
b bytes per cycle that moves s bytes for each call allows m k n b / s multiply-accumulates a cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class _Moved(NamedTuple):
    operand: Operand
    bytes_per_call: float
    basis: str


def roofline(rate: MacRate, bound: TileBound, said: RunSpecification) -> TileRoofline:
    """Place a tile under its ceilings."""
    if rate.mac_per_cycle is None:
        return TileRoofline(reason=rate.reason)
    if said.tiling is None or said.stream_bytes is None or said.dtype is None:
        return TileRoofline(reason="architecture or type of operands is not given")
    macs = said.tiling.macs_per_call
    moved = _moved(said.tiling, said.dtype, said.stream_bytes, bound.ports)
    ceilings = [_stream(own, macs, said.stream_bytes) for own in moved]
    if said.peak is not None:
        ceilings.append(Ceiling(PEAK, float(said.peak), None, None, f"{said.peak} MAC per cycle in {said.dtype}"))
    ceilings.sort(key=lambda ceiling: ceiling.mac_per_cycle)
    steady = macs / bound.measured_period_cycles if bound.measured_period_cycles else None
    lowest = ceilings[0]
    return TileRoofline(
        mac_per_byte=macs / sum(own.bytes_per_call for own in moved),
        ridge_mac_per_byte=said.peak / said.stream_bytes if said.peak else None,
        ceilings=tuple(ceilings),
        attainable=lowest.mac_per_cycle,
        by=lowest.name,
        steady=steady,
        window=rate.mac_per_cycle,
        reached=steady / lowest.mac_per_cycle if steady else None,
    )


def _stream(moved: _Moved, macs: int, stream_bytes: int) -> Ceiling:
    each = macs / moved.bytes_per_call
    return Ceiling(moved.operand.value, each * stream_bytes, moved.bytes_per_call, each, moved.basis)


def _moved(said: Tiling, dtype: str, stream_bytes: int, ports: tuple[Port, ...]) -> list[_Moved]:
    """Bytes of each operand for one call: of its port where that is known, else from the sizes."""
    known = {port.operands[0]: port for port in ports if len(port.operands) == 1 and port.cycles_per_call}
    found = []
    for operand in Operand:
        port = known.get(operand.value)
        share = said.calls_per_output if operand is Operand.C else 1
        if port is not None and port.cycles_per_call is not None:
            found.append(_Moved(operand, port.cycles_per_call * stream_bytes, f"the transfers of {port.name}"))
        elif share is not None:
            found.append(_Moved(operand, said.buffer_bytes(operand, dtype)[0] / share, _FROM_SIZES))
    return found


_FROM_SIZES = "the sizes; its port was not traced, or not distinguished"
