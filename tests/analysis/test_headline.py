"""One scale: operators, copies of inputs and outputs, and what tracing costs add up to the latency of the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.compare.compare import Comparison, RelatedData, compare
from opscope.analysis.latency.timing import CallTimes
from opscope.core.table import EventTable
from opscope.core.table.calls import named_by_calls
from opscope.core.units import ratio_of_times
from opscope.program.operators.kinds import Category
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])


def inference(convolution: int, add: int, framework: int = 1000) -> str:
    """An inference of a convolution in a delegate and a portable operator."""
    return f"""
        Method::execute {convolution + add + framework}
          DELEGATE_CALL @0 {convolution}
            Convolution (NHWC, F32) IGEMM #1 {convolution}
          OPERATOR_CALL @1 {add}
            native_call_add.out {add}
    """


def process(*inferences: tuple[int, int]) -> EventTable:
    """One process; each inference is given by the times of its two operators."""
    return table("\n".join(inference(*one) for one in inferences))


def told(events: EventTable, untraced: list[list[int]], outside: int | None, warmup: int = 0) -> Analysis:
    """The analysis, with callers that saw so much more than Method::execute; None: what they saw is not known."""
    found = events.inference_times()
    walls = {
        number: [int(one) + outside for one in found.duration[found.process == number]] if outside is not None else []
        for number in range(events.processes)
    }
    traced = walls if outside is not None else {}
    calls = CallTimes(dict(enumerate(untraced)), traced, warmup, {}, rounds=tuple(range(events.processes)))
    return analyse(events.with_warmup(warmup), SOURCE, calls=calls)


def together(analysis: Analysis) -> float:
    """What all rows add up to."""
    assert analysis.headline
    rows = [operator.headline_ns for operator in analysis.operators]
    return math.fsum([*(row or 0.0 for row in rows), *(row.headline_ns for row in analysis.headline.rows)])


def test_the_copies_of_large_tensors_are_a_row_of_their_own() -> None:
    """An add of large tensors: of 120 us that the caller waits, 50 are the add's, 66 copy its tensors."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    found = told(events, [[120_000] * 8] * 3, outside=66_000)
    assert found.headline
    copies, tracing = found.headline.rows
    assert (copies.name, copies.category) == ("input and output copies", Category.DATA_MOVEMENT)
    assert copies.headline_ns == 66_000
    assert copies.share_of_headline == 0.55
    assert copies.ci95_ns == (66_000, 66_000)
    assert (tracing.name, tracing.headline_ns) == ("traced runs took less", 2_000)
    assert together(found) == pytest.approx(120_000)
    moving = next(row for row in found.categories if row.category is Category.DATA_MOVEMENT)
    assert (moving.time_ns, moving.headline_ns) == (0, 66_000)


def test_findings_count_the_copies_as_data_movement() -> None:
    """They are most of the call, so the first thing to look at is them, and no operator promises what they take."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    found = told(events, [[118_000] * 8] * 3, outside=66_000)
    moving = next(one for one in found.findings if one.rule == "data_movement")
    assert moving.saving_ns == 66_000
    assert "55.9 %" in moving.title
    assert "copying inputs and outputs 0.066 ms" in moving.evidence


@pytest.mark.parametrize("outside", [0, 700, 40_000, None])
def test_rows_add_up_to_the_headline(outside: int | None) -> None:
    """Whatever the durations are, and whether the callers' clocks are known or not."""
    drawn = np.random.default_rng(7)
    events = EventTable.concat(
        [process(*drawn.integers(5_000, 90_000, (9, 2)).tolist()) for _ in range(5)],
    )
    untraced = drawn.integers(20_000, 120_000, (5, 9)).tolist()
    found = told(events, untraced, outside, warmup=2)
    assert found.headline
    measured = [one for own in untraced for one in own[2:]]
    assert found.headline.headline_ns == np.median(measured)
    assert together(found) == pytest.approx(found.headline.headline_ns, rel=1e-12)
    assert math.fsum(o.share_of_headline or 0.0 for o in found.operators) == pytest.approx(
        found.headline.execute_ns / found.headline.headline_ns
    )
    assert math.fsum(o.time_ns for o in found.operators) == pytest.approx(found.latency.mean_ns)
    if outside is None:
        assert [row.name for row in found.headline.rows] == ["outside of Method::execute, and tracing"]


