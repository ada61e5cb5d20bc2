"""The rules of the traces of an NPU, in the order in which an analysis comes to them.

They are told while the trace is analysed, so a rule is a name here and a message there; tests hold both together. What
a reader noticed (``opscope.npu.readers``) is a finding, too, under the code of its warning.
"""

from __future__ import annotations

from opscope.analysis.findings.message import Severity
from opscope.analysis.findings.rule import Rule
from opscope.npu.analysis.array import APART, APART_MUCH
from opscope.npu.analysis.damage import JUMP
from opscope.npu.analysis.recommendations import BEHIND, CALL_STALLS, LARGE_GAIN, MEMORY_STALLS, SCALAR, WEAK_VECTOR
from opscope.npu.analysis.waits import ONLY_WAITS, WAITING

_HIGH, _MEDIUM, _INFO = (Severity.HIGH,), (Severity.MEDIUM,), (Severity.INFO,)
_BY_GAIN = (Severity.HIGH, Severity.MEDIUM)
_BY_PLACE = (Severity.MEDIUM, Severity.INFO)
_BY_STALL = (Severity.HIGH, Severity.MEDIUM, Severity.INFO)
_STALLS = {"CALL_STALLS": CALL_STALLS, "LARGE_GAIN": LARGE_GAIN}

RULES = (
    Rule(
        "core_only_waits",
        "A core that does nothing but wait in its trace, and makes no call.",
        _HIGH,
        {"ONLY_WAITS": ONLY_WAITS},
    ),
    Rule("calls_not_traced", "INSTR_EVENT_0 or INSTR_EVENT_1 was not traced, so that there are no calls.", _HIGH),
    Rule("calls_none", "Starts of calls, none of which has an end.", _HIGH),
    Rule("call_end_missing", "A start of a call without an end.", _MEDIUM),
    Rule("call_start_missing", "An end of a call without a start.", _MEDIUM),
    Rule("call_start_repeated", "A start of a call that was recorded twice.", _MEDIUM),
    Rule("call_end_repeated", "An end of a call that was recorded twice.", _MEDIUM),
    Rule("packets_lost", "Packets of a tile that were lost, repeated or swapped.", _HIGH),
    Rule("calls_missing_at_start", "A first iteration that lacks calls.", _MEDIUM),
    Rule("time_jumps", "A stretch without an event, much longer than any other.", _MEDIUM, {"JUMP": JUMP}),
    Rule("call_unlike_others", "A call with vector cycles, or a wait for a lock, that no other has.", _MEDIUM),
    Rule("trace_ends_in_call", "A trace that ends within a call.", _INFO),
    Rule("trace_begins_in_call", "A trace that begins within a call.", _INFO),
    Rule("call_ends_before_start", "A call that ends before it starts.", _MEDIUM),
    Rule("call_before_earlier_one", "A call that lies before one that the trace has earlier.", _MEDIUM),
    Rule("call_event_held", "An event of a call that lasts longer than a cycle.", _INFO),
    Rule("call_event_repeated", "An event of a call that has more than one slot.", _INFO),
    Rule("call_end_meets_start", "Calls that end in the cycle in which the next one starts.", _INFO),
    Rule("call_without_cycles", "Calls that start and end in the same cycle.", _MEDIUM),
    Rule("kinds_without_vector", "Kinds of calls that are told by durations alone.", _INFO),
    Rule("vector_cycles_lacking", "Calls that lack vector cycles which others of their kind have.", _INFO),
    Rule("several_multiplying_kinds", "Several kinds of calls that may be the product.", _INFO),
    Rule("iterations_unexpected", "Iterations that are more or fewer than expected.", _MEDIUM),
    Rule("iteration_partial", "An iteration of which calls are missing.", _BY_PLACE),
    Rule("tiling_against_kinds", "A tiling that does not fit the sequence of kinds of calls.", _MEDIUM),
    Rule("tiling_against_stalls", "Long waits for a lock within iterations of the tiling.", _MEDIUM),
    Rule("cycle_events_missing", "Events that were not traced, whose cycles are counted as other.", _INFO),
    Rule("cycles_claimed_twice", "Cycles that two slots claim.", _MEDIUM),
    Rule("vector_between_calls", "Vector instructions between calls.", _MEDIUM),
    Rule("above_peak", "A rate above the peak of the device.", _HIGH),
    Rule("more_calls_than_needed", "More calls than the product needs.", _INFO),
    Rule("other_type", "A rate that fits another type of operands than was given.", _MEDIUM),
    Rule("period_not_explained", "A period of calls that neither the call nor a stream explains.", _MEDIUM),
    Rule("trace_cut", "A trace that ends before the work does.", _MEDIUM),
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
        "Vector instructions that do much less than the unit can.",
        _BY_PLACE,
        {"WEAK_VECTOR": WEAK_VECTOR},
    ),
    Rule("cores_do_not_match", "Cores in the trace that are not those that were given.", _BY_PLACE),
    Rule("slowest_tile", "A core whose iterations take longer than those of the others.", _MEDIUM, {"BEHIND": BEHIND}),
    Rule(
        "cores_start_apart",
        "Cores that start an iteration at different times.",
        _BY_PLACE,
        {"APART": APART, "APART_MUCH": APART_MUCH},
    ),
    Rule("core_left_out", "A core whose times are not sure, left out of the figures of all cores.", _MEDIUM),
    Rule("dma_waits", "A DMA that waits.", _BY_PLACE, {"WAITING": WAITING}),
    Rule("cost_model_contradiction", "Numbers of a cost model that contradict each other.", _MEDIUM),
    Rule("cost_model_other_iteration", "A cost model whose iteration is not the one that was traced.", _MEDIUM),
    Rule("cores_not_given", "A product of which nothing says how many cores share it.", _INFO),
    Rule("sizes_do_not_divide", "Sizes of the product that do not divide into tiles.", _MEDIUM),
    Rule("tile_exceeds_memory", "Tiles that do not fit the memory of a core.", _HIGH),
    Rule("no_peak", "A peak that the table of the device does not have.", _INFO),
    Rule("clock_is_no_level", "A clock that the driver of the device does not set.", _INFO),
)
