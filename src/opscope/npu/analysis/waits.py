"""Who waits for whom: cores that do nothing else, and DMAs, in the order in which a wait spreads.

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
from opscope.npu.analysis.ports import PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.core.table.tiles import SlotTrace, TileTrace

WAITING = 0.1
"""Share of a unit's trace from which waiting of a DMA is worth a look."""
_STAGES = {
    (Unit.SHIM, "MM2S"): (0, 0),
    (Unit.MEMTILE, "S2MM"): (1, 6),
    (Unit.MEMTILE, "MM2S"): (2, 7),
    (Unit.MEM, "S2MM"): (3, 3),
    (Unit.MEM, "MM2S"): (5, 5),
    (Unit.SHIM, "S2MM"): (8, 8),
}
"""Place of each DMA in the flow of data; a memory tile stands before the cores (which are 4) or behind them."""
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


class DmaWait(NamedTuple):
    """A DMA that waits."""

    tile: TileTrace  # trace unit that it belongs to
    channel: str  # such as `DMA_MM2S_0`
    direction: str  # `MM2S`, from memory to a stream, or `S2MM`
    kind: str  # the rest of its event's name, such as `STALLED_LOCK`
    cycles: int  # in which it waits
    stage: int = 0  # on the way of the wait: waits of the same sort at lower stages may be its cause
    placed: bool = True  # whether it is known on which side of the cores it stands

    @property
    def share(self) -> float:
        """Part of its unit's trace."""
        return self.cycles / self.tile.last

    @property
    def starved(self) -> bool:
        """Return whether it lacks data, and not room."""
        return (self.direction, self.kind) in _STARVED

    @property
    def waits(self) -> str:
        """Name of the waiting DMA, and what it waits for."""
        return f"{self.channel} of {_UNITS[self.tile.unit]} {self.tile.tile} waits for {_FOR[self.kind]}"


def dma_waits(tiles: Iterable[TileTrace]) -> tuple[DmaWait, ...]:
    """DMAs that wait in much of their trace: those that lack data, then those without room; causes before symptoms."""
    waits = [wait for tile in tiles for slot in tile.slots if (wait := _traced_wait(tile, slot)) and wait.cycles]
    long = [wait for wait in waits if wait.share >= WAITING]
    starved, blocked = ([wait for wait in long if wait.starved is side] for side in (True, False))
    return (*_from_cause(starved, 1), *_from_cause(blocked, -1))


def _traced_wait(tile: TileTrace, slot: SlotTrace) -> DmaWait | None:
    matched = _DMA.fullmatch(slot.name) if tile.unit in _UNITS else None
    if matched is None:
        return None
    return DmaWait(tile, matched[1], matched[2], matched[3], int((slot.spans.end - slot.spans.start).sum()))


def _from_cause(waits: Iterable[DmaWait], way: int) -> list[DmaWait]:
    """Sort waits as they spread: with the flow of data (1), or against it (-1).

    A trace does not tell on which side of the cores a memory tile stands. Waits of the other units do when only one
    side has any; else it stands where the wait begins.
    """
    listed = list(waits)
    sides = {way * (_stage_of(wait, 0) - _CORES) < 0 for wait in listed if wait.tile.unit is not Unit.MEMTILE}
    begins = sides != {False}
    place_of = (0 if begins else 1) if way > 0 else (1 if begins else 0)
    staged = [wait._replace(stage=way * _stage_of(wait, place_of), placed=bool(sides)) for wait in listed]
    return sorted(staged, key=lambda wait: (wait.stage, wait.kind, wait.channel))


def _stage_of(wait: DmaWait, side: int) -> int:
    return _STAGES[wait.tile.unit, wait.direction][side]


