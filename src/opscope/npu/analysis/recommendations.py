"""What to do about what holds a core back: its streams, its kernel, its memory banks, its neighbours, or the DMAs.

A remedy for a core says how much there is to gain at most: the period that would be left if what it is about took no
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import rate_text, ratio_text, share_text
from opscope.npu.analysis.bound import CALL, NOTHING_TRACED
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.array import ArrayView
    from opscope.npu.analysis.bound import TileBound
    from opscope.npu.analysis.cycles import CycleAccount
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.analysis.rates import MacRate

LARGE_GAIN = 1.2
"""A remedy that could make calls follow each other so many times as fast matters much."""
MEMORY_STALLS = 0.05
"""Share of the cycles in calls from which stalls of the data memory are worth a look."""
SCALAR = 0.2
"""Share of the cycles in calls without vector instruction or stall from which the kernel's code is worth a look."""
WEAK_VECTOR = 0.6
"""Share of the peak below which a cycle with a vector instruction does little."""
_REUSE = {
    "A": "use each tile of A for more work (a larger n), or keep it in the core while B changes",
    "B": "use each tile of B for more work (a larger m), or keep it in the core while A changes",
    "C": "write C less often or narrower: sum up more of K in the core, or convert before it is sent",
}


BEHIND = 0.05
"""How much longer than the others' the iterations of the slowest core must be for it to be worth a look."""
WAITING = 0.1
"""Share of a unit's trace from which waiting of a DMA is worth a look."""
_WAITS = {
    "STALLED_LOCK": ("a lock", "its buffers are full or empty: look at the core or DMA on their other side"),
    "STREAM_STARVATION": ("data from its stream", "what sends to it is slower: follow the stream to its source"),
    "STREAM_BACKPRESSURE": ("its stream to take data", "what receives from it is slower: follow the stream to its end"),
    "MEMORY_STARVATION": ("data from memory", "the memory is slower: spread buffers over banks, or over memory tiles"),
    "MEMORY_BACKPRESSURE": ("memory to take data", "the memory is slower: spread buffers over banks, or memory tiles"),
}
"""Ends of the names of a DMA's waiting events: what it waits for, and what to do."""


class Seen(NamedTuple):
    """What is known of a core when it is asked what to do."""

    tile: TileTrace
    work: MacCalls
    account: CycleAccount
    rate: MacRate
    bound: TileBound


def recommendations(seen: Seen) -> tuple[Message, ...]:
    """What to do, as findings; none where nothing that was traced holds the core back."""
    return (*_no_vector(seen), *_stream(seen), *_memory(seen), *_scalar(seen), *_vector(seen))


def _no_vector(seen: Seen) -> Iterator[Message]:
    """That the kernel is scalar."""
    split = seen.account.in_call
    if not split.total or "INSTR_VECTOR" in seen.account.missing:
        return
    if split.vector or seen.account.between_calls.vector:
        return
    title = "no vector instruction in any call: the kernel is scalar"
    evidence = f"INSTR_VECTOR was traced, and never active in {split.total:,} cycles of calls"
    step = "use the kernel's vectorised form, or check that the slot traces INSTR_VECTOR"
    yield tile_finding("no_vector_instructions", Severity.HIGH, title, evidence, place(seen.tile), step)


def _stream(seen: Seen) -> Iterator[Message]:
    """That the transfer of an operand takes longer than the call that uses it."""
    found = seen.bound
    if found.by in {None, CALL, NOTHING_TRACED} or found.call_cycles is None or found.measured_period_cycles is None:
        return
    paced = next((port for port in found.ports if port.name == found.port), None)
    if paced is None or paced.cycles_per_call is None:
        return
    others = [port.cycles_per_call or 0.0 for port in found.ports if port is not paced]
    left = max(found.call_cycles, *others) if others else found.call_cycles
    gain = found.measured_period_cycles / left
    title = f"the {paced.label if paced.operands else paced.name + ' stream'} sets the pace, not the kernel"
    evidence = (
        f"it needs {paced.cycles_per_call:,.0f} cycles for each call, the call takes {found.call_cycles:,.0f}; "
        f"without it a call could follow every {left:,.0f} cycles instead of {found.measured_period_cycles:,.0f}: "
        f"at most {ratio_text(gain)} as fast"
    )
    steps = [_REUSE[operand] for operand in paced.operands if operand in _REUSE]
    step = "; or ".join([*steps, "split it over two ports, or use a narrower type"])
    severity = Severity.HIGH if gain >= LARGE_GAIN else Severity.MEDIUM
    yield tile_finding("stream_sets_pace", severity, title, evidence, place(seen.tile), step)


