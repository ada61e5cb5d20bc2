"""Targets that answer through their host, and outcomes of jobs that the host's errors end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import DeviceError, FeatureError, with_hint
from opscope.experiment.protocol import RunAnswer
from opscope.experiment.target import JobOutcome, RunTarget
from opscope.hosts.process import log_tail, read_answer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Target
    from opscope.core.errors import OpscopeError
    from opscope.hosts.host import Host
    from opscope.hosts.lock import LockRequest, MachineHold

FROM_PYTHON = "models ran from Python (target local): memory and start-up include Python"
"""Note about a native runner that is replaced by Python."""
_ALIKE = 60  # characters at the end by which two messages are told to be the same


class HostedTarget(RunTarget):
    """A target that answers what it can through its host.

    ``host``: where its processes run.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    def describe(self) -> Target:
        """Return kind and address of the host, for the manifest."""
        return self._host.describe()

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold]:
        """Hold the host exclusively while the context is open."""
        return self._host.reserved(request)

    def conditions(self) -> Conditions:
        """Read the state of the machine now."""
        return self._host.conditions()


class FailedJob(Exception):  # noqa: N818 - what it carries is the failure
    """Raised if a process of a runner gave no result.

    ``failure``: why.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def ended_by(error: OpscopeError | OSError | FailedJob) -> JobOutcome:
    """Return the outcome of a job that an error ended."""
    if isinstance(error, FailedJob):
        return JobOutcome(failure=error.failure)
    if isinstance(error, OSError):
        return JobOutcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
    if isinstance(error, DeviceError):
        return JobOutcome(failure=Failure(FailureKind.DEVICE, with_hint(error)))
    kind = FailureKind.MASK if isinstance(error, FeatureError) else FailureKind.EXIT
    return JobOutcome(failure=Failure(kind, str(error)))


def outcome_of(code: int | None, answer: Path, log: Path, timeout: float) -> JobOutcome:
    """Return the measurement of a repetition, or why it failed.

    The arguments are those of :func:`opscope.hosts.process.read_answer`. The message of a failure ends with the
    log, unless the log repeats it.
    """
    response = read_answer(code, answer, log, timeout, RunAnswer)
    if isinstance(response, Failure):
        return JobOutcome(failure=response)
    if response.result is None or code:
        message, tail = response.error or "no result", log_tail(log) if response.kind == "exit" else ""
        # Runtimes print what they raise, too.
        message = message if tail[-_ALIKE:] in message else f"{message}{tail}"
        return JobOutcome(failure=Failure(FailureKind(response.kind), message, exit_code=code))
    return JobOutcome(measurement=response.result)
