"""Run the user's own ``executor_runner`` on any host: every repetition is a process, controlled by its flags.

A foreign runner reports no CPU features and cannot clear any, so variants differ by which runner runs: one
target per variant. Its inputs are its own, all ones. What it does not report is not made up. Shared libraries
next to it are sent with it to a device.

A repetition is rejected with a reason from its exit status, its log and its files.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from opscope.bundle.manifest import BUILD, Failure, FailureKind, Measurement
from opscope.core.errors import DeviceError, FeatureError, NotFoundError, RunError, UsageError
from opscope.core.files import sha256_of
from opscope.core.system.usage import ThreadCount
from opscope.core.writing import open_atomically
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.hosts.host import GuardedCommand
from opscope.hosts.process import log_tail, question_seconds, signal_name
from opscope.machine import environment
from opscope.program.structure.exported import Tensor
from opscope.runtimes.hosted import FailedJob, HostedTarget, ended_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.bundle.manifest import Environment, Variant
    from opscope.experiment.protocol import Job, ProbeAnswer
    from opscope.hosts.host import ExitStatus, Host


DEFAULT_TRACE = "model.etdump"
"""Name of the file where executor_runner writes its ETDump by default."""
_NS_PER_MS = 1_000_000
_MS = r"([0-9.]+(?:e[-+]?[0-9]+)?) ms"
_THREADS = re.compile(r"Resetting threadpool (?:with num threads = |to )(\d+)")
_LOADED = re.compile(rf"Model loaded in {_MS}")
_ITERATION = re.compile(rf"Iteration (\d+) of \d+: {_MS}")
_CLOSING = re.compile(rf"Model executed successfully (\d+) time\(s\) in {_MS}")
_UNKNOWN_FLAG = re.compile(r"unknown command line flag '(\w+)'")
_FLAG = re.compile(r"^\s+--?(\w+)\b", re.MULTILINE)
_OUTPUTS = re.compile(r"^Output(?:X (?P<number>\d+)\b|\[\d+\])", re.MULTILINE)
_LOG_LINE = re.compile(r"^[A-Z] \d+:\d+:\d+\.\d+ executorch:.*$", re.MULTILINE)
_SIZES = re.compile(r"^OutputX (\d+): tensor\(sizes=\[([\d,\s]*)\]", re.MULTILINE)
_NAN = re.compile(r"(?<![\w.])[-+]?nan\b(?!\w)", re.IGNORECASE)


class RunnerLog(ThreadCount, frozen=True):
    """Content of a runner's log; what it does not state is null or empty."""

    load_ns: int | None  # loading the program and its method
    calls_ns: list[int]  # duration of every call, when it prints each one
    executed: int | None  # number of calls of its closing line
    shapes: dict[int, list[int]]  # sizes of every output tensor, by the output's number
    nan_outputs: int  # not-a-number values among the printed outputs, of which it prints the first and last hundred
    unknown_flag: str | None  # a flag that it does not know


def parse_log(text: str) -> RunnerLog:
    """Parse a runner's log."""
    loaded, closing, flag = (pattern.search(text) for pattern in (_LOADED, _CLOSING, _UNKNOWN_FLAG))
    threads = _THREADS.findall(text)
    first = _OUTPUTS.search(text)
    printed = _LOG_LINE.sub("", text[first.start() :]) if first else ""
    return RunnerLog(
        threads=int(threads[-1]) if threads else None,
        load_ns=_to_ns(loaded[1]) if loaded else None,
        calls_ns=[_to_ns(match[2]) for match in _ITERATION.finditer(text)],
        executed=int(closing[1]) if closing else None,
        shapes={
            int(number): [int(size) for size in sizes.split(",") if size.strip()]
            for number, sizes in _SIZES.findall(printed)
        },
        nan_outputs=len(_NAN.findall(printed)),
        unknown_flag=flag[1] if flag else None,
    )


