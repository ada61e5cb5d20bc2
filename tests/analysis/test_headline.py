"""One scale: operators and copies of inputs and outputs add up to the latency of the answer, and no row is below 0."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.compare.compare import Comparison, RelatedData, compare
from opscope.analysis.latency.latency import CallTimes
from opscope.analysis.latency.methods import method_times
from opscope.analysis.operators.headline import TracedCallers
from opscope.core.stats.effect import Verdict
from opscope.core.table import EventTable
from opscope.core.table.calls import named_by_calls
from opscope.core.units import ratio_of_times
from opscope.program.operators.kinds import Category
from splits import check_splits
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
    return analyse(events.with_warmup(warmup), SOURCE, "variant", calls=calls)


def together(analysis: Analysis) -> float:
    """What all rows add up to."""
    return math.fsum(row.time_ns or 0.0 for row in (*analysis.operators, *analysis.outside))


def times_of(analysis: Analysis) -> dict[str, float | None]:
    """Times of the operators by their names."""
    return {operator.name: operator.time_ns for operator in analysis.operators}


def large_tensors(untraced: int) -> Analysis:
    """An add of large tensors: of the 117 us of a traced call 50 are the add's, and 66 copy its tensors."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    return told(events, [[untraced] * 8] * 3, outside=66_000)


def test_the_copies_of_large_tensors_are_a_row_of_their_own() -> None:
    """They count as data movement; traced runs that took less are scaled up as a whole."""
    found = large_tensors(120_000)
    (copies,) = found.outside
    assert (copies.name, copies.category) == ("input and output copies", Category.DATA_MOVEMENT)
    scale = 120 / 118
    assert found.factor == pytest.approx(1 / scale)
    assert copies.time_ns == pytest.approx(66_000 * scale)
    assert copies.share == pytest.approx(66 / 118)
    assert (copies.traced_ns, copies.ci95_ns) == (66_000, (66_000, 66_000))
    assert times_of(found)["native_call_add.out"] == pytest.approx(50_000 * scale)
    assert together(found) == pytest.approx(120_000)
    moving = next(row for row in found.categories if row.category is Category.DATA_MOVEMENT)
    assert (moving.time_ns, moving.share) == (pytest.approx(66_000 * scale), pytest.approx(66 / 118))


def test_findings_count_the_copies_as_data_movement() -> None:
    """They are most of the call, so the first thing to look at is them, and no operator promises what they take."""
    moving = next(one for one in large_tensors(118_000).findings if one.rule == "data_movement")
    assert moving.saving_ns == pytest.approx(66_000)
    assert "55.9 %" in moving.title
    assert "copying inputs and outputs 0.066 ms" in moving.evidence


@pytest.mark.parametrize("outside", [0, 700, 20_000, None])
@pytest.mark.parametrize("level", [0.75, 1.0, 1.4])
def test_rows_add_up_to_the_headline(outside: int | None, level: float) -> None:
    """Whatever the durations are, and whether the callers' clocks are known or not; no row is below 0."""
    drawn = np.random.default_rng(7)
    events = EventTable.concat(
        [process(*drawn.integers(5_000, 90_000, (9, 2)).tolist()) for _ in range(5)],
    )
    usual = level * (96_000 + (outside or 0))
    found = told(events, drawn.normal(usual, 100, (5, 9)).astype(int).tolist(), outside, warmup=2)
    assert found.timed
    assert found.headline_ns == pytest.approx(usual, rel=0.01)
    assert together(found) == pytest.approx(found.headline_ns, rel=1e-12)
    rows = [*found.operators, *found.outside]
    assert math.fsum(row.share for row in rows) == pytest.approx(1)
    assert all(0 <= row.share <= 1 and row.time_ns is not None and row.time_ns >= 0 for row in rows)
    assert math.fsum(row.share for row in found.categories) == pytest.approx(
        1 - sum(row.share for row in found.outside if row.category is None)
    )
    assert found.traced
    assert math.fsum(o.traced_ns for o in found.operators) == pytest.approx(found.traced.mean_ns)
    check_splits(found)


def test_tracing_costs_the_framework_first() -> None:
    """Where the framework's own time holds what tracing costs, operators keep the times that they have."""
    events = process(*[(60_000, 30_000)] * 8)
    found = told(events, [[90_400] * 8], outside=0)
    assert times_of(found)["native_call_add.out"] == pytest.approx(30_000)
    framework = sum(row.time_ns or 0.0 for row in found.operators if row.kind == "framework")
    assert framework == pytest.approx(400)
    assert found.traced_text == "traced runs took 1.01x as long: tracing overhead is subtracted from framework time"


