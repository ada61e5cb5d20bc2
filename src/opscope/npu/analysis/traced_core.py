"""What is known of one core of a trace: what its parts tell, for all that asks several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opscope.analysis.findings.message import Message
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.advice import TraceAdvice
    from opscope.npu.analysis.bound import CallStall, TileBound
    from opscope.npu.analysis.calls import Pairing
    from opscope.npu.analysis.cycles import Activity, Cycles
    from opscope.npu.analysis.damage import LostPackets
    from opscope.npu.analysis.iterations import Iterations
    from opscope.npu.analysis.kinds import Kinds, MacCalls
    from opscope.npu.analysis.ports import Port
    from opscope.npu.analysis.rates import MacRate, TileRoofline
    from opscope.npu.analysis.waits import CoreWait


class TracedCore(NamedTuple):
    """A core's trace, and what was found in it."""

    tile: TileTrace
    pairing: Pairing
    kinds: Kinds
    work: MacCalls
    iterations: Iterations
    cycles: Cycles
    rate: MacRate
    ports: tuple[Port, ...]
    bound: TileBound | None  # None where nothing is known to set the pace, not even the call
    bound_reason: str  # how the bound was found, or why there is none
    roofline: TileRoofline
    advice: TraceAdvice
    lost: tuple[LostPackets, ...]  # where packets were lost or damaged
    known: Activity
    stalls: tuple[CallStall, ...]
    only_waits: CoreWait | None
    findings: tuple[Message, ...]  # of all of it, without what to do
