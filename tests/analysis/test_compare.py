"""Comparisons: verdicts with intervals, operators matched by place, and a split that explains the difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opscope.analysis.compare.compare import (
    NOT_FASTER,
    RESOLUTION,
    RESOLVED,
    Comparison,
    OperatorChange,
    RelatedData,
    compare,
    largest_speedup,
    shown_not_faster,
)
from opscope.analysis.operators.operators import OperatorFacts
from opscope.core.stats.effect import Verdict
from opscope.core.stats.hierarchy import FEWEST_CLEAR
from opscope.core.table import EventTable
from opscope.core.table.places import OperatorKey
from opscope.program.operators.kinds import Attribution, Category
from opscope.program.operators.taxonomy import OperatorClass
from opscope.reports.sections.shift import shift_sentences
from traces import table

LABELS = (("off", "off"), ("on", "on"))


def process(convolution: int, add: int = 20_000) -> EventTable:
    """One process of three inferences with a convolution and an add of these times."""
    call = convolution + 1_000
    text = f"""
        Method::execute {call + add + 3_000}
          DELEGATE_CALL @0 {call}
            Convolution (NHWC, F32) IGEMM #1 {convolution}
          OPERATOR_CALL @1 {add + 1_000}
            native_call_add.out {add}
    """
    return table(text, repeat=3)


def compared(baseline: list[int], candidate: list[int], *, paired: bool = True) -> Comparison:
    """Compare processes whose convolutions take these times."""
    sides = (EventTable.concat([process(time) for time in times]) for times in (baseline, candidate))
    return compare(*sides, labels=LABELS, paired=paired)


EIGHT_SLOW = [200_000, 202_000, 199_000, 205_000, 201_000, 198_000, 203_000, 200_000]
EIGHT_FAST = [100_000, 102_000, 101_000, 99_000, 100_000, 103_000, 98_000, 101_000]


def test_half_the_time_is_faster() -> None:
    """Eight rounds that all agree are a verdict, and the speedup is the ratio of both sides."""
    found = compared(EIGHT_SLOW, EIGHT_FAST).end_to_end
    assert found.verdict is Verdict.FASTER
    assert found.speedup == pytest.approx(found.baseline_ns / found.candidate_ns)
    assert found.ci95 is not None
    assert found.ci95[0] < found.speedup < found.ci95[1]
    assert found.design == "paired"


def test_the_same_on_both_sides_is_no_difference() -> None:
    """Identical sides have a speedup of exactly one and no verdict."""
    found = compared(EIGHT_FAST, EIGHT_FAST).end_to_end
    assert (found.speedup, found.verdict) == (1, Verdict.NO_DIFFERENCE)


def test_no_difference_says_what_size_the_interval_excludes() -> None:
    """Of sides that scatter by 2 %, a change beyond the farther end of the interval is excluded, either way."""
    found = compared(EIGHT_FAST, [*EIGHT_FAST[1:], EIGHT_FAST[0]]).end_to_end
    assert found.verdict is Verdict.NO_DIFFERENCE
    low, high = found.ci95 or (0.0, 0.0)
    assert found.excluded_beyond == pytest.approx(max(high - 1, 1 / low - 1))
    assert 0.0 < found.excluded_beyond < 0.1


def test_nothing_is_excluded_where_a_difference_was_shown_or_too_few_rounds_ran() -> None:
    """Faster, and undecidable."""
    assert compared(EIGHT_SLOW, EIGHT_FAST).end_to_end.excluded_beyond is None
    assert compared(EIGHT_FAST[:3], EIGHT_FAST[:3]).end_to_end.excluded_beyond is None


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_fewer_than_six_rounds_decide_nothing_of_operators(rounds: int) -> None:
    """Five rounds cannot reach 5 % in the permutation test, however large the difference; the latency is clear."""
    found = compared(EIGHT_SLOW[:rounds], EIGHT_FAST[:rounds])
    assert {change.verdict for change in (*found.operators, *found.categories)} == {Verdict.UNDECIDABLE}
    assert found.end_to_end.verdict is (Verdict.FASTER if rounds >= FEWEST_CLEAR else Verdict.UNDECIDABLE)


def test_one_repetition_a_side_has_no_interval() -> None:
    """One process has no spread, so nothing is known about the ratio's uncertainty."""
    found = compared([200_000], [100_000], paired=False)
    assert found.end_to_end.ci95 is None
    assert found.notes


