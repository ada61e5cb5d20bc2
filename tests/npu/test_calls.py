"""Starts and ends of kernel calls: what pairs, and what every one that does not is called."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_cores import core, core_of
from opscope.npu.analysis.calls import CallCounts, Pairing, pair_calls

CLEAN = "0@100 1@200 0@300 1@400"


def told(found: Pairing) -> list[tuple[str, str]]:
    """Rule and place of every finding."""
    return [(finding.rule, finding.place) for finding in found.findings]


def spans(found: Pairing) -> list[tuple[int, int]]:
    """Start and end of every call."""
    return list(zip(found.calls.start.tolist(), found.calls.end.tolist(), strict=True))


def test_a_call_lasts_from_the_begin_of_its_start_to_the_begin_of_its_end() -> None:
    """Nothing is wrong with two calls."""
    found = pair_calls(core(CLEAN))
    assert spans(found) == [(100, 200), (300, 400)]
    assert found.calls.durations.tolist() == [100, 100]
    assert (found.counts, found.findings) == (CallCounts(2, 0, 0), ())


ANOMALIES = {
    "an end is missing": (
        f"{CLEAN} 0@500 0@700 1@800",
        [(100, 200), (300, 400), (700, 800)],
        1,
        0,
        [("call_end_missing", "tile 2,4, after call 2, cycle 500")],
    ),
    "a start is missing": (
        f"{CLEAN} 1@600 0@700 1@800",
        [(100, 200), (300, 400), (700, 800)],
        1,
        0,
        [("call_start_missing", "tile 2,4, after call 2, cycle 600")],
    ),
    "a start is repeated": (
        f"{CLEAN} 0@500 0@502 1@600",
        [(100, 200), (300, 400), (500, 600)],
        1,
        0,
        [("call_start_repeated", "tile 2,4, after call 2, cycle 500")],
    ),
    "an end is repeated": (
        f"{CLEAN} 0@500 1@600 1@602 0@700 1@800",
        [(100, 200), (300, 400), (500, 600), (700, 800)],
        1,
        0,
        [("call_end_repeated", "tile 2,4, after call 3, cycle 602")],
    ),
    "three starts of one call": (
        f"{CLEAN} 0@500 0@501 0@502 1@600",
        [(100, 200), (300, 400), (500, 600)],
        2,
        0,
        [("call_start_repeated", "tile 2,4, after call 2, cycle 500")],
    ),
    "a start far behind another is no repeat of it": (
        f"{CLEAN} 0@500 0@550 1@600",
        [(100, 200), (300, 400), (550, 600)],
        1,
        1,
        [("call_start_repeated", "tile 2,4, after call 2, cycle 500")],
    ),
    "an end is repeated inside the next call": (
        f"{CLEAN} 0@500 1@510 1@600 0@700 1@800",
        [(100, 200), (300, 400), (500, 600), (700, 800)],
        1,
        0,
        [("call_end_repeated", "tile 2,4, after call 3, cycle 600")],
    ),
    "an end far behind another is no repeat of it": (
        f"{CLEAN} 0@500 1@600 1@650 0@700 1@800",
        [(100, 200), (300, 400), (500, 600), (700, 800)],
        1,
        1,
        [("call_end_repeated", "tile 2,4, after call 3, cycle 650")],
    ),
    "the trace is cut inside a call": (
        f"{CLEAN} 0@500",
        [(100, 200), (300, 400)],
        1,
        0,
        [("trace_ends_in_call", "tile 2,4, after call 2, cycle 500")],
    ),
    "the trace begins inside a call": (
        f"1@50 {CLEAN}",
        [(100, 200), (300, 400)],
        1,
        0,
        [("trace_begins_in_call", "tile 2,4, before the first call, cycle 50")],
    ),
    "a call runs backwards": (
        f"{CLEAN} 0@600 1@500 0@700 1@800",
        [(100, 200), (300, 400), (700, 800)],
        2,
        0,
        [("call_ends_before_start", "tile 2,4, after call 2, cycle 600")],
    ),
    "a call stands too late in the stream": (
        f"{CLEAN} 0@500 1@600 0@210 1@290",
        [(100, 200), (300, 400), (500, 600)],
        2,
        0,
        [("call_before_earlier_one", "tile 2,4, after call 3, cycle 210")],
    ),
    "one call has an absurd end": (
        "0@100 1@200 0@300 1@999999999999 0@500 1@600 0@700 1@800",
        [(100, 200), (500, 600), (700, 800)],
        2,
        0,
        [("call_before_earlier_one", "tile 2,4, after call 1, cycle 300")],
    ),
    "a call ends in the cycle in which the next one starts": (
        "0@100 0@200 1@200 0@300 1@300 1@400",
        [(100, 200), (200, 300), (300, 400)],
        0,
        0,
        [],
    ),
    "a call takes no cycle": (
        f"{CLEAN} 0@500 1@500",
        [(100, 200), (300, 400), (500, 500)],
        0,
        0,
        [("call_without_cycles", "tile 2,4, cycle 500")],
    ),
    "there are only starts": (
        "0@100 0@200",
        [],
        2,
        0,
        [
            ("call_end_missing", "tile 2,4, before the first call, cycle 100"),
            ("trace_ends_in_call", "tile 2,4, before the first call, cycle 200"),
            ("calls_none", "tile 2,4"),
        ],
    ),
}


@pytest.mark.parametrize("case", ANOMALIES)
def test_every_anomaly_is_named_with_its_place(case: str) -> None:
    """What pairs is nearest to each other; what is left out is counted and said."""
    marks, calls, dropped, ambiguous, findings = ANOMALIES[case]
    found = pair_calls(core(marks))
    assert spans(found) == calls
    assert found.counts == CallCounts(len(calls), dropped, ambiguous)
    assert told(found) == findings


def test_a_thousand_faults_are_one_finding() -> None:
    """Missing ends without number do not fill the report; how many there are is said."""
    found = pair_calls(core(CLEAN + "".join(f" 0@{500 + 200 * n}" for n in range(1000)) + " 1@200400"))
    assert (found.counts.paired, found.counts.dropped) == (3, 999)
    (finding,) = found.findings
    assert finding.rule == "call_end_missing"
    assert finding.evidence.startswith("999 times, first at cycle 500")


@pytest.mark.parametrize("jitter", [0, 1, 20])
def test_a_second_mark_within_a_quarter_of_a_call_changes_no_length(jitter: int) -> None:
    """The first start and the first end count, whatever the lengths of the other calls."""
    calls = [(1000 * n, 1000 * n + 500 + (n * 7 % (jitter + 1))) for n in range(1, 9)]
    marks = [mark for start, end in calls for mark in ((0, start), (1, end))]
    repeated = [*marks[:6], (0, marks[6][1]), (0, marks[6][1] + 2), *marks[7:10], *marks[10:12], (1, marks[11][1] + 90)]
    found = pair_calls(core_of([*repeated, *marks[12:]], {}))
    assert spans(found) == calls
    assert (found.counts.dropped, found.counts.ambiguous, found.broken, found.unpaired) == (2, 0, (), ())


@pytest.mark.parametrize(
    ("events", "missing"),
    [
        (["INSTR_EVENT_0", "INSTR_VECTOR"], "INSTR_EVENT_1"),
        (["INSTR_VECTOR", "LOCK_STALL"], "INSTR_EVENT_0 and INSTR_EVENT_1"),
    ],
)
def test_without_the_events_there_are_no_calls(events: list[str], missing: str) -> None:
    """Which event is missing is said, and what was traced in its place."""
    found = pair_calls(core_of([(0, 5), (1, 9)], {}, events))
    assert found.counts.paired == 0
    assert found.counts.dropped == (events[0] == "INSTR_EVENT_0")
    (finding,) = found.findings
    assert finding.rule == "calls_not_traced"
    assert finding.title == f"calls cannot be found: no slot for {missing}"
    assert finding.evidence == f"traced: {', '.join(events)}, NONE"


def test_an_event_that_lasts_two_cycles_is_one_mark() -> None:
    """The call starts with its first cycle."""
    found = pair_calls(core_of([], {"INSTR_EVENT_0": [(100, 102)], "INSTR_EVENT_1": [(200, 201)]}, []))
    assert spans(found) == [(100, 200)]
    assert told(found) == []


def test_a_second_slot_of_the_same_event_does_not_count() -> None:
    """Its marks are not repeated starts."""
    tile = core_of([(0, 100), (1, 200), (0, 300), (1, 400), (2, 100)], {}, ["INSTR_EVENT_0", "INSTR_EVENT_1"] * 2)
    found = pair_calls(tile)
    assert spans(found) == [(100, 200), (300, 400)]
    assert told(found) == []


def plainly(marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The automaton, one mark after the other."""
    calls, opened = [], None
    for slot, time in marks:
        if slot == 0:
            opened = time
        elif opened is not None:
            calls.append((opened, time))
            opened = None
    return calls


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 50)), max_size=40))
def test_marks_that_run_forwards_pair_as_the_automaton_says(steps: list[tuple[int, int]]) -> None:
    """Every start and every end is in one call or counted as dropped, and each that was dropped is in a finding.

    A finding also says where an end inside a call repeats the one before, so that the call ends later.
    """
    marks, now = [], 0
    for slot, step in steps:
        now += step
        marks.append((slot, now))
    found = pair_calls(core_of(marks, {}))
    ends, plain_ends = ([end for _, end in pairs] for pairs in (spans(found), plainly(marks)))
    if not any("again inside the next" in finding.title for finding in found.findings):
        assert ends == plain_ends
    assert all(end >= plain for end, plain in zip(ends, plain_ends, strict=True))
    assert all(own <= last for (own, _), (last, _) in zip(spans(found), plainly(marks), strict=True))
    assert 2 * found.counts.paired + found.counts.dropped == len(marks)
    assert found.counts.ambiguous <= found.counts.paired
    assert bool(found.findings) == (found.counts.dropped > 0 or not found.counts.paired)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 60)), max_size=40))
