"""A cost model's numbers against a trace."""

from __future__ import annotations

import pytest

from aie_captures import NPU1_GEMM, Captures
from opscope.core.errors import UsageError
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.kinds import find_kinds, multiplying
from opscope.npu.analysis.prediction import Against, Repeated, against, repeated_calls
from opscope.npu.analysis.specification import run_specification
from opscope.npu.cost_model import CostModel, cost_model

# Four iterations of 100, 110, 100 and 100 cycles; each starts 90 or 95 after the one before.
SEEN = Repeated("iterations", (0, 90, 185, 275), (100, 200, 285, 375), (True,) * 4)


def model(**numbers: float) -> CostModel:
    """A model with some numbers."""
    found = cost_model(**numbers)
    assert found is not None
    return found


def only(numbers: dict, seen: Repeated = SEEN) -> Against:
    """The one row of a model with one number, or the total."""
    rows = against(model(**numbers), seen).rows
    return rows[-1]


@pytest.mark.parametrize(
    ("numbers", "measured", "error", "n"),
    [
        ({"iteration_step": 99}, 90, 9, 3),
        ({"overlap": 10}, 10, 0, 3),
        ({"latency_per_iteration": 80}, 100, -20, 4),
        ({"total": 400}, 375, 25, 4),
    ],
)
def test_each_number_against_its_measurement(numbers: dict, measured: float, error: float, n: int) -> None:
    """Steps, overlaps and latencies by their median, the total from the first start to the last end."""
    row = only(numbers)
    assert (row.measured, row.error_cycles, row.n) == (measured, error, n)
    assert row.error == pytest.approx(error / measured)


def test_a_total_of_more_iterations_than_were_seen_is_extrapolated_and_says_so() -> None:
    """Ten of 100 cycles at a step of 90, of which the trace has four."""
    row = only({"latency_per_iteration": 100, "iteration_step": 90, "total": 910})
    assert (row.measured, row.error_cycles, row.extrapolated) == (910, 0, True)
    assert "4 of 10 iterations" in row.note


@pytest.mark.parametrize(
    "numbers",
    [
        {"latency_per_iteration": 100, "overlap": 100, "total": 910},
        {"latency_per_iteration": 100, "iteration_step": 90, "total": 50},
        {"latency_per_iteration": 100, "iteration_step": 90, "total": 955},
    ],
)
def test_a_total_of_no_whole_number_of_iterations_is_of_those_seen(numbers: dict) -> None:
    """How many iterations it is of cannot be told: it stands against those in the trace, and that is said."""
    row = only(numbers)
    assert (row.measured, row.extrapolated) == (375, False)
    assert "was not given" in row.note


def test_a_gap_between_iterations_is_an_overlap_below_zero() -> None:
    """Ends at 100, the next starts at 130."""
    assert only({"overlap": 0}, Repeated("x", (0, 130), (100, 230), (True, True))).measured == -30


def test_iterations_that_do_not_follow_each_other_have_no_step() -> None:
    """Where one between them was left out, from start to start is not a step."""
    apart = Repeated("x", (0, 200), (100, 300), (True, False))
    assert only({"iteration_step": 90}, apart).measured is None
    row = only({"total": 300}, apart)
    assert (row.measured, row.error) == (None, None)


def test_nothing_seen_measures_nothing() -> None:
    """Each number has a reason instead of a measurement."""
    rows = against(
        model(iteration_step=9, overlap=1, latency_per_iteration=10, total=100), Repeated("x", (), (), ())
    ).rows
    assert [row.measured for row in rows] == [None] * 4
    assert all(row.note for row in rows)


def test_a_model_that_contradicts_itself_is_said() -> None:
    """Latency 100 and overlap 10 make a step of 90; ten iterations at that make 910."""
    clash = against(model(iteration_step=50, overlap=10, latency_per_iteration=100), SEEN)
    assert [finding.rule for finding in clash.findings] == ["cost_model_contradiction"]
    total = against(model(overlap=10, latency_per_iteration=100, total=2000, iterations=10), SEEN)
    assert "2000" in total.findings[0].evidence
    assert against(model(overlap=10, latency_per_iteration=100, total=910, iterations=10), SEEN).findings == ()


def test_a_model_of_single_calls_against_the_npu1_capture(captures: Captures) -> None:
    """Bound by B's stream: a step of 2048 cycles is predicted, 2049 is measured, and calls do not overlap."""
    tile, said = captures.core(NPU1_GEMM), run_specification()
    calls = pair_calls(tile).calls
    seen = repeated_calls(multiplying(tile, calls, find_kinds(tile, calls), said), tile.tile)
    step, latency = against(model(iteration_step=2048, latency_per_iteration=1400), seen).rows
    assert (step.measured, step.error_cycles, step.n) == (2049, -1, 73)
    assert latency.measured == 1385
    assert only({"overlap": -660}, seen).measured < 0


@pytest.mark.parametrize(
    "numbers",
    [{"iteration_step": 0}, {"total": -5}, {"latency_per_iteration": float("inf")}, {"iterations": 3}, {"total": 1e30}],
)
def test_numbers_that_cannot_be_are_refused(numbers: dict) -> None:
    """Zero, negative or endless times, and a number of iterations that predicts nothing."""
    with pytest.raises(UsageError):
        cost_model(**numbers)


def test_no_numbers_are_no_model() -> None:
    """Nothing was asked for."""
    assert cost_model() is None
