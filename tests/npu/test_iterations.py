"""Iterations of a tile's calls: what groups them, what is partial, and how many were expected."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_cores import calls_of, core, sequence
from opscope.analysis.findings.message import Message
from opscope.core.table.tiles import TileTrace
from opscope.npu.analysis.iterations import Iterations, find_iterations, iteration_findings


def found_in(tile: TileTrace, each: int | None = None, warmup: int = 0, measured: int | None = None) -> Iterations:
    """Of the calls of a tile."""
    return find_iterations(calls_of(tile), each, warmup, measured)


def told(found: Iterations) -> list[tuple[int, int, str]]:
    """First call, last call and phase of each."""
    return [(own.first_call, own.last_call, own.phase) for own in found.iterations]


def worked(tile: TileTrace, found: Iterations) -> list[int]:
    """Calls of each that count as the tiling's."""
    work = calls_of(tile).kinds.work
    return [int(work[own.first_call : own.last_call + 1].sum()) for own in found.iterations]


def findings(found: Iterations) -> list[Message]:
    """What is reported of them."""
    return list(iteration_findings(core(), found))


def rules(found: Iterations) -> list[str]:
    """Of the findings."""
    return [finding.rule for finding in findings(found)]


def test_a_sequence_of_kinds_that_repeats_is_an_iteration() -> None:
    """Its partial first and last repetitions are marked; that the tiling may see more in one is said."""
    found = found_in(sequence("mm zmmmm zmmmm zmmmm zm"))
    assert found.by == "kinds"
    assert told(found) == [
        (0, 1, "partial"),
        (2, 6, "measured"),
        (7, 11, "measured"),
        (12, 16, "measured"),
        (17, 18, "partial"),
    ]
    assert [own.complete for own in found.iterations] == [False, True, True, True, False]
    assert found.expected is None
    assert found.reason == (
        "calls repeat the sequence zero-fill, 4 x kernel 1; an iteration of the whole run may contain several of "
        "these, as its tiling would show; LOCK_STALL does not separate these gaps from others: "
        "median 4 cycles before an iteration, 4 elsewhere"
    )
    assert rules(found) == ["iteration_partial"]


def test_calls_that_are_missing_before_the_end_are_a_gap() -> None:
    """One of five repetitions lacks a call, between the two calls that are nearer than any others."""
    found = found_in(sequence("zmmmm zmmm zmmmm zmmmm zmm"))
    (gap,) = found.gaps
    assert (gap.missing, gap.at_start) == (1, False)
    assert gap.why == "iteration 2 has 3 working calls, 4 are typical"


def test_work_that_is_uneven_is_no_gap() -> None:
    """Every other repetition has a call less: that is what the program does."""
    found = found_in(sequence("zmmmm zmmm zmmmm zmmm zmmmm zmmm zmmmm"))
    assert not found.gaps or not found.is_rare


def test_one_run_that_differs_makes_no_longer_period() -> None:
    """Four repetitions, one with a call more: not two repetitions of twice the length."""
    found = found_in(sequence("zmmmm zmmmmm zmmmm zmmmm"))
    assert "the sequence zero-fill, 4 x kernel 1;" in found.reason
    assert [gap.missing for gap in found.gaps] == [-1]


def test_a_lost_call_does_not_shift_the_iterations_behind_waits() -> None:
    """Calls of one kind, four an iteration, of which one is missing: the waits tell where the others begin."""
    found = found_in(sequence("mmmm | mmm | mmmm | mmmm"), each=4)
    assert told(found) == [(0, 3, "measured"), (4, 6, "partial"), (7, 10, "measured"), (11, 14, "measured")]
    assert "the lock stalls show where they begin" in found.reason


def test_a_first_repetition_without_its_zero_fill_is_partial() -> None:
    """All its working calls are there, and the one before them is not."""
    found = found_in(sequence("mmmm zmmmm zmmmm z"))
    assert told(found) == [(0, 3, "partial"), (4, 8, "measured"), (9, 13, "measured")]
    assert found.reason.endswith("; zero-fills that ran ahead of an iteration belong to none: 1")


def test_the_tiling_counts_working_calls() -> None:
    """Warm-up, measured and partial ones; zero-fills belong to the calls behind them."""
    found = found_in(sequence("mm zmm zmm zmm zmm zmm zm"), each=4, warmup=1, measured=3)
    assert found.by == "tiling"
    assert told(found) == [(0, 4, "warmup"), (5, 10, "measured"), (11, 16, "measured"), (17, 18, "partial")]
    assert found.expected == 4
    assert rules(found) == ["iterations_unexpected", "iteration_partial"]
    assert findings(found)[0].title == "4 iterations were expected, 4 detected, 3 of them complete"


