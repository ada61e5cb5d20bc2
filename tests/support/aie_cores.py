"""Traces of one core for tests of what is made of them: marks of calls in stream order, and spans of other events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.table.tiles import TileTrace, TileTraceSet
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.cycles import activity
from opscope.npu.analysis.kinds import CoreCalls, find_kinds
from opscope.npu.analysis.specification import RunSpecification, run_specification
from opscope.npu.analysis.tiles import Examined, TilesTerms, analyse_tiles
from opscope.npu.analysis.tiles_result import TilesSource
from opscope.npu.readers.json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opscope.npu.analysis.tiles_result import AlignAt

MARKS = ("INSTR_EVENT_0", "INSTR_EVENT_1")


def core(marks: str = "", spans: Mapping[str, Iterable[tuple[int, int]]] | None = None) -> TileTrace:
    """The core of tile 2,4.

    Args:
        marks: such as ``0@100 1@180``: INSTR_EVENT_0 in cycle 100, INSTR_EVENT_1 in cycle 180; this is stream order.
        spans: cycles in which other events are active, from the first up to and without the second.
    """
    pairs = [mark.split("@") for mark in marks.split()]
    return core_of([(int(slot), int(time)) for slot, time in pairs], spans or {})


def core_of(
    marks: Iterable[tuple[int, int]],
    spans: Mapping[str, Iterable[tuple[int, int]]],
    events: Iterable[str] = MARKS,
) -> TileTrace:
    """The same; marks as slot and cycle, and these events in the first slots."""
    names = [*events, *spans]
    tile = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "core_trace for tile2,4"}}
    slots = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(names)
    ]
    times = [(slot, time, time + 1) for slot, time in marks]
    times += [(names.index(name), *span) for name, own in spans.items() for span in own]
    listed = [event(names[tid], tid, *cycles) for tid, *cycles in times]
    padding = event("NONE", 7, 0, 1)  # a trace without any event is none
    records = [tile, *slots, *(record for pair in [*listed, padding] for record in pair)]
    return read_json(json.dumps(records).encode(), Path("trace.json")).cores[0]


CALLS = {"m": (100, 64), "z": (20, 0), "e": (60, 16)}
"""Cycles, and vector cycles at their begin, of a kernel, a zero-fill and a smaller kernel."""


def sequence(text: str, *, without: Iterable[str] = ()) -> TileTrace:
    """A core that makes calls one after the other, 10 cycles apart of which it waits 4 for a lock.

    Args:
        text: a letter of ``CALLS`` for each call; at a bar the core waits 2,000 cycles for a lock.
        without: events that were not traced.
    """
    marks, spans, now = [], {"INSTR_VECTOR": [], "LOCK_STALL": []}, 1
    for letter in text.replace(" ", ""):
        if letter == "|":
            spans["LOCK_STALL"].append((now, now + 2000))
            now += 2000
            continue
        duration, vector = CALLS[letter]
        spans["LOCK_STALL"].append((now + 3, now + 7))
        now += 10
        spans["INSTR_VECTOR"] += [(now, now + vector)] if vector else []
        marks += [(0, now), (1, now + duration)]
        now += duration
    return core_of(marks, {name: own for name, own in spans.items() if name not in without})


def event(name: str, tid: int, start: int, end: int) -> list[dict]:
    """A begin and an end."""
    return [
        {"name": name, "ts": ts, "ph": ph, "pid": 0, "tid": tid, "args": {}} for ts, ph in ((start, "B"), (end, "E"))
    ]


def calls_of(tile: TileTrace, said: RunSpecification | None = None) -> CoreCalls:
    """Return the calls of a core, and their kinds."""
    pairing, active = pair_calls(tile), activity(tile)
    return CoreCalls(tile, pairing, active, find_kinds(tile, pairing.calls, active, said or run_specification()))


SOURCE = TilesSource("trace.json", "aie-json", "0" * 64, "cycles", 1, complete=True)


def analysed(
    *tiles: TileTrace, said: RunSpecification | None = None, measured: int | None = None, align: AlignAt = "auto"
) -> Examined:
    """Return what the room says of these trace units together."""
    terms = TilesTerms(said or run_specification(), measured=measured, align=align)
    return analyse_tiles(TileTraceSet(tiles, "aie-json"), SOURCE, terms)
