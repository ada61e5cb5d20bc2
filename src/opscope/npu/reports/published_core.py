"""What the published tool's files of a core are made of: its calls as that tool sees them, and its iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.npu.analysis.calls import END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.tiles import TracedCore
    from opscope.npu.analysis.tiles_result import TileRow


class CoreIteration(NamedTuple):
    """An iteration of a core.

    Attributes:
        first: index of its first call.
        last: index of its last one.
        phase: ``warmup``, ``measured``, ``extra`` or ``partial``.
        macs: multiply-accumulates of its calls; None where that is not known.
    """

    first: int
    last: int
    phase: str
    macs: int | None


class CoreCalls(NamedTuple):
    """What the files say of one core is made of.

    Attributes:
        pid: of its process.
        tile: ``ROW,COL``.
        start: cycles in which INSTR_EVENT_0 begins, one a call.
        end: cycles in which INSTR_EVENT_1 ends, which is one after its begin.
        stall_start: beginnings of LOCK_STALL.
        stall_end: their ends.
        groups: iterations in order.
        note: what is to be said about their number; None: nothing.
    """

    pid: int
    tile: str
    start: Ints
    end: Ints
    stall_start: Ints
    stall_end: Ints
    groups: Sequence[CoreIteration]
    note: str | None


def core_calls(core: TracedCore, row: TileRow) -> CoreCalls:
    """What the files of a core are made of."""
    calls, stalls = core.pairing.calls, core.tile.slot("LOCK_STALL")
    none = np.empty(0, np.int64)
    return CoreCalls(
        pid=core.tile.pid,
        tile=core.tile.tile,
        start=calls.start,
        end=_seen_ends(core.tile, calls.end),
        stall_start=stalls.spans.start if stalls else none,
        stall_end=stalls.spans.end if stalls else none,
        groups=[CoreIteration(one.first_call, one.last_call, one.phase, one.macs) for one in row.iterations],
        note=_note(row),
    )


def _seen_ends(tile: TileTrace, begins: Ints) -> Ints:
    """Cycles in which the INSTR_EVENT_1 that begin then are over: where the published tool lets a call end."""
    spans = [slot.spans for slot in tile.slots if slot.name == END and len(slot.spans.start)]
    if not spans or not len(begins):
        return begins
    start, end = (np.concatenate([getattr(own, edge) for own in spans]) for edge in ("start", "end"))
    order = np.argsort(start, kind="stable")
    place = np.minimum(np.searchsorted(start[order], begins), len(order) - 1)
    found: Ints = np.where(start[order][place] == begins, end[order][place], begins + 1)
    return found


def _note(row: TileRow) -> str | None:
    """What is to be said about the number of iterations; None when it is the expected one, and nothing is partial."""
    found, expected = len(row.iterations), row.expected_iterations
    partial = sum(not one.complete for one in row.iterations)
    if not row.iterations:
        return f"No iterations: {row.iterations_reason}."
    said = []
    if expected is not None and found != expected:
        said.append(f"Detected {found} iterations but expected {expected}.")
    if partial:
        said.append(f"{partial} of {found} iterations lack calls, and are not measured.")
    return f"{' '.join(said)} Found by: {row.iterations_reason}." if said else None
