"""A store and its history given commands in any order, held against ``tests/support/store_machine.py`` after each."""

from __future__ import annotations

import time
import traceback

_STEPS, _EXAMPLES = 25, 2


def fuzz_store(seconds: float, seed: int) -> int:
    """Run sequences until the time is over; return 1 when one failed, which is shown as the shortest that does."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    from store_machine import StoreMachine

    effort = settings(
        max_examples=_EXAMPLES,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    end, number = time.monotonic() + seconds, seed * 1_000_000
    while number == seed * 1_000_000 or time.monotonic() < end:
        number += 1
        try:
            run_state_machine_as_test(seeded(number)(StoreMachine), settings=effort)
        except Exception:  # noqa: BLE001 - whatever comes of a sequence is what is looked for
            traceback.print_exc()
            print(f"store: a finding with seed {number}")
            return 1
    sequences = (number - seed * 1_000_000) * _EXAMPLES
    print(f"store: {sequences:,} sequences of {_STEPS} commands at most, 0 findings", flush=True)
    return 0
