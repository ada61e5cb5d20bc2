"""Processes that run a model: started in a group of their own, ended with all they started, heard through a file."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import StorageError
from opscope.core.json import from_json
from opscope.core.printable import printable, uncoloured
from opscope.core.system.capped_log import capped_log, last_bytes
from opscope.core.system.stop import waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Answer = TypeVar("Answer")
_LOG_TAIL = 400
_SESSION = 3
"""Place of the session in a line of /proc/PID/stat, behind the name of the program."""
_limits = threading.local()


@contextlib.contextmanager
def limit_questions(seconds: float) -> Iterator[None]:
    """Limit, in this thread and block, how long a process may take that only answers a question before any run."""
    before = getattr(_limits, "seconds", math.inf)
    _limits.seconds = seconds
    try:
        yield
    finally:
        _limits.seconds = before


def question_seconds(usual: float) -> float:
    """Return how long a process may take to answer a question: the usual limit, or that of the experiment if lower."""
    return min(usual, getattr(_limits, "seconds", usual))


def run_process(
    command: Sequence[str],
    log: Path,
    timeout: float,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> int | None:
    """Return the exit code of a command, None when its time was up; nothing it started is left running."""
    with capped_log(log) as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            cwd=directory,
        )
        # Popen.wait polls when it is given a limit, and would notice the end up to 50 ms late.
        waiter = threading.Thread(target=process.wait, daemon=True)
        try:
            waiter.start()
            for part in waiting(timeout):
                waiter.join(part)
                if not waiter.is_alive():
                    break
            return None if waiter.is_alive() else process.returncode
        finally:
            _kill_session(process.pid)
            process.wait()
            if waiter.is_alive():
                waiter.join()  # at the end of Python a thread that still runs would complain


def _kill_session(leader: int) -> None:
    """Kill the group of a process, and the groups that commands such as `timeout` have made in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text("utf-8", "replace").rpartition(")")[2].split()[_SESSION] == str(leader):
                os.kill(int(stat.parent.name), signal.SIGKILL)


def read_answer(code: int | None, answer: Path, log: Path, timeout: float, kind: type[Answer]) -> Answer | Failure:
    """Return the answer of a process from its answer file, or why there is nothing to read."""
    if code is None:
        return Failure(FailureKind.TIMEOUT, f"timed out after {timeout:.0f} s without a result")
    if code < 0 or not answer.exists():
        return unanswered(code, log)
    try:
        return from_json(answer.read_bytes(), kind)
    except msgspec.MsgspecError as error:
        return Failure(FailureKind.EXIT, f"the answer is damaged: {error}", exit_code=code)


def unanswered(code: int, log: Path) -> Failure:
    """Return the failure of a process that ended without an answer."""
    if code < 0:
        name = signal_name(-code)
        return Failure(FailureKind.SIGNAL, f"the process was killed by {name}{log_tail(log)}", signal=name)
    if code == StorageError.exit_code:
        return Failure(FailureKind.STORAGE, "the disk is full: no answer could be written")
    return Failure(FailureKind.EXIT, f"exited with code {code} and no answer{log_tail(log)}", exit_code=code)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


LAST_WORDS = "; its last output: "
"""What stands in a message before the last line that a process printed."""


def log_tail(log: Path) -> str:
    """Return the last line that the process printed, for the end of a message; empty when it printed nothing."""
    text = last_bytes(log, _LOG_TAIL).decode("utf-8", "replace")
    line = last_line(text)
    return f"{LAST_WORDS}{line}" if line else ""


def last_line(text: str) -> str:
    """Return the last line that is not blank, without colours, and with other control sequences escaped."""
    lines = [line for line in uncoloured(text).strip().splitlines() if line.strip()]
    return printable(lines[-1].strip()) if lines else ""
