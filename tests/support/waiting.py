"""Waiting for what other processes do: without a limit that a busy machine could meet."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG = 600.0
"""Seconds after which something hangs, on the busiest machine: the limit of whatever must end."""
_PAUSE = 0.02


def eventually(truth: Callable[[], object]) -> bool:
    """Whether something becomes true before it must be taken to hang."""
    end = time.monotonic() + HANG
    while not (found := bool(truth())) and time.monotonic() < end:
        time.sleep(_PAUSE)
    return found