def test_what_the_framework_cannot_hold_is_spread_over_all_rows() -> None:
    """A traced call of 111 us of which 1 is the framework's, where an untraced one takes 88."""
    found = told(process(*[(60_000, 30_000)] * 8), [[88_000] * 8], outside=20_000)
    assert found.factor == pytest.approx(111 / 88)
    assert (found.framework_scale, found.scale) == (0, pytest.approx(88 / 110))
    assert times_of(found)["native_call_add.out"] == pytest.approx(30_000 * 88 / 110)
    assert found.copies_ns == pytest.approx(20_000 * 88 / 110)
    assert together(found) == pytest.approx(88_000)


def test_what_no_trace_shows_is_a_row() -> None:
    """Callers of traced runs that tell nothing: what the latency has more is outside of the method."""
    found = told(process(*[(60_000, 30_000)] * 8), [[95_000] * 8], outside=None)
    assert [(row.name, row.time_ns) for row in found.outside] == [("outside of Method::execute", pytest.approx(4_000))]
    assert times_of(found)["native_call_add.out"] == 30_000


def test_a_trace_alone_adds_up_to_its_mean() -> None:
    """There is no other figure above it, so nothing is scaled."""
    drawn = np.random.default_rng(8)
    found = analyse(process(*drawn.integers(5_000, 90_000, (11, 2)).tolist()), SOURCE)
    assert (found.latency.source, found.traced, found.outside) == ("traced", None, [])
    assert (found.statistic, found.headline_ns, found.factor) == ("mean", found.latency.mean_ns, pytest.approx(1))
    assert together(found) == pytest.approx(found.latency.mean_ns)
    assert all(row.time_ns == pytest.approx(row.traced_ns) for row in found.operators)


def test_disturbed_processes_change_neither_ranking_nor_shares() -> None:
    """In three of six traced processes an operator takes 2.56 times as long: that is in its mean, not in its row."""
    quiet = [process(*[(60_000, 30_000)] * 8) for _ in range(6)]
    loaded = [process(*[(60_000, round(30_000 * 2.56))] * 8) if n % 2 else own for n, own in enumerate(quiet)]
    untraced = [[90_000] * 8] * 6
    expected, found = (told(EventTable.concat(each), untraced, outside=500) for each in (quiet, loaded))
    assert found.split_processes == [0, 2, 4]
    shares = [[operator.share for operator in one.operators] for one in (expected, found)]
    assert shares[0] == pytest.approx(shares[1])
    times = {operator.name: operator.traced_ns for operator in found.operators}
    assert times["native_call_add.out"] == pytest.approx(30_000 * 1.78), "the mean keeps its meaning"


def test_disturbed_inferences_count_in_no_row() -> None:
    """A quarter of the inferences of a process, at either end, is left out."""
    found = told(process(*[(60_000, 30_000)] * 9, *[(60_000, 300_000)] * 3), [[91_000] * 12], outside=0)
    assert times_of(found)["native_call_add.out"] == pytest.approx(30_000)


def test_nothing_saved_exceeds_the_headline() -> None:
    """A toy model: an inference takes 500 us, a traced one 640; together all operators save less than 500 us."""
    events = EventTable.concat([process(*[(10_000, 600_000)] * 8) for _ in range(4)])
    found = told(events, [[500_000] * 8] * 4, outside=30_000)
    savings = [one.saving_ns for one in found.findings if one.saving_ns is not None]
    assert savings
    assert max(savings) <= 500_000
    assert all(one.saving_ci95_ns[1] <= 500_000 for one in found.findings if one.saving_ci95_ns)
    portable = next(one for one in found.findings if one.rule == "portable_operators")
    assert portable.saving_ns == pytest.approx(600_000 * 500 / 640)


def test_several_methods_keep_their_shares_of_the_calls() -> None:
    """The middle half is taken of each method by itself, so that no method falls out of it."""
    fast, slow = inference(1_000, 2_000), inference(50_000, 20_000)
    events = named_by_calls(table("\n".join([slow, fast, fast] * 4)), ["prefill", "decode", "decode"])
    calls = CallTimes({0: [72_000, 5_000, 5_000] * 4}, {}, 0, {}, ("prefill", "decode", "decode"))
    found = analyse(events, SOURCE, "variant", calls=calls)
    assert (found.statistic, found.headline_ns) == ("process_medians", pytest.approx(82_000 / 3))
    assert found.traced
    assert sum(row.time_ns or 0.0 for row in found.operators) == pytest.approx(found.traced.mean_ns)
    assert together(found) == pytest.approx(82_000 / 3)


