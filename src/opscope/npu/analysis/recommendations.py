"""Advice on a core that is held back: by its streams, its kernel, what its calls wait for, or its neighbours.

A remedy for a core says how much there is to gain at most: the period that would be left if what it is about took no
time.

The rules of the traces of an NPU stand in the order in which an analysis comes to them. They are told while the trace
is analysed, so a rule is a name here and a message there; tests hold both together. What a reader noticed
(``opscope.npu.readers``) is a finding, too, under the code of its warning.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Message, Severity
from opscope.analysis.findings.rule import Rule
from opscope.core.units import rate_text, share_text
from opscope.npu.analysis.array import APART, APART_MUCH, BEHIND
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.pace import gain_without
from opscope.npu.analysis.rates import per_vector_cycle
from opscope.npu.analysis.waits import ONLY_WAITS, WAITING, bank_step, stall_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.pace import Gain
    from opscope.npu.analysis.tiles_result import TracedCore


LARGE_GAIN = 1.2
"""A remedy that could make calls follow each other so many times as fast matters much."""
MEMORY_STALLS = 0.05
"""Share of the cycles in calls from which stalls of the data memory are worth a look."""
CALL_STALLS = 0.05
"""Share of the cycles in calls from which waits for locks, streams and the cascade are worth a look."""
SCALAR = 0.2
"""Share of the cycles in calls without vector instruction or stall from which the kernel's code is worth a look."""
WEAK_VECTOR = 0.6
"""Share of the peak below which a cycle with a vector instruction does little."""
_TWO_DIGITS = 0.1
"""Width of an interval from which on the second decimal of a gain says nothing."""
_REUSE = {
    "A": "reuse each tile of A more (a larger n), or keep it in the core while B changes",
    "B": "reuse each tile of B more (a larger m), or keep it in the core while A changes",
    "C": "write C less often or in a narrower type: accumulate more of K in the core, or convert before sending",
}
_IN_CALLS = {
    "lock_stall": ("lock_stalls", "a lock", "acquire buffers before event0() to see only the work"),
    "stream_stall": ("stream_stalls", "a stream", "let a DMA fill buffers while the kernel computes"),
    "cascade_stall": ("cascade_stalls", "the cascade", "balance the work of the cores in the cascade"),
    "memory_stall": (
        "memory_stalls",
        "the data memory",
        "place buffers that are read in the same cycle in different banks",
    ),
}
"""Rule of calls with such stalls, what they wait for, and what to do besides looking for the cause."""


def recommendations(core: TracedCore, around: Sequence[TileTrace] = ()) -> tuple[Message, ...]:
    """Return what to do about a core, as findings; none if nothing that was traced holds it back."""
    return (
        *_report_slow_stream(core),
        *_report_stalls_in_calls(core, around),
        *_report_vector_use(core),
    )


def _report_slow_stream(core: TracedCore) -> Iterator[Message]:
    bound = core.row.bound
    port = bound.limiting_port if bound else None
    if bound is None or port is None or port.cycles_per_call is None or bound.gain is None:
        return
    gain = bound.gain.at_most
    steps = [_REUSE[operand] for operand in port.operands if operand in _REUSE]
    severity = Severity.HIGH if gain >= LARGE_GAIN else Severity.MEDIUM
    message = tile_finding(
        "stream_sets_pace",
        severity,
        title=f"the {port.label if port.operands else port.name + ' stream'} limits the call rate, not the kernel",
        evidence=(
            f"it needs {port.cycles_per_call:,.0f} cycles per call, the call takes "
            f"{bound.call_cycles:,.0f}; without it "
            f"a call could follow every {bound.measured_period_cycles / gain:,.0f} cycles instead of "
            f"{bound.measured_period_cycles:,.0f}: {gain_text(bound.gain)}"
        ),
        where=place(core.tile),
        step="; or ".join([*steps, "split it across two ports, or use a narrower type"]),
    )
    yield message.about(subject=port.label, saving_cycles=_saved_cycles(core, bound.gain))


def _saved_cycles(core: TracedCore, gain: Gain | None) -> float | None:
    return None if gain is None else core.row.window_cycles * (1 - 1 / gain.at_most)


def gain_text(gain: Gain) -> str:
    """Return a gain in words, with the digits that its interval leaves it."""
    if gain.ci95 is None:
        return f"at most about {gain.at_most:.1f}x faster (n = {gain.n}, too few for an interval)"
    digits = 2 if gain.ci95[1] - gain.ci95[0] < _TWO_DIGITS else 1
    low, high = (f"{max(end, 1.0):.{digits}f}x" for end in gain.ci95)
    between = f"95 % interval {low} to {high}, " if low != high else ""
    return f"at most {gain.at_most:.{digits}f}x faster ({between}n = {gain.n})"


