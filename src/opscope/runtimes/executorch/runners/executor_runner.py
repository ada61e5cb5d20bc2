"""The user's own ``executor_runner``: every repetition is a process of it, as its flags and its log allow.

A foreign runner tells no CPU features and cannot be asked to clear any, so what differs between variants is which
runner runs: one target per variant. Its inputs are its own, all ones. What it does not tell is not made up.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from opscope.bundle.manifest import Conditions, Environment, Failure, FailureKind, Target, Tensor
from opscope.core.errors import FeatureError, NotFoundError, UsageError
from opscope.core.files import sha256_of
from opscope.core.system import launch
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.hosts.process import log_tail, run_process, unanswered
from opscope.hosts.target_kinds import RUNNER
from opscope.machine import environment
from opscope.runtimes.executorch.runners.runner_command import ONE_EACH, check_arguments, measured, runner_words
from opscope.runtimes.executorch.runners.runner_log import DEFAULT_TRACE, parse_help, parse_log
from opscope.runtimes.executorch.runners.runner_outcome import (
    RunnerExitStatus,
    failure_of,
    nan_failure,
    stray_trace_failure,
    timed_out,
    trace_failure,
    untraceable,
)
from opscope.runtimes.executorch.runners.runner_outputs import OUTPUT_FILE, RunnerOutputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import Job
    from opscope.runtimes.executorch.runners.runner_log import RunnerHelp

_LAUNCH = (sys.executable, "-I", "-S", launch.__file__)
_REPORT = "ended.json"
_HELP_SECONDS = 30.0


class ExecutorRunnerTarget:
    """Runs jobs with one build of ``executor_runner`` on this machine.

    Args:
        runner: the executable.
        arguments: further arguments for it; it runs in the repetition's directory, so paths in them must be absolute.
        method: to run; None for the first of the program.
        inputs: of the method, as the program declares them.
        outputs: of the method, likewise; with them, and ``--output_file`` in the runner, all output values are read.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is not executable, or an argument is one that opscope sets.
    """

    def __init__(
        self,
        runner: Path,
        arguments: Sequence[str] = (),
        method: str | None = None,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
    ) -> None:
        self._runner = runner.resolve()
        self._arguments, self._method = tuple(arguments), method
        self._inputs, self._outputs = list(inputs), list(outputs)
        self._check()

    def _check(self) -> None:
        if not self._runner.is_file():
            raise NotFoundError(
                "there is no such runner", where=self._runner, hint="give the path of an executor_runner"
            )
        if not os.access(self._runner, os.X_OK):
            raise UsageError("the runner is not executable", where=self._runner, hint=f"chmod +x {self._runner}")
        check_arguments(self._arguments)

    @cached_property
    def _help(self) -> RunnerHelp:
        with tempfile.TemporaryDirectory(prefix="opscope-") as work:
            log = Path(work) / LOG
            command = [*_LAUNCH, str(Path(work) / _REPORT), work, "", str(self._runner), "--help"]
            run_process(command, log, _HELP_SECONDS)
            return parse_help(log.read_text(encoding="utf-8", errors="replace"))

    def capabilities(self) -> Capabilities:
        """Those of a build: its features are fixed, and so may be whether it traces."""
        return Capabilities(is_build=True, always_traces=self.always_traces is True)

    @property
    def always_traces(self) -> bool | None:
        """True: tracing is built in and cannot be switched off; False: it is not built in; None: not known."""
        return self._help.always_traces

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return Target(RUNNER.name, str(self._runner))

    def probe(self) -> ProbeAnswer:
        """A foreign runner cannot be asked for features.

        Raises:
            FeatureError: always.
        """
        self._no_features()

    def environment(self) -> Environment:
        """The machine, without the installed packages: they are not what the runner is made of."""
        versions = {name: text for name, text in environment.versions().items() if name in {"opscope", "python"}}
        return msgspec.structs.replace(environment.capture([]), features=None, versions={**versions, **self._identity})

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return environment.conditions()

    def roofs(self, clear: list[str] | None, threads: int) -> None:
        """No ceilings: they would be those of other kernels than the runner's."""

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own.

        Raises:
            FeatureError: the job asks to clear features.
        """
        if job.clear:
            self._no_features()
        if len(set(job.calls)) > 1:
            message = f"a foreign runner calls one method, asked were {', '.join(dict.fromkeys(job.calls))}"
            return JobOutcome(failure=Failure(FailureKind.EXIT, f"{message}: name one with --methods"))
        work = directory.resolve()
        try:
            impossible = untraceable(self.always_traces, job)
            return JobOutcome(failure=impossible) if impossible else self._execute(job, work)
        except OSError as error:
            return JobOutcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            for name in (_REPORT, DEFAULT_TRACE):
                (work / name).unlink(missing_ok=True)

    def _execute(self, job: Job, work: Path) -> JobOutcome:
        report, log = work / _REPORT, work / LOG
        cpus = ",".join(str(cpu) for cpu in job.affinity)
        code = run_process([*_LAUNCH, str(report), str(work), cpus, *self._command(job)], log, job.timeout_seconds)
        if code is None:
            return JobOutcome(failure=timed_out(job.timeout_seconds))
        if code or not report.exists():
            return JobOutcome(failure=unanswered(code, log))
        return self._outcome(msgspec.json.decode(report.read_bytes(), type=RunnerExitStatus), job, work)

    def _command(self, job: Job) -> list[str]:
        program, output = str(Path(job.program).resolve()), OUTPUT_FILE if self._reads_outputs else None
        return [str(self._runner), *runner_words(job, program, self._method, output), *self._arguments]

    @property
    def _reads_outputs(self) -> bool:
        return bool(self._outputs) and "output_file" in (self._help.flags or ())

    def _outcome(self, ended: RunnerExitStatus, job: Job, work: Path) -> JobOutcome:
        log = parse_log((work / LOG).read_text(encoding="utf-8", errors="replace"))
        outputs = RunnerOutputs.taken(work, self._outputs, log.shapes)
        failure = failure_of(ended, log, log_tail(work / LOG), job)
        if failure is None and outputs.nan:
            failure = nan_failure(outputs.nan, "written")
        if failure is None:
            failure = trace_failure(work / TRACE) if job.traced else stray_trace_failure(work / DEFAULT_TRACE)
        if failure is not None:
            return JobOutcome(failure=failure)
        outputs.save(work / OUTPUTS)
        return JobOutcome(measurement=measured(log, outputs, self._inputs, self._identity, ended.peak_rss_bytes))

    @cached_property
    def _identity(self) -> dict[str, str]:
        """What a foreign runner has instead of a version."""
        return {"executor_runner": f"sha256:{sha256_of(self._runner)}"}

    def _no_features(self) -> NoReturn:
        problem = "features can neither be read from nor switched off in a runner of your own"
        raise FeatureError(problem, where=self._runner, hint=ONE_EACH)
