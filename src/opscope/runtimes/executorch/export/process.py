"""Export a model in a separate process."""

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
    """The files of an export, and the result that the process reported."""

    program: Path  # the .pte
    etrecord: Path | None  # the .etrecord; None when it could not be written
    name: str  # of the model, as in the names of files
    finished: ExportFinished  # methods and versions
    stages: list[ExportStage] = []  # what took how long, in order


def _ignore_progress(step: str) -> None:
    """Ignore steps that nobody watches."""


def export_model(name: str, dtype: str, directory: Path) -> tuple[Path, Path]:
    """Export a model with XNNPACK into a directory; what torch prints is kept in ``export.log`` beside it.

    Returns the .pte and the .etrecord, which exists unless ``ExportFinished.etrecord_problem`` says why not.
    """
    exported = export_into(name, Choice(dtype), directory)
    return exported.program, exported.program.with_suffix(".etrecord")


def export_into(
    model: str,
    choice: Choice,
    directory: Path,
    *,
    models: Path | None = None,
    progress: StepProgress = _ignore_progress,
) -> Exported:
    """Export a model into a directory that exists."""
    source = source_of(model, models)
    check_choice(choice)
    check_installed()
    models_path = str(models_directory(models))
    request = ExportRequest(model, source.name, models_path, choice.dtype, choice.backend, str(directory))
    path, log = directory / _REQUEST, directory / EXPORT_LOG
    path.write_bytes(msgspec.json.encode(request))
    stages = _Stages(progress)
    try:
        finished = _run_export(path, log, model, stages)
    finally:
        path.unlink(missing_ok=True)
    stem = directory / choice.stem(source.name)
    etrecord = None if finished.etrecord_problem else stem.with_name(f"{stem.name}.etrecord")
    return Exported(stem.with_name(f"{stem.name}.pte"), etrecord, source.name, finished, stages.ended())


def check_installed() -> None:
    """Raise MissingDependencyError if a package for exporting or running is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise MissingDependencyError(problem, hint=f"install them with: {install_command('executorch')}")


class _Stages:
    """Durations of the stages of an export, the loading of torch first; each start is reported."""

    def __init__(self, progress: StepProgress) -> None:
        self._heard, self._clock = progress, SystemClock()
        self._found: list[ExportStage] = []
        self.at, self._since = "loading torch", self._clock.monotonic()
        progress(self.at)

    def enter(self, stage: str, detail: str) -> None:
        """Start a stage, or report a detail of the current one."""
        if detail:
            self._heard(f"{stage}: {detail}")
            return
        self.ended()
        self.at = stage
        self._heard(stage)

    def ended(self) -> list[ExportStage]:
        """Return all stages up to now, each once, with the sum of its times if it came back."""
        now = self._clock.monotonic()
        took, self._since = now - self._since, now
        before = next((stage.seconds for stage in self._found if stage.name == self.at), 0.0)
        self._found = [*(stage for stage in self._found if stage.name != self.at), ExportStage(self.at, before + took)]
        return self._found


def _run_export(path: Path, log: Path, model: str, stages: _Stages) -> ExportFinished:
    """Run the process and return its last answer. Raises an error if the export failed."""
    command = [*module_command("opscope.runtimes.executorch.export.child"), str(path)]
    last = None
    with capped_log(log) as errors_, _start_process(command, errors_) as process, on_stop(process.kill):
        for line in _read_lines(process):
            last = line
            if isinstance(line, ExportStep):
                stages.enter(line.name, line.detail)
        code = process.wait()
    if isinstance(last, ExportFinished) and code == 0:
        return last
    if isinstance(last, Refusal):
        raise _refusal_error(model, last, log)
    raise _crash_error(model, stages.at, code, log)


@contextlib.contextmanager
def _start_process(command: list[str], log: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does not outlive the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def _read_lines(process: subprocess.Popen[bytes]) -> Iterator[Line]:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    for line in process.stdout:
        with contextlib.suppress(msgspec.MsgspecError):  # half a line of a process that was ended
            yield from_json(line, Line)


def _refusal_error(model: str, refusal: Refusal, log: Path) -> OpscopeError:
    kind = getattr(errors, refusal.kind, ExportError)
    if kind is ExportError:
        return ExportError(f"{model} could not be exported: {refusal.problem}", where=log, hint=refusal.hint)
    error: OpscopeError = kind(refusal.problem, where=refusal.where or model, hint=refusal.hint)
    return error


def _crash_error(model: str, at: str, code: int, log: Path) -> ExportError:
    ending = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    last_words = last_line(last_bytes(log, _LOG_TAIL).decode("utf-8", "replace"))
    last = f": {last_words[:300]}" if last_words else ""
    hint = "an operator rejected its inputs: try --dtype fp32" if code == -_ABORTED else "check for enough memory"
    problem = f"{model} could not be exported: the process {ending} while {at}{last}"
    return ExportError(problem, where=log, hint=f"{hint}; see the log")
