"""A store keeps its promises under commands in any order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

pytest.importorskip("duckdb", reason="needs the extra store")

from store_machine import StoreMachine


def test_a_store_holds_what_was_added_and_not_removed() -> None:
    """Whatever is added twice, removed, compacted or asked in between; `make fuzz` tries longer."""
    few = settings(
        max_examples=5, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(StoreMachine, settings=few)