def test_iterations_beyond_the_expected_ones_are_extra() -> None:
    """Not measured, and not hidden."""
    found = found_in(sequence("mm mm mm mm"), each=2, warmup=1, measured=2)
    assert [own.phase for own in found.iterations] == ["warmup", "measured", "measured", "extra"]
    assert rules(found) == ["iterations_unexpected"]
    assert findings(found)[0].title == "3 iterations were expected, 4 detected, 4 of them complete"


def test_as_many_as_expected_are_no_finding() -> None:
    """All there, nothing to say."""
    found = found_in(sequence("zmm zmm | zmm zmm"), each=4, measured=2)
    assert told(found) == [(0, 5, "measured"), (6, 11, "measured")]
    assert findings(found) == []
    assert "LOCK_STALL confirms it: 2,004 cycles or more before an iteration, 4 elsewhere" in found.reason


def test_long_waits_that_divide_evenly_make_iterations() -> None:
    """Of another size than all other waits, and the same number of calls between them; the cut one is partial."""
    found = found_in(sequence("mmm | mmm | mmm | mm"))
    assert found.by == "lock_stall"
    assert told(found) == [(0, 2, "measured"), (3, 5, "measured"), (6, 8, "measured"), (9, 10, "partial")]
    assert found.reason == (
        "LOCK_STALL lasts 2,004 cycles or more between iterations, the longest other one is 4; 3 working calls each"
    )


def test_long_waits_say_more_than_the_sequence_of_kinds() -> None:
    """An iteration may repeat the sequence several times."""
    found = found_in(sequence("zmm zmm | zmm zmm | zmm zmm"))
    assert found.by == "lock_stall"
    assert told(found) == [(0, 5, "measured"), (6, 11, "measured"), (12, 17, "measured")]


@pytest.mark.parametrize("text", ["mmmm | mm", "mmm | mmmm | mm | mmmm", "m | m | m | m"])
def test_long_waits_that_divide_unevenly_make_none(text: str) -> None:
    """One wait alone, or one before every call, is not evidence; the reason says what was seen."""
    found = found_in(sequence(text))
    assert (found.by, found.iterations) == (None, ())
    assert "only the tiling can show iterations" in found.reason


def test_one_long_wait_is_enough_where_two_iterations_were_expected() -> None:
    """The last one may then be cut off."""
    found = found_in(sequence("mmmm | mm"), measured=2)
    assert told(found) == [(0, 3, "measured"), (4, 5, "partial")]


def test_a_zero_fill_that_ran_ahead_of_a_long_wait_is_in_no_iteration() -> None:
    """The core clears its memory for the next iteration at once and then waits for data: that is not its time."""
    for each in (None, 4):
        found = found_in(sequence("z | mm zmm z | mm zmm z | mm zmm z"), each=each)
        assert told(found) == [(1, 5, "measured"), (7, 11, "measured"), (13, 17, "measured")]
        assert found.reason.endswith("; zero-fills that ran ahead of an iteration belong to none: 4")


def test_a_missing_call_does_not_shift_later_iterations() -> None:
    """The sequence of kinds keeps the count; the iteration that lacks a call is partial."""
    found = found_in(sequence("zmmm zmmm zmmm zmm zmmm zmmm zmmm zmmm"), each=6)
    assert [(own.first_call, own.complete) for own in found.iterations] == [
        (0, True),
        (8, False),
        (15, True),
        (23, True),
    ]
    (finding,) = findings(found)
    assert finding.rule == "iteration_partial"
    assert finding.evidence == "5 working calls in iteration 2, 6 are typical"


def test_a_tiling_that_does_not_fit_the_sequence_is_said() -> None:
    """Three working calls an iteration, while the calls come in fours behind each zero-fill."""
    found = found_in(sequence("zmmmm zmmmm zmmmm"), each=3)
    assert "tiling_against_kinds" in rules(found)


def test_a_tiling_against_the_waits_is_said() -> None:
    """Waits within its iterations speak against it."""
    found = found_in(sequence("mmm | mmm | mmm | mmm"), each=6)
    assert told(found) == [(0, 5, "measured"), (6, 11, "measured")]
    (finding,) = findings(found)
    assert (finding.rule, finding.place) == ("tiling_against_stalls", "tile 2,4, before call 4")
    assert finding.evidence == "2 of 3 unusually long lock stalls"


def test_fewer_calls_than_one_iteration_are_a_partial_one() -> None:
    """The buffer filled before the first iteration ended."""
    found = found_in(sequence("zmm zm"), each=72, measured=1)
    assert told(found) == [(0, 4, "partial")]


