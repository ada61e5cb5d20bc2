"""LiteRT without Python in the process: its runner, built or as a folder, on this machine, on devices and emulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.json import from_json
from opscope.core.writing import write_atomically
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import array_tensors, input_arrays
from opscope.runtimes.litert.c_api import DELEGATE, PLACEHOLDER, check_events
from opscope.runtimes.litert.installed import KNOWN, LIBRARY, MODULE, PACKAGE, installed_litert
from opscope.runtimes.litert.signatures import (
    caches_in_place,
    called_signatures,
    input_tensors,
    open_sizes,
    read_callable,
)
from opscope.runtimes.litert.trace import SCHEMA, TRACE, EventRow, LitertInference, LitertTrace
from opscope.runtimes.native.jobs import PreparedRun
from opscope.runtimes.native.start import INPUT, OUTPUT, RunnerAnswer, SentFile
from opscope.runtimes.native.wheel_runner import WheelRunner, WheelTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.core.system.pythons import Python
    from opscope.experiment.protocol import Job
    from opscope.experiment.tensors import Array
    from opscope.runtimes.litert.signatures import CalledSignature


_PROGRAM, _CALLS = "program.tflite", "calls.json"


class RuntimeSignature(msgspec.Struct, frozen=True):
    """A signature with the names and the order of the runtime."""

    name: str  # of the signature
    inputs: list[str]  # names
    outputs: list[str]


class LitertAnswer(RunnerAnswer, frozen=True):
    """Answer of the runner: a measurement, the signatures, or an error."""

    # in the order of the runtime, when they were asked for
    signatures: list[RuntimeSignature] = msgspec.field(default_factory=list)
    # sizes of the outputs of every signature that was called, in the order of the runtime; null where they are
    # those of the file
    outputs: list[list[int] | None] = msgspec.field(default_factory=list)


class _TracedCall(msgspec.Struct, frozen=True):
    """A call with its events, and the number of its signature."""

    wall_ns: int
    start_ns: int
    signature: int
    events: list[EventRow]


def _version_and_library(python: Python) -> tuple[str, Path]:
    library = installed_litert(python)
    return library.version, library.library


RUNNER = WheelRunner(
    title="LiteRT",
    package=PACKAGE,
    source=Path(__file__).with_name("cpp") / "runner.cpp",
    installed=_version_and_library,
    member=lambda _: f"{MODULE}/{LIBRARY}.so",
    newest=KNOWN[-1],  # its structures are known, whatever is installed here
    platforms=("manylinux_2_27", "manylinux_2_28"),
)


class NativeLitertTarget(WheelTarget[LitertAnswer]):
    """Runs .tflite models with LiteRT's native runner."""

    honours = frozenset({"affinity", "calls", "inputs", "values", "delegate"})
    runner, trace, answers = RUNNER, TRACE, LitertAnswer
    otherwise = "LiteRT models run on Linux and Android devices"

    def _prepare_run(self, job: Job, directory: Path, work: Path) -> PreparedRun:
        program = Path(job.program)
        sent = {"model_path": SentFile("programs", _PROGRAM, program)}
        library = self._library_there()
        described = self._describe_program(sent, {"library": library}, work, directory).signatures
        model = read_callable(program)
        names = {
            ("" if described_signature.name == PLACEHOLDER else described_signature.name): described_signature
            for described_signature in described
        }
        signatures = called_signatures(model, names, job.calls)
        numbers = {name: described.index(signature.described) for name, signature in signatures.items()}
        inputs = input_tensors([signature.declared for signature in signatures.values()], job.inputs)
        arrays = input_arrays(job.values, job.seed, inputs)
        sizes = _write_inputs(signatures, arrays, inputs, open_sizes(model, job.calls, job.inputs), work)
        flags = {
            "library": library,
            "delegate": job.variant.delegate or DELEGATE,
            "signatures": ",".join(str(numbers[name]) for name in job.calls or signatures),
            "input_sizes": ",".join(sizes),
            "caches": ",".join(dict.fromkeys(_cache_names(signatures, resized=set(sizes) != {"-"}))),
            "trace_path": _CALLS if job.traced else "",
        }

        def keep(answer: LitertAnswer) -> tuple[list[Array], list[Tensor]]:
            if job.traced:
                methods = {number: name for name, number in numbers.items()}
                self._write_trace(work / _CALLS, job, methods, directory / TRACE)
            outputs = _read_outputs(signatures, answer, work)
            return outputs, array_tensors(outputs)

        return PreparedRun(flags, sent, len(inputs), inputs, {_CALLS: work / _CALLS}, keep)

    def _write_trace(self, calls_file: Path, job: Job, names: Mapping[int, str], into: Path) -> None:
        """Check the events of each call, and write the trace as the Python child does."""
        calls = from_json(calls_file.read_bytes(), list[_TracedCall])
        for call in calls:
            check_events(call.events, call.wall_ns)
        inferences = [
            LitertInference(call.wall_ns, call.events, call.start_ns, names[call.signature]) for call in calls
        ]
        version, first = self.program.versions[PACKAGE], next(iter(names.values()))
        trace = LitertTrace(SCHEMA, version, job.variant.delegate or DELEGATE, first, inferences)
        write_atomically(into, msgspec.json.encode(trace))


def _cache_names(signatures: Mapping[str, CalledSignature[RuntimeSignature]], *, resized: bool) -> list[str]:
    return [
        name
        for signature in signatures.values()
        for name in caches_in_place(signature.described.inputs, signature.described.outputs, resized=resized)
    ]


def _write_inputs(
    signatures: Mapping[str, CalledSignature[RuntimeSignature]],
    arrays: Sequence[Array],
    tensors: Sequence[Tensor],
    sizes: Mapping[str, Mapping[str, Sequence[int]]],
    work: Path,
) -> list[str]:
    """Write the inputs of all calls, one file each, in the order of the runtime.

    Returns the sizes of each input as words for the runner; ``-`` for an input that keeps its declared sizes.
    """
    words: list[str] = []
    remaining = iter(zip(arrays, tensors, strict=True))
    for name, signature in signatures.items():
        of_input = {declared.name: next(remaining) for declared in signature.declared.inputs}
        for input_name in signature.described.inputs:
            array, tensor = of_input[input_name]
            content = to_bytes(array, tensor.dtype, range(array.ndim))
            (work / f"{INPUT}-{len(words)}.bin").write_bytes(content)
            words.append("x".join(map(str, sizes.get(name, {}).get(input_name, ()))) or "-")
    return words


def _read_outputs(
    signatures: Mapping[str, CalledSignature[RuntimeSignature]], answer: LitertAnswer, work: Path
) -> list[Array]:
    """Read the outputs of the last calls, in the order of the file."""
    arrays_: list[Array] = []
    first = 0
    for signature in signatures.values():
        for declared in signature.declared.outputs:
            number = first + signature.described.outputs.index(declared.name)
            sizes = answer.outputs[number]
            tensor = Tensor(list(declared.sizes if sizes is None else sizes), declared.dtype.name)
            data = (work / f"{OUTPUT}-{number}.bin").read_bytes()
            arrays_.append(from_bytes(data, tensor, range(len(tensor.shape))))
        first += len(signature.described.outputs)
    return arrays_
