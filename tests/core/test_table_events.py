"""The event table: what is derived, what is refused, and how tables are put together and marked."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from opscope.core.errors import InvariantError
from opscope.core.table import COLUMNS, Clock, EventTable, Scope, TraceWarning, column_reference
from opscope.core.table.schema import SCHEMA
from texts import ENDS_FIRST
from traces import table

TRACE = """
    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 80000
        Convolution (NHWC, F32) IGEMM #1 50000
        Clamp (NC) #1 10000
      OPERATOR_CALL @1 15000
        native_call_add.out 14000
"""
PLAIN = """
    Program::load_method 50
    Method::execute 100
      OPERATOR_CALL @0 60
        native_call_mul.out 55
"""
LIMIT = TraceWarning("limit", "something is missing", "look again")


def rows(events: EventTable, *columns: str) -> list[tuple[object, ...]]:
    """The named columns, row by row."""
    return events.frame.select(columns).rows()


def build(*events: tuple[int, int, int], scope: Scope = Scope.KERNEL, synthetic: bool = False) -> EventTable:
    """A table of (start, duration, parent), one block, with no names worth reading."""
    start, duration, parent = zip(*events, strict=True)
    count = len(events)
    columns = {
        "run": pl.Series([0] * count),
        "scope": pl.Series([scope.value] * count),
        "name": pl.Series([f"event{row}" for row in range(count)]),
        "start": pl.Series(start, dtype=pl.Int64),
        "duration": pl.Series(duration, dtype=pl.Int64),
        "parent": pl.Series(parent, dtype=pl.Int64),
        "synthetic_start": pl.Series([synthetic] * count),
    }
    return EventTable.build(columns, Clock.NS)


@st.composite
def calls(draw: st.DrawFn) -> str:
    """The calls of one inference as text: each with up to three operators that fit into it, then the inference."""
    lines, total = [], 0
    for instruction in range(draw(st.integers(0, 4))):
        inside = draw(st.lists(st.integers(0, 500), max_size=3))
        own = sum(inside) + draw(st.integers(0, 50))
        total += own
        lines.append(f"  OPERATOR_CALL @{instruction} {own}")
        lines += [f"    native_call_op{number}.out {duration}" for number, duration in enumerate(inside)]
    return "\n".join([f"Method::execute {total + draw(st.integers(0, 50))}", *lines])


TRACES = st.builds("\n".join, st.lists(calls(), min_size=1, max_size=4))


def test_every_event_knows_its_own_time():
    """Durations nest, self times do not: they are the split of the inference."""
    inference = table(TRACE).frame.filter(pl.col("inference") == 0)
    assert inference.select("name", "duration", "self_time").rows() == [
        ("Convolution (NHWC, F32) IGEMM #1", 50_000, 50_000),
        ("Clamp (NC) #1", 10_000, 10_000),
        ("DELEGATE_CALL", 80_000, 20_000),
        ("native_call_add.out", 14_000, 14_000),
        ("OPERATOR_CALL", 15_000, 1_000),
        ("Method::execute", 100_000, 5_000),
    ]


def test_depth_position_and_parent_place_every_event():
    """Positions count within the parent, in the order of the file; roots have none."""
    assert rows(table(TRACE), "depth", "position", "parent") == [
        (1, 0, 1),
        (0, None, None),
        (2, 0, 4),
        (2, 1, 4),
        (1, 0, 7),
        (2, 0, 6),
        (1, 1, 7),
        (0, None, None),
    ]


def test_only_events_inside_an_inference_carry_its_number():
    """Loading belongs to no inference; inferences are counted from 0."""
    events = table("Program::load_method 5\nMethod::execute 10\n  MOVE_CALL @0 4\nMethod::execute 20")
    assert rows(events, "inference") == [(None,), (0,), (0,), (1,)]


def test_an_inference_is_a_root():
    """An inference inside another one is part of it, not a second one."""
    events = build((0, 10, 1), (0, 20, -1), scope=Scope.EXECUTE)
    assert rows(events, "inference") == [(0,), (0,)]


def test_the_inferences_with_their_latency():
    """One row each: the duration of the outermost event is the end-to-end latency."""
    found = table("Method::execute 100\n  MOVE_CALL @0 4\nMethod::execute 90", warmup=1).inferences()
    assert found.select("process", "inference", "warmup", "duration").rows() == [(0, 0, True, 100), (0, 1, False, 90)]
    assert found.columns == ["process", "inference", "warmup", "method", "start", "duration"]


def test_what_a_reader_does_not_know_is_null():
    """A reader that gives only the required columns has no method, backend, chain or instruction; resolution is 1."""
    wanted = ("process", "warmup", "method", "backend", "chain", "instruction", "delegate_id", "resolution")
    assert rows(build((0, 10, -1)), *wanted, "synthetic_start") == [
        (0, False, None, None, None, None, None, 1, False),
    ]


@settings(deadline=None, max_examples=50)
@given(TRACES)
def test_self_times_of_an_inference_add_up_to_its_latency(trace):
    """Exactly, for every inference: nothing is counted twice and nothing is lost."""
    events = table(trace)
    sums = events.frame.group_by("inference").agg(pl.col("self_time").sum()).sort("inference")
    assert sums["self_time"].to_list() == events.inferences()["duration"].to_list()


def test_an_event_that_ends_before_it_starts_is_refused():
    """The first such row is named."""
    with pytest.raises(InvariantError, match=rf"event 1 \(event1, block 0\) {ENDS_FIRST}"):
        build((0, 10, -1), (5, -1, -1))


def test_children_that_take_longer_than_their_parent_are_refused():
    """Two children of 6 do not fit into 10, wherever they start."""
    with pytest.raises(InvariantError, match=r"event 2 .* is shorter than the events inside it together"):
        build((0, 6, 2), (6, 6, 2), (0, 10, -1), synthetic=True)


@pytest.mark.parametrize("start", [4, 96])
def test_a_child_outside_of_its_parent_is_refused(start):
    """It starts before its parent, or ends after it."""
    with pytest.raises(InvariantError, match=r"event 0 .* is outside its parent"):
        build((start, 10, 1), (5, 100, -1))


def test_a_child_may_fill_its_parent():
    """Start and end may coincide with the parent's."""
    assert rows(build((5, 100, 1), (5, 100, -1)), "self_time") == [(100,), (0,)]


