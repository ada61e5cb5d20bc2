"""Times of undisturbed processes: the lower quartile, never above the mean."""

from __future__ import annotations

import numpy as np

from opscope.analysis.operators.operators import operators
from opscope.analysis.roofline.operator_roof import OperatorWork
from opscope.analysis.roofline.undisturbed import undisturbed
from traces import table


def test_half_of_the_processes_may_be_disturbed() -> None:
    """Two of four took three times as long: what counts is what the others took."""
    rows = operators(table("Method::execute 100000\n  DELEGATE_CALL @0 90000\n    Sigmoid (NC) #1 90000"))
    work = OperatorWork(method="unknown", instruction=0, position=0, name="Sigmoid (NC) #1", time_ns=180_000.0)
    times = np.array([[90_000.0 if row.name.startswith("Sigmoid") else 0.0 for row in rows]] * 2)
    (found,) = undisturbed([work], rows, np.concatenate([times, 3 * times]))
    assert found.held_ns == 90_000
    assert found.time_ns == 180_000