def test_latencies_of_several_methods_are_those_of_the_verdict() -> None:
    """Long calls are preempted more often; which of them count moves neither the latencies nor the speedup."""
    order = ("prefill", "decode", "decode")
    fast, slow = inference(1_000, 2_000), inference(50_000, 20_000)
    events = named_by_calls(table("\n".join([slow, fast, fast] * 6)), list(order))
    tables = EventTable.concat([events] * 6)
    sides = [
        CallTimes({number: [own + number, 5_000, 5_000] * 6 for number in range(6)}, {}, 0, {}, order, off_cpu=off_cpu)
        for own, off_cpu in ((72_000, {}), (36_000, {0: [9_000, 0, 0] * 3 + [0] * 9}))
    ]
    timed = tuple(side.durations(range(6)) for side in sides)
    beside = RelatedData(untraced=(timed[0], timed[1]))
    found = compare(tables, tables, labels=(("off", "a"), ("on", "b")), paired=True, related=beside)
    ends = found.end_to_end
    assert (found.baseline.headline_ns, found.candidate.headline_ns) == (ends.baseline_ns, ends.candidate_ns)
    assert ends.baseline_ns == pytest.approx(82_000 / 3, rel=1e-3)
    assert ends.candidate_ns == pytest.approx(46_000 / 3, rel=1e-3)
    assert ends.verdict is Verdict.FASTER


def test_a_method_whose_calls_were_all_preempted_has_the_latency_that_is_compared() -> None:
    """They are all there is of it without tracing; its traced calls are another measurement."""
    order = ("prefill", "decode")
    events = named_by_calls(table("\n".join([inference(50_000, 20_000), inference(1_000, 2_000)] * 6)), list(order))
    calls = CallTimes({0: [90_000, 5_000] * 6}, {}, 0, {}, order, off_cpu={0: [9_000, 0] * 6})
    prefill, decode = method_times(events, [], calls, {})
    assert [(own.latency.source, own.latency.median_ns) for own in (prefill, decode)] == [
        ("untraced", 90_000),
        ("untraced", 5_000),
    ]
    assert calls.durations([0], "prefill")[0].tolist() == [90_000] * 6


def test_a_caller_whose_clock_runs_behind_the_trace_is_not_subtracted() -> None:
    """Copies below zero are not copies."""
    found = told(process(*[(60_000, 30_000)] * 4), [[95_000] * 4], outside=-1_000)
    assert [row.name for row in found.outside] == ["outside of Method::execute"]


def compared(
    baseline: tuple[int, int], candidate: tuple[int, int], untraced: tuple[int, int], *copies: int
) -> Comparison:
    """Ten rounds of two variants: times of their operators, of untraced calls, and of copies of both or of each."""
    tables = [EventTable.concat([process(*[own] * 4) for _ in range(10)]) for own in (baseline, candidate)]
    timed = [[np.full(4, float(own))] * 10 for own in untraced]
    both = zip(tables, (copies[0], copies[-1]), strict=True)
    walls = [np.split(events.inference_times().duration + copied, 10) for events, copied in both]
    seen = [[own.tolist() for own in side] for side in walls]
    beside = RelatedData(untraced=(timed[0], timed[1]), callers=(TracedCallers(seen[0]), TracedCallers(seen[1])))
    return compare(*tables, labels=(("off", "a"), ("on", "b")), paired=True, related=beside)


def test_the_split_of_a_change_adds_up_to_the_change_of_the_headline() -> None:
    """By operators, by kinds and by categories, with the copies on both sides."""
    found = compared((90_000, 20_000), (20_000, 20_000), (165_000, 98_000), 60_000)
    shift = found.shift
    assert shift.saved_ns == pytest.approx(67_000)
    (copies,) = shift.outside
    assert copies.name == "input and output copies"
    for rows in (found.operators, found.kinds):
        assert sum(row.saved_ns for row in rows) + copies.saved_ns == pytest.approx(67_000)
    assert sum(row.saved_ns for row in found.categories) == pytest.approx(67_000)
    ends = found.end_to_end
    assert (found.baseline.headline_ns, found.candidate.headline_ns) == (ends.baseline_ns, ends.candidate_ns)
    assert ends.speedup == pytest.approx(ends.baseline_ns / ends.candidate_ns)


