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
        "A core that only waits and makes no call.",
        _HIGH,
        {"ONLY_WAITS": ONLY_WAITS},
    ),
    Rule("calls_not_traced", "INSTR_EVENT_0 or INSTR_EVENT_1 was not traced, so there are no calls.", _HIGH),
    Rule("calls_none", "Call starts without any end.", _HIGH),
    Rule("call_end_missing", "A call start without an end.", _MEDIUM),
    Rule("call_start_missing", "A call end without a start.", _MEDIUM),
    Rule("call_start_repeated", "A call start that was recorded twice.", _MEDIUM),
    Rule("call_end_repeated", "A call end that was recorded twice.", _MEDIUM),
    Rule("packets_lost", "Packets of a tile that were lost, repeated or swapped.", _HIGH),
    Rule("calls_missing_at_start", "A first iteration that lacks calls.", _MEDIUM),
    Rule("time_jumps", "A gap without events, much longer than any other.", _MEDIUM, {"JUMP": JUMP}),
    Rule("call_unlike_others", "A call with vector cycles or a lock stall that no other call has.", _MEDIUM),
    Rule("trace_ends_in_call", "A trace that ends within a call.", _INFO),
    Rule("trace_begins_in_call", "A trace that begins within a call.", _INFO),
    Rule("call_ends_before_start", "A call that ends before it starts.", _MEDIUM),
    Rule("call_before_earlier_one", "A call that is earlier than its predecessor in the trace.", _MEDIUM),
    Rule("call_event_held", "A call event that lasts longer than a cycle.", _INFO),
    Rule("call_event_repeated", "A call event that has more than one slot.", _INFO),
    Rule("call_end_meets_start", "Calls that end in the cycle where the next one starts.", _INFO),
    Rule("call_without_cycles", "Calls that start and end in the same cycle.", _MEDIUM),
    Rule("kinds_without_vector", "Kinds of calls that are distinguished by duration only.", _INFO),
    Rule("vector_cycles_lacking", "Calls that lack vector cycles of their kind.", _INFO),
    Rule("several_multiplying_kinds", "Several kinds of calls that may be the matrix product.", _INFO),
    Rule("iterations_unexpected", "More or fewer iterations than expected.", _MEDIUM),
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
    Rule("cost_model_contradiction", "Cost model numbers that contradict each other.", _MEDIUM),
    Rule("cost_model_other_iteration", "A cost model whose iteration differs from the traced one.", _MEDIUM),
    Rule("cores_not_given", "A product without the number of cores that share it.", _INFO),
    Rule("sizes_do_not_divide", "Product sizes that do not divide into tiles.", _MEDIUM),
    Rule("tile_exceeds_memory", "Tiles that do not fit the memory of a core.", _HIGH),
    Rule("no_peak", "A peak that the device table lacks.", _INFO),
    Rule("clock_is_no_level", "A clock that the device's driver does not set.", _INFO),
)