def test_savings_of_operators_add_up_to_the_change() -> None:
    """What operators saved is what the inference saved."""
    found = compared(EIGHT_SLOW, EIGHT_FAST)
    saved = found.baseline.headline_ns - found.candidate.headline_ns
    assert sum(change.saved_ns for change in found.operators) == pytest.approx(saved)
    assert sum(change.saved_ns for change in found.categories) == pytest.approx(saved)


def test_operators_are_matched_by_place_not_by_name() -> None:
    """With SME2 the same convolution is called PF32; it is still the same operator."""
    text = "Method::execute 100000\n  DELEGATE_CALL @0 90000\n    Convolution (NHWC, {}) IGEMM #1 {}000\n"
    sides = [EventTable.concat([table(text.format(*each))] * 6) for each in (("F32", 80), ("PF32", 20))]
    found = compare(*sides, labels=LABELS, paired=True)
    (convolution,) = (change for change in found.operators if change.kind == "convolution")
    assert convolution.baseline_name == "Convolution (NHWC, F32) IGEMM #1"
    assert convolution.candidate_name == "Convolution (NHWC, PF32) IGEMM #1"
    assert convolution.speedup == 4


def test_an_operator_that_one_side_inserts_stands_alone() -> None:
    """A Convert that only the masked variant runs has no partner, and the others still find theirs."""
    plain = "Method::execute 100000\n  DELEGATE_CALL @0 90000\n    Convolution (NHWC, F16) IGEMM #1 40000\n"
    inserted = (
        "Method::execute 100000\n  DELEGATE_CALL @0 90000\n"
        "    Convert (NC) #1 9000\n    Convolution (NHWC, F32) IGEMM #1 60000\n"
    )
    found = compare(table(inserted), table(plain), labels=LABELS, paired=True)
    by_kind = {change.kind: change for change in found.operators}
    assert by_kind["quantisation"].candidate_name is None
    assert by_kind["convolution"].speedup == 1.5
    assert any("one side only" in note for note in found.notes)


def test_sides_are_exchangeable() -> None:
    """Swapping the sides inverts the speedup and the verdict."""
    there, back = compared(EIGHT_SLOW, EIGHT_FAST).end_to_end, compared(EIGHT_FAST, EIGHT_SLOW).end_to_end
    assert there.speedup * back.speedup == pytest.approx(1)
    assert (there.verdict, back.verdict) == (Verdict.FASTER, Verdict.SLOWER)


def test_what_was_cut_off_is_in_the_interval() -> None:
    """Whole microseconds: 3 us against 4 us in every round may be 3.9 against 4.1, and no repetition tells."""
    text = "Method::execute {}\n  DELEGATE_CALL @0 {}\n    Convolution (NHWC, F32) IGEMM #1 {}000\n"
    sides = [
        EventTable.concat([table(text.format(90_000 + r, 80_000, convolution)) for r in range(8)])
        for convolution in (4, 3)
    ]
    (convolution,) = (c for c in compare(*sides, labels=LABELS, paired=True).operators if c.kind == "convolution")
    assert convolution.saved_ns == 1_000
    assert convolution.ci95_saved_ns is not None
    assert convolution.resolution_ns == pytest.approx(1.96 * 999 * (2 / 12) ** 0.5, rel=0.01)
    assert convolution.ci95_saved_ns == pytest.approx(
        (1_000 - convolution.resolution_ns, 1_000 + convolution.resolution_ns)
    )


def test_a_group_that_holds_the_call_around_it_lacks_nothing() -> None:
    """What is cut off from the operators of a call reads as time of the call: both in one group are whole."""
    text = "Method::execute {}\n  DELEGATE_CALL @0 80000\n    Convert (NC) #1 4000\n    Custom (NC) #1 4000\n"
    sides = [EventTable.concat([table(text.format(90_000 + r)) for r in range(6)]) for _ in range(2)]
    found = compare(*sides, labels=LABELS, paired=True)
    other = next(change for change in found.categories if change.category.value == "Other")
    moved = next(change for change in found.categories if change.category.value == "Data Movement")
    assert 0 < other.resolution_ns < 999
    assert moved.resolution_ns == pytest.approx(other.resolution_ns)