def test_synthetic_starts_may_lie_outside_of_the_parent():
    """Starts that were not measured contradict nothing, as long as the durations fit."""
    events = build((95, 10, 1), (5, 100, -1), synthetic=True)
    assert rows(events, "self_time") == [(10,), (90,)]


def test_children_whose_sum_exceeds_64_bits_are_refused():
    """Four children of 2^62 do not fit into 1000, although their sum is 0 in 64-bit arithmetic."""
    with pytest.raises(InvariantError, match=r"more than 2\^62"):
        build(*[(0, 2**62, 4)] * 4, (0, 1000, -1), synthetic=True)


def test_parents_in_a_circle_are_refused():
    """Each of two events claims to lie in the other."""
    with pytest.raises(InvariantError, match="cycle"):
        build((0, 10, 1), (0, 10, 0))


def test_concat_counts_processes_and_shifts_parents():
    """The second trace keeps its own inference numbers; its parents point into its own rows."""
    both = EventTable.concat([table(PLAIN), table(PLAIN)])
    assert both.processes == 2
    assert rows(both, "process", "inference", "parent") == [
        (0, None, None),
        (0, 0, 2),
        (0, 0, 3),
        (0, 0, None),
        (1, None, None),
        (1, 0, 6),
        (1, 0, 7),
        (1, 0, None),
    ]


def test_concat_keeps_names_that_only_one_trace_has():
    """Traces with different operators are put together by name, not by code."""
    both = EventTable.concat([table("Method::execute 10\n  MOVE_CALL @0 4"), table("Method::execute 20")])
    assert rows(both, "name") == [("MOVE_CALL",), ("Method::execute",), ("Method::execute",)]


def test_concat_joins_warnings_once():
    """Two traces with the same limit give one warning, in the order of their first appearance."""
    other = TraceWarning("other", "something else", "look there")
    first = table(PLAIN).with_warnings(LIMIT)
    assert EventTable.concat([first, first.with_warnings(other)]).warnings == (LIMIT, other)


def test_concat_refuses_different_clocks():
    """Nanoseconds and cycles do not add up."""
    cycles = EventTable(table(PLAIN).frame, Clock.CYCLES)
    with pytest.raises(InvariantError, match="different clocks"):
        EventTable.concat([table(PLAIN), cycles])


def test_concat_of_nothing_is_refused():
    """No trace is not an empty trace."""
    with pytest.raises(InvariantError, match="none at all"):
        EventTable.concat([])


@settings(deadline=None, max_examples=30)
@given(st.lists(TRACES, min_size=1, max_size=3))
def test_with_processes_undoes_concat(texts):
    """Every trace comes back as it was."""
    tables = [table(text) for text in texts]
    together = EventTable.concat(tables)
    for process, single in enumerate(tables):
        assert_frame_equal(together.with_processes([process]).frame, single.frame)