def test_a_trace_alone_adds_up_to_its_median() -> None:
    """There is no other figure above it, so there is nothing between."""
    drawn = np.random.default_rng(8)
    found = analyse(process(*drawn.integers(5_000, 90_000, (11, 2)).tolist()), SOURCE)
    assert found.headline
    assert (found.headline.arm, found.headline.rows) == ("traced", [])
    assert found.headline.headline_ns == found.latency.median_ns
    assert together(found) == pytest.approx(found.latency.median_ns)


def test_disturbed_processes_change_neither_ranking_nor_shares() -> None:
    """In three of six traced processes an operator takes 2.56 times as long: that is in its mean, not in its row."""
    quiet = [process(*[(60_000, 30_000)] * 8) for _ in range(6)]
    loaded = [process(*[(60_000, round(30_000 * 2.56))] * 8) if n % 2 else own for n, own in enumerate(quiet)]
    untraced = [[90_000] * 8] * 6
    expected, found = (told(EventTable.concat(each), untraced, outside=500) for each in (quiet, loaded))
    assert found.headline
    assert found.headline.processes == [0, 2, 4]
    shares = [[operator.share_of_headline for operator in one.operators] for one in (expected, found)]
    assert shares[0] == pytest.approx(shares[1])
    times = {operator.name: operator.time_ns for operator in found.operators}
    assert times["native_call_add.out"] == pytest.approx(30_000 * 1.78), "the mean keeps its meaning"


def test_disturbed_inferences_count_in_no_row() -> None:
    """A quarter of the inferences of a process, at either end, is left out."""
    found = told(process(*[(60_000, 30_000)] * 9, *[(60_000, 300_000)] * 3), [[92_000] * 12], outside=0)
    rows = {operator.name: operator.headline_ns for operator in found.operators}
    assert rows["native_call_add.out"] == 30_000


def test_nothing_saved_exceeds_the_headline() -> None:
    """A toy model: an inference takes 394 us, a traced one 640; together all operators save less than 394 us."""
    events = EventTable.concat([process(*[(10_000, 600_000)] * 8) for _ in range(4)])
    found = told(events, [[394_000] * 8] * 4, outside=30_000)
    savings = [one.saving_ns for one in found.findings if one.saving_ns is not None]
    assert savings
    assert max(savings) <= 394_000
    assert all(one.saving_ci95_ns[1] <= 394_000 for one in found.findings if one.saving_ci95_ns)
    assert found.headline
    assert found.headline.saving_scale == pytest.approx(394 / 641)
    portable = next(one for one in found.findings if one.rule == "portable_operators")
    assert portable.saving_ns == pytest.approx(600_000 * 394 / 641)


def test_several_methods_keep_their_shares_of_the_calls() -> None:
    """The middle half is taken of each method by itself, so that no method falls out of it."""
    fast, slow = inference(1_000, 2_000), inference(50_000, 20_000)
    events = named_by_calls(table("\n".join([slow, fast, fast] * 4)), ["prefill", "decode", "decode"])
    calls = CallTimes({0: [72_000, 5_000, 5_000] * 4}, {}, 0, {}, ("prefill", "decode", "decode"))
    found = analyse(events, SOURCE, calls=calls)
    assert found.headline
    assert (found.headline.statistic, found.headline.headline_ns) == ("mean", pytest.approx(82_000 / 3))
    assert found.headline.execute_ns == pytest.approx(found.latency.mean_ns)
    assert together(found) == pytest.approx(82_000 / 3)


def test_a_caller_whose_clock_runs_behind_the_trace_is_not_subtracted() -> None:
    """Copies below zero are not copies: the rows are left together."""
    found = told(process(*[(60_000, 30_000)] * 4), [[95_000] * 4], outside=-1_000)
    assert found.headline
    assert [row.name for row in found.headline.rows] == ["outside of Method::execute, and tracing"]