def test_the_shift_names_what_was_on_top_and_what_is_now() -> None:
    """The convolution ruled, the add rules now; without the convolution only the rest would be left."""
    found = compared([300_000 + r * 100 for r in range(8)], [10_000 + r * 100 for r in range(8)])
    shift = found.shift
    assert shift.before is not None
    assert shift.after is not None
    assert (shift.before.kind, shift.after.kind) == ("convolution", "arithmetic")
    assert shift.saved_ns == pytest.approx(found.baseline.headline_ns - found.candidate.headline_ns)
    parts = (shift.faster, shift.slower, shift.unchanged, shift.undecided)
    work = [change for change in found.operators if change.kind != "framework"]
    assert sum(part.operators for part in parts) == len(work)
    assert sum(part.baseline_ns for part in parts) == pytest.approx(found.baseline.headline_ns)
    assert sum(part.candidate_ns for part in parts) == pytest.approx(found.candidate.headline_ns)
    assert shift.limit == pytest.approx(
        found.baseline.headline_ns / (found.candidate.headline_ns - shift.faster.candidate_ns)
    )
    assert all(isinstance(part.baseline_ns, float) for part in parts)  # of no operators too: JSON keeps its types
    top = shift.remaining[0]
    assert top.limit == pytest.approx(found.candidate.headline_ns / (found.candidate.headline_ns - top.time_ns))
    assert [row.time_ns for row in shift.remaining] == sorted((row.time_ns for row in shift.remaining), reverse=True)


def whole(before: int, after: int) -> Comparison:
    """Eight rounds of a convolution of so many whole microseconds, whose rest is cut off, and a long product."""
    text = (
        "Method::execute 200000\n  DELEGATE_CALL @0 200000\n    Convolution (NHWC, F32) IGEMM #1 {}000\n"
        "    Fully Connected (NC, F32) GEMM #1 90000\n"
    )
    sides = [EventTable.concat([table(text.format(time))] * 8) for time in (before, after)]
    return compare(*sides, labels=LABELS, paired=True)


def test_an_operator_below_the_resolution_of_its_clock_has_no_speedup() -> None:
    """29 us against one that reads 1 and lies between 1 and 2: neither 29x nor any other figure."""
    found = whole(29, 1)
    (operator,) = (change for change in found.operators if change.kind == "convolution")
    (kind,) = (change for change in found.kinds if change.kind == "convolution")
    (category,) = (change for change in found.categories if change.category.value == "Convolution")
    assert operator.resolution_ns > RESOLVED * 1_000
    assert (operator.speedup, kind.speedup, category.speedup) == (None, None, None)
    assert operator.saved_ns == 28_000


def test_an_operator_that_its_clock_resolves_has_a_speedup() -> None:
    """40 us against 20: what is cut off is a few per cent of either."""
    found = whole(40, 20)
    (operator,) = (change for change in found.operators if change.kind == "convolution")
    assert operator.speedup == 2


def test_not_faster_is_a_speedup_that_is_excluded_not_one_that_was_not_shown() -> None:
    """Eight rounds that agree exclude 1.1x; six that scatter by half exclude nothing."""
    (settled,) = (c for c in compared(EIGHT_FAST, EIGHT_FAST).operators if c.kind == "convolution")
    assert largest_speedup(settled) < NOT_FASTER
    assert shown_not_faster(settled)
    wild = [100_000, 150_000, 80_000, 160_000, 70_000, 120_000]
    (open_,) = (c for c in compared(wild, wild[::-1]).operators if c.kind == "convolution")
    assert open_.verdict is Verdict.NO_DIFFERENCE
    assert not shown_not_faster(open_)


CONVOLUTION = OperatorClass(Category.CONVOLUTION, "convolution")
Facts = dict[OperatorKey, OperatorFacts]


def layers(*names: str | None, attribution: Attribution = Attribution.EXACT) -> Facts:
    """What a program says of a chain of convolutions, one instruction each: the module that each belongs to."""
    return {
        OperatorKey("forward", number, 0): OperatorFacts(
            operator_class=CONVOLUTION, attribution=attribution, aten="aten.convolution.default", module=name
        )
        for number, name in enumerate(names)
    }


def chain(*times: int) -> EventTable:
    """Eight processes of a program of as many delegated convolutions; processes differ by a few ns."""
    processes = []
    for number in range(8):
        calls = "".join(
            f"  DELEGATE_CALL @{at} {time + 500}\n    Convolution (NHWC, F32) IGEMM #1 {time + number % 3}\n"
            for at, time in enumerate(times)
        )
        processes.append(table(f"Method::execute {sum(times) + 9_000 + number}\n{calls}", repeat=2))
    return EventTable.concat([one.with_method("forward") for one in processes])