def wait_findings(tiles: Sequence[TileTrace], *, cores_wait: bool) -> Iterator[Message]:
    """DMAs that wait, causes before symptoms, and what to do about each."""
    waits = dma_waits(tiles)
    for wait in waits:
        event = f"{wait.channel}_{wait.kind}"
        severity = Severity.MEDIUM if cores_wait and wait.kind.startswith("MEMORY_") else Severity.INFO
        message = tile_finding(
            "dma_waits",
            severity,
            title=f"{wait.channel} waits for {_FOR[wait.kind]} in {share_text(wait.share)} of the trace",
            evidence=f"{event}: {wait.cycles:,} of {wait.tile.last:,} cycles",
            where=place(wait.tile, f"its {wait.tile.unit.value} trace"),
            step=_wait_step(wait, waits, tiles),
        )
        yield message.about(subject=f"{wait.tile.unit.value} {event}")


def _wait_step(wait: DmaWait, waits: Sequence[DmaWait], tiles: Sequence[TileTrace]) -> str:
    """Mend the cause where the trace has one; else look where it has nothing yet."""
    if wait.kind.startswith("MEMORY_"):
        return _MEMORY_TILES if wait.tile.unit is not Unit.SHIM else _MEMORY
    reason = _reason_text(wait)
    before = [one for one in waits if one.starved is wait.starved and one.stage < wait.stage]
    cause = next((one for one in before if one.tile.column == wait.tile.column), before[0] if before else None)
    if cause is not None:
        return f"{reason}; upstream, {cause.waits}: fix that first"
    if wait.kind == "STALLED_LOCK" and wait.tile.unit is not Unit.MEMTILE:
        return reason
    unseen = [unit for unit in _UNITS if unit is not wait.tile.unit and not _traces_waits(unit, tiles)]
    if unseen:
        return f"{reason}: trace the DMAs of the {' and the '.join(_UNITS[unit] for unit in unseen)}"
    return f"{reason}; no traced DMA upstream waits: check how often transfers start, and their size"


def _reason_text(wait: DmaWait) -> str:
    if wait.kind != "STALLED_LOCK":
        return "its sender is slower" if wait.starved else "its receiver is slower"
    state, does = ("full", "fills") if wait.starved else ("empty", "empties")
    other = {Unit.MEM: "the core", Unit.SHIM: "the host's program"}.get(wait.tile.unit, f"the DMA that {does} them")
    return f"no buffer is {state}: {other} is slower"


_MEMORY = "external memory is slower: use longer bursts or more interface tiles, or keep data in the memory tiles"
_MEMORY_TILES = "the memory is slower: spread buffers across its banks"


def _traces_waits(unit: Unit, tiles: Iterable[TileTrace]) -> bool:
    return any(tile.unit is unit and any(_traced_wait(tile, slot) for slot in tile.slots) for tile in tiles)


_OPERANDS = 3
"""Streams of a core that computes a matrix product: A, B and C."""


def stall_step(stall: str, tile: TileTrace, tiles: Sequence[TileTrace]) -> str:
    """Return what to do about a core that waits, without asking for what the trace has."""
    if stall == "memory_stall":
        return f"the core waits for its data memory: {bank_step(tile, tiles)}"
    if stall == "cascade_stall":
        return _cascade_step(tile, tiles)
    what = "buffers" if stall == "lock_stall" else "a stream"
    near = [one for one in tiles if one.unit is not Unit.MEM or one.tile == tile.tile]
    before = [wait for wait in dma_waits(near) if wait.stage < (_CORES if wait.starved else -_CORES)]
    waits = sorted(before, key=lambda wait: wait.tile.column != tile.column)
    cause = next((wait for wait in waits if wait.placed), None)
    if cause is not None:
        return f"the core waits for {what}; upstream, {cause.waits}: fix that first"
    ports = sum(slot.name.startswith(PORT) for slot in tile.slots)
    asked = [
        *(["the ports of all operands"] if ports < _OPERANDS else []),
        *(["the DMAs of the memory tile behind them"] if not _traces_waits(Unit.MEMTILE, tiles) else []),
        *(["the DMAs of the interface tile"] if not _traces_waits(Unit.SHIM, tiles) else []),
    ]
    if asked:
        return f"the core waits for {what}: trace {', and '.join(asked[:2])}"
    if waits:
        return f"the core waits for {what}, and {waits[0].waits}, upstream or downstream: follow its streams"
    return f"the core waits for {what}, but no traced DMA on the path does: check the order of its locks"


