"""The decision of a gate, and budgets of operators: the table of the documentation, line by line."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from opscope.analysis.compare.compare import Comparison, RelatedData, compare
from opscope.analysis.findings.message import Grade, concern
from opscope.analysis.findings.message import judge as judge_quality
from opscope.analysis.gate.budgets import Budget, Budgets, EndToEndBudget, Sides, SplitTimes, judge_budgets, split_times
from opscope.analysis.gate.decision import Criterion, Outcome, Quantity, let_inconclusive_pass, worst_outcome
from opscope.analysis.gate.gate import Slowdown, Thresholds, end_to_end_slowdown, gate, judge, rounds_for
from opscope.analysis.work.gate import join_with_time, work_decision
from opscope.analysis.work.work import CountedOperator, RestWork, Work
from opscope.core.stats.effect import Verdict, unpaired_effects
from opscope.core.table import EventTable
from opscope.program.operators.kinds import Category
from texts import OPERATORS_SLOWER
from traces import table

SLOWER, SAME, FASTER = Verdict.SLOWER, Verdict.NO_DIFFERENCE, Verdict.FASTER
UNDECIDABLE = Verdict.UNDECIDABLE
PASSED, REGRESSION, INCONCLUSIVE = Outcome.PASSED, Outcome.REGRESSION, Outcome.INCONCLUSIVE
LABELS = (("old", "old"), ("new", "new"))
NOISE = [0, 5, -4, 2, -3, 4, -5, 1]


def shown(estimate: float, interval: tuple[float, float], verdict: Verdict, smallest: float) -> Slowdown:
    """A slowdown of enough processes."""
    return Slowdown(estimate, interval, verdict, smallest, decidable=verdict is not UNDECIDABLE)


@pytest.mark.parametrize(
    ("slowdown", "outcome"),
    [
        (shown(0.20, (0.18, 0.22), UNDECIDABLE, 0.01), INCONCLUSIVE),
        (shown(-0.20, (-0.22, -0.18), UNDECIDABLE, 0.01), INCONCLUSIVE),
        (shown(0.05, (0.04, 0.06), SLOWER, 0.01), REGRESSION),
        (shown(0.05, (0.01, 0.09), SLOWER, 0.05), REGRESSION),
        (shown(0.05, (-0.02, 0.12), SAME, 0.10), INCONCLUSIVE),
        (shown(0.031, (-0.001, 0.06), SAME, 0.029), INCONCLUSIVE),
        (shown(0.01, (-0.01, 0.03), SAME, 0.05), PASSED),
        (shown(0.02, (0.01, 0.03), SLOWER, 0.01), PASSED),
        (shown(-0.20, (-0.30, -0.10), FASTER, 0.15), PASSED),
        (shown(0.00, (-0.04, 0.04), SAME, 0.03), PASSED),
        (shown(0.025, (0.01, 0.04), SLOWER, 0.02), PASSED),
        (shown(0.00, (-0.04, 0.04), SAME, 0.031), INCONCLUSIVE),
        (shown(0.025, (0.001, 0.05), SLOWER, 0.04), INCONCLUSIVE),
        (Slowdown(0.0, None, UNDECIDABLE, None, decidable=False), INCONCLUSIVE),
    ],
)
def test_the_table_of_decisions(slowdown: Slowdown, outcome: Outcome) -> None:
    """Each line of the documentation, with a threshold of 3 %, its borders included."""
    found, reason = judge(slowdown, 0.03)
    assert found is outcome
    assert reason


def test_of_equal_sides_few_are_called_regressions_and_slow_ones_are_found() -> None:
    """500 simulated gates of 6 processes a side with 2 % noise: equal sides, and 8 % slower ones, against 3 %."""
    generator = np.random.default_rng(7)
    baseline = generator.normal(0, 0.02, (6, 500))
    outcomes = []
    for true in (0.0, 0.08):
        candidate = generator.normal(math.log1p(true), 0.02, (6, 500))
        outcomes.append([_outcome(effect) for effect in unpaired_effects(baseline, candidate)])
    equal, slow = outcomes
    assert equal.count(REGRESSION) / len(equal) <= 0.025
    assert slow.count(REGRESSION) / len(slow) >= 0.99
    assert slow.count(PASSED) == 0


def _outcome(effect: object) -> Outcome:
    interval = math.expm1(-effect.high), math.expm1(-effect.low)
    smallest = math.expm1(effect.minimum_detectable)
    return judge(Slowdown(math.expm1(-effect.estimate), interval, effect.verdict(), smallest, decidable=True), 0.03)[0]


def execution(convolution: int, add: int) -> str:
    """One inference: a delegated convolution, a portable add, some framework time."""
    total = convolution + add + 20_000
    return (
        f"Method::execute {total}\n"
        f"  DELEGATE_CALL @0 {convolution + 10_000}\n    Convolution (NHWC, F32) IGEMM #1 {convolution}\n"
        f"  OPERATOR_CALL @1 {add + 5_000}\n    native_call_add.out {add}\n"
    )


def side(convolution: int, add: int, processes: int = 8) -> EventTable:
    """Processes of one inference each, with some noise between them."""
    noise = [NOISE[number % 8] for number in range(processes)]
    tables = [table(execution(convolution + n * convolution // 1000, add + n * add // 1000)) for n in noise]
    return EventTable.concat(tables)


def compared(old: EventTable, new: EventTable) -> Comparison:
    """The comparison of two independent groups."""
    return compare(old, new, labels=LABELS, paired=False, related=RelatedData())


def sides(old: EventTable, new: EventTable, *, paired: bool = False) -> Sides:
    """Both sides for the budgets."""
    found = new.inference_times()
    latency = np.log([[float(d)] for d in found.duration])
    return Sides(split_times(old, None), split_times(new, None), paired, {"": latency})


def judged(budgets: Budgets, old: EventTable, new: EventTable) -> list[Criterion]:
    """Criteria of a budget."""
    return judge_budgets(budgets, sides(old, new))


OLD = side(400_000, 100_000)


@pytest.mark.parametrize(
    ("new", "outcome"),
    [
        (side(400_000, 100_000), PASSED),
        (side(500_000, 100_000), REGRESSION),
        (side(300_000, 100_000), PASSED),
        (side(500_000, 100_000, processes=1), INCONCLUSIVE),
    ],
)
def test_a_gate_on_a_comparison(new: EventTable, outcome: Outcome) -> None:
    """The slowdown is the speedup from the other side, and so is its interval."""
    comparison = compared(OLD, new)
    report = gate(comparison, thresholds=Thresholds(0.03))
    found = comparison.end_to_end
    assert report.outcome is outcome
    assert report.let_through is (outcome is PASSED)
    (first,) = report.criteria
    assert first.measured == pytest.approx(found.candidate_ns / found.baseline_ns - 1)
    assert (report.advice is None) is (outcome is PASSED)
    low, high = first.ci95 or (-1, 1)
    assert low <= first.measured <= high
    assert first.limit == 0.03


def test_a_disturbed_comparison_is_not_trusted() -> None:
    """It was measured, each side has its figure, and there is no ratio to judge; that may not pass."""
    beside = RelatedData(disturbed="other processes took 60 % of the CPU time of old")
    comparison = compare(OLD, side(500_000, 100_000), labels=LABELS, paired=False, related=beside)
    found = comparison.end_to_end
    assert (found.speedup, found.ci95, found.verdict, found.reason) == (None, None, Verdict.WITHHELD, beside.disturbed)
    assert found.candidate_ns > found.baseline_ns > 0
    changes = [*comparison.categories, *comparison.kinds, *comparison.operators]
    told = {(c.speedup, c.ci95_saved_ns, c.verdict) for c in changes}
    assert told == {(None, None, Verdict.WITHHELD)}
    report = let_inconclusive_pass(gate(comparison, thresholds=Thresholds(0.03)))
    assert (report.outcome, report.let_through, report.criteria[0].measured) == (Outcome.UNTRUSTED, False, None)
    assert report.criteria[0].reason == beside.disturbed
    assert "quiet machine" in str(report.advice)


@pytest.mark.parametrize("new", [side(400_000, 100_000), side(500_000, 100_000)])
def test_a_decision_on_figures_that_are_not_trusted_is_none(new: EventTable) -> None:
    """A pass and a regression alike; the criterion says why."""
    doubted = judge_quality([concern("steady", Grade.DO_NOT_TRUST, "it throttled", "cool it")])
    report = gate(msgspec.structs.replace(compared(OLD, new), quality=doubted), thresholds=Thresholds(0.03))
    assert report.outcome is Outcome.UNTRUSTED
    assert report.criteria[0].reason == "measured, but not trustworthy: it throttled"


def test_slower_operators_are_listed_by_their_loss() -> None:
    """Both became slower, the convolution by more; the framework did not."""
    report = gate(compared(OLD, side(500_000, 140_000)))
    assert [change.kind for change in report.evidence.slower] == ["convolution", "arithmetic"]
    assert OPERATORS_SLOWER in str(report.advice)


def test_operators_of_one_side_are_listed_by_their_time() -> None:
    """What the other program does instead has no verdict of its own; the advice leads there when it takes most."""
    comparison = compared(OLD, side(500_000, 100_000))
    replace, first = msgspec.structs.replace, comparison.operators[0]
    unjudged = replace(first, verdict=UNDECIDABLE, ci95_saved_ns=None, speedup=None)
    new = replace(unjudged, name="erf", baseline_ns=None, candidate_ns=90_000.0, saved_ns=-90_000.0)
    old = replace(unjudged, name="mean", baseline_ns=10_000.0, candidate_ns=None, saved_ns=10_000.0)
    call = replace(new, kind="framework", saved_ns=-95_000.0, candidate_ns=95_000.0)
    report = gate(replace(comparison, operators=[old, call, new]))
    assert [change.name for change in report.evidence.unmatched] == ["erf", "mean"]
    assert report.evidence.slower == []
    assert "operators that only one side has" in str(report.advice)
    assert gate(comparison).evidence.unmatched == []


def test_inconclusive_may_be_let_through_but_regressions_never() -> None:
    """A note says it."""
    doubtful = let_inconclusive_pass(gate(compared(OLD, side(400_000, 100_000, processes=1))))
    assert (doubtful.outcome, doubtful.let_through) == (INCONCLUSIVE, True)
    assert "pass, as requested" in doubtful.notes[0]
    slow = gate(compared(OLD, side(500_000, 100_000)))
    assert let_inconclusive_pass(slow) == slow


def test_no_interval_of_a_single_process() -> None:
    """One process a side has a slowdown, and no more."""
    found = end_to_end_slowdown(compared(side(400_000, 1, 1), side(500_000, 1, 1)).end_to_end)
    assert found.interval is None
    assert not found.decidable
    assert judge(found, 0.5)[0] is INCONCLUSIVE


def criterion(outcome: Outcome, **changes: object) -> Criterion:
    """A criterion with an outcome."""
    base = Criterion("one", Quantity.SLOWDOWN, 0.03, 0.0, None, outcome, "because", 1.0)
    return msgspec.structs.replace(base, **changes)


def test_the_worst_outcome_counts() -> None:
    """A regression before what is inconclusive, that before a pass."""
    outcomes = [PASSED, INCONCLUSIVE, REGRESSION]
    worst = [worst_outcome([criterion(outcome) for outcome in outcomes[: count + 1]]) for count in range(3)]
    assert worst == outcomes


@pytest.mark.parametrize(
    ("smallest", "limit", "rounds"), [(0.06, 0.03, 40), (0.03, 0.03, None), (None, 0.03, None), (0.06, 0.0, None)]
)
def test_rounds_that_would_be_enough(smallest: float | None, limit: float, rounds: int | None) -> None:
    """Half the detectable change takes four times the processes."""
    assert rounds_for(criterion(INCONCLUSIVE, minimum_detectable=smallest, limit=limit), 10) == rounds


def test_absolute_limits_use_the_spread_of_processes() -> None:
    """The convolution takes 0.4 ms: above 0.3 is exceeded, below 0.5 kept, at 0.4 within the noise."""
    budgets = [Budget(category=Category.CONVOLUTION, max_ms=limit) for limit in (0.3, 0.4, 0.5)]
    found = judged(Budgets(budget=budgets), OLD, OLD)
    assert [c.outcome for c in found] == [REGRESSION, INCONCLUSIVE, PASSED]
    assert all(c.measured == pytest.approx(400_000, rel=0.001) for c in found)
    assert [c.entry for c in found] == [0, 1, 2]
    assert all(c.ci95 is not None and c.ci95[0] < 400_000 < c.ci95[1] for c in found)


def test_shares_are_of_the_whole_inference() -> None:
    """The portable add takes 100 of 520 us."""
    budgets = [Budget(backend="portable", max_share=limit) for limit in (0.15, 0.25)]
    found = judged(Budgets(budget=budgets), OLD, OLD)
    assert [c.outcome for c in found] == [REGRESSION, PASSED]
    assert found[0].measured == pytest.approx(100 / 520, rel=0.01)


def test_relative_limits_compare_what_the_same_words_choose() -> None:
    """The add takes 40 % more, the convolution the same, and end to end it is 8 %."""
    new = side(400_000, 140_000)
    budgets = [
        Budget(backend="portable", max_slower=0.5),
        Budget(backend="portable", max_slower=0.2),
        Budget(kind="convolution", max_slower=0.05),
    ]
    found = judged(Budgets(budget=budgets), OLD, new)
    assert [c.outcome for c in found] == [PASSED, REGRESSION, PASSED]
    assert found[0].measured == pytest.approx(0.4, abs=0.01)
    assert found[0].verdict is SLOWER
    assert found[0].baseline_ns == pytest.approx(100_000, rel=0.01)


def test_end_to_end_may_have_an_absolute_limit() -> None:
    """0.52 ms against 0.4 and 0.6 ms."""
    outcomes = [
        judged(Budgets(end_to_end=EndToEndBudget(max_ms=limit)), OLD, OLD)[0].outcome for limit in (0.4, 0.52, 0.6)
    ]
    assert outcomes == [REGRESSION, INCONCLUSIVE, PASSED]


@pytest.mark.parametrize("limit", [0.3, 0.5])
def test_few_processes_decide_no_absolute_limit(limit: float) -> None:
    """Five cannot reach 5 %, on either side of the limit."""
    few = side(400_000, 100_000, processes=5)
    (found,) = judged(Budgets(budget=[Budget(kind="convolution", max_ms=limit)]), few, few)
    assert found.outcome is INCONCLUSIVE
    assert "too few" in found.reason


def test_many_limits_are_corrected_together() -> None:
    """Six processes agree at p = 3 %, which is enough for one limit and not for one exceeded among twenty."""
    six = side(400_000, 100_000, processes=6)
    exceeded, kept = Budget(kind="convolution", max_ms=0.3), Budget(kind="convolution", max_ms=0.4)
    assert judged(Budgets(budget=[exceeded]), six, six)[0].outcome is REGRESSION
    found = judged(Budgets(budget=[exceeded, *[kept] * 19]), six, six)
    assert found[0].outcome is INCONCLUSIVE
    assert "this many limits" in found[0].reason


def test_what_the_baseline_lacks_cannot_be_compared() -> None:
    """An operator that is new has no slowdown; its time has a limit all the same."""
    old = EventTable.concat(
        [table("Method::execute 420000\n  DELEGATE_CALL @0 410000\n    Convolution (NHWC, F32) IGEMM #1 400000\n")] * 8
    )
    found = judged(Budgets(budget=[Budget(backend="portable", max_slower=0.1, max_ms=1.0)]), old, OLD)
    assert [(c.quantity, c.outcome) for c in found] == [(Quantity.TIME, PASSED), (Quantity.SLOWDOWN, INCONCLUSIVE)]
    assert found[1].reason == "the baseline has no such operators"
    assert found[1].baseline_ns is None


def cut(times: Sequence[float], unresolved: float) -> SplitTimes:
    """One operator whose durations were cut off."""
    found = split_times(OLD, None)
    rows = [operator for operator in found.operators if operator.kind == "convolution"]
    return SplitTimes(rows, np.array([[time] for time in times]), np.array([unresolved]))


@pytest.mark.parametrize(("unresolved", "outcome"), [(0.0, PASSED), (999.0, INCONCLUSIVE)])
def test_cut_off_durations_prove_little_about_short_operators(unresolved: float, outcome: Outcome) -> None:
    """2 us on both sides by a clock of whole microseconds may be 2.0 and 2.9; by one of ns it is the same."""
    short = cut([2000.0 + number for number in NOISE], unresolved)
    latency = {"": np.zeros((8, 1))}
    budgets = Budgets(budget=[Budget(kind="convolution", max_slower=0.05)])
    (relative,) = judge_budgets(budgets, Sides(short, short, paired=False, latency=latency))
    (absolute,) = judge_budgets(
        Budgets(budget=[Budget(kind="convolution", max_ms=0.0025)]), Sides(short, short, paired=False, latency=latency)
    )
    assert (relative.outcome, absolute.outcome) == (outcome, outcome)
    assert outcome is PASSED or "clock" in relative.reason


def test_a_file_without_limits_gives_no_criteria() -> None:
    """Nothing to judge, nothing to correct."""
    assert judged(Budgets(), OLD, OLD) == []


def test_noise_hides_no_exact_regression_and_decides_no_limit_of_time() -> None:
    """Where times are not to be trusted every limit of a time is undecided; work that grew is told as a regression."""
    doubted = judge_quality([concern("steady", Grade.DO_NOT_TRUST, "it throttled", "cool it")])
    comparison = msgspec.structs.replace(compared(OLD, side(500_000, 100_000)), quality=doubted)
    absolute = Criterion("end-to-end latency", Quantity.TIME, 1.0, 5e5, None, Outcome.REGRESSION, "too long")
    time = gate(comparison, thresholds=Thresholds(0.03), budgets=[absolute])
    assert {one.outcome for one in time.criteria} == {Outcome.UNTRUSTED}
    words = dict.fromkeys(("method", "name", "layer", "category", "kind"), "linear")
    numbers = dict.fromkeys(
        (
            "instruction",
            "position",
            "bytes_loaded",
            "bytes_stored",
            "outer_products",
            "mac_capacity",
            "tile_capacity",
            "macs",
        ),
        0,
    )
    own = [CountedOperator(**words, **numbers, instructions=count, classes={"scalar": count}) for count in (100, 110)]
    rest = RestWork(0, 0, 0)
    counted = [Work("m.pte", "0" * 64, "ExecuTorch 1.5.1", "Arm", "QEMU", [], [], [one], rest) for one in own]
    both = join_with_time(work_decision(*counted), time)
    assert both.outcome is Outcome.REGRESSION
    assert any("exact work" in note and "not trustworthy" in note for note in both.notes)
    equal = join_with_time(work_decision(counted[0], counted[0]), time)
    assert (equal.outcome, equal.notes) == (Outcome.UNTRUSTED, time.notes)


@pytest.mark.parametrize("candidate_ns", [500_000, 900_000])
def test_a_measurement_that_is_not_to_be_trusted_lets_nothing_pass(candidate_ns: int) -> None:
    """Neither a pass nor a regression rests on times that the report says not to trust."""
    differ = concern("outputs_alike", Grade.DO_NOT_TRUST, "relative error 1.2", "")
    change = compared(OLD, side(candidate_ns, 100_000))
    decision = gate(msgspec.structs.replace(change, quality=judge_quality([differ])))
    assert (decision.outcome, decision.let_through) == (Outcome.UNTRUSTED, False)
