"""The account of a tile's cycles: each is counted once, in a call or between two."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_cores import core
from opscope.analysis.findings.message import Message
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.cycles import (
    EVENTS,
    Cycles,
    CycleSplit,
    account,
    activity,
    claimed_twice,
    cycle_findings,
)

MARKS = "0@100 1@200 0@300 1@400"


def accounted(tile: TileTrace) -> Cycles:
    """Of the calls of a tile; they are all cycles from the first start to the last end."""
    calls = pair_calls(tile).calls
    found = account(activity(tile), calls)
    assert found.window == (calls.end[-1] - calls.start[0] if len(calls) else 0)
    return found


def overlapping(tile: TileTrace) -> int:
    """Cycles of the window that more than one event claims."""
    return sum(claimed_twice(activity(tile), pair_calls(tile).calls).values())


def told(tile: TileTrace) -> list[Message]:
    """What limits the account."""
    return list(cycle_findings(tile, pair_calls(tile).calls, activity(tile), accounted(tile)))


def split(**cycles: int) -> CycleSplit:
    """These cycles, and none of the other categories."""
    return CycleSplit(**dict.fromkeys([*EVENTS, "other"], 0) | cycles)


def test_cycles_are_split_in_calls_and_between_them() -> None:
    """A stall across the end of a call is divided there; what lies outside the window does not count."""
    tile = core(
        MARKS,
        {
            "INSTR_VECTOR": [(110, 150), (310, 330), (500, 900)],
            "MEMORY_STALL": [(150, 155)],
            "STREAM_STALL": [(160, 170)],
            "CASCADE_STALL": [(340, 341)],
            "LOCK_STALL": [(1, 100), (190, 290), (395, 450)],
        },
    )
    found = accounted(tile)
    assert found.window == 300
    assert found.in_call == split(vector=60, memory_stall=5, stream_stall=10, cascade_stall=1, lock_stall=15, other=109)
    assert found.between_calls == split(lock_stall=90, other=10)
    assert (overlapping(tile), activity(tile).missing, told(tile)) == (0, (), [])


def test_an_event_that_was_not_traced_is_said() -> None:
    """Its cycles are among the other ones, which is no zero that was measured."""
    tile = core(MARKS, {"INSTR_VECTOR": [(110, 150)], "LOCK_STALL": [(210, 290)]})
    assert accounted(tile).in_call == split(vector=40, other=160)
    assert activity(tile).missing == ("CASCADE_STALL", "STREAM_STALL", "MEMORY_STALL")
    (finding,) = told(tile)
    assert finding.title == "CASCADE_STALL, STREAM_STALL, MEMORY_STALL not traced: such cycles are counted as other"


def test_cycles_that_two_events_claim_are_counted_once_and_said() -> None:
    """The stall counts, since a core that waits issues nothing; the sum is still the window."""
    every = {"STREAM_STALL": [], "CASCADE_STALL": []}
    spans = {"INSTR_VECTOR": [(110, 150)], "MEMORY_STALL": [(140, 160)], "LOCK_STALL": [(145, 147), (280, 310)]}
    tile = core(MARKS, every | spans)
    found = accounted(tile)
    assert found.in_call == split(vector=30, memory_stall=18, lock_stall=12, other=140)
    assert found.between_calls == split(lock_stall=20, other=80)
    assert overlapping(tile) == 10
    (finding,) = told(tile)
    assert finding.rule == "cycles_claimed_twice"
    expected = "8 cycles of MEMORY_STALL and INSTR_VECTOR; 2 cycles of LOCK_STALL and MEMORY_STALL and INSTR_VECTOR"
    assert finding.evidence == expected


def test_vector_instructions_outside_calls_are_a_finding() -> None:
    """Then the calls do not enclose the work."""
    tile = core(MARKS, {"INSTR_VECTOR": [(110, 150), (220, 230)]})
    assert accounted(tile).between_calls == split(vector=10, other=90)
    (finding,) = [finding for finding in told(tile) if finding.rule == "vector_between_calls"]
    assert finding.evidence == "10 of 50 vector cycles"


def test_without_calls_there_is_no_window() -> None:
    """And nothing fails."""
    found = accounted(core("", {"INSTR_VECTOR": [(110, 150)]}))
    assert (found.window, found.in_call, found.between_calls) == (0, split(), split())


def test_spans_of_time_are_split_one_by_one() -> None:
    """For each of them, in their order, even where they overlap each other."""
    tile = core(MARKS, {"INSTR_VECTOR": [(110, 150)], "LOCK_STALL": [(190, 290)]})
    found = activity(tile).split(np.array([0, 100, 140]), np.array([1000, 200, 140]))
    assert found["vector"].tolist() == [40, 40, 0]
    assert found["lock_stall"].tolist() == [100, 10, 0]
    assert found["other"].tolist() == [860, 50, 0]
    assert sum(found.values()).tolist() == [1000, 100, 0]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=5)


def plainly(spans: dict[str, list[tuple[int, int]]], cycles: range) -> dict[str, int]:
    """Categories of cycles, one cycle after the other."""
    found = dict.fromkeys([*EVENTS, "other"], 0)
    for cycle in cycles:
        active = [category for category, event in EVENTS.items() if any(a <= cycle < b for a, b in spans[event])]
        found[active[0] if active else "other"] += 1
    return found


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(EVENTS.values(), SPANS)), st.lists(st.integers(1, 15), max_size=8))
def test_every_cycle_is_counted_once_whatever_overlaps(
    lengths: dict[str, list[tuple[int, int]]], steps: list[int]
) -> None:
    """Categories are those that a count cycle by cycle gives, and add up to the window."""
    spans = {event: [(start, start + length) for start, length in own] for event, own in lengths.items()}
    times = np.cumsum(steps).tolist()
    tile = core(" ".join(f"{number % 2}@{time}" for number, time in enumerate(times)), spans)
    calls = pair_calls(tile).calls
    found = account(activity(tile), calls)
    inside = [
        cycle
        for start, end in zip(calls.start.tolist(), calls.end.tolist(), strict=True)
        for cycle in range(start, end)
    ]
    window = range(int(calls.start[0]), int(calls.end[-1])) if len(calls) else range(0)
    between = sorted(set(window) - set(inside))
    assert msgspec.to_builtins(found.in_call) == plainly(spans, inside)
    assert msgspec.to_builtins(found.between_calls) == plainly(spans, between)
    assert found.in_call.total + found.between_calls.total == found.window == len(window)
    claims = [sum(any(a <= cycle < b for a, b in own) for own in spans.values()) for cycle in window]
    assert overlapping(tile) == sum(count > 1 for count in claims)


def test_the_cycles_of_the_npu1_gemm(captures: Captures) -> None:
    """48.6 % vector, 5.6 % memory stall and 12.4 % other in calls; 31.7 % lock stall and 1.6 % other between them."""
    tile = captures.core(NPU1_GEMM)
    found = accounted(tile)
    assert found.window == 156015
    assert found.in_call == split(vector=75776, memory_stall=8766, other=19422)
    assert found.between_calls == split(memory_stall=14, lock_stall=49477, other=2560)
    assert overlapping(tile) == 0
    assert activity(tile).missing == ("CASCADE_STALL", "STREAM_STALL")
    shares = [found.in_call.vector, found.in_call.memory_stall, found.between_calls.lock_stall]
    assert [round(100 * share / found.window, 1) for share in shares] == [48.6, 5.6, 31.7]
    others = [found.in_call.other, found.between_calls.other]
    assert [round(100 * share / found.window, 1) for share in others] == [12.4, 1.6]


def test_the_cycles_of_the_npu2_gemm(captures: Captures) -> None:
    """The bfp16 emulation spends most of a call outside vector instructions."""
    found = accounted(captures.core(NPU2_GEMM))
    assert found.window == 234251
    assert found.in_call == split(vector=43392, memory_stall=355, other=140603)
    assert found.between_calls == split(memory_stall=7, lock_stall=46462, other=3432)


@pytest.mark.parametrize("name", ["npu1_core_small", "npu1_core_and_mem_small", "npu2_vector_scalar"])
def test_small_captures_add_up(captures: Captures, name: str) -> None:
    """Every cycle of the window is in one category, and no event overlaps another."""
    tile = captures.core(name)
    found = accounted(tile)
    assert found.in_call.total + found.between_calls.total == found.window > 0
    assert overlapping(tile) == 0