def _cascade_step(tile: TileTrace, tiles: Iterable[TileTrace]) -> str:
    beside = [
        one.tile
        for one in tiles
        if one.unit is Unit.CORE and abs(one.row - tile.row) + abs(one.column - tile.column) == 1
    ]
    if beside:
        return f"the core waits for its neighbour in the cascade: compare it with core {' and '.join(beside)}"
    return "the core waits for its neighbour in the cascade: trace that core as well"


_BANK = "CONFLICT_DM_BANK_"
_BANKS = 8


def bank_step(tile: TileTrace, tiles: Iterable[TileTrace]) -> str:
    """Return which memory banks to look at: those whose conflicts were traced, else which to trace."""
    module = [one for one in tiles if one.unit is Unit.MEM and one.tile == tile.tile]
    slots = [slot for one in module for slot in one.slots if slot.name.startswith(_BANK)]
    if not slots:
        return f"trace {_BANK}0 to {_BANKS - 1} of its memory module"
    cycles = {slot.name: int((slot.spans.end - slot.spans.start).sum()) for slot in slots}
    worst = max(cycles, key=lambda name: cycles[name])
    if cycles[worst]:
        return f"{worst} is active in {cycles[worst]:,} cycles, the most of the traced banks: move one of its buffers"
    rest = [str(bank) for bank in range(_BANKS) if f"{_BANK}{bank}" not in cycles]
    none = "the traced banks have no conflicts"
    return f"{none}: trace {_BANK}{', '.join(rest)}" if rest else f"{none}: check neighbours that use this memory"


ONLY_WAITS = 0.9
"""Share of its trace that a core without a call must wait for it to do nothing else."""
WAITED_FOR = {
    "lock_stall": "a lock",
    "stream_stall": "a stream",
    "cascade_stall": "its neighbour in the cascade",
    "memory_stall": "its data memory",
}


class CoreWait(msgspec.Struct, frozen=True):
    """What a core without a call waits for in all of its trace, or nearly all.

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


def core_wait(tile: TileTrace, calls: int) -> CoreWait | None:
    """Return whether a core does nothing but wait; None when it does something else, or makes calls."""
    waited = [(slot, stall) for stall in STALLS if (slot := tile.slot(EVENTS[stall])) and len(slot.spans.start)]
    if calls or tile.unit is not Unit.CORE or not waited:
        return None
    slot, stall = max(waited, key=lambda own: int((own[0].spans.end - own[0].spans.start).sum()))
    cycles = int((slot.spans.end - slot.spans.start).sum())
    if tile.spans == len(slot.spans.start) == 1 and slot.spans.open[0]:
        return CoreWait(stall, cycles, None, _calls_of(tile))
    share = cycles / max(tile.last, 1)
    return CoreWait(stall, cycles, share, _calls_of(tile)) if share >= ONLY_WAITS else None


def _calls_of(tile: TileTrace) -> str:
    starts, ends = tile.slot(START), tile.slot(END)
    if starts is None or ends is None:
        return "not traced"
    return "begun" if len(starts.spans.start) else "none"


def waiting_core(tile: TileTrace, wait: CoreWait, tiles: Sequence[TileTrace]) -> Message:
    """Report a core that does nothing but wait."""
    slot = EVENTS[wait.stall]
    length = f"{wait.cycles:,} of {tile.last:,} cycles"
    message = tile_finding(
        "core_only_waits",
        Severity.HIGH,
        title=f"the core only waits for {WAITED_FOR[wait.stall]}: {_WITHOUT_CALLS[wait.calls]}",
        evidence=f"{slot}: {length if wait.share is not None else 'its only event, begun and not ended in the trace'}",
        where=place(tile),
        step=stall_step(wait.stall, tile, tiles),
    )
    return message.about(subject=slot)


_WITHOUT_CALLS = {
    "none": f"it made no call, although {START} and {END} were traced",
    "begun": "its call began but did not end",
    "not traced": f"unknown whether it made calls: {START} and {END} were not both traced",
}