def test_whatever_the_times_calls_follow_each_other_and_nothing_is_lost(marks: list[tuple[int, int]]) -> None:
    """Times in any order: calls are apart, their ends not before their starts, and the counts add up."""
    found = pair_calls(core_of(marks, {}))
    start, end = found.calls.start, found.calls.end
    assert (start <= end).all()
    assert (end[:-1] <= start[1:]).all()
    assert 2 * found.counts.paired + found.counts.dropped == len(marks)


@pytest.mark.parametrize(
    ("name", "paired", "cut"),
    [
        (NPU1_GEMM, 80, "tile 2,1, after call 80, cycle 168090"),
        (NPU2_GEMM, 117, "tile 2,0, after call 117, cycle 243923"),
        ("npu1_core_small", 4, None),
        ("npu1_core_and_mem_small", 4, None),
        ("npu2_vector_scalar", 4, None),
    ],
)
def test_calls_of_real_captures(captures: Captures, name: str, paired: int, cut: str | None) -> None:
    """All calls pair; where the buffer filled, the call that is cut off is named."""
    found = pair_calls(captures.core(name))
    assert (found.counts.paired, found.counts.dropped, found.counts.ambiguous) == (paired, int(cut is not None), 0)
    assert told(found) == ([("trace_ends_in_call", cut)] if cut else [])
