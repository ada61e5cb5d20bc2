"""Which units a trace can be of, what a unit without times says, and time that a writer of JSON may have lost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.table.tiles import TileTrace, TraceMode, Unit
from opscope.core.units import counted_text
from opscope.npu.analysis.calls import END, START, CallCounts, unnamed
from opscope.npu.analysis.cycles import cover
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.tiles_result import AddressRow, SlotRow
from opscope.npu.devices import AieDevice, aie_devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.tiles import TileTraceSet

_SHOWN = 3
_SYNC_CYCLES = 1 << 18
"""Cycles of an Event_Sync. Writers of JSON dropped it before Xilinx/mlir-aie pull request 3668, of September 2026."""
_LONG_GAP = _SYNC_CYCLES // 16
"""A gap without events from which lost multiples are worth a warning: one in sixteen would be shorter."""
_FIRST_CORE_ROW = {Unit.SHIM: 0, Unit.MEMTILE: 1, Unit.MEM: 2, Unit.CORE: 2}


def existing_tiles(tiles: Sequence[TileTrace], device: AieDevice | None) -> tuple[list[TileTrace], list[TileTrace]]:
    """Divide units into those that a device has and those that it has not.

    Without a device all known ones count. If none of them has any of the units, only what no AI Engine has is left out.
    """
    devices = (device,) if device else aie_devices().devices
    real = [tile for tile in tiles if any(_has_unit(known, tile) for known in devices)]
    if device is None and not real:
        real = [tile for tile in tiles if (tile.row == 0) is (tile.unit is Unit.SHIM)]
    known_ids = set(map(id, real))
    return real, [tile for tile in tiles if id(tile) not in known_ids]


def _has_unit(device: AieDevice, tile: TileTrace) -> bool:
    first = _FIRST_CORE_ROW[tile.unit]
    last = first + device.core_rows - 1 if tile.unit in {Unit.CORE, Unit.MEM} else first
    return first <= tile.row <= last and tile.column < device.array_columns


def impossible_findings(left_out: Sequence[TileTrace], device: AieDevice | None) -> Iterator[Message]:
    """Report the units that were left out because the device has no such tile."""
    if not left_out:
        return
    names = ", ".join(f"{tile.unit.value} at column {tile.column}, row {tile.row}" for tile in left_out[:_SHOWN])
    more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    owner = device.name if device else "no known device"
    events = sum(tile.events for tile in left_out)
    yield tile_finding(
        "impossible_tiles",
        Severity.MEDIUM,
        title=(
            f"{counted_text(len(left_out), 'unit')} left out: {owner} "
            f"{'does not have' if device else 'has'} such a tile"
        ),
        evidence=f"{names}{more}; {counted_text(events, 'event', ',')} of them",
        where="file",
        step="check --arch and --hwid; in raw words, data before the trace look like packets: give the trace alone",
    )


def counted_calls(tile: TileTrace) -> CallCounts:
    """Count the calls of a unit that records addresses: starts that are followed by an end before another start."""
    marks = {slot.number: slot.name for slot in tile.slots if slot.name in {START, END}}
    slots = [] if tile.addressed is None else tile.addressed.slot.tolist()
    order = [marks[slot] for slot in slots if slot in marks]
    paired = sum(first == START and second == END for first, second in pairwise(order))
    return CallCounts(paired, len(order) - 2 * paired, 0)


def slot_rows(tile: TileTrace) -> list[SlotRow]:
    """Return what each slot of a unit recorded."""
    if tile.addressed is None:
        return [
            SlotRow(slot.number, slot.name, len(slot.spans.start), int((slot.spans.end - slot.spans.start).sum()))
            for slot in tile.slots
        ]
    rows = []
    for slot in tile.slots:
        addresses_found, times = np.unique(
            tile.addressed.address[tile.addressed.slot == slot.number], return_counts=True
        )
        addresses = tuple(AddressRow(*pair) for pair in zip(addresses_found.tolist(), times.tolist(), strict=True))
        rows.append(SlotRow(slot.number, slot.name, int(times.sum()), 0, addresses))
    return rows


def mode_findings(tile: TileTrace) -> Iterator[Message]:
    """Report that a unit records no times, and what it holds."""
    if tile.mode is TraceMode.EVENT_TIME:
        return
    mode = tile.mode.value.upper()
    evidence = "opscope does not read this mode"
    if tile.mode is TraceMode.EVENT_PC:
        calls = f"{counted_text(counted_calls(tile).paired, 'call', ',')} by the order of events"
        calls = "calls are unknown without --slots" if unnamed(tile) else calls
        events = ", ".join(f"{row.event} {row.spans:,} times" for row in slot_rows(tile) if row.spans)
        evidence = f"{calls}; {events}"
    yield tile_finding(
        "trace_mode",
        Severity.HIGH,
        title=f"traced in {mode} mode: it has no times, so there are no cycles, stalls and rates",
        evidence=evidence,
        where=place(tile, f"its {tile.unit.value} trace"),
        step="trace in EVENT_TIME mode for times",
    )


def lost_time_findings(traces: TileTraceSet) -> Iterator[Message]:
    """Report gaps in JSON from which multiples of 2^18 cycles may have been dropped.

    A trace with a longer gap was written by a tool that keeps them. Stretches in which an event is active are not
    concerned, since they are counted cycle by cycle.
    """
    if traces.format != "aie-json":
        return
    gaps = [gap for tile in traces.tiles if tile.spans for gap in _idle_gaps(tile)]
    long = [gap for gap in gaps if gap[1] >= _LONG_GAP]
    if not long or max(gap[1] for gap in long) >= _SYNC_CYCLES:
        return
    at, cycles = max(long, key=lambda gap: gap[1])
    yield tile_finding(
        "time_may_be_lost",
        Severity.MEDIUM,
        title=f"{counted_text(len(long), 'gap')} without events may be longer by multiples of {_SYNC_CYCLES:,} cycles",
        evidence=f"writers of such JSON before September 2026 dropped them; the longest is {cycles:,} at cycle {at:,}",
        where="file",
        step="analyse the raw trace words instead: opscope aie WORDS --slots NAME,NAME,...",
    )


def _idle_gaps(tile: TileTrace) -> Iterator[tuple[int, int]]:
    """Return the start and length of each stretch between events of a unit in which none is active."""
    used = [slot.spans for slot in tile.slots if len(slot.spans.start)]
    active = cover(*(np.concatenate([getattr(spans, edge) for spans in used]) for edge in ("start", "end")))
    lengths = active.start[1:] - active.end[:-1]
    for at in np.flatnonzero(lengths >= _LONG_GAP).tolist():
        yield int(active.end[at]), int(lengths[at])
