"""What the native runner is asked and what it answers, wherever it runs."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.bundle.manifest import Failure, FailureKind, MaskProof, PlannedInput, Tensor
from opscope.core.errors import RunError
from opscope.core.system.usage import ProcessUsage
from opscope.experiment.tensors import from_bytes, random_inputs, to_bytes
from opscope.machine.cpu_reading import CpuReading
from opscope.program.structure.dtypes import program_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.experiment.target import Job
    from opscope.experiment.tensors import Array

INPUT, OUTPUT, ANSWER = "in", "out", "answer.json"
"""Prefixes of the files with inputs and outputs, and the name of the answer."""


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


class RawFeatures(msgspec.Struct, frozen=True):
    """The CPU's features as the runner found them.

    Attributes:
        isa: bytes of ``cpuinfo_isa``.
        struct_size: as the symbol table states it; null where it states none.
        processor: what it says of itself.
    """

    isa: list[int]
    struct_size: int | None
    processor: CpuReading


class NativeAnswer(msgspec.Struct, frozen=True):
    """What the runner writes: a measurement, the description of a method, the features, or an error.

    Attributes:
        error: the error's sentence; null when there was none.
        kind: of the error: ``mask``, ``storage`` or ``exit``.
        method: that was run or described; several are separated by commas.
        inputs: of the methods, one after the other, in the order of their first calls, with the sizes that these
            declare; null for one that is no tensor.
        outputs: likewise, of the last call of each.
        mask: proof that the features were off.
        threads: size of the thread pool, read back.
        planned_bytes: memory that the method plans for its tensors.
        warmup_ns: durations of the calls before the measured ones.
        wall_ns: durations of the measured calls.
        off_cpu_ns: of every call, those before the measured ones first, how much of it was spent off the CPU.
        usage: of the system, over the measured calls.
        start_ns: from the request for the process to the loaded runtime.
        load_ns: loading the program and its method, with the delegates' own preparation.
        write_ns: writing the trace and the outputs.
        peak_rss_bytes: largest resident memory of the process, before the trace was put together.
        features: of the CPU, when they were asked for.
    """

    error: str | None = None
    kind: str = "exit"
    method: str = ""
    inputs: list[RawTensor | None] = []
    outputs: list[RawTensor] = []
    mask: MaskProof | None = None
    threads: int = 0
    planned_bytes: int = 0
    warmup_ns: list[int] = []
    wall_ns: list[int] = []
    off_cpu_ns: list[int] | None = None
    usage: ProcessUsage | None = None
    start_ns: int = 0
    load_ns: int = 0
    write_ns: int = 0
    peak_rss_bytes: int = 0
    features: RawFeatures | None = None


class RunnerCall(NamedTuple):
    """One start of the runner, in terms of this machine's files.

    Attributes:
        flags: of the runner, those that name files left out; an empty value leaves a flag out.
        work: directory with the inputs, ``in-0.bin`` and so on, that takes the answer and the outputs.
        log: takes what the runner prints.
        timeout: in seconds.
        program: the .pte; None where no program is needed.
        inputs: how many there are; a file stands for each.
        outputs: whether the outputs are wanted.
        trace: where the ETDump goes; None for a run without event tracing.
        counter: library that counts calls of kernels, to preload; None without.
        counts: where the counts go; None likewise.
        data: .ptd with weights that the program keeps apart; None for none.
        variables: more of its environment.
    """

    flags: Mapping[str, object]
    work: Path
    log: Path
    timeout: float
    program: Path | None = None
    inputs: int = 0
    outputs: bool = False
    trace: Path | None = None
    counter: Path | None = None
    counts: Path | None = None
    data: Path | None = None
    variables: Mapping[str, str] = {}


def judged(heard: NativeAnswer | Failure, code: int | None, log: Path) -> NativeAnswer | Failure:
    """An answer, or the failure that it tells of.

    Args:
        heard: that was read.
        code: exit code of the runner.
        log: what it printed.
    """
    if isinstance(heard, NativeAnswer) and (heard.error is not None or code):
        kind = FailureKind(heard.kind) if heard.kind in set(FailureKind) else FailureKind.EXIT
        return Failure(kind, f"{heard.error or 'no result'}{_complaint(log)}", exit_code=code)
    return heard


def write_inputs(described: Sequence[RawTensor | None], job: Job, work: Path) -> str:
    """Write the inputs of a job, one file each; that of an input that is no tensor is empty.

    Args:
        described: what the runner says of them.
        job: what is asked; without a wish, random tensors of the seed.
        work: where the files go.

    Returns:
        What each of them is, for the runner; empty for tensors of the declared sizes.

    Raises:
        RunError: an input is not a tensor, and the job does not say what it is.
    """
    if not job.inputs and None in described:
        raise RunError(f"input {described.index(None)} is not a tensor, and nothing says what it is")
    given = [PlannedInput(raw.sizes, raw.tensor.dtype) for raw in described if raw] if not job.inputs else job.inputs
    arrays = iter(_arrays([Tensor(one.shape, one.dtype) for one in given if one.shape is not None], job))
    for number, (raw, one) in enumerate(zip(described, given, strict=True)):
        tensor = raw is not None and one.shape is not None
        content = to_bytes(next(arrays), one.dtype, raw.dim_order) if raw is not None and tensor else b""
        (work / f"{INPUT}-{number}.bin").write_bytes(content)
    return ",".join(map(_kind, job.inputs))


def _arrays(tensors: Sequence[Tensor], job: Job) -> Sequence[Array]:
    if job.values is None:
        return random_inputs(tensors, job.seed)
    with np.load(job.values, allow_pickle=False) as file:
        return [file[f"arr_{number}"] for number, one in enumerate(job.inputs) if one.shape is not None]


def _kind(one: PlannedInput) -> str:
    """An input in the words of the runner."""
    if one.shape is not None:
        return f"t:{'x'.join(map(str, one.shape))}"
    if one.value is None:
        return "n"
    letter = {"int": "i", "float": "f", "bool": "b"}[one.dtype]
    return f"{letter}:{int(one.value) if letter != 'f' else one.value!r}"


def read_outputs(outputs: Sequence[RawTensor], work: Path) -> tuple[list[Array], str]:
    """The outputs as arrays, and the hash of all their values in the order of their dimensions."""
    arrays, digest = [], hashlib.sha256()
    for number, raw in enumerate(outputs):
        array = from_bytes((work / f"{OUTPUT}-{number}.bin").read_bytes(), raw.tensor, raw.dim_order)
        arrays.append(array)
        digest.update(array.tobytes())
    return arrays, digest.hexdigest()


def _complaint(log: Path) -> str:
    """The last error that the runtime logged, for the end of a message; its lines begin with an E and the time."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"E \d", line)]
    return f"; the runtime said: {errors[-1].partition('] ')[2] or errors[-1]}" if errors else ""
