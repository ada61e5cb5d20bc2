"""Parts of a result that can fail without the rest: what a bug of ours costs is that part, and nothing else.

An attribution, a cost, a rule or a picture is computed by :func:`part`. Where it raises what nobody foresaw, it is not
known, and everyone who listens hears why: the analysis, which says so among its warnings; the report, which keeps the
traceback in its bundle; the command, which tells the user what to report. What users can act on (``OpscopeError``),
what the system refuses (``OSError``) and memory that is used up end the work as everywhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from opscope.core.errors import OpscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Value = TypeVar("Value")
    Instead = TypeVar("Instead")

VARIABLE = "OPSCOPE_RAISE"
"""Environment variable with which a bug ends the work, for those who develop opscope; empty: it does not."""
_FORESEEN = (OpscopeError, OSError, MemoryError)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_LONGEST = 200

_thread = threading.local()
_command: list[list[PartFailure]] = []


@dataclass(eq=False)
class PartFailure:
    """A part that failed."""

    part: str  # what it is, as `the rule data_movement`
    reason: str  # the exception in words, the same whenever it is raised again
    trace: str  # its traceback
    file: str | None = None  # where the traceback is kept; None where it is not

    @property
    def because(self) -> str:
        """Return why it is unknown, in words."""
        return f"a bug in opscope ({self.reason})"

    @property
    def unreadable(self) -> str:
        """Return why a repetition with this trace does not count."""
        return f"its trace cannot be read because of {self.because}"

    @property
    def sentence(self) -> str:
        """Return what is unknown, and why."""
        return f"{self.part}: unknown because of {self.because}"

    @property
    def file_name(self) -> str:
        """Return the name of the file that keeps its traceback."""
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', self.part).strip('-')}.txt"


def part(name: str, compute: Callable[[], Value], default: Value) -> Value:
    """Return what a computation gives; if it meets a bug in opscope, record the failure and return ``default``."""
    return explained(name, compute, lambda _: default)


def explained(name: str, compute: Callable[[], Value], otherwise: Callable[[PartFailure], Instead]) -> Value | Instead:
    """Return what a computation gives; if it meets a bug in opscope, record it and return ``otherwise(failure)``."""
    try:
        return compute()
    except Exception as error:
        failure = failure_of(name, error)
        if failure is None:
            raise
    # Everyone who listens hears it once: the first failure of a part is kept.
    listeners = [*_command, *getattr(_thread, "listeners", [])]
    first = next(
        (recorded for failures in listeners for recorded in failures if recorded.part == failure.part), failure
    )
    for failures in listeners:
        if first not in failures:
            failures.append(first)
    if not _command:
        warnings.warn(f"{failure.sentence}\n{failure.trace}", RuntimeWarning, stacklevel=3)
    return otherwise(failure)


def noted(lost: dict[str, str], key: str, name: str, compute: Callable[[], Value], default: Value) -> Value:
    """Return what a computation gives; if it meets a bug in opscope, explain it in ``lost`` and return ``default``."""

    def otherwise(failure: PartFailure) -> Value:
        lost[key] = failure.sentence
        return default

    return explained(name, compute, otherwise)


def failure_of(name: str, error: Exception) -> PartFailure | None:
    """Describe an exception that is being handled; None if it is no bug in opscope, or bugs are to be raised."""
    if isinstance(error, _FORESEEN) or os.environ.get(VARIABLE):
        return None
    return PartFailure(name, _reason_text(error), traceback.format_exc())


def _reason_text(error: Exception) -> str:
    text = " ".join(_ADDRESS.sub("0x...", str(error)).split())
    shortened = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__


@contextlib.contextmanager
def failures_heard() -> Iterator[list[PartFailure]]:
    """Collect the parts that fail in this thread within the block."""
    before = getattr(_thread, "listeners", [])
    failures: list[PartFailure] = []
    _thread.listeners = [*before, failures]
    try:
        yield failures
    finally:
        _thread.listeners = before


@contextlib.contextmanager
def failures_of_command() -> Iterator[list[PartFailure]]:
    """Collect the parts that fail in any thread within the block, for the caller to report."""
    failures: list[PartFailure] = []
    _command.append(failures)
    try:
        yield failures
    finally:
        _command.remove(failures)
