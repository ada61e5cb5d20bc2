"""Why a repetition of a foreign ``executor_runner`` does not count: from its end, its log and its files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Failure, FailureKind
from opscope.hosts.process import signal_name

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.experiment.protocol import Job
    from opscope.hosts.host import ExitStatus
    from opscope.runtimes.executorch.runners.runner_log import RunnerLog

_IDENTIFIER, _IDENTIFIER_AT, _PREFIX = b"ED00", 8, 4
_NO_ROOM = 4096
_SIGNAL_HINTS = {
    "SIGILL": "it was built with instructions that this CPU lacks: build it for this CPU",
    "SIGKILL": "nothing in opscope ended it: the system may have been short of memory",
    "SIGABRT": "the runtime gave up: the last lines of log.txt say why",
}
_ANY_SIGNAL = "run its command line by hand, and under a debugger if it happens again"
_NO_TRACER = (
    "the runner was built without event tracing: it writes no ETDump; give one that was built with "
    "EXECUTORCH_ENABLE_EVENT_TRACER and EXECUTORCH_BUILD_DEVTOOLS on"
)
_ALWAYS_TRACES = (
    "the runner traces every inference, so it cannot run untraced: leave out the untraced arm, or give a runner that "
    "was built without event tracing for it"
)


def timed_out(seconds: float) -> Failure:
    """It was still running when its time was up."""
    message = f"ended after {seconds:.0f} s without a result: raise the time limit, or run fewer inferences"
    return Failure(FailureKind.TIMEOUT, message)


def untraceable(always_traces: bool | None, job: Job) -> Failure | None:
    """Why a runner cannot do a job at all; None when it can, or when that is not known."""
    if always_traces is None or always_traces == job.traced:
        return None
    return Failure(FailureKind.TRACE, _NO_TRACER if job.traced else _ALWAYS_TRACES)


def failure_of(ended: ExitStatus, log: RunnerLog, last_words: str, job: Job) -> Failure | None:
    """Why a runner that has ended has no result; None when, as far as its log tells, it has one."""
    found = _crash(ended, last_words) or _refusal(ended, log, last_words) or _unlike_asked(log, job)
    return found or (nan_failure(log.nan_outputs, "printed") if log.nan_outputs else None)


def _crash(ended: ExitStatus, last_words: str) -> Failure | None:
    if ended.start_error:
        other = "; it was built for another kind of machine" if "format" in ended.start_error.lower() else ""
        problem = f"the runner cannot be started: {ended.start_error}{other}"
        return Failure(FailureKind.EXIT, problem, exit_code=ended.code)
    if ended.code is None or ended.code >= 0:
        return None
    name = signal_name(-ended.code)
    hint = _SIGNAL_HINTS.get(name, _ANY_SIGNAL)
    return Failure(FailureKind.SIGNAL, f"the runner was ended by {name} ({hint}){last_words}", signal=name)


def _refusal(ended: ExitStatus, log: RunnerLog, last_words: str) -> Failure | None:
    code = ended.code
    if log.unknown_flag == "etdump_path":
        return Failure(FailureKind.TRACE, _NO_TRACER, exit_code=code)
    if log.unknown_flag:
        problem = f"the runner does not know --{log.unknown_flag}: it is too old, or no executor_runner"
        return Failure(FailureKind.EXIT, problem, exit_code=code)
    if code:
        problem = f"the runner ended with code {code}{last_words or ' and printed nothing'}"
        return Failure(FailureKind.EXIT, problem, exit_code=code)
    return None


def _unlike_asked(log: RunnerLog, job: Job) -> Failure | None:
    if log.executed is None:
        problem = (
            "the runner did not say that the model was executed: it was built without logging "
            "(EXECUTORCH_ENABLE_LOGGING), or is not an executor_runner"
        )
    elif log.executed != job.inferences:
        problem = f"the runner executed the model {log.executed} times, asked for {job.inferences}"
    elif log.threads is None and job.threads != 1:
        problem = f"the runner set no thread pool, asked for {job.threads} threads: run it with 1, or build it with one"
    elif not job.traced and not log.calls_ns:
        problem = (
            "the runner prints the total time only, no time of each inference: give a newer one, or leave out the "
            "untraced arm"
        )
    else:
        return None
    return Failure(FailureKind.EXIT, problem, exit_code=0)


def nan_failure(count: int, what: str) -> Failure:
    """Outputs hold values that are not numbers."""
    problem = (
        f"{count} of the {what} output values are NaN: a fast wrong result is worthless; "
        "compare with a runner that has the accelerated kernels off, and with the model in fp32"
    )
    return Failure(FailureKind.OUTPUT, problem, exit_code=0)


def trace_failure(trace: Path) -> Failure | None:
    """Why a trace file cannot be whole; None when its length is what it says. What is inside, its reader tells."""
    size = trace.stat().st_size if trace.exists() else 0
    if size and not _cut(trace, size):
        return None
    if shutil.disk_usage(trace.parent).free < _NO_ROOM:
        return Failure(FailureKind.STORAGE, "the disk is full: the ETDump is incomplete")
    if not size:
        return Failure(FailureKind.TRACE, _NO_TRACER, exit_code=0)
    return Failure(FailureKind.TRACE, "the ETDump is cut: the runner ended while it wrote it, or the disk was full")


def stray_trace_failure(trace: Path) -> Failure | None:
    """A runner that was to run untraced has left a trace all the same."""
    return Failure(FailureKind.TRACE, _ALWAYS_TRACES) if trace.exists() and trace.stat().st_size else None


def _cut(trace: Path, size: int) -> bool:
    """Whether a size-prefixed ETDump is shorter than its prefix says."""
    with trace.open("rb") as file:
        head = file.read(_IDENTIFIER_AT + len(_IDENTIFIER))
    stated = int.from_bytes(head[:_PREFIX], "little") + _PREFIX
    return head[_IDENTIFIER_AT:] == _IDENTIFIER and stated > size
