"""A request to stop: threads that wait end, once, and others go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.core.system.stop import StopRequest, check_stop, on_stop, pause, waiting
from opscope.hosts.process import run_process
from opscope.hosts.shell import ResponseLines
from waiting import HANG

_LONG = 600.0


def stopped(wait: Callable[[], object], request: StopRequest | None = None) -> bool:
    """Whether a thread that waits for long ends by a request to stop."""
    request, ended, begun = request or StopRequest(), list[bool](), threading.Event()

    def work() -> None:
        with request.heard():
            begun.set()
            try:
                wait()
            except KeyboardInterrupt:
                check_stop()  # it is told once: what is left in order now may wait
                ended.append(True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun.wait()
    request.ask()
    thread.join(HANG)
    return ended == [True]


def test_a_thread_that_sleeps_is_stopped() -> None:
    """Long before its time."""
    assert stopped(lambda: pause(_LONG))


def test_a_thread_that_waits_for_a_line_is_stopped() -> None:
    """As the one that listens to a device does."""
    assert stopped(lambda: ResponseLines().take(_LONG))


def test_a_thread_that_waits_for_a_process_is_stopped(tmp_path: Path) -> None:
    """The process is ended with all that it started."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert stopped(lambda: run_process(command, tmp_path / "log", _LONG))


def test_what_a_thread_waits_for_is_ended() -> None:
    """Where it cannot wait in parts; also when the request came before."""
    for early in (False, True):
        request, ended = StopRequest(), threading.Event()
        if early:
            request.ask()

        def wait(ended: threading.Event = ended) -> None:
            with on_stop(ended.set):
                ended.wait()

        assert stopped(wait, request)


def test_other_threads_wait_at_once() -> None:
    """Without a request there are no parts, and a request of other threads is none of theirs."""
    request = StopRequest()
    request.ask()
    assert [round(part) for part in waiting(7)] == [7]
    check_stop()
    with request.heard(), pytest.raises(KeyboardInterrupt):
        check_stop()