def test_an_absurd_tiling_is_one_partial_iteration() -> None:
    """Also where a call is missing, so that repetitions are counted."""
    for text in ("zmm zmm zmm", "zmm zm zmm zmm"):
        found = found_in(sequence(text), each=2 * 10**30)
        assert [own.phase for own in found.iterations] == ["partial"]


def test_without_lock_stalls_nothing_supports_the_grouping() -> None:
    """Which is said."""
    found = found_in(sequence("zmm zmm zmm", without=["LOCK_STALL"]))
    assert found.reason.endswith("LOCK_STALL was not traced, so it cannot confirm this")


def test_calls_of_one_kind_without_long_waits_have_no_iterations() -> None:
    """None is made up; expected ones that were not found are a finding."""
    found = found_in(sequence("mmmmmm"), measured=3)
    assert (found.by, found.iterations) == (None, ())
    assert rules(found) == ["iterations_unexpected"]


def test_without_calls_there_are_no_iterations() -> None:
    """Nor with a tiling."""
    for each in (None, 4):
        found = found_in(core("0@5"), each=each)
        assert (found.iterations, found.reason) == ((), "there are no calls")


def test_a_longer_sequence_of_three_kinds() -> None:
    """A zero-fill opens it wherever the trace begins."""
    found = found_in(sequence("mme zmmme zmmme zmmme zmmme zm"))
    assert "the sequence zero-fill, 3 x kernel 1, kernel 2;" in found.reason
    assert [own.complete for own in found.iterations] == [False, True, True, True, True, False]


@example("ez|mmemmz", 2, 0, None)  # a stretch without work before the wait
@settings(max_examples=100, deadline=None)
@given(
    st.text("mmmmze|", max_size=40),
    st.sampled_from([None, 1, 2, 3, 6]),
    st.integers(0, 3),
    st.none() | st.integers(0, 4),
)
def test_iterations_follow_each_other_and_leave_out_only_zero_fills(
    text: str, each: int | None, warmup: int, measured: int | None
) -> None:
    """Whatever the calls: each is in one iteration at most, in order; numbers and phases agree."""
    tile = sequence(text)
    made = calls_of(tile)
    calls, kinds = made.calls, made.kinds
    found = find_iterations(made, each, warmup, measured)
    free = set(range(len(calls)))
    before = -1
    for number, own in enumerate(found.iterations):
        assert own.number == number + 1
        assert before < own.first_call <= own.last_call
        assert (own.start, own.end) == (calls.start[own.first_call], calls.end[own.last_call])
        assert (own.calls, own.cycles) == (own.last_call - own.first_call + 1, own.end - own.start)
        assert own.phase != "partial" or not own.complete
        assert (own.phase == "warmup") == (number < warmup)
        free -= set(range(own.first_call, own.last_call + 1))
        before = own.last_call
    if found.by is not None:
        assert not any(kinds.work[call] for call in free)
    if found.by == "tiling":
        assert each is not None
        assert {work for work, own in zip(worked(tile, found), found.iterations, strict=True) if own.complete} <= {each}


def test_the_repetitions_of_the_npu1_gemm(captures: Captures) -> None:
    """K / k is 12: a zero-fill and twelve matmuls make an output tile; the first one lacks its zero-fill."""
    found = found_in(captures.core(NPU1_GEMM))
    assert found.by == "kinds"
    assert "the sequence zero-fill, 12 x kernel 1;" in found.reason
    assert worked(captures.core(NPU1_GEMM), found) == [12, 12, 12, 12, 12, 12, 2]
    assert [own.complete for own in found.iterations] == [False, True, True, True, True, True, False]


def test_the_iterations_of_the_npu1_gemm_on_16_cores(captures: Captures) -> None:
    """8 x 12 x 12 calls on 16 cores are 72 each: one iteration is whole, and the trace ends in the next."""
    found = found_in(captures.core(NPU1_GEMM), each=72, warmup=0, measured=10)
    assert told(found) == [(0, 76, "measured"), (77, 79, "partial")]
    assert worked(captures.core(NPU1_GEMM), found) == [72, 2]
    assert findings(found)[0].title == "10 iterations were expected, 2 detected, 1 of them complete"


def test_the_repetitions_of_the_npu2_gemm(captures: Captures) -> None:
    """Twenty-four matmuls to an output tile."""
    found = found_in(captures.core(NPU2_GEMM))
    assert "the sequence zero-fill, 24 x kernel 1;" in found.reason
    assert [own.complete for own in found.iterations] == [False, True, True, True, False]


def test_two_iterations_of_a_small_capture_by_its_long_wait(captures: Captures) -> None:
    """Two calls, 2,337 cycles of waiting for a lock, two calls."""
    found = found_in(captures.core("npu1_core_small"))
    assert (found.by, told(found)) == ("lock_stall", [(0, 1, "measured"), (2, 3, "measured")])
