"""The split of end-to-end latency: complete, keyed by place in the program, never by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from opscope.analysis.latency.latency import latency
from opscope.analysis.operators.headline import headline_scale
from opscope.analysis.operators.operators import backends, categories, longest_first, operators
from opscope.program.operators.kinds import Category
from opscope.runtimes.executorch.etdump import EtdumpReader
from traces import Node, encode, table

MIXED = """
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
        Transpose (ND, X32) #1 8000
        Fully Connected (NC, F32) GEMM #1 4000
      OPERATOR_CALL @1 20000
        native_call_add.out 18000
"""


def test_self_times_add_up_to_the_latency() -> None:
    """Operators and framework steps together are the end-to-end latency, to the nanosecond."""
    found = operators(table(MIXED, repeat=3))
    assert sum(operator.time_ns for operator in found) == 100_000
    assert sum(operator.share for operator in found) == pytest.approx(1)


def test_other_is_what_the_named_categories_leave() -> None:
    """Other = end-to-end - (Convolution + GEMM + Data Movement + Elementwise): framework time is in it."""
    times = {c.category: c.time_ns for c in categories(operators(table(MIXED)))}
    assert times == {
        Category.CONVOLUTION: 50_000,
        Category.GEMM: 4_000,
        Category.DATA_MOVEMENT: 8_000,
        Category.ELEMENTWISE: 18_000,
        Category.OTHER: 100_000 - 80_000,
    }


def test_longest_first_is_by_the_share_that_a_report_shows() -> None:
    """Where only shares are known, the mean of traced times may have another order than they have."""
    known = operators(table(MIXED, repeat=3))
    shares = {"Convolution (NHWC, F32) IGEMM #1": 0.1, "native_call_add.out": 0.7}
    untimed = [structs.replace(row, time_ns=None, share=shares.get(row.name, 0.0)) for row in known]
    assert [row.name for row in longest_first(untimed)[:2]] == [
        "native_call_add.out",
        "Convolution (NHWC, F32) IGEMM #1",
    ]
    assert [row.share for row in longest_first(known)] == sorted((row.share for row in known), reverse=True)


def test_backends_split_the_same_latency() -> None:
    """Delegated, portable and framework time, longest first."""
    assert [(b.backend, b.time_ns) for b in backends(operators(table(MIXED)))] == [
        ("XNNPACK", 62_000),
        ("framework", 20_000),
        ("portable", 18_000),
    ]


def test_operators_of_one_name_stay_apart() -> None:
    """Two adds of one program are two operators: the key is the instruction, not the name."""
    trace = """
        Method::execute 1000
          OPERATOR_CALL @0 100
            native_call_add.out 90
          OPERATOR_CALL @1 200
            native_call_add.out 180
    """
    adds = [o for o in operators(table(trace)) if o.name == "native_call_add.out"]
    assert [(o.instruction, o.time_ns, o.calls) for o in adds] == [(0, 90, 1), (1, 180, 1)]


def test_iterations_of_a_loop_are_one_operator_called_often() -> None:
    """An instruction that runs three times in an inference is one operator with three calls."""
    trace = """
        Method::execute 1000
          OPERATOR_CALL @4 100
            native_call_add.out 90
          OPERATOR_CALL @4 100
            native_call_add.out 80
          OPERATOR_CALL @4 100
            native_call_add.out 70
    """
    (add,) = (o for o in operators(table(trace, repeat=2)) if o.kind == "arithmetic")
    assert (add.calls, add.time_ns) == (3, 240)


def test_truncated_durations_carry_their_uncertainty() -> None:
    """An operator reported in whole microseconds may have taken up to one more; the runtime's own clock is exact."""
    found = {o.name: o.uncertainty_ns for o in operators(table(MIXED))}
    assert found["Convolution (NHWC, F32) IGEMM #1"] == 999
    assert found["native_call_add.out"] == 0


durations = st.integers(min_value=0, max_value=10_000)


@given(st.lists(st.tuples(durations, st.lists(durations, max_size=4)), max_size=5), durations)
def test_the_split_is_complete_for_any_tree(calls: list[tuple[int, list[int]]], own: int) -> None:
    """Whatever the calls and their operators take, the operators' times add up to the mean latency."""
    nodes = []
    for instruction, (extra, leaves) in enumerate(calls):
        children = [Node("native_call_add.out", leaf, instruction) for leaf in leaves]
        nodes.append(Node("OPERATOR_CALL", extra + sum(leaves), instruction, children=children))
    root = Node("Method::execute", own + sum(node.duration for node in nodes), children=nodes)
    events = EtdumpReader().read(
        encode(
            [
                (
                    "Execute",
                    [
                        root,
                    ],
                )
            ]
        ),
        "trace",
    )
    found = latency(events)
    assert found is not None
    assert sum(o.time_ns for o in operators(events)) == found.mean_ns


@given(st.lists(st.tuples(durations, durations), min_size=8, max_size=30), st.integers(0, 2), st.booleans())
def test_the_spread_is_that_of_single_inferences(times: list[tuple[int, int]], warmup: int, alike: bool) -> None:
    """The 10th and the 90th percentile of what an operator takes in an inference, its calls in a loop together.

    A reader keeps inferences of one shape as one template with many times, others each by itself: both are tried.
    """
    blocks = []
    for number, (first, second) in enumerate(times):
        adds = [Node("native_call_add.out", own, 4) for own in (first, second)]
        calls = [Node("OPERATOR_CALL", add.duration + 1, 4, children=[add]) for add in adds]
        calls += [] if alike else [Node("OPERATOR_CALL", 5, 5 + number % 3)]
        whole = 100 + sum(one.duration for one in calls)
        blocks.append(("Execute", [Node("Method::execute", whole, children=calls)]))
    trace = EtdumpReader().read(encode(blocks), Path("trace")).with_warmup(warmup)
    rows = trace.measured().filter(pl.col("name").cast(pl.String) == "native_call_add.out")
    each = rows.group_by("inference").agg(pl.col("self_time").sum())["self_time"].to_numpy()
    scale = headline_scale(trace, alone=True)
    (found,) = (one for one in operators(trace, scale=scale) if one.name == "native_call_add.out")
    low, high = np.quantile(each, (0.1, 0.9))
    if len(each) < 10 or not low <= each.mean() <= high:
        assert found.spread_ns is None
    else:
        assert found.spread_ns == pytest.approx((low, high))


@given(st.lists(st.tuples(durations, durations), min_size=4, max_size=60), st.booleans())
def test_a_time_lies_in_its_own_range_and_times_add_up(times: list[tuple[int, int]], alone: bool) -> None:
    """Whatever single inferences took, an operator's time is between its 10th and 90th percentile."""
    inferences = (
        f"""
        Method::execute {100 + first + second}
          OPERATOR_CALL @0 {first}
            native_call_add.out {first}
          OPERATOR_CALL @1 {second}
            native_call_mul.out {second}
        """
        for first, second in times
    )
    trace = table("\n".join(inferences))
    scale = headline_scale(trace, alone=alone)
    rows = operators(trace, scale=scale)
    for row in rows:
        if row.spread_ns:
            assert row.spread_ns[0] <= row.time_ns <= row.spread_ns[1]
    counted = len(times) if alone else scale.split.split_inferences
    if not alone and scale.split.timed:
        assert all((row.spread_ns is not None) == (counted >= 10) for row in rows)
    if scale.split.timed:
        assert sum(row.time_ns for row in rows) == pytest.approx(scale.split.headline_ns)
