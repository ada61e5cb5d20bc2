"""End-to-end latency: which events it counts, and what it says about warm-up and processes."""

from __future__ import annotations

import pytest

from opscope.analysis.latency.latency import auto_warmup, latency
from opscope.core.table import EventTable
from traces import table

ONE = """
    Program::load_method 900
      Method::init 700
    Method::execute 100
      OPERATOR_CALL @0 90
        native_call_add.out 80
"""


def series(*durations: int) -> EventTable:
    """One process whose inferences take these times."""
    return table("\n".join(f"Method::execute {duration}" for duration in durations))


def test_latency_is_the_outermost_event_and_nothing_nested_is_added() -> None:
    """Method::execute of 100 with 170 nested inside it is a latency of 100."""
    found = latency(table(ONE))
    assert found is not None
    assert (found.n, found.samples_ns, found.median_ns) == (1, [100], 100)


def test_loading_stands_apart() -> None:
    """Loading is reported once, initialisation inside it is not added, and it is not a part of the latency."""
    found = latency(table(ONE))
    assert found is not None
    assert found.processes[0].load_ns == 900


def test_warmup_is_shown_but_not_counted() -> None:
    """The first two inferences stand in the warm-up samples only."""
    found = latency(series(900, 300, 100, 102, 104).with_warmup(2))
    assert found is not None
    assert found.samples_ns == [100, 102, 104]
    assert found.warmup_samples_ns == [[900, 300]]
    assert found.processes[0].first_ns == 900


def test_without_a_measured_inference_there_is_no_latency() -> None:
    """All inferences set aside leave nothing, not a number."""
    assert latency(series(100, 100).with_warmup(2)) is None


def test_processes_are_summarised_one_by_one() -> None:
    """Each process keeps its own median, the unit of a comparison."""
    both = EventTable.concat([series(100, 102, 104), series(200, 202, 204)])
    found = latency(both)
    assert found is not None
    assert [process.median_ns for process in found.processes] == [102, 202]
    assert found.n == 6


def test_warmup_is_found_where_latencies_settle() -> None:
    """Two slow inferences before eight steady ones are warm-up; each process is judged alone."""
    slow_start = series(900, 300, 100, 101, 99, 100, 102, 100, 101, 100)
    steady = series(100, 101, 99, 100, 102, 100, 101, 100, 100, 100)
    assert auto_warmup(EventTable.concat([slow_start, steady])) == [2, 0]


@pytest.mark.parametrize(
    ("calls_with_more_events", "warmup"),
    [
        ({0}, 1),  # the first call sets the variables of the model
        ({0, 2}, 0),  # a branch that is taken now and then
        ({1}, 0),
    ],
)
def test_a_first_call_that_prepares_the_model_is_warm_up(calls_with_more_events: set[int], warmup: int) -> None:
    """Operators that ran in the first call alone are of no steady inference, however fast that call was."""
    lines = []
    for call in range(5):
        lines.append("Method::execute 100")
        lines.append("  OPERATOR_CALL @0 50")
        if call in calls_with_more_events:
            lines.append("  OPERATOR_CALL @1 20")
    assert auto_warmup(table("\n".join(lines))) == [warmup]
