"""What comes from outside: a request to end is not lost, and a reader that goes away is no failure of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import HANG

TRACE = Path(__file__).parents[1] / "data" / "toy_cnn.etdump"

_DROPPED = """
import os, signal, sys, time
from opscope.cli.main import catch_signals
from opscope.core.errors import InterruptedRunError

class Disposed:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass  # Python looks for signals here, and an exception cannot leave this method

catch_signals()
try:
    Disposed()
    time.sleep({seconds})
except (KeyboardInterrupt, InterruptedRunError) as error:
    sys.exit(type(error).__name__)
"""


@pytest.mark.parametrize(("name", "raised"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "InterruptedRunError")])
def test_a_request_to_end_is_given_again_where_python_drops_it(name: str, raised: str) -> None:
    """An object is disposed of when it comes: the command ends all the same, and says nothing of what was dropped."""
    program = _DROPPED.format(name=name, seconds=HANG)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [raised]


def test_other_failures_of_disposal_are_told() -> None:
    """They are Python's to report."""
    program = """
from opscope.cli.main import catch_signals
class Disposed:
    def __del__(self): 1 / 0
catch_signals()
Disposed()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("words", "without_errors", "without_results"),
    [
        (["analyze", str(TRACE)], 0, 9),
        (["analyze", str(TRACE), "--json", "-"], 0, 9),
        (["--help"], 0, 9),
        (["analyze", "nowhere"], 3, 3),
        (["doctor", "--nosuch"], 2, 2),
    ],
)
def test_a_reader_that_went_away_is_no_regression(words: list[str], without_errors: int, without_results: int) -> None:
    """Exit code 1 is a regression's; without a reader of messages a command does the same as with one."""
    command = [sys.executable, "-m", "opscope", *words]
    reading, gone = os.pipe()
    os.close(reading)
    try:
        quiet = subprocess.run(command, stdout=subprocess.PIPE, stderr=gone, check=False)
        unread = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(gone)
    assert quiet.returncode == without_errors
    assert unread.returncode == without_results
    assert b"Traceback" not in unread.stderr
