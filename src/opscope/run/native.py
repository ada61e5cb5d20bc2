"""This machine, without Python in the process: every repetition is a fresh process of a small C++ runner."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.bundle.manifest import Failure, FailureKind, MaskProof, Measurement, Target, Tensor
from opscope.errors import FeatureError, RunError
from opscope.program.dtypes import program_type
from opscope.run import isa
from opscope.run.local import LOG, OUTPUTS, TRACE, LocalTarget
from opscope.run.native_build import build_runner
from opscope.run.process import read_answer, run_process
from opscope.run.target import Outcome
from opscope.run.tensors import from_bytes, random_inputs, to_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Conditions, Environment
    from opscope.program.roofs import Roofs
    from opscope.run.protocol import ProbeAnswer
    from opscope.run.target import Job
    from opscope.run.tensors import Array

_DESCRIBE_SECONDS = 60.0


class RawTensor(msgspec.Struct, frozen=True):
    """A tensor as the runner tells it.

    Attributes:
        sizes: of its dimensions.
        dim_order: dimensions from the outermost to the innermost in memory.
        type: code of the elements' type, as in a .pte.
    """

    sizes: list[int]
    dim_order: list[int]
    type: int

    @property
    def tensor(self) -> Tensor:
        """Shape and type, as a manifest has them."""
        return Tensor(self.sizes, program_type(self.type).name)


class NativeAnswer(msgspec.Struct, frozen=True):
    """What the runner writes: a measurement, the description of a method, or an error.

    Attributes:
        error: the error's sentence; null when there was none.
        kind: of the error: ``mask``, ``storage`` or ``exit``.
        method: that was run or described; several are separated by commas.
        inputs: of the methods, one after the other, in the order of their first calls.
        outputs: likewise, of the last call of each.
        mask: proof that the features were off.
        threads: size of the thread pool, read back.
        planned_bytes: memory that the method plans for its tensors.
        warmup_ns: durations of the calls before the measured ones.
        wall_ns: durations of the measured calls.
        start_ns: from the request for the process to the loaded runtime.
        load_ns: loading the program and its method, with the delegates' own preparation.
        write_ns: writing the trace and the outputs.
        peak_rss_bytes: largest resident memory of the process, before the trace was put together.
    """

    error: str | None = None
    kind: str = "exit"
    method: str = ""
    inputs: list[RawTensor] = []
    outputs: list[RawTensor] = []
    mask: MaskProof | None = None
    threads: int = 0
    planned_bytes: int = 0
    warmup_ns: list[int] = []
    wall_ns: list[int] = []
    start_ns: int = 0
    load_ns: int = 0
    write_ns: int = 0
    peak_rss_bytes: int = 0


class NativeTarget:
    """Runs jobs on this machine by the native runner.

    Loading a program includes loading its method here; with Python that is part of the first inference.

    Args:
        cache: where the built runner is kept; the user's cache directory when it is not given.
        runner: command that starts a runner, for another one than the built one.

    Raises:
        MissingDependencyError: executorch or a compiler is missing, or the runner cannot be built.
        StorageError: the runner cannot be kept.
    """

    def __init__(self, cache: Path | None = None, runner: Sequence[str] | None = None) -> None:
        built = None if runner else build_runner(cache)
        self._command = (str(built.path),) if built else tuple(runner or ())
        self._versions = {"executorch": built.runtime, "compiler": built.compiler.version} if built else {}
        self._local = LocalTarget()
        self._described: dict[tuple[str, int, int, str], list[RawTensor]] = {}

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return Target("native", "")

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime sees them."""
        return self._probed

    @cached_property
    def _probed(self) -> ProbeAnswer:
        return self._local.probe()

    def environment(self) -> Environment:
        """The machine and its software, the compiler included."""
        found = self._local.environment()
        return msgspec.structs.replace(found, versions=found.versions | self._versions)

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return self._local.conditions()

    def roofs(self, clear: list[str], threads: int) -> Roofs:
        """The ceilings of this machine with these features and threads."""
        return self._local.roofs(clear, threads)

    def execute(self, job: Job, directory: Path) -> Outcome:
        """Run a job in a process group of its own, which is ended when the time is up or the caller is interrupted."""
        work = directory / ".native"
        try:
            work.mkdir(exist_ok=True)
            return self._execute(job, directory, work)
        except FeatureError as error:
            return Outcome(failure=Failure(FailureKind.MASK, str(error)))
        except RunError as error:
            return Outcome(failure=Failure(FailureKind.EXIT, str(error)))
        except OSError as error:
            return Outcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _execute(self, job: Job, directory: Path, work: Path) -> Outcome:
        calls = ",".join(job.calls)
        inputs = self._inputs(job.program, calls, work, directory / LOG)
        if isinstance(inputs, Failure):
            return Outcome(failure=inputs)
        _write_inputs(inputs, job.seed, work)
        flags = {
            **self._features(job.clear),
            "model_path": job.program,
            "method_name": calls,
            "num_executions": job.inferences,
            "cpu_threads": job.threads,
            "cpu_affinity": ",".join(map(str, job.affinity)),
            "input_file": work / "in",
            "output_file": work / "out",
            "etdump_path": directory / TRACE if job.traced else "",
            "spawned_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        }
        heard = self._ask(flags, work, directory / LOG, job.timeout_seconds)
        if isinstance(heard, Failure):
            return Outcome(failure=heard)
        return self._outcome(heard, job, directory, work)

    def _inputs(self, program: str, calls: str, work: Path, log: Path) -> list[RawTensor] | Failure:
        """The inputs of a program's methods; asked once for a file."""
        try:
            state = Path(program).stat()
        except OSError as error:
            return Failure(FailureKind.EXIT, f"{program}: {error.strerror}")
        key = (program, state.st_mtime_ns, state.st_size, calls)
        if key not in self._described:
            flags: dict[str, object] = {"model_path": program, "method_name": calls, "describe": 1}
            heard = self._ask(flags, work, log, _DESCRIBE_SECONDS)
            if isinstance(heard, Failure):
                return heard
            self._described[key] = heard.inputs
        return self._described[key]

    def _features(self, clear: list[str]) -> dict[str, object]:
        """The flags that clear features, with what the runner needs to check the layout.

        Raises:
            FeatureError: there is no such field.
        """
        layout = isa.LAYOUTS[self._probed.arch]
        unknown = [field for field in clear if field not in layout.offsets]
        if unknown:
            raise FeatureError(f"cpuinfo_isa has no field {', '.join(unknown)}")
        return {
            "cpuinfo_size": layout.size,
            "detected": ",".join(f"{field}={layout.offsets[field]}" for field in self._probed.fields),
            "clear": ",".join(f"{field}={layout.offsets[field]}" for field in clear),
        }

    def _ask(self, flags: dict[str, object], work: Path, log: Path, timeout: float) -> NativeAnswer | Failure:
        answer = work / "answer.json"
        answer.unlink(missing_ok=True)
        words = [f"--{name}={value}" for name, value in flags.items()]
        code = run_process([*self._command, *words, f"--answer_path={answer}"], log, timeout)
        heard = read_answer(code, answer, log, timeout, NativeAnswer)
        if isinstance(heard, NativeAnswer) and (heard.error is not None or code):
            return Failure(FailureKind(heard.kind), f"{heard.error or 'no result'}{_complaint(log)}", exit_code=code)
        return heard

    def _outcome(self, heard: NativeAnswer, job: Job, directory: Path, work: Path) -> Outcome:
        if heard.mask is None or heard.mask.cleared != job.clear:
            return Outcome(failure=Failure(FailureKind.MASK, "the runner cleared other features than asked"))
        began = time.perf_counter_ns()
        arrays, digest = _read_outputs(heard.outputs, work)
        with (directory / OUTPUTS).open("wb") as file:
            np.savez(file, *arrays)
        spent = time.perf_counter_ns() - began
        return Outcome(
            measurement=Measurement(
                mask=heard.mask,
                threads=heard.threads,
                inputs=[raw.tensor for raw in heard.inputs],
                outputs=[raw.tensor for raw in heard.outputs],
                output_sha256=digest,
                wall_ns=heard.wall_ns,
                start_ns=heard.start_ns,
                load_ns=heard.load_ns,
                peak_rss_bytes=heard.peak_rss_bytes,
                versions=self._versions,
                write_ns=heard.write_ns + spent,
            )
        )


def _complaint(log: Path) -> str:
    """The last error that the runtime logged, for the end of a message; its lines begin with an E and the time."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"E \d", line)]
    return f"; the runtime said: {errors[-1].partition('] ')[2] or errors[-1]}" if errors else ""


def _write_inputs(inputs: Sequence[RawTensor], seed: int, work: Path) -> None:
    arrays = random_inputs([raw.tensor for raw in inputs], seed)
    for number, (raw, array) in enumerate(zip(inputs, arrays, strict=True)):
        (work / f"in-{number}.bin").write_bytes(to_bytes(array, raw.tensor.dtype, raw.dim_order))


def _read_outputs(outputs: Sequence[RawTensor], work: Path) -> tuple[list[Array], str]:
    """The outputs as arrays, and the hash of all their values in the order of their dimensions."""
    arrays, digest = [], hashlib.sha256()
    for number, raw in enumerate(outputs):
        array = from_bytes((work / f"out-{number}.bin").read_bytes(), raw.tensor, raw.dim_order)
        arrays.append(array)
        digest.update(array.tobytes())
    return arrays, digest.hexdigest()
