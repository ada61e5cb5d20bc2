"""This machine: every repetition is a fresh Python process with the installed ExecuTorch runtime."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.files import storage_errors
from opscope.bundle.manifest import Conditions, Environment, Failure, FailureKind, Target
from opscope.errors import FeatureError, RunError
from opscope.run import environment, isa
from opscope.run.cpuinfo import library_directory
from opscope.run.process import last_line, log_tail, read_answer, run_process, unanswered
from opscope.run.protocol import ProbeAnswer, RoofsAnswer, RoofsRequest, RunAnswer, RunRequest
from opscope.run.target import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.roofs import Roofs
    from opscope.run.target import Job

TRACE, OUTPUTS, LOG = "trace.etdump", "outputs.npz", "log.txt"
_PROBE_SECONDS = 60
_CHILD = (sys.executable, "-m", "opscope.run.child")
_ROOFS_CHILD = (sys.executable, "-m", "opscope.run.roofs_child")
# Starting and building the graphs adds a second; a slow processor may take five times as long.
ROOFS_SECONDS, ROOFS_LIMIT = 2.5, 120.0


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
                problem = f"the runtime cannot tell this CPU's features: {last_line(done.stderr)}"
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
            calls=job.calls,
            clear=job.clear,
            threads=job.threads,
            inferences=job.inferences,
            seed=job.seed,
            trace=str(directory / TRACE) if job.traced else None,
            outputs=str(directory / OUTPUTS),
            answer=str(answer),
            affinity=job.affinity,
        )
        log = directory / LOG
        try:
            request.write_bytes(msgspec.json.encode(asked))
            code = run_process([*self._child, "run", str(request)], log, job.timeout_seconds)
            return outcome_of(code, answer, log, job.timeout_seconds)
        except OSError as error:
            return Outcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            for file in (request, answer):
                file.unlink(missing_ok=True)

    def roofs(self, clear: list[str], threads: int) -> Roofs:
        """The ceilings of this machine with these features and threads; takes some four seconds."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as work, storage_errors(Path(work)):
            request, answer, log = (Path(work) / name for name in ("request.json", "answer.json", LOG))
            asked = RoofsRequest(clear, threads, ROOFS_SECONDS, str(answer))
            request.write_bytes(msgspec.json.encode(asked))
            code = run_process([*self._roofs_child, str(request)], log, ROOFS_LIMIT)
            return heard_roofs(code, asked, answer, log)


def heard_roofs(code: int | None, asked: RoofsRequest, answer: Path, log: Path) -> Roofs:
    """The ceilings that a process answered with.

    Raises:
        FeatureError: it refused, or did something else than it was asked.
        RunError: it did not answer.
    """
    if code is None:
        raise RunError(f"measuring ceilings was ended after {ROOFS_LIMIT:.0f} s")
    if code < 0 or not answer.exists():
        raise RunError(f"measuring ceilings failed: {unanswered(code, log).message}")
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


def outcome_of(code: int | None, answer: Path, log: Path, timeout: float) -> Outcome:
    """What became of a repetition; the arguments are those of :func:`opscope.run.process.read_answer`."""
    heard = read_answer(code, answer, log, timeout, RunAnswer)
    if isinstance(heard, Failure):
        return Outcome(failure=heard)
    if heard.measurement is None or code:
        message = f"{heard.error or 'no result'}{log_tail(log) if heard.kind == 'exit' else ''}"
        return Outcome(failure=Failure(FailureKind(heard.kind), message, exit_code=code))
    return Outcome(measurement=heard.measurement)