def compared(
    baseline: tuple[int, int], candidate: tuple[int, int], untraced: tuple[int, int], copies: int
) -> Comparison:
    """Ten rounds of two variants, by the times of their two operators, of untraced calls, and of copies."""
    tables = [EventTable.concat([process(*[own] * 4) for _ in range(10)]) for own in (baseline, candidate)]
    timed = [[np.full(4, float(own))] * 10 for own in untraced]
    walls = [np.split(events.inference_times().duration + copies, 10) for events in tables]
    seen = [[own.tolist() for own in side] for side in walls]
    beside = RelatedData(untraced=(timed[0], timed[1]), walls=(seen[0], seen[1]))
    return compare(*tables, labels=(("off", "a"), ("on", "b")), paired=True, beside=beside)


def test_the_split_of_a_change_adds_up_to_the_change_of_the_headline() -> None:
    """By operators, by kinds and by categories, with the copies and the cost of tracing on both sides."""
    found = compared((90_000, 20_000), (20_000, 20_000), (165_000, 98_000), 60_000)
    shift = found.shift
    assert shift.saved_headline_ns == 67_000
    outside = [(row.name, row.baseline_headline_ns, row.candidate_headline_ns) for row in shift.outside]
    assert outside == [
        ("input and output copies", 60_000, 60_000),
        ("cost of event tracing", -6_000, -3_000),
    ]
    whole = sum(row.saved_headline_ns for row in shift.outside)
    for rows in (found.operators, found.kinds):
        assert sum(row.saved_headline_ns or 0.0 for row in rows) + whole == pytest.approx(67_000)
    by_category = sum(row.saved_headline_ns or 0.0 for row in found.categories)
    assert by_category + shift.outside[1].saved_headline_ns == pytest.approx(67_000)


def test_what_is_left_to_gain_keeps_the_copies() -> None:
    """Without the operators that became faster the copies, the add and the framework remain."""
    found = compared((90_000, 20_000), (20_000, 20_000), (165_000, 98_000), 60_000)
    scale = 98 / 101
    assert found.shift.limit_of_headline == pytest.approx(165_000 / (98_000 - 20_000 * scale))
    first = found.shift.remaining[0]
    assert (first.category, first.headline_ns) == (Category.DATA_MOVEMENT, 60_000)
    assert first.share_of_headline == pytest.approx(60 / 98)
    assert first.limit_of_headline == pytest.approx(98_000 / (98_000 - 60_000 * scale))


def test_times_too_short_to_be_shown_have_no_ratio() -> None:
    """0.000 ms over 0.000 ms is not a speedup."""
    assert ratio_of_times(300.0, 500.0) is None
    assert ratio_of_times(None, 500.0) is None
    assert ratio_of_times(1_500.0, 500.0) == 3.0


def traced_for(times: int) -> Analysis:
    """Three processes of inferences of 52 us, of which an untraced one takes so many times less."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    return told(events, [[52_000 // times] * 8] * 3, outside=0)


def test_a_trace_of_which_most_is_the_cost_of_tracing_is_not_split() -> None:
    """It is timed, says why, and no rule speaks of its operators."""
    found = traced_for(7)
    assert not found.has_split
    (refused,) = [warning for warning in found.trace.warnings if warning.code == "tracing_dominates"]
    assert "7.00x" in refused.message
    assert found.untraced
    assert "portable_operators" not in {one.rule for one in (*found.findings, *found.ruled_out)}


def test_a_trace_that_takes_up_to_twice_as_long_is_split() -> None:
    """Tracing of small models costs a part of their latency; the rows say how much."""
    assert traced_for(1).has_split
    assert traced_for(2).has_split


def test_no_finding_speaks_of_more_than_the_whole() -> None:
    """An operator that takes 50 of 52 us, traced, of a headline of 26: its share is of the traced call."""
    title = next(one.title for one in traced_for(2).findings if one.rule == "portable_operators")
    assert "96.2 %" in title


def test_a_comparison_with_a_refused_side_is_not_split() -> None:
    """The verdict stands, since it rests on untraced calls; what changed in which operator is not known."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    slow, quick = ([np.full(8, duration, np.float64)] * 3 for duration in (52_000, 5_200))
    walls = [[52_000] * 8] * 3
    beside = RelatedData(({}, {}), (slow, quick), {}, (walls, walls))
    found = compare(events, events, labels=(("a", "a"), ("b", "b")), paired=False, outputs=None, beside=beside)
    assert found.no_split
    assert not found.has_split
    assert found.end_to_end.speedup == pytest.approx(10)