def _memory(seen: Seen) -> Iterator[Message]:
    """That calls wait for the core's own data memory."""
    split = seen.account.in_call
    if not split.total or "MEMORY_STALL" in seen.account.missing:
        return
    share = split.memory_stall / split.total
    if share < MEMORY_STALLS:
        return
    title = f"calls wait for the data memory in {share_text(share)} of their cycles"
    evidence = f"{split.memory_stall:,} of {split.total:,} cycles in calls; {_worth(seen, split.memory_stall)}"
    step = (
        "put buffers that are read in the same cycle into different banks; trace CONFLICT_DM_BANK_0 to 7 of the memory"
    )
    yield tile_finding("memory_stalls", _kernel_severity(seen), title, evidence, place(seen.tile), step)


def _scalar(seen: Seen) -> Iterator[Message]:
    """That the kernel spends much time without vector instructions."""
    split = seen.account.in_call
    if not split.total or not split.vector or {"INSTR_VECTOR", "MEMORY_STALL"} & set(seen.account.missing):
        return
    share = split.other / split.total
    if share < SCALAR:
        return
    unseen = f" (not traced: {', '.join(seen.account.missing)})" if seen.account.missing else ""
    title = f"calls issue no vector instruction in {share_text(share)} of their cycles, and no stall is seen"
    evidence = f"{split.other:,} of {split.total:,} cycles in calls{unseen}; {_worth(seen, split.other)}"
    step = "look for scalar code, loop set-up and loops that are not pipelined in the kernel's listing"
    yield tile_finding("scalar_cycles", _kernel_severity(seen), title, evidence, place(seen.tile), step)


def _vector(seen: Seen) -> Iterator[Message]:
    """That a vector instruction does much less than the unit can."""
    each, peak = seen.rate.per_vector_cycle, seen.rate.peak
    if each is None or peak is None or each >= WEAK_VECTOR * peak:
        return
    title = f"a cycle with a vector instruction does {rate_text(each)} of {peak} MAC"
    evidence = f"{share_text(each / peak)} of the peak while it is busy: other instructions, or an emulated type"
    step = "use the shape of matrix product that the type has at full rate, and convert data outside of the inner loop"
    yield tile_finding("weak_vector_cycles", _kernel_severity(seen), title, evidence, place(seen.tile), step)


def _worth(seen: Seen, cycles: int) -> str:
    """What removing cycles from the calls would bring."""
    if seen.bound.by == CALL:
        left = seen.account.window_cycles - cycles
        return f"at most {ratio_text(seen.account.window_cycles / left)} as fast without them" if left > 0 else ""
    return "no gain while something else sets the pace"


def _kernel_severity(seen: Seen) -> Severity:
    """What is in the call matters when the call sets the pace."""
    return Severity.MEDIUM if seen.bound.by == CALL else Severity.INFO


def array_recommendations(view: ArrayView) -> tuple[Message, ...]:
    """What to do about a core that the others wait for."""
    late = view.slowest
    if late is None or late.excess_cycles < BEHIND * late.others_cycles:
        return ()
    share = late.excess_cycles / late.others_cycles
    title = f"tile {late.tile} takes {share_text(share)} longer for an iteration than the others"
    evidence = f"{late.median_cycles:,.0f} cycles against {late.others_cycles:,.0f}: {late.why}"
    step = "give it less work, or find out what feeds and empties it differently from its neighbours"
    return (tile_finding("slowest_tile", Severity.MEDIUM, title, evidence, f"tile {late.tile}", step),)


def unit_recommendations(tile: TileTrace) -> Iterator[Message]:
    """What to do about DMAs of a unit that wait for much of its trace."""
    for slot in tile.slots:
        ending = next((end for end in _WAITS if slot.name.startswith("DMA_") and slot.name.endswith(end)), None)
        cycles = int((slot.spans.end - slot.spans.start).sum())
        if ending is None or not cycles or cycles < WAITING * tile.last:
            continue
        what, step = _WAITS[ending]
        name = slot.name.removesuffix(f"_{ending}")
        title = f"{name} waits for {what} in {share_text(cycles / tile.last)} of the trace"
        evidence = f"{slot.name}: {cycles:,} of {tile.last:,} cycles"
        where = place(tile, f"its {tile.unit.value} trace")
        yield tile_finding("dma_waits", Severity.INFO, title, evidence, where, step)
