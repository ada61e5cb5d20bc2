"""The user's own ``executor_runner``, built with the Android NDK, on a device: every repetition is a process of it.

Shared libraries that lie beside the runner go with it. What differs between variants is which runner runs, as for
``opscope.runtimes.executorch.runners.executor_runner``.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import DeviceError, FeatureError, NotFoundError, UsageError
from opscope.core.files import sha256_of
from opscope.core.system.elf import AARCH64, ARM, X86, X86_64, machine_of
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.hosts.adb.adb import lines_about, runtime_lines
from opscope.hosts.process import log_tail
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
    from contextlib import AbstractContextManager

    from opscope.bundle.manifest import Conditions, Environment, Target, Tensor
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import Job
    from opscope.hosts import device as remote_device
    from opscope.hosts.adb.device import AdbDevice
    from opscope.runtimes.executorch.runners.runner_log import RunnerHelp

LOGCAT = "logcat.txt"
"""What Android's log told of a process that failed."""
_PROGRAM, _PID, _BEGAN = "program.pte", "pid", "began"
_HELP_SECONDS = 60.0
_CANNOT_START = (126, 127)
_FULL = 1 << 16
# The runner becomes this process, so its number is known; logcat is asked for what came after the time.
_START = """echo $$ >pid
date '+%m-%d %H:%M:%S.000' >began
export LD_LIBRARY_PATH="$1"
shift
exec "$@"
"""


class _Abi(NamedTuple):
    """What the NDK calls a kind of processor, and the machines that its programs may be for."""

    name: str
    machines: frozenset[int]


_ABIS = {
    "aarch64": _Abi("arm64-v8a", frozenset({AARCH64, ARM})),
    "armv8l": _Abi("armeabi-v7a", frozenset({ARM})),
    "armv7l": _Abi("armeabi-v7a", frozenset({ARM})),
    "x86_64": _Abi("x86_64", frozenset({X86_64, X86})),
}
_BUILT = {AARCH64: "aarch64", ARM: "32-bit Arm", X86_64: "x86-64", X86: "32-bit x86"}


