"""Starting a native runner on a host, once a call: what it needs is brought there, what it leaves is brought here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import DeviceError, FeatureError
from opscope.experiment.protocol import LOG
from opscope.hosts.host import GuardedCommand
from opscope.hosts.process import log_tail, read_answer
from opscope.machine import isa
from opscope.runtimes.counting.kernel_counter import COUNTS, counter_environment
from opscope.runtimes.native.answer import ANSWER, INPUT, OUTPUT, Answer, judged
from opscope.runtimes.native.folder import RUNNER, RuntimeFolder
from opscope.runtimes.switching import LibrarySwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.experiment.protocol import ProbeAnswer
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.native.answer import RunnerCall

_COUNTER = "libopscope_counter.so"
# What shells say of a program that is not theirs to execute, and of one that is not there; some take it for a script.
_CANNOT_START = (2, 126, 127)


class NativeProgram(NamedTuple):
    """A native runner as it was built."""

    arch: str  # that it was built for, as in `opscope.machine.isa`
    versions: Mapping[str, str]  # of the runtime and of what built it
    # the folder with all that it needs; None: it runs with the libraries that are installed here
    brought: RuntimeFolder | None = None
    command: Sequence[str] = ()  # that starts it, without such a folder

    @classmethod
    def of(cls, folder: RuntimeFolder) -> NativeProgram:
        """The runner of a folder."""
        return cls(folder.arch, folder.versions, folder)


def program_for(device: Device, make: Callable[[str], RuntimeFolder], otherwise: str) -> NativeProgram:
    """The runner for a device."""
    facts = device.facts()
    system, machine = facts.get("system", ""), facts.get("machine", "")
    if system != "Linux":
        problem = f"there is no prebuilt runtime for {system or 'a system that does not report its name'}"
        raise FeatureError(problem, where=device.name, hint=otherwise)
    try:
        return NativeProgram.of(make(isa.architecture(machine)))
    except FeatureError as error:
        raise FeatureError(error.problem, where=device.name, hint=error.hint) from error


class RunnerStarter(Generic[Answer]):
    """Starts a native runner.

    Args:
        host: where.
        program: the runner.
        answers: what it answers with.
    """

    def __init__(self, host: Host, program: NativeProgram, answers: type[Answer]) -> None:
        self._host, self._program, self._answers = host, program, answers

    def answer(self, call: RunnerCall) -> Answer | Failure:
        """What it answers; its files are brought to their places even when it crashed."""
        answer = call.work / ANSWER
        answer.unlink(missing_ok=True)
        command = GuardedCommand(
            words=[*self._command(), *self._flags(call)],
            into=call.work,
            timeout=call.timeout,
            process=call.process,
            wanted=lambda name: name in {ANSWER, *call.brought} or name.startswith(f"{OUTPUT}-"),
            variables=call.variables,
        )
        with self._host.started(command) as ended:
            _place(call)
        if self._host.remote and ended.code in _CANNOT_START and not answer.exists():
            raise self._foreign(call.log)
        heard = judged(read_answer(ended.code, answer, call.log, call.timeout, self._answers), ended.code, call.log)
        if self._host.remote and isinstance(heard, Failure) and heard.kind is FailureKind.STORAGE:
            raise DeviceError(heard.message, where=self._host.name, hint="free some space there")
        return heard

    def library_there(self, library: Path) -> str:
        """Path on the host of a library of the runtime."""
        there = self._folder_there()
        return f"{there}/{library.name}" if there else str(library)

    def counting(self, counter: str | None) -> Mapping[str, str]:
        """Variables of a process with a library that counts; calls of kernels go to its file :data:`COUNTS`."""
        if counter is None:
            return {}
        return counter_environment(self._host.provide("counters", {_COUNTER: Path(counter)})[_COUNTER], COUNTS)

    def switch(self, libraries: Sequence[Path], features: Callable[[], ProbeAnswer]) -> LibrarySwitch:
        """What switches features for libraries of the runtime."""
        brought = self._program.brought
        program = None if brought or not self._program.command else Path(self._program.command[0])
        return LibrarySwitch(self._host, libraries, program, features if brought else None)

    def _folder_there(self) -> str:
        """Directory on the host of the folder with the runner; empty without one."""
        folder = self._program.brought
        if folder is None:
            return ""
        there = self._host.provide("runtimes", {file.name: file for file in folder.files()}, folder.digest)
        return there[RUNNER].rpartition("/")[0]

    def _command(self) -> Sequence[str]:
        folder = self._program.brought
        return folder.command(self._folder_there()) if folder else self._program.command

    def _flags(self, call: RunnerCall) -> list[str]:
        flags: dict[str, object] = {**call.flags, "answer_path": ANSWER}
        for flag, one in call.sent.items():
            flags[flag] = self._host.provide(one.kind, {one.name: one.path, **one.beside})[one.name]
        if call.inputs:
            names = [f"{INPUT}-{number}.bin" for number in range(call.inputs)]
            there = self._host.provide("inputs", {name: call.work / name for name in names})
            flags["input_file"] = there[names[0]].removesuffix("-0.bin")
        if call.outputs:
            flags["output_file"] = OUTPUT
        if not self._host.remote:
            flags["spawned_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return [f"--{name}={value}" for name, value in flags.items() if value != ""]

    def _foreign(self, log: Path) -> DeviceError:
        problem = f"the device cannot run programs for {self._program.arch}{log_tail(log)}"
        hint = "check its architecture; if its directory does not allow execution, use ?dir=PATH"
        return DeviceError(problem, where=self._host.name, hint=hint)


def joined_variables(first: Mapping[str, str], second: Mapping[str, str]) -> Mapping[str, str]:
    """Variables of both; libraries to preload are those of both."""
    preloaded = [own[_PRELOAD] for own in (first, second) if _PRELOAD in own]
    return {**first, **second, **({_PRELOAD: ":".join(preloaded)} if preloaded else {})}


_PRELOAD = "LD_PRELOAD"


def _place(call: RunnerCall) -> None:
    """Move what a run left to where the call wants it."""
    for name, place in {**call.brought, LOG: call.log}.items():
        left = call.work / name
        if left.exists() and left != place:
            left.replace(place)
