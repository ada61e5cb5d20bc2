"""Waits of units for each other: cores that do nothing else, and DMAs, in the order in which a wait spreads.

Data flow through an array in stages: the interface tile's MM2S reads memory, a memory tile takes and sends it, the
core's S2MM takes it, the core computes, its MM2S sends the result, a memory tile may gather it, and the interface
tile's S2MM writes it to memory. A lack of data spreads with the flow, a lack of room against it. So the first wait on
that way is the cause of the others, as far as the trace shows: which stream leads where is not in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.findings.message import Message, Severity
from opscope.core.table.tiles import Unit
from opscope.core.units import share_text
from opscope.npu.analysis.calls import END, START
from opscope.npu.analysis.cycles import EVENTS, STALLS
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.core.table.tiles import TileTrace

PORT = "PORT_RUNNING_"
"""How the events of ports that move data begin."""
WAITING = 0.1
"""Share of a unit's trace from which waiting of a DMA is worth a look."""
ONLY_WAITS = 0.9
"""Share of its trace that a core without a call must wait for it to do nothing else."""
_STAGES = {
    (Unit.SHIM, "MM2S"): (0, 0),
    (Unit.MEMTILE, "S2MM"): (1, 6),
    (Unit.MEMTILE, "MM2S"): (2, 7),
    (Unit.MEM, "S2MM"): (3, 3),
    (Unit.MEM, "MM2S"): (5, 5),
    (Unit.SHIM, "S2MM"): (8, 8),
}
"""Stage of each DMA in the flow of data; a memory tile stands before the cores (which are 4) or behind them."""
_CORES = 4
_STARVED = {("MM2S", "MEMORY_STARVATION"), ("MM2S", "STALLED_LOCK"), ("S2MM", "STREAM_STARVATION")}
"""Waits of a DMA that lacks data to send or to take; all others lack room for it."""
_FOR = {
    "STALLED_LOCK": "a lock",
    "STREAM_STARVATION": "data from its stream",
    "STREAM_BACKPRESSURE": "its stream to take data",
    "MEMORY_STARVATION": "data from memory",
    "MEMORY_BACKPRESSURE": "memory to take data",
}
_DMA = re.compile(rf"(DMA_(S2MM|MM2S)_\w+?)_({'|'.join(_FOR)})")
_UNITS = {Unit.SHIM: "interface tile", Unit.MEMTILE: "memory tile", Unit.MEM: "memory module"}
_OPERANDS = 3
"""Streams of a core that computes a matrix product: A, B and C."""
_BANK = "CONFLICT_DM_BANK_"
_BANKS = 8


class DmaWait(NamedTuple):
    """A DMA whose waiting was traced."""

    tile: TileTrace  # trace unit that it belongs to
    channel: str  # such as `DMA_MM2S_0`
    direction: str  # `MM2S`, from memory to a stream, or `S2MM`
    kind: str  # the rest of its event's name, such as `STALLED_LOCK`
    cycles: int  # in which it waits
    stage: int = 0  # on the way of the wait: waits of the same sort at lower stages may be its cause
    is_placed: bool = True  # whether it is known on which side of the cores it stands

    @property
    def is_starved(self) -> bool:
        """Return whether it lacks data, and not room."""
        return (self.direction, self.kind) in _STARVED

    @property
    def words(self) -> str:
        """Name of the waiting DMA, and what it waits for."""
        return f"{self.channel} of {_UNITS[self.tile.unit]} {self.tile.tile} waits for {_FOR[self.kind]}"


def _traced_waits(tiles: Iterable[TileTrace]) -> Iterator[DmaWait]:
    for tile in tiles:
        for slot in tile.slots:
            match = _DMA.fullmatch(slot.name) if tile.unit in _UNITS else None
            if match is not None:
                yield DmaWait(tile, match[1], match[2], match[3], slot.cycles)


