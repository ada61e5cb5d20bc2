"""Result of the analysis of a trace of AI Engine tiles, as it is written: schema ``opscope.tiles/2``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from opscope.analysis.findings.message import PART_FAILED, Message
from opscope.core.table.tiles import TraceMode
from opscope.npu.analysis.calls import CallCounts
from opscope.npu.analysis.capture import LostPackets, TraceAdvice
from opscope.npu.analysis.cycles import Cycles, CycleSplit
from opscope.npu.analysis.iterations import Iteration
from opscope.npu.analysis.kinds import CoreCalls, KindRow
from opscope.npu.analysis.pace import CallStall, Port, TileBound
from opscope.npu.analysis.rates import GmacRange, TileRate
from opscope.npu.analysis.specification import RunSpecification
from opscope.npu.analysis.waits import CoreWait

if TYPE_CHECKING:
    from collections.abc import Iterable

    Known = TypeVar("Known")

_NO_CYCLES = CycleSplit(0, 0, 0, 0, 0, 0)
AlignAt = Literal["auto", "trace-start", "first-call"]
"""What counts as one moment: whatever proves a common time, the starts of all traces, or the first calls."""
Moment = Literal["broadcast", "timer", "trace_start", "first_call"]


class TilesSource(msgspec.Struct, frozen=True):
    """Source of a trace.

    Attributes:
        path: of the file, as given.
        format: of the file.
        sha256: of the file as it is stored.
        clock: unit of all times; always cycles.
        events: begins and ends that were read.
        complete: whether the file is whole; what is missing is a finding.
    """

    path: str
    format: str
    sha256: str
    clock: str
    events: int
    complete: bool


class AddressRow(msgspec.Struct, frozen=True):
    """A program address at which an event occurred, and how often."""

    address: int
    times: int


class SlotRow(msgspec.Struct, frozen=True):
    """An event slot.

    Attributes:
        slot: its number.
        event: its event.
        spans: how often it was active, or occurred.
        cycles: in how many cycles; 0 of a unit that records no times.
        addresses: at which program addresses, ascending; empty unless the unit recorded these.
    """

    slot: int
    event: str
    spans: int
    cycles: int
    addresses: tuple[AddressRow, ...] = ()


class TileRow(TileRate, frozen=True, kw_only=True):
    """One trace unit of one tile.

    Attributes:
        tile: ``ROW,COL``.
        unit: core, mem, memtile or shim.
        calls: what became of their events; zeros for other units than cores.
        kinds: of calls.
        window_cycles: from the first call's start to the last call's end; 0 without calls.
        cycles: of the window.
        not_traced: events that were not; their cycles are within ``other``.
        bound: what the period of calls is bound by; null where that is not known.
        iterations: repetitions of the whole product.
        iterations_by: what they were found by; null without any.
        iterations_reason: why these, or why none.
        expected_iterations: that were asked for; null likewise.
        bound_reason: how the bound was found, or why there is none.
        last_cycle: that its trace reaches.
        slots: what was traced.
        advice: whether the trace ends too early, and what to change in the tracing.
        lost_packets: where packets were lost or damaged, as far as the trace shows; times from there on are not sure.
        call_stalls: what calls wait for, the largest first.
        only_waits: what a core without a call waits for in nearly all of its trace; null for all others.
        mode: what its trace unit recorded: ``event_time``, ``event_pc``, whose calls are counted by their order alone,
            or ``execution`` and ``unknown``, which opscope does not read.
        row: of the array that it is in; the interface tiles are row 0.
        column: of the array that it is in, from 0.
    """

    tile: str
    unit: str
    calls: CallCounts = CallCounts(0, 0, 0)
    kinds: tuple[KindRow, ...] = ()
    window_cycles: int = 0
    cycles: Cycles = Cycles(_NO_CYCLES, _NO_CYCLES)
    not_traced: tuple[str, ...] = ()
    bound: TileBound | None = None
    iterations: tuple[Iteration, ...] = ()
    iterations_by: str | None = None
    iterations_reason: str = ""
    expected_iterations: int | None = None
    bound_reason: str | None = None
    last_cycle: int
    slots: list[SlotRow]
    advice: TraceAdvice = TraceAdvice(cut=None, why="")
    lost_packets: tuple[LostPackets, ...] = ()
    call_stalls: tuple[CallStall, ...] = ()
    only_waits: CoreWait | None = None
    mode: TraceMode = TraceMode.EVENT_TIME
    row: int
    column: int

    @property
    def unsure_losses(self) -> list[LostPackets]:
        """Losses from which on the times of the tile are not sure."""
        return [packets for packets in self.lost_packets if not packets.times_kept]


@dataclass(frozen=True, eq=False)
class TracedCore(CoreCalls):
    """The calls of a core, and what the result says of it."""

    ports: tuple[Port, ...]
    row: TileRow
    findings: tuple[Message, ...]  # of all of it, without what to do


class TimerOffset(msgspec.Struct, frozen=True):
    """Number of cycles that is added to the times of a tile.

    Attributes:
        tile: as ``ROW,COL``.
        cycles: added. By timers, 0 for the tile whose trace started first, else above 0; by an event, 0 for the tile
            where it came first in its trace, else below 0.
    """

    tile: str
    cycles: int


class TimeAlignment(msgspec.Struct, frozen=True):
    """The common time of several tiles.

    Attributes:
        event: whose first occurrence counts as one moment; null when there is none.
        shifts: of the tiles, in their order.
        reason: why this, and what it assumes.
        by: ``broadcast``: an event that reached all tiles at once; ``timer``: the timers that the raw words hold;
            ``trace_start``: all traces count as started at one moment; ``first_call``: the first calls do.
    """

    event: str | None
    shifts: tuple[TimerOffset, ...]
    reason: str
    by: Moment = "trace_start"


class Slowest(msgspec.Struct, frozen=True):
    """The tile whose iterations take longest, against the median of the others.

    Attributes:
        tile: as ``ROW,COL``.
        median_cycles: of its iterations.
        others_cycles: median over the other tiles of the same.
        excess_cycles: the difference.
        category: of cycles that grew most, as in the account of cycles.
        category_cycles: by which it grew an iteration, mean against the median of the other tiles.
        why: the same in words.
    """

    tile: str
    median_cycles: float
    others_cycles: float
    excess_cycles: float
    category: str
    category_cycles: float
    why: str


class SystemIteration(msgspec.Struct, frozen=True, kw_only=True):
    """An iteration of all tiles together, in their common time.

    Attributes:
        number: of the iteration.
        start: first start of all tiles.
        end: last end of all tiles.
        runtime_cycles: between these.
        longest_cycles: of any single tile.
        start_skew_cycles: from the first start to the last.
        first_tile: that starts first.
        last_tile: that ends last.
        balance: mean cycles of the tiles as a share of the longest; 1 when all take the same.
        mac_per_cycle: of all tiles together, in the runtime; null without sizes, or when a tile has no rate.
        starts_last: tile that starts last.
    """

    number: int
    start: int
    end: int
    runtime_cycles: int
    longest_cycles: int
    start_skew_cycles: int
    first_tile: str
    last_tile: str
    balance: float
    mac_per_cycle: float | None
    starts_last: str = ""


class TileTimes(msgspec.Struct, frozen=True):
    """A tile in the common iterations.

    Attributes:
        tile: as ``ROW,COL``.
        median_cycles: of its iterations.
        min_cycles: shortest of them.
        max_cycles: longest of them.
        ends_last: in how many of them it was the last to end.
    """

    tile: str
    median_cycles: float
    min_cycles: int
    max_cycles: int
    ends_last: int


class LeftOutCore(msgspec.Struct, frozen=True):
    """A core that is not compared with the others.

    Attributes:
        tile: as ``ROW,COL``.
        reason: why.
    """

    tile: str
    reason: str


class ArrayView(msgspec.Struct, frozen=True, kw_only=True):
    """All cores of a trace together, but for those that lost packets, since their times are not sure.

    Attributes:
        alignment: common time of the cores that are compared.
        iterations: those measured and complete on all cores that are compared.
        median_runtime_cycles: of these; null without any.
        balance: mean over the tiles of their median cycles, as a share of the largest; null likewise.
        tiles: each in the common iterations; empty likewise.
        slowest: tile with the largest median, and why; null likewise, with a single tile, and when all are alike.
        reason: which iterations these are, or why there are none.
        median_start_skew_cycles: of the iterations, from the first start of a core to the last; null without any.
        window_cycles: from the first call's start on any core to the last call's end, in the common time; null without
            cores that are compared.
        mac_per_cycle: of all these cores together in that window; null when one has no rate.
        utilisation: the same as a fraction of their peaks together; null likewise.
        in_call: share of the cycles of all these cores in that window that is within calls; null without cores.
        left_out: cores that are not compared.
    """

    alignment: TimeAlignment
    iterations: tuple[SystemIteration, ...]
    median_runtime_cycles: float | None
    balance: float | None
    tiles: tuple[TileTimes, ...]
    slowest: Slowest | None
    reason: str
    median_start_skew_cycles: float | None = None
    window_cycles: int | None = None
    mac_per_cycle: float | None = None
    utilisation: float | None = None
    in_call: float | None = None
    left_out: tuple[LeftOutCore, ...] = ()


class TilesAnalysis(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.tiles/2"):
    """Analysis of a trace of AI Engine tiles.

    Attributes:
        trace: where it came from.
        given: what the user said about the run.
        tiles: in order of the trace.
        array: all cores together; null without calls.
        findings: of all of it, most severe first.
    """

    trace: TilesSource
    given: RunSpecification
    tiles: list[TileRow]
    array: ArrayView | None
    findings: list[Message]

    @property
    def bugs(self) -> list[str]:
        """Sentences on parts that are unknown because of bugs in opscope."""
        return [message.title for message in self.findings if message.rule == PART_FAILED]

    @property
    def working(self) -> list[TileRow]:
        """The cores with calls."""
        return [row for row in self.tiles if row.window_cycles]

    @property
    def cores(self) -> list[TileRow]:
        """Cores, those without calls included."""
        return [row for row in self.tiles if row.unit == "core"]

    @property
    def in_call_share(self) -> float:
        """Part of the cycles of the working cores that is within calls, of several in the window of them all."""
        array, rows = self._whole_array, self.working
        if array is not None and array.in_call is not None:
            return array.in_call
        return sum(row.cycles.in_call.total for row in rows) / sum(row.window_cycles for row in rows)

    @property
    def mac_per_cycle(self) -> float | None:
        """Multiply-accumulates a cycle of a core, a mean over the working ones. None if one has no rate."""
        array, rows = self._whole_array, self.working
        if array is not None and array.mac_per_cycle is not None:
            return array.mac_per_cycle / len(rows)
        return mean_known(row.mac_per_cycle for row in rows)

    @property
    def gmac_per_s(self) -> GmacRange | None:
        """Rate of a core in seconds. None if no clock is known."""
        ranges, rate = all_known(row.gmac_per_s for row in self.working), self.mac_per_cycle
        first_rate = self.working[0].mac_per_cycle if ranges else None
        if not first_rate or rate is None:
            return None
        first, part = ranges[0], rate / first_rate
        assumed = None if first.assumed is None else first.assumed * part
        return msgspec.structs.replace(first, low=first.low * part, high=first.high * part, assumed=assumed)

    @property
    def utilisation(self) -> float | None:
        """Rate as a fraction of the peak."""
        array = self._whole_array
        if array is not None and array.utilisation is not None:
            return array.utilisation
        return mean_known(row.utilisation for row in self.working)

    @property
    def _whole_array(self) -> ArrayView | None:
        """The array, where it is more than one core and all that work are in it."""
        is_whole = self.array is not None and not self.array.left_out
        return self.array if is_whole and len(self.working) > 1 else None


def all_known(values: Iterable[Known | None]) -> list[Known]:
    """Return the values; none of them if one is not known."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return known if len(known) == len(listed) else []


def mean_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values. None if one is not known."""
    known = all_known(values)
    return sum(known) / len(known) if known else None
