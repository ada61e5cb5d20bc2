"""Which calls a process was kept from running during."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where it comes from: docs/design/quality.md.
OFF_CPU = 0.05
"""A call that was off the CPU for more than this share of its duration counts as preempted."""
FEWEST_QUIET = 5
"""A process with fewer calls that nobody preempted, and fewer than half of its own, has no figure of its own."""


def preempted(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Of every call whether it was preempted."""
    return [off > OFF_CPU * duration for duration, off in zip(wall, off_cpu, strict=True)]


def undisturbed(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Of every call whether figures rest on it: nobody preempted it; all of a process that has hardly any such call.

    Calls are chosen by the time off the CPU and never by their duration, so that the choice does not favour short ones.
    """
    marked, few = preempted(wall, off_cpu), is_crowded(wall, off_cpu)
    return [few or not own for own in marked]


def is_crowded(wall: Sequence[int], off_cpu: Sequence[int]) -> bool:
    """Whether hardly any call of a process was not preempted; see :func:`undisturbed`."""
    quiet = len(wall) - sum(preempted(wall, off_cpu))
    return quiet < FEWEST_QUIET and 2 * quiet < len(wall)
