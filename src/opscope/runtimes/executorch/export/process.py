"""Exporting in its own process."""

from __future__ import annotations

import contextlib
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.preflight.exported import ExportStage
from opscope.core import errors
from opscope.core.errors import ExportError, MissingDependencyError, OpscopeError
from opscope.core.install import install_command
from opscope.core.json import from_json
from opscope.core.system.capped_log import capped_log, last_bytes
from opscope.core.system.interpreter import module_command
from opscope.core.system.stop import on_stop
from opscope.experiment.protocol import Refusal
from opscope.hosts.process import last_line
from opscope.machine.clock import SystemClock
from opscope.runtimes.executorch.export.protocol import ExportFinished, ExportRequest, ExportStep, Line
from opscope.runtimes.executorch.export.sources import models_directory, source_of
from opscope.runtimes.exports import EXPORT_LOG, Choice, check_choice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.core.system.stages import StepProgress

_REQUEST = "request.json"
_NEEDED = ("torch", "executorch")
_ABORTED = 6
_LOG_TAIL = 1 << 12


class Exported(msgspec.Struct, frozen=True):
    """The files of an export, and what the process says about it."""

    program: Path  # the .pte
    etrecord: Path | None  # the .etrecord; None when it could not be written
    name: str  # of the model, as in the names of files
    done: ExportFinished  # methods and versions
    stages: list[ExportStage] = []  # what took how long, in order


def _deaf(step: str) -> None:
    """Steps that nobody watches."""


def export_model(name: str, dtype: str, directory: Path) -> tuple[Path, Path]:
    """Export a model with XNNPACK into a directory; what torch prints is kept in ``export.log`` beside it.

    Returns the .pte and the .etrecord, which is there unless ``ExportFinished.etrecord_problem`` says why not.
    """
    done = export_into(name, Choice(dtype), directory)
    return done.program, done.program.with_suffix(".etrecord")


def export_into(
    model: str, choice: Choice, directory: Path, *, models: Path | None = None, heard: StepProgress = _deaf
) -> Exported:
    """Export a model into a directory that exists."""
    source = source_of(model, models)
    check_choice(choice)
    check_installed()
    place = str(models_directory(models))
    request = ExportRequest(model, source.name, place, choice.dtype, choice.backend, str(directory))
    path, log = directory / _REQUEST, directory / EXPORT_LOG
    path.write_bytes(msgspec.json.encode(request))
    stages = _Stages(heard)
    try:
        done = _answered(path, log, model, stages)
    finally:
        path.unlink(missing_ok=True)
    stem = directory / choice.stem(source.name)
    etrecord = None if done.etrecord_problem else stem.with_name(f"{stem.name}.etrecord")
    return Exported(stem.with_name(f"{stem.name}.pte"), etrecord, source.name, done, stages.ended())


def check_installed() -> None:
    """Make sure that the packages for exporting and running are there."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise MissingDependencyError(problem, hint=f"install them with: {install_command('executorch')}")


class _Stages:
    """How long each stage took, the loading of torch first; somebody hears of them."""

    def __init__(self, heard: StepProgress) -> None:
        self._heard, self._clock = heard, SystemClock()
        self._found: list[ExportStage] = []
        self.at, self._since = "loading torch", self._clock.monotonic()
        heard(self.at)

    def enter(self, stage: str, detail: str) -> None:
        """A stage begins; or, with a detail, one goes on."""
        if detail:
            self._heard(f"{stage}: {detail}")
            return
        self.ended()
        self.at = stage
        self._heard(stage)

    def ended(self) -> list[ExportStage]:
        """All stages up to now, each once; one that comes back is told together."""
        now = self._clock.monotonic()
        took, self._since = now - self._since, now
        before = next((one.seconds for one in self._found if one.name == self.at), 0.0)
        self._found = [*(one for one in self._found if one.name != self.at), ExportStage(self.at, before + took)]
        return self._found


def _answered(path: Path, log: Path, model: str, stages: _Stages) -> ExportFinished:
    """What the process answers at last."""
    command = [*module_command("opscope.runtimes.executorch.export.child"), str(path)]
    last = None
    with capped_log(log) as errors_, _process(command, errors_) as process, on_stop(process.kill):
        for line in _lines(process):
            last = line
            if isinstance(line, ExportStep):
                stages.enter(line.name, line.detail)
        code = process.wait()
    if isinstance(last, ExportFinished) and code == 0:
        return last
    if isinstance(last, Refusal):
        raise _refused(model, last, log)
    raise _ended(model, stages.at, code, log)


@contextlib.contextmanager
def _process(command: list[str], log: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[Line]:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    for line in process.stdout:
        with contextlib.suppress(msgspec.MsgspecError):  # half a line of a process that was ended
            yield from_json(line, Line)


def _refused(model: str, refusal: Refusal, log: Path) -> OpscopeError:
    kind = getattr(errors, refusal.kind, ExportError)
    if kind is ExportError:
        return ExportError(f"{model} could not be exported: {refusal.problem}", where=log, hint=refusal.hint)
    error: OpscopeError = kind(refusal.problem, where=refusal.where or model, hint=refusal.hint)
    return error


def _ended(model: str, at: str, code: int, log: Path) -> ExportError:
    ending = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    said = last_line(last_bytes(log, _LOG_TAIL).decode("utf-8", "replace"))
    last = f": {said[:300]}" if said else ""
    hint = "an operator rejected its inputs: try --dtype fp32" if code == -_ABORTED else "check for enough memory"
    problem = f"{model} could not be exported: the process {ending} while {at}{last}"
    return ExportError(problem, where=log, hint=f"{hint}; see the log")