def parse_help(text: str) -> tuple[frozenset[str], bool | None]:
    """Return the flags that a runner's ``--help`` lists, and whether each of its runs is traced; None if unknown.

    Of another program than an executor_runner there are no flags.

    executor_runner has ``--etdump_path`` when event tracing is built in, with a file as its default, and not
    otherwise.
    """
    flags = frozenset(_FLAG.findall(text))
    if not {"model_path", "num_executions"} <= flags:
        return frozenset(), None
    if "etdump_path" not in flags:
        return flags, False
    return flags, True if DEFAULT_TRACE in text else None


def _to_ns(milliseconds: str) -> int:
    return round(float(milliseconds) * _NS_PER_MS)


_PROGRAM, _DATA = "program.pte", "program.ptd"
_NO_DATA = "the runner has no --data_path, but the program keeps its weights in a .ptd: build a newer one"
_HELP_SECONDS = 60.0
_HANGS = "run it by hand with --help: it should list its flags and end; on a slow machine, raise --timeout"
_FULL = 1 << 16
_ONE_EACH = "give one runner per variant: features are fixed when a runner is built"
_OURS = ("model_path", "num_executions", "cpu_threads", "etdump_path", "method_name", "output_file")
"""Flags that opscope sets itself."""
_IDENTIFIER, _IDENTIFIER_AT, _PREFIX = b"ED00", 8, 4
_NO_ROOM = 4096
_LONGER = "raise the time limit, or run fewer inferences"
_SIGNAL_HINTS = {
    "SIGILL": "it uses instructions that this CPU lacks: build it for this CPU",
    "SIGKILL": "opscope did not kill it: the system may have run out of memory",
    "SIGABRT": "the runtime aborted: see the last lines of log.txt",
}
_ANY_SIGNAL = "run its command by hand, then under a debugger if it happens again"
_NO_TRACER = (
    "the runner was built without event tracing: it writes no ETDump; build it with EXECUTORCH_ENABLE_EVENT_TRACER "
    "and EXECUTORCH_BUILD_DEVTOOLS on"
)
_ALWAYS_TRACES = (
    "the runner traces every inference: leave out the untraced arm, or give a runner built without event tracing for it"
)


