"""This machine: every repetition is a fresh Python process with the installed ExecuTorch runtime."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.files import storage_errors
from opscope.bundle.manifest import Conditions, Environment, Failure, FailureKind, Target
from opscope.errors import FeatureError, RunError, StorageError
from opscope.run import environment, isa
from opscope.run.cpuinfo import library_directory
from opscope.run.protocol import ProbeAnswer, RoofsAnswer, RoofsRequest, RunAnswer, RunRequest
from opscope.run.target import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.roofs import Roofs
    from opscope.run.target import Job

TRACE, OUTPUTS, LOG = "trace.etdump", "outputs.npz", "log.txt"
_LOG_TAIL = 400
_PROBE_SECONDS = 60
_CHILD = (sys.executable, "-m", "opscope.run.child")
_ROOFS_CHILD = (sys.executable, "-m", "opscope.run.roofs_child")
# Starting and building the graphs adds a second; a slow processor may take five times as long.
_ROOFS_SECONDS, _ROOFS_LIMIT = 2.5, 120.0


class LocalTarget:
    """Runs jobs on this machine.

    Args:
        child: command of the process that serves one request; it gets what to do and a path as its last arguments.
        roofs_child: command of the process that measures ceilings; it gets a path as its last argument.
    """

    def __init__(self, child: Sequence[str] = _CHILD, roofs_child: Sequence[str] = _ROOFS_CHILD) -> None:
        self._child, self._roofs_child = tuple(child), tuple(roofs_child)

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return Target("local", "")

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime sees them; asked of a process of its own, nothing is loaded here."""
        library_directory()
        with tempfile.TemporaryDirectory() as directory:
            answer = Path(directory) / "probe.json"
            command = [*self._child, "probe", str(answer)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
            if done.returncode:
                problem = f"the runtime cannot tell this CPU's features: {_last_line(done.stderr)}"
                raise FeatureError(problem, hint="see `opscope doctor`")
            return msgspec.json.decode(answer.read_bytes(), type=ProbeAnswer)

    def environment(self) -> Environment:
        """The machine and its software."""
        probed = self.probe()
        return environment.capture([group.name for group in isa.present(probed.arch, frozenset(probed.fields))])

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return environment.conditions()

    def execute(self, job: Job, directory: Path) -> Outcome:
        """Run a job in a process group of its own, which is ended when the time is up or the caller is interrupted."""
        answer = directory / "answer.json"
        request = directory / "request.json"
        asked = RunRequest(
            program=job.program,
            method=None,
            clear=job.clear,
            threads=job.threads,
            inferences=job.inferences,
            seed=job.seed,
            trace=str(directory / TRACE),
            outputs=str(directory / OUTPUTS),
            answer=str(answer),
        )
        log = directory / LOG
        try:
            request.write_bytes(msgspec.json.encode(asked))
            code = _run([*self._child, "run", str(request)], log, job.timeout_seconds)
            return _outcome(code, answer, log, job.timeout_seconds)
        except OSError as error:
            return Outcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            for file in (request, answer):
                file.unlink(missing_ok=True)

    def roofs(self, clear: list[str], threads: int) -> Roofs:
        """The ceilings of this machine with these features and threads; takes some four seconds."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as work, storage_errors(Path(work)):
            request, answer, log = (Path(work) / name for name in ("request.json", "answer.json", LOG))
            asked = RoofsRequest(clear, threads, _ROOFS_SECONDS, str(answer))
            request.write_bytes(msgspec.json.encode(asked))
            code = _run([*self._roofs_child, str(request)], log, _ROOFS_LIMIT)
            return _heard(code, asked, answer, log)


def _heard(code: int | None, asked: RoofsRequest, answer: Path, log: Path) -> Roofs:
    """The ceilings that a process answered with.

    Raises:
        FeatureError: it refused, or did something else than it was asked.
        RunError: it did not answer.
    """
    if code is None:
        raise RunError(f"measuring ceilings was ended after {_ROOFS_LIMIT:.0f} s")
    if code < 0 or not answer.exists():
        raise RunError(f"measuring ceilings failed: {_unanswered(code, log).message}")
    try:
        heard = msgspec.json.decode(answer.read_bytes(), type=RoofsAnswer)
    except msgspec.MsgspecError as error:
        raise RunError(f"measuring ceilings failed: the answer is damaged: {error}") from None
    if heard.roofs is None or heard.mask is None:
        kind = FeatureError if heard.kind == "mask" else RunError
        raise kind(f"measuring ceilings failed: {heard.error or 'no result'}")
    done = (heard.mask.cleared, heard.roofs.cleared, heard.roofs.threads)
    if done != (asked.clear, asked.clear, asked.threads):
        raise FeatureError("ceilings were measured with other features or threads than asked")
    return heard.roofs


def _run(command: list[str], log: Path, timeout: float) -> int | None:
    """Exit code of a command, None when its time was up; nothing it started is left running."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _outcome(code: int | None, answer: Path, log: Path, timeout: float) -> Outcome:
    if code is None:
        return Outcome(failure=Failure(FailureKind.TIMEOUT, f"ended after {timeout:.0f} s without a result"))
    if code < 0 or not answer.exists():
        return Outcome(failure=_unanswered(code, log))
    try:
        heard = msgspec.json.decode(answer.read_bytes(), type=RunAnswer)
    except msgspec.MsgspecError as error:
        return Outcome(failure=Failure(FailureKind.EXIT, f"the answer is damaged: {error}", exit_code=code))
    if heard.measurement is None or code:
        message = f"{heard.error or 'no result'}{_tail(log) if heard.kind == 'exit' else ''}"
        return Outcome(failure=Failure(FailureKind(heard.kind), message, exit_code=code))
    return Outcome(measurement=heard.measurement)


def _unanswered(code: int, log: Path) -> Failure:
    """Why a process ended without an answer."""
    if code < 0:
        name = _signal_name(-code)
        return Failure(FailureKind.SIGNAL, f"the process was ended by {name}{_tail(log)}", signal=name)
    if code == StorageError.exit_code:
        return Failure(FailureKind.STORAGE, "the disk is full: no answer could be written")
    return Failure(FailureKind.EXIT, f"the process ended with code {code} and no answer{_tail(log)}", exit_code=code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log: Path) -> str:
    """The last line that the process printed, for a message."""
    text = log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace")
    line = _last_line(text)
    return f"; its last words: {line}" if line else ""


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
