"""Time as an argument: the engine asks a Clock, so tests decide what time it is."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class TimeSource(Protocol):
    """The two times that a run needs."""

    def now(self) -> datetime:
        """Return the date and time in UTC."""

    def monotonic(self) -> float:
        """Return the seconds from some fixed moment; they never go back."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the date and time in UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return the seconds from some fixed moment; they never go back."""
        return time.monotonic()