class ExecutorRunnerTarget(HostedTarget):
    """Runs jobs with one build of ``executor_runner``, which is on this machine.

    It runs in the repetition's directory, so paths in its further ``arguments`` must be absolute. ``inputs`` are
    those of the method that a job names, or the first of the program, as the program declares them; with
    ``outputs``, and ``--output_file`` in the runner, all output values are read.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot run on the host, or an argument is one that opscope sets.
        DeviceError: the host does not answer.
    """

    honours = frozenset({"affinity", "calls", "data"})

    def __init__(
        self,
        host: Host,
        runner: Path,
        arguments: Sequence[str] = (),
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(host)
        self._runner = runner.resolve()
        self._arguments = tuple(arguments)
        self._inputs, self._outputs = list(inputs), list(outputs)
        # Refuse arguments that would measure something else than was asked
        taken = {argument.lstrip("-").partition("=")[0] for argument in self._arguments if argument.startswith("-")}
        for name in sorted(taken.intersection(_OURS)):
            raise UsageError("opscope sets this runner flag", where=f"--{name}", hint="leave it out")
        if not self._runner.is_file():
            hint = "give the path of an executor_runner built for the target"
            raise NotFoundError("there is no such runner", where=self._runner, hint=hint)
        host.check_program(self._runner)

    def capabilities(self) -> Capabilities:
        """Return the capabilities of a build: its features are fixed, and so may be whether it traces."""
        return Capabilities(is_build=True, always_traces=self.always_traces, host=self._host)

    @property
    def always_traces(self) -> bool | None:
        """Return whether tracing is built in and cannot be switched off; False if not built in, None if unknown."""
        return self._runner_help[1]

    def probe(self) -> ProbeAnswer:
        """Raise FeatureError: a foreign runner cannot be asked for features."""
        self._raise_no_features()

    def environment(self) -> Environment:
        """Describe the machine, without packages that are installed here: they are not part of the runner."""
        return self._host.environment(None, {"opscope": environment.versions()["opscope"], **self._runner_identity})

    def ceilings(self, variant: Variant) -> None:
        """Return no ceilings: they would be those of other kernels than the runner's."""

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in its own process group, which ends on a timeout or with the connection."""
        if job.variant.cleared:
            self._raise_no_features()
        work = directory.resolve()
        try:
            return JobOutcome(measurement=self._measure_job(job, work))
        except (FailedJob, DeviceError, RunError, OSError) as error:
            return ended_by(error)
        finally:
            (work / DEFAULT_TRACE).unlink(missing_ok=True)

    def _measure_job(self, job: Job, work: Path) -> Measurement:
        if len(set(job.calls)) > 1:
            message = f"a foreign runner calls one method, requested {', '.join(dict.fromkeys(job.calls))}"
            raise _make_failure(f"{message}: name one with --methods")
        if self.always_traces is not None and self.always_traces != job.traced:
            raise _make_failure(_NO_TRACER if job.traced else _ALWAYS_TRACES, kind=FailureKind.TRACE)
        program = self._host.provide("programs", {_PROGRAM: Path(job.program)})[_PROGRAM]
        words = _runner_arguments(job, program, OUTPUT_FILE if self._reads_outputs else None)
        if job.data:
            if "data_path" not in self._runner_help[0]:
                raise _make_failure(_NO_DATA)
            words += ["--data_path", self._host.provide("data", {_DATA: Path(job.data)})[_DATA]]
        command = self._runner_command([*words, *self._arguments], work, job.timeout_seconds)
        with self._host.started(command._replace(affinity=job.variant.affinity, process=job.process)) as ended:
            try:
                return self._read_measurement(ended, job, work)  # before its files go: they may fill the storage
            except FailedJob:
                for name, text in ended.records.items():
                    (work / name).write_text(text, encoding="utf-8")
                raise

    def _runner_command(self, words: Sequence[str], into: Path, timeout: float) -> GuardedCommand:
        libraries = sorted(self._runner.parent.glob("*.so"))
        paths = self._host.provide("runners", {file.name: file for file in (self._runner, *libraries)})
        program = paths[self._runner.name]
        return GuardedCommand(
            words=[program, *words],
            into=into,
            timeout=timeout,
            is_wanted=_is_wanted_file,
            libraries=program.rpartition("/")[0],
            foreign=True,
        )

    @cached_property
    def _runner_help(self) -> tuple[frozenset[str], bool | None]:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            seconds = question_seconds(_HELP_SECONDS)
            with self._host.started(self._runner_command(["--help"], work, seconds)) as ended:
                if ended.code is None:
                    problem = f"the runner did not answer --help within {seconds:g} s"
                    raise RunError(problem, where=self._runner, hint=_HANGS)
                return parse_help((work / LOG).read_text(encoding="utf-8", errors="replace"))

    @property
    def _reads_outputs(self) -> bool:
        return bool(self._outputs) and "output_file" in self._runner_help[0]

    def _read_measurement(self, ended: ExitStatus, job: Job, work: Path) -> Measurement:
        if ended.code is None:
            message = f"timed out after {job.timeout_seconds:.0f} s without a result: {_LONGER}"
            raise _make_failure(message, kind=FailureKind.TIMEOUT)
        log = parse_log((work / LOG).read_text(encoding="utf-8", errors="replace"))
        outputs = RunnerOutputs.taken(work, self._outputs, log.shapes)
        last_words = log_tail(work / LOG)
        _check_crash(ended, last_words)
        _check_refusal(ended, log, last_words)
        _check_log(log, job)
        _check_numbers(log.nan_outputs, "printed")
        _check_numbers(outputs.nan, "written")
        if job.traced:
            self._check_trace(work / TRACE)
        elif (work / DEFAULT_TRACE).exists() and (work / DEFAULT_TRACE).stat().st_size:
            raise _make_failure(_ALWAYS_TRACES, kind=FailureKind.TRACE)
        outputs.save(work / OUTPUTS)
        return Measurement(
            mask=None,
            threads=log.threads or 1,  # without a thread pool it is one, and other numbers were refused
            inputs=self._inputs,
            outputs=outputs.tensors,
            output_sha256=outputs.sha256,
            wall_ns=log.calls_ns,
            start_ns=None,
            load_ns=log.load_ns,
            peak_rss_bytes=ended.peak_rss_bytes,
            versions=self._runner_identity,
            usage=ended.usage,
        )

    def _check_trace(self, trace: Path) -> None:
        """Raise a failure for a trace that is shorter than it states, as where the storage is full."""
        size = trace.stat().st_size if trace.exists() else 0
        if size and not _is_cut(trace, size):
            return
        if shutil.disk_usage(trace.parent).free < _NO_ROOM:
            raise _make_failure("the disk is full: the ETDump is incomplete", kind=FailureKind.STORAGE)
        room = self._host.storage()
        if room is not None and room.free is not None and room.free < _FULL:
            problem = f"the ETDump is incomplete: the device's storage is full, {room.free:,} bytes are free"
            raise _make_failure(f"{problem}; free some space there", kind=FailureKind.DEVICE)
        if not size:
            raise _make_failure(_NO_TRACER, 0, FailureKind.TRACE)
        raise _make_failure(
            "the ETDump is truncated: the runner exited early, or the disk was full", kind=FailureKind.TRACE
        )

    @cached_property
    def _runner_identity(self) -> dict[str, str]:
        """Hash that identifies a foreign runner, in place of a version."""
        return {BUILD: f"sha256:{sha256_of(self._runner)}"}

    def _raise_no_features(self) -> NoReturn:
        problem = "opscope cannot read or switch features in your own runner"
        raise FeatureError(problem, where=self._runner, hint=_ONE_EACH)


def _runner_arguments(job: Job, program: str, output: str | None) -> list[str]:
    """Return the arguments of a runner that works in its own directory."""
    words = ["--model_path", program, "--num_executions", str(job.inferences), "--cpu_threads", str(job.threads)]
    words += ["--etdump_path", TRACE] if job.traced else []
    words += ["--method_name", job.calls[0]] if job.calls else []
    return words + (["--output_file", output] if output else [])


def _is_wanted_file(name: str) -> bool:
    return name in {TRACE, DEFAULT_TRACE} or name.startswith(f"{OUTPUT_FILE}-")


OUTPUT_FILE = "output"


class RunnerOutputs(NamedTuple):
    """Outputs of the last inference, as far as they were written and their types are known."""

    tensors: list[Tensor]  # shape and type of each
    arrays: list[NDArray[np.generic]]  # their values; empty when not all could be read
    sha256: str | None  # hash of all values; null when none were written
    nan: int  # values that are not numbers

    @classmethod
    def taken(cls, work: Path, declared: Sequence[Tensor], shapes: Mapping[int, Sequence[int]]) -> RunnerOutputs:
        """Read the files with outputs and remove them."""
        blobs = [_take_file(work / f"{OUTPUT_FILE}-{number}.bin") for number in range(len(declared))]
        tensors = [Tensor(list(shapes.get(n, tensor.shape)), tensor.dtype) for n, tensor in enumerate(declared)]
        read_arrays = [_decode_output(blob, tensor) for blob, tensor in zip(blobs, tensors, strict=True)]
        arrays = [array for array in read_arrays if array is not None]
        written = [blob for blob in blobs if blob is not None]
        return cls(
            tensors,
            arrays if len(arrays) == len(declared) else [],
            hashlib.sha256(b"".join(written)).hexdigest() if written else None,
            sum(int(np.isnan(array).sum()) for array in arrays if np.issubdtype(array.dtype, np.floating)),
        )

    def save(self, path: Path) -> None:
        """Write the outputs as .npz, as every target does; do nothing if they could not be read."""
        if self.arrays:
            with open_atomically(path) as file:
                np.savez(file, *self.arrays)


def _take_file(path: Path) -> bytes | None:
    if not path.exists():
        return None
    content = path.read_bytes()
    path.unlink()
    return content


def _decode_output(blob: bytes | None, tensor: Tensor) -> NDArray[np.generic] | None:
    """Return the values; None if there are none, numpy lacks their type, or their number does not fit the shape."""
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError:
        return None
    if blob is None or len(blob) != dtype.itemsize * math.prod(tensor.shape):
        return None
    array: NDArray[np.generic] = np.frombuffer(blob, dtype).reshape(tensor.shape)
    return array


def _make_failure(message: str, code: int | None = None, kind: FailureKind = FailureKind.EXIT) -> FailedJob:
    """Return the failure of a runner without a result; with its exit code if it ended by itself."""
    return FailedJob(Failure(kind, message, exit_code=code))


def _check_crash(ended: ExitStatus, last_words: str) -> None:
    """Raise a failure for a runner that could not be started, or that a signal ended."""
    if ended.start_error:
        architecture_text = "; it was built for another architecture" if "format" in ended.start_error.lower() else ""
        raise _make_failure(f"the runner cannot be started: {ended.start_error}{architecture_text}", ended.code)
    if ended.code is not None and ended.code < 0:
        name = signal_name(-ended.code)
        message = f"the runner was killed by {name} ({_SIGNAL_HINTS.get(name, _ANY_SIGNAL)}){last_words}"
        raise FailedJob(Failure(FailureKind.SIGNAL, message, signal=name))


def _check_refusal(ended: ExitStatus, log: RunnerLog, last_words: str) -> None:
    """Raise a failure for a runner that does not know a flag, or whose exit code says that it failed."""
    if log.unknown_flag == "etdump_path":
        raise _make_failure(_NO_TRACER, ended.code, FailureKind.TRACE)
    if log.unknown_flag:
        problem = f"the runner does not know --{log.unknown_flag}: it is too old, or not an executor_runner"
        raise _make_failure(problem, ended.code)
    if ended.code:
        raise _make_failure(
            f"the runner exited with code {ended.code}{last_words or ' and printed nothing'}", ended.code
        )


def _check_log(log: RunnerLog, job: Job) -> None:
    """Raise a failure for a runner that, judged by its log, did something else than requested."""
    if log.executed is None:
        problem = (
            "the runner did not report running the model: it was built without logging (EXECUTORCH_ENABLE_LOGGING), "
            "or is not an executor_runner"
        )
        raise _make_failure(problem, 0)
    if log.executed != job.inferences:
        raise _make_failure(f"the runner executed the model {log.executed} times, requested {job.inferences}", 0)
    if log.threads is None and job.threads != 1:
        problem = (
            f"the runner set no thread pool, requested {job.threads} threads: use 1 thread, or build it with a "
            "thread pool"
        )
        raise _make_failure(problem, 0)
    if not job.traced and not log.calls_ns:
        raise _make_failure("the runner prints only the total time: give a newer one, or leave out the untraced arm", 0)


def _check_numbers(count: int, source: str) -> None:
    """Raise a failure for outputs with values that are not numbers."""
    if count:
        problem = (
            f"{count} of the {source} output values are NaN: do not use the timings; compare with a runner without the "
            "accelerated kernels, and with fp32"
        )
        raise _make_failure(problem, 0, FailureKind.OUTPUT)


def _is_cut(trace: Path, size: int) -> bool:
    """Return whether a size-prefixed ETDump is shorter than its prefix says."""
    with trace.open("rb") as file:
        head = file.read(_IDENTIFIER_AT + len(_IDENTIFIER))
    stated = int.from_bytes(head[:_PREFIX], "little") + _PREFIX
    return head[_IDENTIFIER_AT:] == _IDENTIFIER and stated > size
