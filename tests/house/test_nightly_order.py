"""Which nightly tests CI begins with."""

from __future__ import annotations

import nightly_order

UNITS = [f"tests/{room}/test_{number}.py" for room in ("core", "fleet", "npu") for number in range(8)]


def test_changed_rooms_come_first_and_each_commit_shuffles() -> None:
    """Where the time is over early, every test still has its turn within a few commits."""
    first = nightly_order.order_units(UNITS, {"tests/fleet"}, "a")
    other = nightly_order.order_units(UNITS, {"tests/fleet"}, "b")
    assert sorted(first) == sorted(other) == UNITS
    assert {unit.split("/")[1] for unit in first[:8]} == {"fleet"}
    assert first[8:] != other[8:]