def dma_waits(tiles: Iterable[TileTrace]) -> list[DmaWait]:
    """Return DMAs that wait in much of their trace: those that lack data, then those without room.

    Causes come before symptoms: with the flow of data, or against it. A trace does not tell on which side of the cores
    a memory tile stands. Waits of the other units do when only one side has any; else it stands where the wait begins.
    """
    long = [wait for wait in _traced_waits(tiles) if wait.cycles and wait.cycles / wait.tile.last >= WAITING]
    listed: list[DmaWait] = []
    for is_starved, way in ((True, 1), (False, -1)):
        waits = [(wait, _STAGES[wait.tile.unit, wait.direction]) for wait in long if wait.is_starved is is_starved]
        sides = {way * (stages[0] - _CORES) < 0 for wait, stages in waits if wait.tile.unit is not Unit.MEMTILE}
        side = 0 if (sides != {False}) is is_starved else 1
        staged = [wait._replace(stage=way * stages[side], is_placed=bool(sides)) for wait, stages in waits]
        listed += sorted(staged, key=lambda wait: (wait.stage, wait.kind, wait.channel))
    return listed


def wait_findings(tiles: Sequence[TileTrace], *, cores_wait: bool) -> Iterator[Message]:
    """Report DMAs that wait, causes before symptoms, and what to do about each."""
    waits = dma_waits(tiles)
    for wait in waits:
        event = f"{wait.channel}_{wait.kind}"
        severity = Severity.MEDIUM if cores_wait and wait.kind.startswith("MEMORY_") else Severity.INFO
        share = share_text(wait.cycles / wait.tile.last)
        message = tile_finding(
            "dma_waits",
            severity,
            title=f"{wait.channel} waits for {_FOR[wait.kind]} in {share} of the trace",
            evidence=f"{event}: {wait.cycles:,} of {wait.tile.last:,} cycles",
            where=place(wait.tile, f"its {wait.tile.unit.value} trace"),
            step=_wait_step(wait, waits, tiles),
        )
        yield message.about(subject=f"{wait.tile.unit.value} {event}")


def _wait_step(wait: DmaWait, waits: Sequence[DmaWait], tiles: Sequence[TileTrace]) -> str:
    """Return how to mend the cause where the trace has one, else where to look."""
    unit = wait.tile.unit
    if wait.kind.startswith("MEMORY_"):
        if unit is not Unit.SHIM:
            return "the memory is slower: spread buffers across its banks"
        return "external memory is slower: use longer bursts or more interface tiles, or keep data in the memory tiles"
    reason = "its sender is slower" if wait.is_starved else "its receiver is slower"
    if wait.kind == "STALLED_LOCK":
        state, does = ("full", "fills") if wait.is_starved else ("empty", "empties")
        slower_side = {Unit.MEM: "the core", Unit.SHIM: "the host's program"}.get(unit, f"the DMA that {does} them")
        reason = f"no buffer is {state}: {slower_side} is slower"
    before = [dma for dma in waits if dma.is_starved is wait.is_starved and dma.stage < wait.stage]
    cause = min(before, key=lambda dma: dma.tile.column != wait.tile.column, default=None)
    if cause is not None:
        return f"{reason}; upstream, {cause.words}: fix that first"
    if wait.kind == "STALLED_LOCK" and unit is not Unit.MEMTILE:
        return reason
    traced = {dma.tile.unit for dma in _traced_waits(tiles)}
    unseen = [name for other_unit, name in _UNITS.items() if other_unit is not unit and other_unit not in traced]
    if unseen:
        return f"{reason}: trace the DMAs of the {' and the '.join(unseen)}"
    return f"{reason}; no traced DMA upstream waits: check how often transfers start, and their size"


def stall_step(stall: str, tile: TileTrace, tiles: Sequence[TileTrace]) -> str:
    """Return what to do about a core that waits, without asking for what the trace has."""
    if stall == "memory_stall":
        return f"the core waits for its data memory: {bank_step(tile, tiles)}"
    if stall == "cascade_stall":
        beside = [
            neighbour.tile
            for neighbour in tiles
            if neighbour.unit is Unit.CORE and abs(neighbour.row - tile.row) + abs(neighbour.column - tile.column) == 1
        ]
        look = f"compare it with core {' and '.join(beside)}" if beside else "trace that core as well"
        return f"the core waits for its neighbour in the cascade: {look}"
    symptom = "the core waits for buffers" if stall == "lock_stall" else "the core waits for a stream"
    near = dma_waits(candidate for candidate in tiles if candidate.unit is not Unit.MEM or candidate.tile == tile.tile)
    waits = [wait for wait in near if wait.stage < (_CORES if wait.is_starved else -_CORES)]
    waits.sort(key=lambda wait: wait.tile.column != tile.column)
    cause = next((wait for wait in waits if wait.is_placed), None)
    if cause is not None:
        return f"{symptom}; upstream, {cause.words}: fix that first"
    traced = {wait.tile.unit for wait in _traced_waits(tiles)}
    missing = {
        "the ports of all operands": sum(slot.name.startswith(PORT) for slot in tile.slots) < _OPERANDS,
        "the DMAs of the memory tile behind them": Unit.MEMTILE not in traced,
        "the DMAs of the interface tile": Unit.SHIM not in traced,
    }
    missing_traces = [name for name, is_missing in missing.items() if is_missing]
    if missing_traces:
        return f"{symptom}: trace {', and '.join(missing_traces[:2])}"
    if waits:
        return f"{symptom}, and {waits[0].words}, upstream or downstream: follow its streams"
    return f"{symptom}, but no traced DMA on the path does: check the order of its locks"