def _report_stalls_in_calls(core: TracedCore, around: Sequence[TileTrace]) -> Iterator[Message]:
    for stall in core.row.call_stalls:
        if stall.share < (MEMORY_STALLS if stall.stall == "memory_stall" else CALL_STALLS):
            continue
        rule, cause, remedy = _IN_CALLS[stall.stall]
        look = bank_step if stall.stall == "memory_stall" else partial(stall_step, stall.stall)
        severity = Severity.INFO  # it matters little while a stream is known to set the pace
        if stall.gain is not None:
            severity = Severity.HIGH if stall.gain.at_most >= LARGE_GAIN else Severity.MEDIUM
        message = tile_finding(
            rule,
            severity,
            title=f"calls wait for {cause} in {share_text(stall.share)} of their cycles",
            evidence=(
                f"{stall.cycles:,} of {core.row.cycles.in_call.total:,} cycles in calls; "
                f"{_gain_or_reason(core, stall.gain)}"
            ),
            where=place(core.tile),
            step=f"{remedy}; {look(core.tile, around)}",
        )
        yield message.about(saving_cycles=_saved_cycles(core, stall.gain))


def _report_vector_use(core: TracedCore) -> Iterator[Message]:
    """Report a kernel without vector instructions, with few of them, or with such that do little."""
    split, missing, bound = core.row.cycles.in_call, core.active.missing, core.row.bound
    severity = Severity.MEDIUM if bound and bound.is_call else Severity.INFO
    if not split.total or "INSTR_VECTOR" in missing:
        return
    if not core.row.cycles.of("vector"):
        yield tile_finding(
            "no_vector_instructions",
            Severity.HIGH,
            title="no vector instruction in any call: the kernel is scalar",
            evidence=f"INSTR_VECTOR was traced but never active in {split.total:,} cycles of calls",
            where=place(core.tile),
            step="use a vectorised kernel, or check that the slot traces INSTR_VECTOR",
        )
    if split.vector and "MEMORY_STALL" not in missing and split.other >= SCALAR * split.total:
        unseen = f" (not traced: {', '.join(missing)})" if missing else ""
        cycles = core.active.split(core.calls.start, core.calls.end)["other"]
        gain = gain_without(core, cycles, bound, core.ports)
        message = tile_finding(
            "scalar_cycles",
            severity,
            title=(
                f"calls issue no vector instructions in {share_text(split.other / split.total)} of their cycles, "
                "without a visible stall"
            ),
            evidence=f"{split.other:,} of {split.total:,} cycles in calls{unseen}; {_gain_or_reason(core, gain)}",
            where=place(core.tile),
            step="look for scalar code, loop set-up and unpipelined loops in the kernel's listing",
        )
        yield message.about(saving_cycles=_saved_cycles(core, gain))
    macs, peak = per_vector_cycle(core.row.macs, core.kinds), core.row.peak_mac_per_cycle
    if macs is not None and peak is not None and macs < WEAK_VECTOR * peak:
        yield tile_finding(
            "weak_vector_cycles",
            severity,
            title=f"a vector cycle does {rate_text(macs)} of {peak} MAC",
            evidence=f"{share_text(macs / peak)} of the peak while it is busy: other instructions, or an emulated type",
            where=place(core.tile),
            step="use the type's full-rate matrix product shape, and convert data outside the inner loop",
        )


def _gain_or_reason(core: TracedCore, gain: Gain | None) -> str:
    bound = core.row.bound
    if gain is None:
        port = bound.limiting_port if bound else None
        return f"no gain while the {port.label.removesuffix(' stream') if port else 'another'} stream is the limit"
    return f"{gain_text(gain)} without them{'' if bound and bound.is_call else '; the limit is unknown'}"


_HIGH, _MEDIUM, _INFO = (Severity.HIGH,), (Severity.MEDIUM,), (Severity.INFO,)
_BY_GAIN = (Severity.HIGH, Severity.MEDIUM)
_BY_PLACE = (Severity.MEDIUM, Severity.INFO)
_BY_STALL = (Severity.HIGH, Severity.MEDIUM, Severity.INFO)
_STALLS = {"CALL_STALLS": CALL_STALLS, "LARGE_GAIN": LARGE_GAIN}

