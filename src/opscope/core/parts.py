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

_own = threading.local()
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
        """Why it is not known, for people."""
        return f"a bug in opscope ({self.reason})"

    @property
    def unreadable(self) -> str:
        """Why a repetition whose trace it is does not count."""
        return f"its trace cannot be read because of {self.because}"

    @property
    def sentence(self) -> str:
        """What is not known, and why."""
        return f"{self.part}: unknown because of {self.because}"

    @property
    def file_name(self) -> str:
        """Name of the file of its traceback."""
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', self.part).strip('-')}.txt"


def part(name: str, compute: Callable[[], Value], default: Value) -> Value:
    """What a computation gives; where it meets a bug of ours, what the rest goes on with in its place."""
    return explained(name, compute, lambda _: default)


def explained(name: str, compute: Callable[[], Value], otherwise: Callable[[PartFailure], Instead]) -> Value | Instead:
    """The same for what can say itself why it is not known."""
    try:
        return compute()
    except Exception as error:
        failure = failure_of(name, error)
        if failure is None:
            raise
    # Everyone who listens hears it once: the first failure of a part is kept.
    heard = [*_command, *getattr(_own, "heard", [])]
    first = next((other for failures in heard for other in failures if other.part == failure.part), failure)
    for failures in heard:
        if first not in failures:
            failures.append(first)
    if not _command:
        warnings.warn(f"{failure.sentence}\n{failure.trace}", RuntimeWarning, stacklevel=3)
    return otherwise(failure)


def noted(lost: dict[str, str], key: str, name: str, compute: Callable[[], Value], default: Value) -> Value:
    """The same where what stands for it looks like a result: that it is none is noted."""

    def otherwise(failure: PartFailure) -> Value:
        lost[key] = failure.sentence
        return default

    return explained(name, compute, otherwise)


def failure_of(name: str, error: Exception) -> PartFailure | None:
    """What an exception that is being handled leaves unknown; None where it is no bug of ours, or is to be seen."""
    if isinstance(error, _FORESEEN) or os.environ.get(VARIABLE):
        return None
    return PartFailure(name, _reason(error), traceback.format_exc())


def _reason(error: Exception) -> str:
    text = " ".join(_ADDRESS.sub("0x...", str(error)).split())
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


@contextlib.contextmanager
def failures_heard() -> Iterator[list[PartFailure]]:
    """The parts that fail in this thread within the block."""
    before = getattr(_own, "heard", [])
    failures: list[PartFailure] = []
    _own.heard = [*before, failures]
    try:
        yield failures
    finally:
        _own.heard = before


@contextlib.contextmanager
def failures_of_command() -> Iterator[list[PartFailure]]:
    """The parts that fail in any thread within the block: the caller tells the user of them."""
    failures: list[PartFailure] = []
    _command.append(failures)
    try:
        yield failures
    finally:
        _command.remove(failures)
