"""Native runners: what their targets share, and their start on a host, once a call: what they need and answer."""

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
"""Prefixes of the files with inputs and outputs, and the name of the answer."""


class RunnerAnswer(ThreadCount, msgspec.Struct, frozen=True):
    """What every runner writes: a measurement, or an error. Those of a runtime add what else they tell."""

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
    """A tensor as a runner tells it."""

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
    """One start of a runner, in terms of this machine's files."""

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


def _complaint(log: Path) -> str:
    """The last error that the runtime logged, for the end of a message."""
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
    """Starts a native runner."""

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
        heard = read_answer(ended.code, answer, call.log, call.timeout, self._answers)
        if isinstance(heard, RunnerAnswer) and (heard.error is not None or ended.code):
            kind = FailureKind(heard.kind) if heard.kind in set(FailureKind) else FailureKind.EXIT
            message = f"{heard.error or 'no result'}{_complaint(call.log)}"
            heard = Failure(kind, message, exit_code=ended.code)
        if isinstance(heard, Failure):
            if self._host.remote:
                self._raise_for_device(heard)
            raise FailedJob(heard)
        return heard

    def loader_version(self) -> str:
        """Start the loader of the folder that is brought, which starts all else, and return what it says of itself.

        Raises DeviceError: it does not start there, or a system call of its C library is not allowed.
        """
        loader, *_ = self._command()
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            command = GuardedCommand(words=[loader, "--version"], into=work, timeout=_LOADER_SECONDS)
            with self._host.started(command) as ended:
                printed = text_of(work / PRINTED)
            if ended.code == 0:
                return printed.partition("\n")[0]
            if ended.code in _CANNOT_START or ended.code is None:
                raise self._foreign(work / PRINTED)
            failure = unanswered(ended.code, work / PRINTED)
        self._raise_for_device(failure)
        raise DeviceError(f"the loader does not start: {failure.message}", where=self._host.name, hint=_BRING)

    def _raise_for_device(self, failure: Failure) -> None:
        """Raise DeviceError for what the device, and not the program, is the cause of."""
        if failure.kind is FailureKind.STORAGE:
            raise DeviceError(failure.message, where=self._host.name, hint="free some space there")
        if failure.signal == "SIGSYS" and self._program.brought:
            problem = "the system does not allow a system call of the C library that is brought (SIGSYS)"
            raise DeviceError(problem, where=self._host.name, hint=_BRING)

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
            flags["spawned_ns"] = time.clock_gettime_ns(getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))
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
