"""The native runner on a device: sent with all it needs, started once a repetition, its files brought back."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import DeviceError, FeatureError
from opscope.experiment.protocol import LOG, TRACE
from opscope.experiment.target import Capabilities, feature_groups
from opscope.hosts.device import Device
from opscope.hosts.facts import environment_of
from opscope.hosts.process import log_tail, read_answer
from opscope.machine import environment, isa
from opscope.runtimes.executorch.runners.kernel_counter import COUNTS, counter_environment
from opscope.runtimes.executorch.runners.native_answer import ANSWER, INPUT, OUTPUT, NativeAnswer, flag_words, judged
from opscope.runtimes.executorch.runners.native_jobs import NativeJobs
from opscope.runtimes.executorch.runners.remote_runtime import RuntimeFolder, build_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import Job, JobOutcome
    from opscope.hosts.shell import RemoteShell
    from opscope.runtimes.executorch.runners.native_answer import RunnerCall

# What shells say of a program that is not theirs to execute, and of one that is not there; some take it for a script.
_CANNOT_START = (2, 126, 127)
_PROGRAM, _COUNTER = "program.pte", "libopscope_counter.so"


class RemoteRunner:
    """Starts the runner on a device.

    Args:
        device: where.
        runtime: the runner and what it needs.
    """

    def __init__(self, device: Device, runtime: RuntimeFolder) -> None:
        self._device, self._runtime = device, runtime
        self._numbers = itertools.count()

    def answer(self, call: RunnerCall) -> NativeAnswer | Failure:
        """What it answers; its files are brought here even when it crashed.

        Raises:
            DeviceError: the device was lost, refuses to store something, or cannot run the runner.
            OSError: there is no room here.
        """
        command = [*self._counting(call), *self._command(), *self._flags(call)]
        work = self._device.work(str(next(self._numbers)))
        ended = self._device.guarded(command, work, call.timeout)
        self._device.pull(work, [name for name in ended.files if _ours(name)], call.work)
        self._device.remove(work)
        self._place(call)
        answer = call.work / ANSWER
        if ended.code in _CANNOT_START and not answer.exists():
            raise self._foreign(call.log)
        heard = judged(read_answer(ended.code, answer, call.log, call.timeout, NativeAnswer), ended.code, call.log)
        if isinstance(heard, Failure) and heard.kind is FailureKind.STORAGE:
            raise DeviceError(heard.message, where=self._device.name, hint="free some space there")
        return heard

    def _command(self) -> list[str]:
        files = {file.name: file for file in self._runtime.files()}
        return self._runtime.command(self._device.keep_as("runtimes", self._runtime.digest, files))

    def _flags(self, call: RunnerCall) -> list[str]:
        flags: dict[str, object] = {**call.flags, "answer_path": ANSWER}
        if call.program:
            flags["model_path"] = f"{self._device.keep('programs', {_PROGRAM: call.program})}/{_PROGRAM}"
        if call.inputs:
            names = [f"{INPUT}-{number}.bin" for number in range(call.inputs)]
            flags["input_file"] = f"{self._device.keep('inputs', {name: call.work / name for name in names})}/{INPUT}"
        if call.outputs:
            flags["output_file"] = OUTPUT
        if call.trace:
            flags["etdump_path"] = TRACE
        return flag_words(flags)

    def _counting(self, call: RunnerCall) -> list[str]:
        if call.counter is None:
            return []
        place = self._device.keep("counters", {_COUNTER: call.counter})
        variables = counter_environment(f"{place}/{_COUNTER}", COUNTS)
        return ["env", *(f"{name}={value}" for name, value in variables.items())]

    def _place(self, call: RunnerCall) -> None:
        """Move what came back to where the call wants it."""
        for name, wanted in ((LOG, call.log), (TRACE, call.trace), (COUNTS, call.counts)):
            got = call.work / name
            if got.exists() and wanted is not None and got != wanted:
                got.replace(wanted)
        if not call.log.exists():
            call.log.write_bytes(b"")

    def _foreign(self, log: Path) -> DeviceError:
        problem = f"the device cannot run programs for {self._runtime.arch}{log_tail(log)}"
        hint = "is its system of that architecture? A directory that forbids programs is avoided with ?dir=PATH"
        return DeviceError(problem, where=self._device.name, hint=hint)


def _ours(name: str) -> bool:
    """Whether a file of a run is one that is wanted here."""
    return name in {ANSWER, LOG, TRACE, COUNTS} or name.startswith(f"{OUTPUT}-")


class RemoteNativeTarget:
    """Runs jobs with the native runner on a device of Linux.

    Args:
        shell: the way to the device.
        base: directory there for all that is ours.
        cache: where runtimes are kept here; the user's cache directory when it is not given.
        device: that the shell leads to, for one with ways of its own; None: any Linux.
    """

    def __init__(self, shell: RemoteShell, base: str, cache: Path | None = None, device: Device | None = None) -> None:
        self._shell, self._cache = shell, cache
        self._device = device or Device(shell, base)

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return self._shell.describe()

    def reserved(self) -> AbstractContextManager[None]:
        """Hold the device for this host alone."""
        return self._device.reserved()

    def capabilities(self) -> Capabilities:
        """All of a device with the native runner."""
        return Capabilities(host=self._device)

    @property
    def runtime(self) -> RuntimeFolder:
        """The runtime that is brought to the device.

        Raises:
            FeatureError: there is none for it.
            MissingDependencyError: a compiler or the wheel is missing.
        """
        return self._runtime

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime there sees them.

        Raises:
            DeviceError: the device cannot be reached or used, or cannot run the runner.
            FeatureError: no runtime is known for it.
        """
        return self._jobs.probed

    def environment(self) -> Environment:
        """The device and its software."""
        groups = feature_groups(self.probe)
        versions = {"opscope": environment.versions()["opscope"], **self._runtime.versions}
        return environment_of(self._facts, groups, versions)

    def conditions(self) -> Conditions:
        """The state of the device now.

        Raises:
            DeviceError: it cannot be reached.
        """
        return self._device.conditions()

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own on the device, which ends with its time or with the connection."""
        return self._jobs.execute(job, directory)

    def roofs(self, clear: list[str] | None, threads: int) -> None:
        """No ceilings: what measures them needs Python."""

    @cached_property
    def _facts(self) -> Mapping[str, str]:
        return self._device.facts()

    @cached_property
    def _runtime(self) -> RuntimeFolder:
        system, machine = self._facts.get("system", ""), self._facts.get("machine", "")
        if system != "Linux":
            problem = f"there is no ready runtime for {system or 'a system that does not tell its name'}"
            raise FeatureError(
                problem, where=self._device.name, hint="use a Python there that has executorch: ?python=PATH"
            )
        try:
            return build_runtime(isa.architecture(machine), self._cache)
        except FeatureError as error:
            raise FeatureError(error.problem, where=self._device.name, hint=error.hint) from error

    @cached_property
    def _jobs(self) -> NativeJobs:
        runtime = self._runtime
        return NativeJobs(RemoteRunner(self._device, runtime), runtime.versions, runtime.arch)