def test_with_processes_numbers_anew_in_the_given_order():
    """Processes 2 and 0 become 0 and 1."""
    a, b, c = (table(f"Method::execute {duration}\n  MOVE_CALL @0 4") for duration in (10, 20, 30))
    kept = EventTable.concat([a, b, c]).with_processes([2, 0])
    assert_frame_equal(kept.frame, EventTable.concat([c, a]).frame)


def test_with_processes_keeps_clock_warnings_and_warmup():
    """Only rows are left out."""
    both = EventTable.concat([table(PLAIN), table(PLAIN)]).with_warnings(LIMIT).with_warmup([0, 1])
    kept = both.with_processes([1])
    assert (kept.clock, kept.warnings) == (Clock.NS, (LIMIT,))
    assert kept.inferences()["warmup"].to_list() == [True]


def test_warmup_marks_the_first_inferences_of_every_process():
    """One number holds for all processes; loading is not a warm-up."""
    both = EventTable.concat([table(PLAIN, repeat=3)] * 2).with_warmup(2)
    assert both.inferences()["warmup"].to_list() == [True, True, False] * 2
    assert not both.frame.filter(pl.col("inference").is_null())["warmup"].any()


def test_warmup_may_differ_between_processes():
    """A number for each process, in their order."""
    both = EventTable.concat([table(PLAIN, repeat=2)] * 3).with_warmup([0, 1, 2])
    assert both.inferences()["warmup"].to_list() == [False, False, True, False, True, True]


def test_warmup_marks_whole_inferences():
    """Everything inside a warm-up inference is warm-up too."""
    events = table(PLAIN, repeat=2, warmup=1)
    assert rows(events, "inference", "warmup") == [(None, False), *[(0, True)] * 3, *[(1, False)] * 3]


def test_marking_again_replaces_the_mark():
    """The last count holds."""
    events = table(PLAIN, repeat=2).with_warmup(2).with_warmup(0)
    assert events.inferences()["warmup"].to_list() == [False, False]


def test_measured_rows_are_neither_warmup_nor_loading():
    """What counts is what is left."""
    measured = table(PLAIN, repeat=2, warmup=1).measured()
    assert measured.select("inference", "name").rows() == [
        (1, "native_call_mul.out"),
        (1, "OPERATOR_CALL"),
        (1, "Method::execute"),
    ]


def test_the_method_is_named_in_inferences_only():
    """Loading may have been of another method."""
    named = table(PLAIN).with_method("forward")
    assert rows(named, "method") == [(None,), ("forward",), ("forward",), ("forward",)]


def test_the_same_warning_is_kept_once():
    """Warnings are values: adding one twice changes nothing."""
    once = table(PLAIN).with_warnings(LIMIT)
    assert once.with_warnings(LIMIT).warnings == (LIMIT,)


def test_marking_leaves_the_table_itself_alone():
    """Tables are frozen; every change is a new one."""
    events = table(PLAIN)
    events.with_warmup(1)
    events.with_method("forward")
    assert rows(events, "warmup", "method") == [(False, None)] * 4


def test_a_table_has_the_documented_columns_and_types():
    """Also after everything that can be done to it."""
    changed = EventTable.concat([table(TRACE)] * 2).with_warmup(1).with_method("forward").with_processes([1])
    assert table(TRACE).frame.schema == SCHEMA
    assert changed.frame.schema == SCHEMA


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_column_is_documented(column):
    """A sentence each, and the Markdown reference has a row for it with its unit and whether it may be null."""
    null = "yes" if column.nullable else "no"
    assert column.meaning.endswith(".")
    row = re.search(rf"^\| `{column.name}` \| \w+ \| (\w+) \| (\w*) \| (.+) \|$", column_reference(), re.MULTILINE)
    assert row is not None
    assert row.groups() == (null, column.unit, column.meaning)


def test_no_column_name_carries_a_unit():
    """The clock says what the unit is, once."""
    assert [c.name for c in COLUMNS if re.search(r"_(ns|us|ms|s|cycles)$", c.name)] == []
    assert [c.name for c in COLUMNS if c.unit == "clock"] == ["start", "duration", "self_time", "resolution"]


def test_only_columns_that_say_so_are_ever_null():
    """The trace has loading, delegates and portable kernels, so every optional value is absent somewhere."""
    frame = table(TRACE).frame
    surprising = {c.name for c in COLUMNS if frame[c.name].null_count() and not c.nullable}
    assert surprising == set()


def test_the_scope_column_lists_every_scope():
    """A new scope appears in the reference by itself."""
    assert all(scope.value in column_reference() for scope in Scope)