class AdbRunnerTarget:
    """Runs jobs with one build of ``executor_runner`` on an Android device.

    Args:
        device: where.
        runner: the executable, here.
        arguments: further arguments for it; paths in them are those of the device.
        method: to run; None for the first of the program.
        inputs: of the method, as the program declares them.
        outputs: of the method, likewise; with them, and ``--output_file`` in the runner, all output values are read.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it was not built for Android on this device's processor, or an argument is one that opscope sets.
        DeviceError: the device does not answer.
    """

    def __init__(
        self,
        device: AdbDevice,
        runner: Path,
        arguments: Sequence[str] = (),
        method: str | None = None,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
    ) -> None:
        self._device, self._runner = device, runner.resolve()
        self._arguments, self._method = tuple(arguments), method
        self._inputs, self._outputs = list(inputs), list(outputs)
        self._numbers = itertools.count()
        check_arguments(self._arguments)
        self._check()

    def _check(self) -> None:
        if not self._runner.is_file():
            hint = "give the path of an executor_runner that was built with the Android NDK"
            raise NotFoundError("there is no such runner", where=self._runner, hint=hint)
        machine = self._device.output_of("uname", "-m").strip()
        built, abi = machine_of(self._runner), _ABIS.get(machine)
        if built is not None and abi is not None and built not in abi.machines:
            problem = f"the runner was built for {_BUILT.get(built, f'machine {built}')}, the device is {machine}"
            raise UsageError(problem, where=self._runner, hint=f"build it with the Android NDK for {abi.name}")

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return self._device.describe()

    def reserved(self) -> AbstractContextManager[None]:
        """Hold the device for this host alone."""
        return self._device.reserved()

    def capabilities(self) -> Capabilities:
        """Those of a build: its features are fixed, and so may be whether it traces."""
        return Capabilities(is_build=True, always_traces=self.always_traces is True)

    @property
    def always_traces(self) -> bool | None:
        """True: tracing is built in and cannot be switched off; False: it is not built in; None: not known."""
        return self._help.always_traces

    def probe(self) -> ProbeAnswer:
        """A foreign runner cannot be asked for features.

        Raises:
            FeatureError: always.
        """
        self._no_features()

    def environment(self) -> Environment:
        """The device and its software."""
        return self._device.environment(None, {"opscope": environment.versions()["opscope"], **self._identity})

    def conditions(self) -> Conditions:
        """The state of the device now.

        Raises:
            DeviceError: it was lost and does not come back.
        """
        return self._device.state()

    def roofs(self, clear: list[str] | None, threads: int) -> None:
        """No ceilings: they would be those of other kernels than the runner's."""

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own on the device, which ends with its time or with the connection.

        Raises:
            FeatureError: the job asks to clear features.
        """
        if job.clear:
            self._no_features()
        work = directory.resolve()
        try:
            impossible = untraceable(self.always_traces, job)
            return JobOutcome(failure=impossible) if impossible else self._execute(job, work)
        except DeviceError as error:
            return JobOutcome(
                failure=Failure(FailureKind.DEVICE, f"{error}; {error.hint}" if error.hint else str(error))
            )
        except OSError as error:
            return JobOutcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            for name in (_PID, _BEGAN, DEFAULT_TRACE):
                (work / name).unlink(missing_ok=True)

    def _execute(self, job: Job, work: Path) -> JobOutcome:
        place = self._device.work(f"runner-{next(self._numbers)}")
        ended = self._device.guarded(self._command(job), place, job.timeout_seconds)
        self._device.pull(place, [name for name in ended.files if _wanted(name)], work)
        text = self._logcat(work)
        outcome = self._outcome(ended, job, work)  # before its files go there: they may be what fills the storage
        self._device.remove(place)
        if outcome.failure is not None:
            (work / LOGCAT).write_text("\n".join(text), encoding="utf-8")
        return outcome

    def _command(self, job: Job) -> list[str]:
        program = f"{self._device.keep('programs', {_PROGRAM: Path(job.program)})}/{_PROGRAM}"
        pinned = ["taskset", f"{sum(1 << cpu for cpu in job.affinity):x}"] if job.affinity else []
        words = runner_words(job, program, self._method, OUTPUT_FILE if self._reads_outputs else None)
        return self._started([*pinned, f"{self._place()}/{self._runner.name}", *words, *self._arguments])

    def _started(self, command: Sequence[str]) -> list[str]:
        return ["sh", "-c", _START, "opscope-run", self._place(), *command]

    def _place(self) -> str:
        """Directory on the device with the runner and its libraries."""
        libraries = sorted(self._runner.parent.glob("*.so"))
        return self._device.keep("runners", {file.name: file for file in (self._runner, *libraries)})

    @cached_property
    def _help(self) -> RunnerHelp:
        place = self._device.work("help")
        command = self._started([f"{self._place()}/{self._runner.name}", "--help"])
        self._device.guarded(command, place, _HELP_SECONDS)
        text = self._device.output_of("cat", f"{place}/{LOG}")
        self._device.remove(place)
        return parse_help(text)

    @property
    def _reads_outputs(self) -> bool:
        return bool(self._outputs) and "output_file" in (self._help.flags or ())

    def _logcat(self, work: Path) -> list[str]:
        """Lines of Android's log about the process; the runtime's own come before what it printed."""
        pid, began = _text(work / _PID), _text(work / _BEGAN)
        if not pid.isdecimal() or not began:
            return []
        asked = ("logcat", "-d", "-v", "threadtime", "-b", "main,system,crash", "-T", began)
        text = self._device.output_of(*asked)
        own = runtime_lines(text, int(pid))
        if own:
            printed = (work / LOG).read_bytes()
            (work / LOG).write_bytes("\n".join(own).encode() + b"\n" + printed)
        return lines_about(text, int(pid))

    def _outcome(self, ended: remote_device.ExitStatus, job: Job, work: Path) -> JobOutcome:
        if ended.code is None:
            return JobOutcome(failure=timed_out(job.timeout_seconds))
        log = parse_log((work / LOG).read_text(encoding="utf-8", errors="replace"))
        outputs = RunnerOutputs.taken(work, self._outputs, log.shapes)
        last = log_tail(work / LOG)
        failure = failure_of(_as_launched(ended.code, last), log, last, job)
        if failure is None and outputs.nan:
            failure = nan_failure(outputs.nan, "written")
        if failure is None:
            failure = self._trace_failure(work) if job.traced else stray_trace_failure(work / DEFAULT_TRACE)
        if failure is not None:
            return JobOutcome(failure=failure)
        outputs.save(work / OUTPUTS)
        return JobOutcome(measurement=measured(log, outputs, self._inputs, self._identity, None))

    def _trace_failure(self, work: Path) -> Failure | None:
        failure = trace_failure(work / TRACE)
        if failure is not None and failure.kind is FailureKind.TRACE:
            free = self._device.storage().free
            if free is not None and free < _FULL:
                problem = f"no whole ETDump could be written: the device's storage is full, {free:,} bytes are free"
                return Failure(FailureKind.DEVICE, f"{problem}; free some space there")
        return failure

    @cached_property
    def _identity(self) -> dict[str, str]:
        """What a foreign runner has instead of a version."""
        return {"executor_runner": f"sha256:{sha256_of(self._runner)}"}

    def _no_features(self) -> NoReturn:
        problem = "features can neither be read from nor switched off in a runner of your own"
        raise FeatureError(problem, where=self._runner, hint=ONE_EACH)


def _as_launched(code: int, last_words: str) -> RunnerExitStatus:
    """How the process ended, as a launcher would tell it; a shell tells by its code that it could not start it."""
    if code in _CANNOT_START:
        said = last_words.removeprefix("; its last words: ") or f"exit code {code}"
        return RunnerExitStatus(
            code, None, f"{said}; was it built with the Android NDK, and do its libraries lie beside it?", None
        )
    return RunnerExitStatus(code if code >= 0 else None, -code if code < 0 else None, None, None)


def _wanted(name: str) -> bool:
    return name in {LOG, TRACE, DEFAULT_TRACE, _PID, _BEGAN} or name.startswith(f"{OUTPUT_FILE}-")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