def test_the_verdict_on_data_movement_is_on_copies_too() -> None:
    """No operator moves data here; copies alone became shorter, by the same in every round."""
    found = compared((90_000, 20_000), (90_000, 20_000), (179_000, 149_000), 60_000, 30_000)
    [moved] = [row for row in found.categories if row.category is Category.DATA_MOVEMENT]
    assert moved.baseline_ns == pytest.approx(found.baseline.copies_ns)
    assert moved.candidate_ns == pytest.approx(found.candidate.copies_ns)
    assert moved.verdict is Verdict.FASTER
    assert moved.ci95_saved_ns is not None
    assert moved.ci95_saved_ns[0] <= moved.saved_ns <= moved.ci95_saved_ns[1]
    assert moved.speedup == pytest.approx(2, rel=0.05)


def test_what_is_left_to_gain_keeps_the_copies() -> None:
    """Without the operators that became faster the copies, the add and the framework remain."""
    found = compared((90_000, 20_000), (20_000, 20_000), (165_000, 98_000), 60_000)
    faster = found.shift.faster.candidate_ns
    assert faster == pytest.approx(20_000 * found.candidate.scale)
    assert found.shift.limit == pytest.approx(165_000 / (98_000 - faster))
    first = found.shift.remaining[0]
    copies = 60_000 * found.candidate.scale
    assert (first.category, first.time_ns) == (Category.DATA_MOVEMENT, pytest.approx(copies))
    assert first.share == pytest.approx(copies / 98_000)
    assert first.limit == pytest.approx(98_000 / (98_000 - copies))


def test_the_interval_of_an_operator_holds_what_stands_beside_it() -> None:
    """A process that was slowed down is in neither: times are those of typical inferences, at their level."""
    slow = [process(*[(90_000 + 300 * number, 20_000)] * 4) for number in range(9)] + [
        process(*[(400_000, 20_000)] * 4)
    ]
    fast = [process(*[(20_000 + 100 * number, 20_000)] * 4) for number in range(10)]
    tables = EventTable.concat(slow), EventTable.concat(fast)
    timed = [np.full(4, 111_000.0)] * 10, [np.full(4, 41_000.0)] * 10
    walls = [[own.tolist() for own in np.split(events.inference_times().duration + 500, 10)] for events in tables]
    beside = RelatedData(untraced=timed, callers=(TracedCallers(walls[0]), TracedCallers(walls[1])))
    found = compare(*tables, labels=(("off", "a"), ("on", "b")), paired=True, related=beside)
    change = next(one for one in found.operators if one.kind == "convolution")
    assert change.ci95_saved_ns
    assert change.baseline_ns is not None
    assert change.candidate_ns is not None
    assert change.ci95_saved_ns[0] <= change.saved_ns <= change.ci95_saved_ns[1]
    assert change.saved_ns == pytest.approx(change.baseline_ns - change.candidate_ns)


@pytest.mark.parametrize(("rounds", "verdict"), [(2, "undecidable"), (3, "faster"), (5, "faster")])
def test_few_rounds_decide_what_is_clear(rounds: int, verdict: str) -> None:
    """A candidate that takes 1.77 times less: two rounds say so and no more, without an interval."""
    drawn = np.random.default_rng(3)
    tables = [EventTable.concat([process(*[(60_000, 30_000)] * 4) for _ in range(rounds)]) for _ in range(2)]
    timed = [[drawn.normal(level, 200, 4) for _ in range(rounds)] for level in (177_000, 100_000)]
    beside = RelatedData(untraced=(timed[0], timed[1]))
    end = compare(*tables, labels=(("off", "a"), ("on", "b")), paired=True, related=beside).end_to_end
    assert end.verdict.value == verdict
    assert end.speedup == pytest.approx(1.77, rel=0.01)
    assert (end.ci95 is None) is (rounds == 2)


def test_times_too_short_to_be_shown_have_no_ratio() -> None:
    """0.000 ms over 0.000 ms is not a speedup."""
    assert ratio_of_times(300.0, 500.0) is None
    assert ratio_of_times(None, 500.0) is None
    assert ratio_of_times(1_500.0, 500.0) == 3.0


