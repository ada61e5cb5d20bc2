"""Latency without event tracing, and what tracing costs."""

import pytest

from opscope.analysis.latency.latency import CallTimes, untraced_arm


def calls(timed: dict[int, list[int]], traced: dict[int, list[int]], warmup: int = 1) -> CallTimes:
    """Durations by round."""
    return CallTimes(timed, traced, warmup, dict.fromkeys(timed, 500))


def test_warm_up_is_set_aside_and_processes_are_kept_apart():
    """Two processes of two measured calls each, behind one slow call."""
    found = untraced_arm(calls({0: [900, 100, 110], 1: [950, 120, 130]}, {}))
    assert (found.latency.n, found.latency.median_ns) == (4, 115)
    assert [process.median_ns for process in found.latency.processes] == [105, 125]
    assert [process.first_ns for process in found.latency.processes] == [900, 950]
    assert found.latency.processes[0].load_ns == 500


def test_tracing_costs_what_the_same_rounds_differ_by():
    """2 % in every round, whatever the round itself costs."""
    timed = {number: [0, 1000 * (number + 1)] for number in range(6)}
    traced = {number: [0, 1020 * (number + 1)] for number in range(6)}
    cost = untraced_arm(calls(timed, traced)).tracing
    assert cost.ratio == pytest.approx(1.02)
    assert cost.ci95 == pytest.approx((1.02, 1.02))
    assert cost.processes == (6, 6)


def test_rounds_that_failed_on_one_side_are_left_out():
    """Round 1 was not traced."""
    assert untraced_arm(calls({0: [9, 100], 1: [9, 500]}, {0: [9, 110]})).tracing.processes == (1, 1)


def test_without_a_measured_call_there_is_nothing():
    """All calls are warm-up, or there is none."""
    assert untraced_arm(calls({0: [100]}, {0: [100, 100]})) is None
    assert untraced_arm(calls({}, {})) is None


def test_without_traced_runs_the_cost_is_not_known():
    """Only the latency is."""
    assert untraced_arm(calls({0: [9, 100]}, {})).tracing is None
