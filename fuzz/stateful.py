"""Fuzz a store and its history by commands in any order: ``python -m fuzz.stateful --seconds 60 --seed 1``.

What must hold stands in ``tests/support/store_machine.py``. A failure is shown as the shortest sequence of commands
that was found, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
_STEPS, _EXAMPLES = 25, 10


def main(arguments: list[str] | None = None) -> int:
    """Run sequences until the time is up; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.stateful", description="Fuzz the store.")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all")
    parser.add_argument("--seed", type=int, default=1, help="decides what is tried")
    options = parser.parse_args(arguments)
    sys.path.append(str(SUPPORT))
    from store_machine import StoreMachine

    ran = Counting(StoreMachine)
    end, number = time.monotonic() + options.seconds, options.seed * 1_000_000
    while number == options.seed * 1_000_000 or time.monotonic() < end:
        number += 1
        try:
            run_state_machine_as_test(seed(number)(ran.machine), settings=_SETTINGS)
        except Exception:  # noqa: BLE001 - whatever comes of a sequence is what is looked for
            traceback.print_exc()
            print(
                f"store: a finding with seed {number}, after {ran.sequences:,} sequences of {ran.commands:,} commands"
            )
            return 1
    print(f"{ran.done}, 0 findings")
    return 0


_SETTINGS = settings(
    max_examples=_EXAMPLES,
    stateful_step_count=_STEPS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


class Counting:
    """A state machine of the same rules that counts what it does.

    Args:
        kind: the machine.

    Attributes:
        machine: the same, counted.
        sequences: that were begun.
        commands: after which it was asked whether all holds.
    """

    def __init__(self, kind: type) -> None:
        self.sequences = self.commands = 0
        counting = self

        class Counted(kind):  # type: ignore[misc, valid-type] # of a kind that is known when it runs
            def __init__(self) -> None:
                super().__init__()
                counting.sequences += 1

            def check_invariants(self, *arguments: object, **options: object) -> None:
                super().check_invariants(*arguments, **options)
                counting.commands += 1

        self.machine = Counted

    @property
    def done(self) -> str:
        """What was done so far."""
        return f"store: {self.commands:,} commands in {self.sequences:,} sequences"


if __name__ == "__main__":
    sys.exit(main())
