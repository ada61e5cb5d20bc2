"""The process that runs a .tflite, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that was preloaded; the proof is read here, after the
runtime asked for them. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
import numpy as np

from opscope.core.writing import write_atomically
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import ProgramRun, input_arrays, serve_runs
from opscope.runtimes.litert.c_api import DELEGATE, Call, CompiledModel, check_events, check_status
from opscope.runtimes.litert.installed import installed_litert
from opscope.runtimes.litert.signatures import (
    CalledSignature,
    called_signatures,
    input_tensors,
    open_sizes,
    read_callable,
)
from opscope.runtimes.litert.trace import COMPILED, MICRO, SCHEMA, LitertInference, LitertTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.program.structure.plan import PlannedTensor
    from opscope.runtimes.loading import InstalledLibrary

_Signature: TypeAlias = CalledSignature[Call]
CalledT = TypeVar("CalledT")


class LitertRun(ProgramRun[CalledT]):
    """A .tflite whose signatures are called, through any of LiteRT's interfaces. ``library`` is the installed one."""

    unit_ns, interface = MICRO, COMPILED
    """Unit of the events' times, and the interface, as a trace has them."""

    def __init__(self, request: RunRequest, library: InstalledLibrary) -> None:
        super().__init__(request)
        self._delegate = self._job.variant.delegate or DELEGATE
        self._installed, self._versions = library, {library.package: library.version}
        self._signatures: dict[str, CalledT] = {}
        self._inferences: list[LitertInference] = []

    def calls(self) -> Iterator[CalledT]:
        """Yield the signatures in turn, endlessly."""
        return (self._signatures[name] for name in cycle(self._job.calls or self._signatures))

    def keep(self, signature: CalledT, inference: LitertInference | None) -> None:  # noqa: ARG002 - it names it
        """Store the events of a call."""
        if inference is not None:
            self._inferences.append(inference)

    def write_trace(self, path: Path) -> None:
        """Write the events as JSON."""
        first, version = next(iter(self._signatures)), self._installed.version
        events = (self._inferences, self.unit_ns, self.interface)
        write_atomically(path, msgspec.json.encode(LitertTrace(SCHEMA, version, self._delegate, first, *events)))


class TfliteRun(LitertRun[_Signature]):
    """A .tflite through the compiled-model API."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request, installed_litert())

    def load(self) -> None:
        """Open the model and make the buffers of the called signatures."""
        job, library = self._job, self._installed.library
        self._model = CompiledModel(library, job.program, self._delegate, job.threads, profiled=self._traced)
        declared = read_callable(Path(job.program))
        sizes = open_sizes(declared, job.calls, job.inputs)
        self._signatures = called_signatures(declared, self._model.calls(sizes), job.calls)

    def fill(self) -> list[Tensor]:
        """Make the inputs as requested, else as the model declares them, and copy them into the buffers."""
        slots = [
            (signature, declared_input)
            for signature in self._signatures.values()
            for declared_input in signature.declared.inputs
        ]
        tensors = input_tensors([signature.declared for signature in self._signatures.values()], self._job.inputs)
        arrays = input_arrays(self._job.values, self._job.seed, tensors)
        for (signature, declared_input), tensor, array in zip(slots, tensors, arrays, strict=True):
            data = np.frombuffer(to_bytes(array, tensor.dtype, range(array.ndim)), np.uint8)
            self._model.fill(
                signature.described.input_buffers[signature.described.inputs.index(declared_input.name)], data
            )
        return tensors

    def call(self, callee: _Signature) -> tuple[int, int, LitertInference | None]:
        """Run a signature. Events are fetched between calls only."""
        clock, run_model = time.perf_counter_ns, callee.described.run
        if self._traced:
            self._model.profile()
        before = clock()
        status = run_model()
        after = clock()
        check_status(status, "LiteRtRunCompiledModel")
        if not self._traced:
            return before, after, None
        events = self._model.events()
        check_events(events, after - before)
        return before, after, LitertInference(after - before, events, before, callee.declared.name)

    def outputs(self) -> list[Array]:
        """Return the outputs in the order of the file."""
        return [
            self._read_output(signature, declared)
            for signature in self._signatures.values()
            for declared in signature.declared.outputs
        ]

    def _read_output(self, signature: _Signature, declared: PlannedTensor) -> Array:
        index = signature.described.outputs.index(declared.name)
        data = self._model.content(signature.described.output_buffers[index])
        sizes = signature.described.output_sizes[index] if signature.described.output_sizes else declared.sizes
        return from_bytes(data, Tensor(list(sizes), declared.dtype.name), range(len(sizes)))


if __name__ == "__main__":
    sys.exit(serve_runs(sys.argv[1:], TfliteRun))
