"""Units that a trace can be of, those without times, and time that a writer of JSON may have lost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.table.tiles import TileTrace, TraceMode, Unit
from opscope.core.units import counted_text
from opscope.npu.analysis.calls import END, START, CallCounts, is_unnamed
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
_FIRST_ROW = {Unit.SHIM: 0, Unit.MEMTILE: 1, Unit.MEM: 2, Unit.CORE: 2}


def divide_existing(tiles: Sequence[TileTrace], device: AieDevice | None) -> tuple[list[TileTrace], list[TileTrace]]:
    """Divide units into those that a device has and those that it has not.

    Without a device all known ones count. If none of them has any of the units, only what no AI Engine has is left out.
    """
    devices = (device,) if device else aie_devices().devices
    exist = [any(_has_unit(known, tile) for known in devices) for tile in tiles]
    if device is None and not any(exist):
        exist = [(tile.row == 0) is (tile.unit is Unit.SHIM) for tile in tiles]
    real, left_out = (
        [tile for tile, does_exist in zip(tiles, exist, strict=True) if does_exist is is_existing]
        for is_existing in (True, False)
    )
    return real, left_out


def _has_unit(device: AieDevice, tile: TileTrace) -> bool:
    first = _FIRST_ROW[tile.unit]
    rows = device.core_rows if tile.unit in {Unit.CORE, Unit.MEM} else 1
    return first <= tile.row < first + rows and tile.column < device.array_columns


def impossible_findings(left_out: Sequence[TileTrace], device: AieDevice | None) -> Iterator[Message]:
    """Report the units that were left out because the device has no such tile."""
    if not left_out:
        return
    names = ", ".join(f"{tile.unit.value} at column {tile.column}, row {tile.row}" for tile in left_out[:_SHOWN])
    more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    owner = f"{device.name} does not have" if device else "no known device has"
    yield tile_finding(
        "impossible_tiles",
        Severity.MEDIUM,
        title=f"{counted_text(len(left_out), 'unit')} left out: {owner} such a tile",
        evidence=f"{names}{more}; {counted_text(sum(tile.events for tile in left_out), 'event', ',')} of them",
        where="file",
        step="check --arch and --hwid; in raw words, data before the trace look like packets: give the trace alone",
    )


def count_calls(tile: TileTrace) -> CallCounts:
    """Count the calls of a unit that records addresses: starts that are followed by an end before another start."""
    marks = {slot.number: slot.name for slot in tile.slots if slot.name in {START, END}}
    slots = [] if tile.addressed is None else tile.addressed.slot.tolist()
    order = [marks[slot] for slot in slots if slot in marks]
    paired = sum(marks == (START, END) for marks in pairwise(order))
    return CallCounts(paired, len(order) - 2 * paired, 0)


def slot_rows(tile: TileTrace) -> list[SlotRow]:
    """Return what each slot of a unit recorded."""
    if tile.addressed is None:
        return [SlotRow(slot.number, slot.name, len(slot.spans.start), slot.cycles) for slot in tile.slots]
    rows = []
    for slot in tile.slots:
        addresses, times = np.unique(tile.addressed.address[tile.addressed.slot == slot.number], return_counts=True)
        listed = tuple(AddressRow(*pair) for pair in zip(addresses.tolist(), times.tolist(), strict=True))
        rows.append(SlotRow(slot.number, slot.name, int(times.sum()), 0, listed))
    return rows


def mode_findings(tile: TileTrace) -> Iterator[Message]:
    """Report that a unit records no times, and what it holds."""
    if tile.mode is TraceMode.EVENT_TIME:
        return
    evidence = "opscope does not read this mode"
    if tile.mode is TraceMode.EVENT_PC:
        calls = f"{counted_text(count_calls(tile).paired, 'call', ',')} by the order of events"
        calls = "calls are unknown without --slots" if is_unnamed(tile) else calls
        evidence = f"{calls}; {', '.join(f'{row.event} {row.spans:,} times' for row in slot_rows(tile) if row.spans)}"
    yield tile_finding(
        "trace_mode",
        Severity.HIGH,
        title=f"traced in {tile.mode.value.upper()} mode: it has no times, so there are no cycles, stalls and rates",
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
    cycles, at = max(gaps, key=lambda gap: gap[0], default=(0, 0))
    if not 0 < cycles < _SYNC_CYCLES:
        return
    yield tile_finding(
        "time_may_be_lost",
        Severity.MEDIUM,
        title=f"{counted_text(len(gaps), 'gap')} without events may be longer by multiples of {_SYNC_CYCLES:,} cycles",
        evidence=f"writers of such JSON before September 2026 dropped them; the longest is {cycles:,} at cycle {at:,}",
        where="file",
        step="analyse the raw trace words instead: opscope aie WORDS --slots NAME,NAME,...",
    )


def _idle_gaps(tile: TileTrace) -> Iterator[tuple[int, int]]:
    """Return length and start of each long stretch between events of a unit in which none is active."""
    used = [slot.spans for slot in tile.slots if len(slot.spans.start)]
    active = cover(*(np.concatenate([getattr(spans, edge) for spans in used]) for edge in ("start", "end")))
    lengths = active.start[1:] - active.end[:-1]
    for at in np.flatnonzero(lengths >= _LONG_GAP).tolist():
        yield int(lengths[at]), int(active.end[at])
