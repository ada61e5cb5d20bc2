"""Start native runners on a host, once per call: the files they need, their command and their answer."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from opscope.bundle.manifest import Failure, FailureKind, MaskProof
from opscope.core.errors import DeviceError, FeatureError
from opscope.core.files import text_of
from opscope.core.printable import uncoloured
from opscope.core.system.usage import ProcessUsage, ThreadCount
from opscope.experiment.protocol import LOG
from opscope.hosts.host import PRINTED, GuardedCommand, ProcessSettings
from opscope.hosts.process import log_tail, read_answer, unanswered
from opscope.machine import isa
from opscope.machine.cpu_reading import CpuReading
from opscope.runtimes.counting.kernel_counter import COUNTS, counter_environment
from opscope.runtimes.hosted import FailedJob
from opscope.runtimes.native.building import RUNNER, RuntimeFolder
from opscope.runtimes.switching import LibrarySwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.experiment.protocol import ProbeAnswer
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host


INPUT, OUTPUT, ANSWER = "in", "out", "answer.json"
"""Prefixes of the files with inputs and outputs, and the name of the answer file."""


class RunnerAnswer(ThreadCount, msgspec.Struct, frozen=True):
    """A measurement or an error, as every runner writes it. Runtimes add fields."""

    error: str | None = None  # the error's sentence; null when there was none
    kind: str = "exit"  # of the error: `mask`, `storage` or `exit`
    warmup_ns: list[int] = []  # durations of the calls before the measured ones
    wall_ns: list[int] = []  # durations of the measured calls
    # of every call, those before the measured ones first, how much of it was spent off the CPU
    off_cpu_ns: list[int] | None = None
    usage: ProcessUsage | None = None  # of the system, over the measured calls
    start_ns: int = 0  # from the request for the process to the loaded runtime
    load_ns: int = 0  # loading the program and what it calls, with the delegates' own preparation
    write_ns: int = 0  # writing the trace and the outputs
    peak_rss_bytes: int = 0  # largest resident memory of the process, before anything was written
    processor: CpuReading | None = None  # what the processor says of itself, when it was asked
    mask: MaskProof | None = None  # proof that features were off, where the runner clears them itself


Answer = TypeVar("Answer", bound=RunnerAnswer)


class RawTensor(msgspec.Struct, frozen=True):
    """A tensor as a runner describes it."""

    type: int  # of its elements, as the format of the program numbers them
    sizes: list[int]  # of its dimensions
    dim_order: list[int] = []  # dimensions from the outermost to the innermost in memory; empty: as they stand


class SentFile(NamedTuple):
    """A file that a runner reads."""

    kind: str  # of files; each kind has a directory of its own on a device
    name: str  # there
    path: Path  # of the file, here
    beside: Mapping[str, Path] = {}  # files here that lie beside it there, or below, by their names from there


class RunnerCall(NamedTuple):
    """One start of a runner, with paths of this machine."""

    flags: Mapping[str, object]  # of the runner, those that name files left out; an empty value leaves a flag out
    work: Path  # directory with the inputs, `in-0.bin` and so on, that takes the answer and the outputs
    log: Path  # takes what the runner prints
    timeout: float  # in seconds
    sent: Mapping[str, SentFile] = {}  # files that it reads, by the flags that name them
    inputs: int = 0  # how many there are; a file stands for each
    outputs: bool = False  # whether the outputs are wanted
    brought: Mapping[str, Path] = {}  # where files go that it leaves in its directory, by their names
    variables: Mapping[str, str] = {}  # of its environment
    process: ProcessSettings = ProcessSettings()


# "E 00:00:00.0 executorch:method.cpp:12] words" of ExecuTorch, "ERROR: [litert_model.cc:12] words" of LiteRT.
_ERROR = re.compile(r"E \d|ERROR: ")


def _last_error_text(log: Path) -> str:
    """Return the last error that the runtime logged, as the end of a message; empty if there is none."""
    lines = uncoloured(log.read_text(encoding="utf-8", errors="replace")).splitlines()
    errors = [line for line in lines if _ERROR.match(line)]
    return f"; runtime message: {errors[-1].partition('] ')[2] or errors[-1]}" if errors else ""


_COUNTER = "libopscope_counter.so"
# What shells say of a program that is not theirs to execute, and of one that is not there; some take it for a script.
_CANNOT_START = (2, 126, 127)
_LOADER_SECONDS = 30.0
_BRING = "bring a runner that was built for the device, as with Android's NDK: ?runner=PATH behind the target"


class NativeProgram(NamedTuple):
    """A native runner as it was built."""

    arch: str  # that it was built for, as in `opscope.machine.isa`
    versions: Mapping[str, str]  # of the runtime and of what built it
    # the folder with all that it needs; None: it runs with the libraries that are installed here
    brought: RuntimeFolder | None = None
    command: Sequence[str] = ()  # that starts it, without such a folder
    library: Path | None = None  # that it drives then; None where that is the one that it is linked to

    @classmethod
    def of(cls, folder: RuntimeFolder) -> NativeProgram:
        """Return the runner of a folder."""
        return cls(folder.arch, folder.versions, folder)


def program_for(device: Device, make: Callable[[str], RuntimeFolder], otherwise: str) -> NativeProgram:
    """Return the runner for a device. Raises FeatureError with the hint ``otherwise`` if there is none."""
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
    """Starts a native runner on a host."""

    def __init__(self, host: Host, program: NativeProgram, answers: type[Answer]) -> None:
        self._host, self._program, self._answers = host, program, answers

    def answer(self, call: RunnerCall) -> Answer:
        """Start the runner and return its answer; files that it leaves are brought to their places even if it crashed.

        Raises:
            FailedJob: there is no answer, or it tells of an error.
            DeviceError: the device, and not the program, is the cause.
        """
        answer = call.work / ANSWER
        answer.unlink(missing_ok=True)
        command = GuardedCommand(
            words=[*self._runner_command(), *self._runner_flags(call)],
            into=call.work,
            timeout=call.timeout,
            process=call.process,
            is_wanted=lambda name: name in {ANSWER, *call.brought} or name.startswith(f"{OUTPUT}-"),
            variables=call.variables,
        )
        with self._host.started(command) as ended:
            _collect_files(call)
        if self._host.remote and ended.code in _CANNOT_START and not answer.exists():
            raise self._wrong_architecture_error(call.log)
        answer_ = read_answer(ended.code, answer, call.log, call.timeout, self._answers)
        if isinstance(answer_, RunnerAnswer) and (answer_.error is not None or ended.code):
            kind = FailureKind(answer_.kind) if answer_.kind in set(FailureKind) else FailureKind.EXIT
            message = f"{answer_.error or 'no result'}{_last_error_text(call.log)}"
            answer_ = Failure(kind, message, exit_code=ended.code)
        if isinstance(answer_, Failure):
            if self._host.remote:
                self._raise_for_device(answer_)
            raise FailedJob(answer_)
        return answer_

    def loader_version(self) -> str:
        """Start the loader of the copied folder, which starts the runner, and return the version line that it prints.

        Raises DeviceError if it does not start there, or if a system call of its C library is not allowed.
        """
        loader, *_ = self._runner_command()
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            command = GuardedCommand(words=[loader, "--version"], into=work, timeout=_LOADER_SECONDS)
            with self._host.started(command) as ended:
                printed = text_of(work / PRINTED)
            if ended.code == 0:
                return printed.partition("\n")[0]
            if ended.code in _CANNOT_START or ended.code is None:
                raise self._wrong_architecture_error(work / PRINTED)
            failure = unanswered(ended.code, work / PRINTED)
        self._raise_for_device(failure)
        raise DeviceError(f"the loader does not start: {failure.message}", where=self._host.name, hint=_BRING)

    def _raise_for_device(self, failure: Failure) -> None:
        """Raise DeviceError for a failure that the device, and not the program, caused."""
        if failure.kind is FailureKind.STORAGE:
            raise DeviceError(failure.message, where=self._host.name, hint="free some space there")
        if failure.signal == "SIGSYS" and self._program.brought:
            problem = "the system does not allow a system call of the C library that is brought (SIGSYS)"
            raise DeviceError(problem, where=self._host.name, hint=_BRING)

    def library_there(self, library: Path) -> str:
        """Return the path on the host of a library of the runtime."""
        folder = self._folder_there()
        return f"{folder}/{library.name}" if folder else str(library)

    def counting(self, counter: str | None) -> Mapping[str, str]:
        """Return the environment variables of a process with a counting library; kernel counts go to :data:`COUNTS`."""
        if counter is None:
            return {}
        return counter_environment(self._host.provide("counters", {_COUNTER: Path(counter)})[_COUNTER], COUNTS)

    def switch(self, libraries: Sequence[Path], features: Callable[[], ProbeAnswer]) -> LibrarySwitch:
        """Return the switch of CPU features for libraries of the runtime."""
        brought = self._program.brought
        program = None if brought or not self._program.command else Path(self._program.command[0])
        return LibrarySwitch(self._host, libraries, program, features if brought else None)

    def _folder_there(self) -> str:
        """Return the directory on the host of the folder with the runner; empty if there is no folder."""
        folder = self._program.brought
        if folder is None:
            return ""
        paths = self._host.provide("runtimes", {file.name: file for file in folder.files()}, folder.digest)
        return paths[RUNNER].rpartition("/")[0]

    def _runner_command(self) -> Sequence[str]:
        folder = self._program.brought
        return folder.command(self._folder_there()) if folder else self._program.command

    def _runner_flags(self, call: RunnerCall) -> list[str]:
        flags: dict[str, object] = {**call.flags, "answer_path": ANSWER}
        for flag, file in call.sent.items():
            flags[flag] = self._host.provide(file.kind, {file.name: file.path, **file.beside})[file.name]
        if call.inputs:
            names = [f"{INPUT}-{number}.bin" for number in range(call.inputs)]
            paths = self._host.provide("inputs", {name: call.work / name for name in names})
            flags["input_file"] = paths[names[0]].removesuffix("-0.bin")
        if call.outputs:
            flags["output_file"] = OUTPUT
        if not self._host.remote:
            flags["spawned_ns"] = time.clock_gettime_ns(getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))
        return [f"--{name}={value}" for name, value in flags.items() if value != ""]

    def _wrong_architecture_error(self, log: Path) -> DeviceError:
        problem = f"the device cannot run programs for {self._program.arch}{log_tail(log)}"
        hint = "check its architecture; if its directory does not allow execution, use ?dir=PATH"
        return DeviceError(problem, where=self._host.name, hint=hint)


def joined_variables(first: Mapping[str, str], second: Mapping[str, str]) -> Mapping[str, str]:
    """Merge environment variables; libraries to preload are concatenated."""
    preloaded = [variables[_PRELOAD] for variables in (first, second) if _PRELOAD in variables]
    return {**first, **second, **({_PRELOAD: ":".join(preloaded)} if preloaded else {})}


_PRELOAD = "LD_PRELOAD"


def _collect_files(call: RunnerCall) -> None:
    """Move the files that a run left to where the call expects them."""
    for name, target in {**call.brought, LOG: call.log}.items():
        source = call.work / name
        if source.exists() and source != target:
            source.replace(target)
