"""Which calls a process was kept from running during."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where it comes from: docs/design/quality.md.
OFF_CPU = 0.05
"""A call that was off the CPU for more than this share of its duration counts as preempted."""
FEWEST_QUIET = 5
"""A process with fewer calls that nobody preempted has no figure of its own."""


def preempted(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Of every call whether it was preempted.

    Args:
        wall: duration of each in ns.
        off_cpu: how much of each was off the CPU, likewise; as many.
    """
    return [off > OFF_CPU * duration for duration, off in zip(wall, off_cpu, strict=True)]


def undisturbed(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Of every call whether figures rest on it: nobody preempted it; all of a process that has hardly any such call.

    Calls are chosen by the time off the CPU and never by their duration, so that the choice does not favour short ones.

    Args:
        wall: duration of each in ns.
        off_cpu: how much of each was off the CPU, likewise; as many.
    """
    marked = preempted(wall, off_cpu)
    few = len(marked) - sum(marked) < FEWEST_QUIET
    return [few or not own for own in marked]
