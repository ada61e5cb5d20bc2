"""What the native runner is asked and what it answers, wherever it runs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.bundle.manifest import MaskProof, PlannedInput, Tensor
from opscope.core.errors import RunError
from opscope.experiment.tensors import from_bytes, random_inputs, to_bytes
from opscope.machine.cpu_reading import CpuReading
from opscope.program.structure.dtypes import program_type
from opscope.runtimes.native.answer import INPUT, OUTPUT, RunnerAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.experiment.protocol import Job
    from opscope.experiment.tensors import Array


class RawTensor(msgspec.Struct, frozen=True):
    """A tensor as the runner tells it."""

    sizes: list[int]  # of its dimensions
    dim_order: list[int]  # dimensions from the outermost to the innermost in memory
    type: int  # code of the elements' type, as in a .pte

    @property
    def tensor(self) -> Tensor:
        """Shape and type, as a manifest has them."""
        return Tensor(self.sizes, program_type(self.type).name)


class RawFeatures(msgspec.Struct, frozen=True):
    """The CPU's features as the runner found them."""

    isa: list[int]  # bytes of `cpuinfo_isa`
    struct_size: int | None  # as the symbol table states it; null where it states none
    processor: CpuReading  # what it says of itself


class NativeAnswer(RunnerAnswer, frozen=True):
    """What the runner writes: a measurement, the description of a method, the features, or an error."""

    method: str = ""  # that was run or described; several are separated by commas
    # of the methods, one after the other, in the order of their first calls, with the sizes that these declare;
    # null for one that is no tensor
    inputs: list[RawTensor | None] = msgspec.field(default_factory=list)
    outputs: list[RawTensor] = msgspec.field(default_factory=list)  # likewise, of the last call of each
    mask: MaskProof | None = None  # proof that the features were off
    threads: int = 0  # size of the thread pool, read back
    planned_bytes: int = 0  # memory that the method plans for its tensors
    features: RawFeatures | None = None  # of the CPU, when they were asked for


def write_inputs(described: Sequence[RawTensor | None], job: Job, work: Path) -> str:
    """Write the inputs of a job, one file each; that of an input that is no tensor is empty.

    Returns:
        What each of them is, for the runner; empty for tensors of the declared sizes.
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
