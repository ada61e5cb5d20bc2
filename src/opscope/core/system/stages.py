"""What a long piece of work is at: said where it happens, heard by who shows it, with nothing passed on in between.

A runner may be built, or ceilings measured, far below the call that a user waits for, or not at all. Each thread has
its own listener, so that experiments side by side are told apart.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

_own = threading.local()


class StageProgress(Protocol):
    """Hears which stage a long piece of work is at."""

    def __call__(self, stage: str, detail: str) -> None:
        """Called at the start of a stage, without a detail, and at each step in it, with one."""
        ...


class StepProgress(Protocol):
    """Hears which step a piece of work is at, where it has no stages."""

    def __call__(self, step: str) -> None:
        """Called before each step, and with ``STEP: DETAIL`` while a long one goes on."""
        ...


@contextlib.contextmanager
def heard_by(listener: StageProgress | None) -> Iterator[None]:
    """Let a listener hear the stages of this thread within the block; None leaves the one that there is."""
    before = getattr(_own, "listener", None)
    _own.listener = listener or before
    try:
        yield
    finally:
        _own.listener = before


def enter(stage: str, detail: str = "") -> None:
    """Say that a stage begins, or a step in it; nothing happens where nobody listens."""
    listener: StageProgress | None = getattr(_own, "listener", None)
    if listener is not None:
        listener(stage, detail)
