"""Starting the native runner on a host, once a call: what it needs is brought there, what it leaves is brought here."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import DeviceError
from opscope.experiment.protocol import LOG, TRACE
from opscope.hosts.host import GuardedCommand
from opscope.hosts.process import log_tail, read_answer
from opscope.runtimes.executorch.installed import BACKEND, THREADPOOL, library_directory
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.runners.kernel_counter import COUNTS, counter_environment
from opscope.runtimes.executorch.runners.native_answer import ANSWER, INPUT, OUTPUT, NativeAnswer, judged
from opscope.runtimes.executorch.runners.remote_runtime import RUNNER, RuntimeFolder
from opscope.runtimes.switching import LibrarySwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.experiment.protocol import ProbeAnswer
    from opscope.hosts.host import Host
    from opscope.runtimes.executorch.runners.native_answer import RunnerCall

# What shells say of a program that is not theirs to execute, and of one that is not there; some take it for a script.
_CANNOT_START = (2, 126, 127)
_PROGRAM, _DATA, _COUNTER = "program.pte", "program.ptd", "libopscope_counter.so"
_MAC = sys.platform == "darwin"
_LIBRARY, _SUFFIX = f"{BACKEND}.so", ".dylib" if _MAC else ".so"
_PARTS = ("libexecutorch", "libexecutorch_kernels_optimized", BACKEND, "libexecutorch_kernels_quantized")


class NativeProgram(NamedTuple):
    """The native runner as it was built.

    Attributes:
        arch: that it was built for, as in ``opscope.machine.isa``.
        versions: of the runtime and of what built it.
        brought: the folder with all that it needs; None: it runs with the libraries that are installed here.
        command: that starts it, without such a folder.
    """

    arch: str
    versions: Mapping[str, str]
    brought: RuntimeFolder | None = None
    command: Sequence[str] = ()

    @classmethod
    def of(cls, folder: RuntimeFolder) -> NativeProgram:
        """The runner of a folder."""
        return cls(folder.arch, folder.versions, folder)

    @property
    def library(self) -> Path:
        """The library of the backend whose kernels it calls, on this machine.

        Raises:
            MissingDependencyError: executorch is not installed.
        """
        return (self.brought.directory if self.brought else library_directory()) / _LIBRARY

    @property
    def switched(self) -> list[Path]:
        """The libraries that ask the CPU for the features by which kernels are chosen, on this machine.

        Raises:
            MissingDependencyError: executorch is not installed.
        """
        return [self.library.with_name(f"{THREADPOOL}{self.library.suffix}"), self.library]

    @property
    def libraries(self) -> list[Path]:
        """The libraries that it can load, on this machine.

        Raises:
            MissingDependencyError: executorch is not installed.
        """
        place, suffix = (self.brought.directory, ".so") if self.brought else (library_directory(), _SUFFIX)
        return [place / f"{name}{suffix}" for name in _PARTS if (place / f"{name}{suffix}").exists()]


class NativeStarter:
    """Starts the native runner.

    Args:
        host: where.
        program: the runner.
    """

    def __init__(self, host: Host, program: NativeProgram) -> None:
        self._host, self._program = host, program

    def answer(self, call: RunnerCall) -> NativeAnswer | Failure:
        """What it answers; its files are brought to their places even when it crashed.

        Raises:
            DeviceError: a device was lost, refuses to store something, or cannot run the runner.
            OSError: there is no room here.
        """
        answer = call.work / ANSWER
        answer.unlink(missing_ok=True)
        command = GuardedCommand(
            words=[*self._command(), *self._flags(call)],
            into=call.work,
            timeout=call.timeout,
            wanted=_wanted,
            variables=_joined(self._counting(call), call.variables),
        )
        with self._host.started(command) as ended:
            _place(call)
        if self._host.remote and ended.code in _CANNOT_START and not answer.exists():
            raise self._foreign(call.log)
        heard = judged(read_answer(ended.code, answer, call.log, call.timeout, NativeAnswer), ended.code, call.log)
        if self._host.remote and isinstance(heard, Failure) and heard.kind is FailureKind.STORAGE:
            raise DeviceError(heard.message, where=self._host.name, hint="free some space there")
        return heard

    def kernels(self, program: Path) -> list[str]:
        """Files of the libraries of further kernels that a program needs and that are there."""
        known = {file.name for file in self._program.libraries}
        named = [f"{one.library}{_SUFFIX}" for one in extra_kernels(program) if one.library]
        prefix = "@rpath/" if _MAC and not self._program.brought else ""
        return [f"{prefix}{name}" for name in named if name in known]

    def _command(self) -> Sequence[str]:
        folder = self._program.brought
        if folder is None:
            return self._program.command
        there = self._host.provide("runtimes", {file.name: file for file in folder.files()}, folder.digest)
        return folder.command(there[RUNNER].rpartition("/")[0])

    def _flags(self, call: RunnerCall) -> list[str]:
        flags: dict[str, object] = {**call.flags, "answer_path": ANSWER}
        if call.program:
            flags["model_path"] = self._host.provide("programs", {_PROGRAM: call.program})[_PROGRAM]
        if call.data:
            flags["data_path"] = self._host.provide("data", {_DATA: call.data})[_DATA]
        if call.inputs:
            names = [f"{INPUT}-{number}.bin" for number in range(call.inputs)]
            there = self._host.provide("inputs", {name: call.work / name for name in names})
            flags["input_file"] = there[names[0]].removesuffix("-0.bin")
        if call.outputs:
            flags["output_file"] = OUTPUT
        if call.trace:
            flags["etdump_path"] = TRACE
        if not self._host.remote:
            flags["spawned_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return [f"--{name}={value}" for name, value in flags.items() if value != ""]

    def switch(self, features: Callable[[], ProbeAnswer]) -> LibrarySwitch:
        """What switches features for the runner's libraries.

        Args:
            features: asks the runner for those of the CPU, where that is another one than this machine's.
        """
        brought = self._program.brought
        if self._host.remote:
            return LibrarySwitch(self._host, [])
        foreign = features if brought else None
        program = None if brought or not self._program.command else Path(self._program.command[0])
        return LibrarySwitch(self._host, self._program.switched, program, foreign)

    def _counting(self, call: RunnerCall) -> Mapping[str, str]:
        if call.counter is None:
            return {}
        return counter_environment(self._host.provide("counters", {_COUNTER: call.counter})[_COUNTER], COUNTS)

    def _foreign(self, log: Path) -> DeviceError:
        problem = f"the device cannot run programs for {self._program.arch}{log_tail(log)}"
        hint = "is its system of that architecture? A directory that forbids programs is avoided with ?dir=PATH"
        return DeviceError(problem, where=self._host.name, hint=hint)


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> Mapping[str, str]:
    """Variables of both; libraries to preload are those of both."""
    preloaded = [own[_PRELOAD] for own in (first, second) if _PRELOAD in own]
    return {**first, **second, **({_PRELOAD: ":".join(preloaded)} if preloaded else {})}


_PRELOAD = "LD_PRELOAD"


def _place(call: RunnerCall) -> None:
    """Move what a run left to where the call wants it."""
    for name, place in ((LOG, call.log), (TRACE, call.trace), (COUNTS, call.counts)):
        left = call.work / name
        if left.exists() and place is not None and left != place:
            left.replace(place)


def _wanted(name: str) -> bool:
    """Whether a file of a run is one that is wanted here."""
    return name in {ANSWER, TRACE, COUNTS} or name.startswith(f"{OUTPUT}-")