RULES = (
    Rule(
        "core_only_waits",
        "A core that only waits and makes no call.",
        _HIGH,
        {"ONLY_WAITS": ONLY_WAITS},
    ),
    Rule("trace_mode", "A unit that was traced in a mode without times.", _HIGH),
    Rule("impossible_tiles", "Units at places where the device has none.", _MEDIUM),
    Rule("time_may_be_lost", "Gaps in JSON that may have lost multiples of 2^18 cycles.", _MEDIUM),
    Rule("calls_not_traced", "INSTR_EVENT_0 or INSTR_EVENT_1 was not traced, so there are no calls.", _HIGH),
    Rule("calls_none", "Call starts without any end.", _HIGH),
    Rule("call_end_missing", "A call start without an end.", _MEDIUM),
    Rule("call_start_missing", "A call end without a start.", _MEDIUM),
    Rule("call_start_repeated", "A call start that was recorded twice.", _BY_PLACE),
    Rule("call_end_repeated", "A call end that was recorded twice.", _BY_PLACE),
    Rule("packets_lost", "Packets of a tile that were lost, repeated or swapped.", _HIGH),
    Rule("calls_missing_at_start", "A first iteration that lacks calls.", _MEDIUM),
    Rule("trace_ends_in_call", "A trace that ends within a call.", _INFO),
    Rule("trace_begins_in_call", "A trace that begins within a call.", _INFO),
    Rule("call_ends_before_start", "A call that ends before it starts.", _MEDIUM),
    Rule("call_before_earlier_one", "A call that is earlier than its predecessor in the trace.", _MEDIUM),
    Rule("call_without_cycles", "Calls that start and end in the same cycle.", _MEDIUM),
    Rule("kinds_without_vector", "Kinds of calls that are distinguished by duration only.", _INFO),
    Rule("several_multiplying_kinds", "Several kinds of calls that may be the matrix product.", _INFO),
    Rule("iterations_unexpected", "More or fewer iterations than expected.", _MEDIUM),
    Rule("calls_lost", "An iteration that lost calls and is measured nevertheless.", _INFO),
    Rule("iteration_partial", "An iteration with missing calls.", _BY_PLACE),
    Rule("tiling_against_kinds", "A tiling that does not match the sequence of calls.", _MEDIUM),
    Rule("tiling_against_stalls", "Long lock stalls within iterations of the tiling.", _MEDIUM),
    Rule("cycle_events_missing", "Events that were not traced; their cycles count as other.", _INFO),
    Rule("cycles_claimed_twice", "Cycles that two slots claim.", _MEDIUM),
    Rule("vector_between_calls", "Vector instructions between calls.", _MEDIUM),
    Rule("above_peak", "A rate above the peak of the device.", _HIGH),
    Rule("more_calls_than_needed", "More calls than the product needs.", _INFO),
    Rule("other_type", "A rate that matches a different operand type.", _MEDIUM),
    Rule("period_not_explained", "A call period that neither the call nor a stream explains.", _MEDIUM),
    Rule("trace_cut", "A trace that ends before the work.", _MEDIUM),
    Rule("no_vector_instructions", "A kernel without vector instructions.", _HIGH),
    Rule(
        "stream_sets_pace",
        "A stream that takes longer than the call that uses it.",
        _BY_GAIN,
        {"LARGE_GAIN": LARGE_GAIN},
    ),
    Rule("lock_stalls", "Calls that wait for a lock.", _BY_STALL, _STALLS),
    Rule("stream_stalls", "Calls that wait for a stream.", _BY_STALL, _STALLS),
    Rule("cascade_stalls", "Calls that wait for the cascade.", _BY_STALL, _STALLS),
    Rule(
        "memory_stalls",
        "Calls that wait for the data memory.",
        _BY_STALL,
        {"MEMORY_STALLS": MEMORY_STALLS, "LARGE_GAIN": LARGE_GAIN},
    ),
    Rule("scalar_cycles", "Cycles in calls without a vector instruction or a stall.", _BY_PLACE, {"SCALAR": SCALAR}),
    Rule(
        "weak_vector_cycles",
        "Vector instructions far below the unit's peak.",
        _BY_PLACE,
        {"WEAK_VECTOR": WEAK_VECTOR},
    ),
    Rule("cores_do_not_match", "Traced cores that differ from the given ones.", _BY_PLACE),
    Rule("slowest_tile", "A core whose iterations take longer than the others'.", _MEDIUM, {"BEHIND": BEHIND}),
    Rule(
        "cores_start_apart",
        "Cores that start an iteration at different times.",
        _BY_PLACE,
        {"APART": APART, "APART_MUCH": APART_MUCH},
    ),
    Rule("core_left_out", "A core with unreliable times, excluded from the figures of all cores.", _MEDIUM),
    Rule("dma_waits", "A DMA that waits.", _BY_PLACE, {"WAITING": WAITING}),
    Rule("cores_not_given", "A product without the number of cores that share it.", _INFO),
    Rule("sizes_do_not_divide", "Product sizes that do not divide into tiles.", _MEDIUM),
    Rule("tile_exceeds_memory", "Tiles that do not fit the memory of a core.", _HIGH),
    Rule("no_peak", "A peak that the device table lacks.", _INFO),
    Rule("clock_is_no_level", "A clock that the device's driver does not set.", _INFO),
)
