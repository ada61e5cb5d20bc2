"""A request to stop that reaches threads: what they wait for ends, as Ctrl-C ends it in the main thread.

Python interrupts the main thread alone. A thread that runs a model beside others waits in parts, and looks between
them whether it was asked to stop.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PART_SECONDS = 0.2
_own = threading.local()


class StopRequest:
    """Asks all threads that listen to it to stop. It is made once and never withdrawn."""

    def __init__(self) -> None:
        self._lock, self._asked = threading.Lock(), False
        self._calls: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        """Whether it was made."""
        return self._asked

    def ask(self) -> None:
        """Make it."""
        with self._lock:
            self._asked = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Let this thread listen to it."""
        _own.request = self
        try:
            yield
        finally:
            _own.request = None

    @contextlib.contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """Have something called when it is made, if that is within the block or was before."""
        with self._lock:
            late = self._asked
            self._calls += [] if late else [call]
        if late:
            call()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._calls.remove(call)


def check_stop() -> None:
    """Stop this thread where it was asked to; once, so that what it leaves in order at its end may wait."""
    request: StopRequest | None = getattr(_own, "request", None)
    if request is not None and request.asked:
        _own.request = None
        raise KeyboardInterrupt


def waiting(seconds: float) -> Iterator[float]:
    """Parts of a time to wait, in seconds: all of it at once in a thread that listens to no request."""
    end = time.monotonic() + seconds
    while True:
        check_stop()
        left = max(0.0, end - time.monotonic())
        whole = left <= _PART_SECONDS or getattr(_own, "request", None) is None
        yield left if whole else _PART_SECONDS
        if whole:
            check_stop()
            return


def pause(seconds: float) -> None:
    """Wait so many seconds."""
    for part in waiting(seconds):
        time.sleep(part)


@contextlib.contextmanager
def on_stop(call: Callable[[], None]) -> Iterator[None]:
    """Have something called when this thread is asked to stop within the block, as to end what it waits for."""
    request: StopRequest | None = getattr(_own, "request", None)
    with request.calling(call) if request else contextlib.nullcontext():
        yield
    check_stop()