def traced_for(times: float) -> Analysis:
    """Three processes of inferences of 52 us, of which an untraced one takes so many times less."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    return told(events, [[round(52_000 / times)] * 8] * 3, outside=0)


@pytest.mark.parametrize("times", [7, 1.6, 0.6])
def test_a_trace_far_from_the_latency_has_shares_and_no_times(times: float) -> None:
    """It is timed, says why, its shares are of the traced call, and no rule speaks of its operators."""
    found = traced_for(times)
    assert not found.timed
    (refused,) = [warning for warning in found.trace.warnings if warning.code == "not_timed"]
    assert f"{times:.2f}x" in refused.message
    assert {row.time_ns for row in (*found.operators, *found.categories, *found.outside)} == {None}
    rows = {operator.name: operator.share for operator in found.operators}
    assert rows["native_call_add.out"] == pytest.approx(50 / 52)
    assert math.fsum(row.share for row in found.categories) == pytest.approx(1)
    assert found.traced
    assert "portable_operators" not in {one.rule for one in (*found.findings, *found.ruled_out)}


@pytest.mark.parametrize("times", [1.5, 1, 0.71])
def test_a_trace_near_to_the_latency_has_times(times: float) -> None:
    """Tracing of small models costs a part of their latency."""
    assert traced_for(times).timed


def test_no_finding_speaks_of_more_than_the_whole() -> None:
    """An operator that takes 50 of 52 us, traced, of a headline of 35: nearly all of it is its own."""
    title = next(one.title for one in traced_for(1.5).findings if one.rule == "portable_operators")
    assert "98.0 %" in title


def test_a_comparison_with_a_side_without_times_is_not_split() -> None:
    """The verdict stands, since it rests on untraced calls; what changed in which operator is not known."""
    events = EventTable.concat([process(*[(1000, 50_000)] * 8) for _ in range(3)])
    slow, quick = ([np.full(8, duration, np.float64)] * 3 for duration in (52_000, 5_200))
    walls = [[52_000] * 8] * 3
    beside = RelatedData(({}, {}), (slow, quick), {}, (TracedCallers(walls), TracedCallers(walls)))
    found = compare(events, events, labels=(("a", "a"), ("b", "b")), paired=False, outputs=None, related=beside)
    assert found.no_split
    assert not found.has_split
    assert (found.operators, found.categories) == ([], [])
    assert (found.baseline.timed, found.candidate.timed) == (True, False)
    assert found.end_to_end.speedup == pytest.approx(10)


def interrupted(preempted: int, *, recorded: bool = True) -> Analysis:
    """Three processes of 20 inferences of 50 us; in the first of each the add took 900 us, kept off the CPU."""
    inferences = [(40_000, 909_000)] * preempted + [(40_000, 9_000)] * (20 - preempted)
    events = EventTable.concat([process(*inferences) for _ in range(3)])
    walls = dict(enumerate(events.inference_times().duration.reshape(3, 20).tolist()))
    off_cpu = dict.fromkeys(range(3), [900_000] * preempted + [0] * (20 - preempted)) if recorded else {}
    untraced = dict.fromkeys(range(3), [50_000] * 20)
    calls = CallTimes(untraced, walls, 0, {}, rounds=(0, 1, 2), traced_off_cpu=off_cpu)
    return analyse(events, SOURCE, "variant", calls=calls)


@pytest.mark.parametrize("preempted", [0, 1, 5])
def test_preempted_inferences_count_in_neither_the_time_nor_the_range(preempted: int) -> None:
    """Up to a quarter of them, of those whose time off the CPU is known."""
    analysis = interrupted(preempted)
    add = next(row for row in analysis.operators if row.name == "native_call_add.out")
    assert (add.time_ns, add.spread_ns) == (9_000, (9_000, 9_000))
    assert (analysis.timed, analysis.preempted_share) == (True, preempted / 20)


def test_a_share_that_nobody_recorded_is_not_known() -> None:
    """It is null, and not 0."""
    assert interrupted(1, recorded=False).preempted_share is None


def test_a_split_of_mostly_preempted_inferences_has_shares_alone() -> None:
    """More than a quarter: the trace says so, and no row has a time or a range."""
    analysis = interrupted(6)
    assert not analysis.timed
    assert {(row.time_ns, row.spread_ns) for row in analysis.operators} == {(None, None)}
    warning = next(warning for warning in analysis.trace.warnings if warning.code == "not_timed")
    assert "30.0 %" in warning.message
    assert math.fsum(row.share for row in (*analysis.operators, *analysis.outside)) == pytest.approx(1)


def test_an_operator_that_was_interrupted_in_a_typical_inference_keeps_its_time() -> None:
    """Without time off the CPU: single values beyond a tenth at either end count in neither its time nor its range."""
    inferences = [(40_000 - 1000 * (number % 2), 9_000 + 1000 * (number % 2)) for number in range(40)]
    inferences[20] = (1_000, 48_000)  # as long as the others as a whole
    events = EventTable.concat([process(*inferences) for _ in range(3)])
    analysis = told(events, [[50_000] * 40] * 3, outside=0)
    add = next(row for row in analysis.operators if row.name == "native_call_add.out")
    assert add.spread_ns is not None
    assert add.spread_ns[0] <= (add.time_ns or 0) <= add.spread_ns[1] < 10_100
    assert together(analysis) == pytest.approx(50_000)