def across(baseline: EventTable, candidate: EventTable, facts: tuple[Facts, Facts]) -> Comparison:
    """Compare two programs that are known to be different."""
    related = RelatedData(facts, same_program=False)
    return compare(baseline, candidate, labels=LABELS, paired=True, related=related)


def by_layer(found: Comparison) -> dict[str | None, OperatorChange]:
    """Changes of the convolutions of a comparison."""
    return {change.module: change for change in found.operators if change.kind == "convolution"}


def test_operators_of_different_programs_are_matched_by_layer() -> None:
    """A layer was put in front of two others: they keep their partners, and the new one has none and no verdict."""
    found = across(chain(100_000, 50_000), chain(70_000, 100_000, 50_000), (layers("a", "b"), layers("stem", "a", "b")))
    changes = by_layer(found)
    assert changes["a"].speedup == pytest.approx(1)
    assert changes["b"].speedup == pytest.approx(1)
    assert changes["stem"].baseline_name is None
    assert (changes["stem"].verdict, changes["stem"].ci95_saved_ns) == (Verdict.UNDECIDABLE, None)
    assert sum(change.saved_ns for change in found.operators) == pytest.approx(
        found.baseline.headline_ns - found.candidate.headline_ns
    )
    (note,) = (note for note in found.notes if "different programs" in note)
    assert "2 of 2" in note
    assert "2 of 3" in note


@pytest.mark.parametrize(
    "facts",
    [
        (layers(None, None), layers(None, None)),
        (layers("a", "a"), layers("a", "a")),
        (layers("a", "b", attribution=Attribution.ALIGNED), layers("a", "b", attribution=Attribution.ALIGNED)),
        (layers("a", "b"), layers("c", "d")),
        ({}, {}),
    ],
    ids=["no layers", "not unique", "not exact", "other layers", "no program"],
)
def test_what_is_not_known_to_be_the_same_layer_is_not_matched(facts: tuple[Facts, Facts]) -> None:
    """The same place in another program means nothing: no ratio, no interval, and neither faster nor slower."""
    found = across(chain(100_000, 50_000), chain(50_000, 100_000), facts)
    work = [change for change in found.operators if change.kind == "convolution"]
    assert len(work) == 4
    assert {(change.speedup, change.ci95_saved_ns, change.verdict) for change in work} == {
        (None, None, Verdict.UNDECIDABLE)
    }
    assert found.shift.faster.operators == found.shift.slower.operators == found.shift.undecided.operators == 0
    assert found.shift.unmatched.operators == 4
    assert any("no operator could be matched" in note for note in found.notes)


def test_the_same_program_is_matched_by_place_without_any_layer() -> None:
    """Without a record there are no layers, and of one program the place says all."""
    sides = chain(100_000, 50_000), chain(100_000, 50_000)
    found = compare(*sides, labels=LABELS, paired=True)
    assert [change.speedup for change in found.operators if change.kind == "convolution"] == [1, 1]


def test_what_more_could_be_gained_is_told_only_of_a_decided_difference() -> None:
    """One operator gained what another lost: end to end nothing is shown, and there is no limit of a speedup."""
    noise = [0, 900, -700, 400, -500, 800, -900, 300]
    sides = [
        EventTable.concat([process(convolution + n, add) for n in noise])
        for convolution, add in ((200_000, 50_000), (150_000, 100_000))
    ]
    found = compare(*sides, labels=LABELS, paired=True)
    assert found.end_to_end.verdict is Verdict.NO_DIFFERENCE
    assert found.shift.faster.operators == found.shift.slower.operators == 1
    assert found.shift.limit is None
    told = shift_sentences(found)
    assert told
    assert not any("at most" in line or "would be" in line for line in told)


def test_no_speedup_is_told_more_closely_than_it_repeats() -> None:
    """Processes that agree to the nanosecond still have an interval; a change that it does not show is none."""
    walls = [np.full(20, 1_000_000.0)] * 8
    for faster, verdict in ((1.003, Verdict.NO_DIFFERENCE), (1.01, Verdict.FASTER)):
        measured = (walls, [own / faster for own in walls])
        sides = [EventTable.concat([process(200_000)] * 8) for _ in measured]
        found = compare(*sides, labels=LABELS, paired=True, related=RelatedData(untraced=measured))
        low, high = found.end_to_end.ci95 or (0.0, 0.0)
        assert (low, high) == pytest.approx((faster * math.exp(-RESOLUTION), faster * math.exp(RESOLUTION)))
        assert found.end_to_end.verdict is verdict
