"""The errors a user can meet: one tree, one exit code per kind, each with the place, the problem and the next step.

Errors are raised where the problem is seen and caught once, in ``opscope.cli.main``.
"""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

EXIT_OK = 0
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


class OpscopeError(Exception):
    """Something the user can act on.

    Args:
        problem: what is wrong, as one sentence without a full stop.
        where: the file, option or process it concerns.
        hint: what to do next.
    """

    exit_code: ClassVar[int] = EXIT_INTERNAL
    meaning: ClassVar[str] = "an error inside opscope"

    def __init__(self, problem: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = None if where is None else str(where)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" if self.where else self.problem


class RegressionError(OpscopeError):
    """A gate found a regression. Nothing went wrong with the measurement."""

    exit_code = 1
    meaning = "a gate found a regression"


class UsageError(OpscopeError):
    """An option, an argument or a combination of them makes no sense."""

    exit_code = 2
    meaning = "wrong option, argument or combination"


class NotFoundError(OpscopeError):
    """A model, variant, file or directory that was named does not exist."""

    exit_code = 3
    meaning = "the named model, variant or file does not exist"


class TraceFormatError(OpscopeError):
    """A file is not what it claims to be, or is damaged.

    Args:
        problem: what is wrong with it.
        where: the file.
        offset: byte position of the first impossible value, where there is one.
        hint: what to do next.
    """

    exit_code = 4
    meaning = "a trace, program or bundle file is damaged or has an unknown format"

    def __init__(
        self, problem: str, *, where: str | Path | None = None, offset: int | None = None, hint: str | None = None
    ) -> None:
        at = "" if offset is None else f" (at byte {offset:,})"
        super().__init__(problem + at, where=where, hint=hint)
        self.offset = offset


class EmptyTraceError(TraceFormatError):
    """A trace holds no events: the runtime that wrote it was built without tracing."""


class InvariantError(TraceFormatError):
    """A table contradicts itself, for example children that take longer than their parent."""


class MissingDependencyError(OpscopeError):
    """A package that this command needs is not installed, or has an unusable version."""

    exit_code = 5
    meaning = "a package this command needs is missing or unusable"


class FeatureError(OpscopeError):
    """A CPU feature is unknown, absent, or cannot be proved to be switched off."""

    exit_code = 6
    meaning = "a CPU feature is unknown, absent or cannot be switched"


class RunError(OpscopeError):
    """The runtime crashed, hung or produced nothing: there is no measurement to report."""

    exit_code = 7
    meaning = "the model could not be run"


class BundleError(OpscopeError):
    """An output directory exists, is in use, is incomplete, or comes from a newer opscope."""

    exit_code = 8
    meaning = "the output directory or bundle cannot be used"


class StorageError(OpscopeError):
    """The operating system refused to write or read: disk full, no permission."""

    exit_code = 9
    meaning = "the disk is full, access was denied, or standard output was closed"


class ExportError(OpscopeError):
    """A model could not be turned into a program."""

    exit_code = 10
    meaning = "the model could not be exported"


class IncompleteError(OpscopeError):
    """The command finished and wrote its results, but something is missing from them.

    Repetitions that failed, or what a trace that is cut off does not hold.
    """

    exit_code = 11
    meaning = "finished, but repetitions failed or part of a trace is missing; the report says which"


class NotReadyError(OpscopeError):
    """This machine lacks something that profiling needs."""

    exit_code = 12
    meaning = "this machine is not ready to profile; opscope doctor shows what is missing"


class MismatchError(OpscopeError):
    """Files that should belong together do not: a trace, its program and its export record."""

    exit_code = 13
    meaning = "files do not match, or the sides of a gate are not comparable"


class InconclusiveError(OpscopeError):
    """A gate could not tell whether there is a regression."""

    exit_code = 14
    meaning = "a gate was inconclusive: the measurements are too few or too noisy for its threshold"


class UntrustedError(OpscopeError):
    """A gate has figures that are not to be trusted: other processes disturbed them, or they do not repeat."""

    exit_code = 20
    meaning = "a gate measured, but the measurements are not trustworthy: measure again on a quiet machine"


class InvalidBundleError(OpscopeError):
    """A bundle can be opened, and is incomplete or contradicts itself."""

    exit_code = 15
    meaning = "a bundle is incomplete or inconsistent; opscope validate shows where"


class DeviceError(OpscopeError):
    """A device cannot be reached, was lost, is held by another host, or has no room for what is sent to it."""

    exit_code = 16
    meaning = "a device is unreachable, in use by another host, or out of storage"


class BusyError(DeviceError):
    """Another run measures on the machine now.

    Args:
        problem: what happened.
        holder: who measures there, in words.
        where: the machine.
        hint: what to do.
    """

    def __init__(self, problem: str, holder: str, *, where: str | Path | None, hint: str) -> None:
        super().__init__(problem, where=where, hint=hint)
        self.holder = holder


class ClusterError(OpscopeError):
    """The scheduler of other machines, or its workers, cannot be reached or were lost."""

    exit_code = 17
    meaning = "a scheduler or its workers are unreachable or were lost; what was finished is kept"


class MemoryLimitError(OpscopeError):
    """Reading a file, or working on it, takes more memory than may be taken."""

    exit_code = 18
    meaning = "an input needs more memory than the limit (--max-memory) or the machine has"


class OverwriteError(OpscopeError):
    """An output would replace, or a clean-up would delete, what opscope did not write."""

    exit_code = 19
    meaning = "an output would replace an input, another output or a file that opscope did not write; nothing was lost"


class InternalError(OpscopeError):
    """A bug in opscope left nothing to show; what was measured is kept."""


class InterruptedRunError(OpscopeError):
    """The user stopped the command; what was finished is kept."""

    exit_code = EXIT_INTERRUPTED
    meaning = "interrupted by the user; what was finished is kept"


@contextlib.contextmanager
def reading(path: Path, hint: str | None = None) -> Iterator[None]:
    """Turn the operating system's refusals to read into errors of ours."""
    try:
        yield
    except FileNotFoundError:
        raise NotFoundError("no such file", where=path, hint=hint) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=path) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that lists the names closest to ``name``, or all of them when none is close."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "none known"


def with_hint(error: OpscopeError) -> str:
    """An error in one line, with what to do about it."""
    return f"{error} ({error.hint})" if error.hint else str(error)


def kinds() -> list[type[OpscopeError]]:
    """All error kinds that carry their own exit code, in order of the code."""
    found = [kind for kind in OpscopeError.__subclasses__() if "exit_code" in vars(kind)]
    return sorted(found, key=lambda kind: kind.exit_code)