def bank_step(tile: TileTrace, tiles: Iterable[TileTrace]) -> str:
    """Return which memory banks to look at: those whose conflicts were traced, else which to trace."""
    modules = [candidate for candidate in tiles if candidate.unit is Unit.MEM and candidate.tile == tile.tile]
    cycles = {slot.name: slot.cycles for module in modules for slot in module.slots if slot.name.startswith(_BANK)}
    if not cycles:
        return f"trace {_BANK}0 to {_BANKS - 1} of its memory module"
    worst = max(cycles, key=lambda name: cycles[name])
    if cycles[worst]:
        return f"{worst} is active in {cycles[worst]:,} cycles, the most of the traced banks: move one of its buffers"
    rest = [str(bank) for bank in range(_BANKS) if f"{_BANK}{bank}" not in cycles]
    look = f"trace {_BANK}{', '.join(rest)}" if rest else "check neighbours that use this memory"
    return f"the traced banks have no conflicts: {look}"


class CoreWait(msgspec.Struct, frozen=True):
    """Wait of a core without a call in all of its trace, or nearly all.

    Attributes:
        stall: category of its cycles, as in the account of cycles.
        cycles: in which it waits.
        share: of its trace; null where its own trace does not tell how long that is.
        calls: ``none`` in the trace, ``begun`` and never ended, or ``not traced``.
    """

    stall: str
    cycles: int
    share: float | None
    calls: str


def core_wait(tile: TileTrace) -> CoreWait | None:
    """Return what a core without a call waits for. None if it does something else."""
    waits = [(slot, stall) for stall in STALLS if (slot := tile.slot(EVENTS[stall])) and len(slot.spans.start)]
    if not waits:
        return None
    slot, stall = max(waits, key=lambda wait: wait[0].cycles)
    starts, ends = tile.slot(START), tile.slot(END)
    calls = "not traced"
    if starts is not None and ends is not None:
        calls = "begun" if len(starts.spans.start) else "none"
    if tile.spans == len(slot.spans.start) == 1 and slot.spans.open[0]:
        return CoreWait(stall, slot.cycles, None, calls)
    share = slot.cycles / max(tile.last, 1)
    return CoreWait(stall, slot.cycles, share, calls) if share >= ONLY_WAITS else None


def report_waiting_core(tile: TileTrace, wait: CoreWait, tiles: Sequence[TileTrace]) -> Message:
    """Report a core that does nothing but wait."""
    slot = EVENTS[wait.stall]
    cause = {
        "lock_stall": "a lock",
        "stream_stall": "a stream",
        "cascade_stall": "its neighbour in the cascade",
        "memory_stall": "its data memory",
    }[wait.stall]
    calls = {
        "none": f"it made no call, although {START} and {END} were traced",
        "begun": "its call began but did not end",
        "not traced": f"unknown whether it made calls: {START} and {END} were not both traced",
    }[wait.calls]
    length = "its only event, begun and not ended in the trace"
    if wait.share is not None:
        length = f"{wait.cycles:,} of {tile.last:,} cycles"
    message = tile_finding(
        "core_only_waits",
        Severity.HIGH,
        title=f"the core only waits for {cause}: {calls}",
        evidence=f"{slot}: {length}",
        where=place(tile),
        step=stall_step(wait.stall, tile, tiles),
    )
    return message.about(subject=slot)
