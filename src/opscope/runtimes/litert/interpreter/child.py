"""The process that runs a .tflite in LiteRT's Interpreter, with the argument ``run REQUEST``.

Times are those of Invoke alone. Variable tensors are set to zero before each call, outside of its time: every
call then computes the same, however many came before, and no state drifts into denormal numbers, which are
slow. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.core.errors import RunError
from opscope.experiment.tensors import from_bytes
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import input_arrays, serve_runs
from opscope.runtimes.litert.c_api import check_events
from opscope.runtimes.litert.child import LitertRun
from opscope.runtimes.litert.installed import installed_interpreter, interpreter_module
from opscope.runtimes.litert.interpreter.recorder import Recorder
from opscope.runtimes.litert.signatures import input_tensors, read_callable
from opscope.runtimes.litert.tflite import read_tflite
from opscope.runtimes.litert.trace import INTERPRETER, LitertInference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.program.structure.exported import Signature
    from opscope.program.structure.plan import PlannedTensor
    from opscope.runtimes.litert.tflite import TfliteModel

_DELEGATED = "DELEGATE"
_VALIDATION = "VALIDATION:"
"""Prefix of the names of graphs that no delegate is shown; converters put them after the others."""


class _Called(NamedTuple):
    """A signature that is called, with the numbers of its tensors."""

    declared: Signature
    graph: int
    inputs: dict[str, int]
    outputs: dict[str, int]


class InterpreterRun(LitertRun[_Called]):
    """A .tflite in the Interpreter."""

    unit_ns, interface = 1, INTERPRETER

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request, installed_interpreter())
        self._recorder = Recorder(request.recorder) if request.recorder and request.trace else None
        self._module: Any = import_module(interpreter_module())

    def load(self) -> None:
        """Open the model, give inputs their sizes, and allocate the memory of the called signatures."""
        job, model = self._job, read_tflite(Path(self._job.program))
        resolvers = self._module.OpResolverType
        without = self._delegate == "none"
        self._opened = self._module.Interpreter(
            model_path=job.program,
            num_threads=job.threads,
            experimental_op_resolver_type=resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES if without else resolvers.AUTO,
            experimental_delegates=[self._recorder] if self._recorder else None,
        )
        self._signatures = _called_signatures(model, Path(job.program), job.calls)
        self._tensors = input_tensors([signature.declared for signature in self._signatures.values()], job.inputs)
        self._allocate_tensors()
        if without and any(details["op_name"] == _DELEGATED for details in getattr(self._opened, _OPERATORS)()):
            raise RunError("LiteRT's Interpreter uses a delegate, although it was created without one")
        self._reset = any(tensor.variable for graph in model.subgraphs for tensor in graph.tensors)
        if self._recorder:
            self._recorder.watch(sum(not graph.name.startswith(_VALIDATION) for graph in model.subgraphs))

    def _allocate_tensors(self) -> None:
        for (signature, declared), tensor in zip(self._declared_inputs(), self._tensors, strict=True):
            if tuple(tensor.shape) != tuple(declared.sizes):
                sizes = np.array(tensor.shape, np.int32)
                arguments = signature.inputs[declared.name], sizes, False, signature.graph
                getattr(self._opened, _WRAPPER).ResizeInputTensor(*arguments)
        self._opened.allocate_tensors()
        # What Interpreter itself calls reaches the graphs of all signatures, in all releases that were tried. Until
        # here it refuses to go on where somebody else knows it.
        self._graphs: Any = getattr(self._opened, _WRAPPER)
        for signature in self._signatures.values():
            if signature.graph:
                self._graphs.AllocateTensors(signature.graph)

    def _declared_inputs(self) -> list[tuple[_Called, PlannedTensor]]:
        return [
            (signature, declared) for signature in self._signatures.values() for declared in signature.declared.inputs
        ]

    def fill(self) -> list[Tensor]:
        """Set the inputs as requested, else as the model declares them."""
        arrays = input_arrays(self._job.values, self._job.seed, self._tensors)
        for (signature, declared), array in zip(self._declared_inputs(), arrays, strict=True):
            self._graphs.SetTensor(signature.inputs[declared.name], array, signature.graph)
        return self._tensors

    def call(self, callee: _Called) -> tuple[int, int, LitertInference | None]:
        """Run a signature. Events are fetched between calls only."""
        clock, run_model, graph = time.perf_counter_ns, self._graphs.Invoke, callee.graph
        if self._reset:
            self._graphs.ResetVariableTensors()
        if self._recorder:
            self._recorder.forget()
        before = clock()
        run_model(graph)
        after = clock()
        if self._recorder is None:
            return before, after, None
        events = self._recorder.events()
        check_events(events, after - before, unit_ns=1)
        return before, after, LitertInference(after - before, events, before, callee.declared.name)

    def outputs(self) -> list[Array]:
        """Return the outputs in the order of the file, with the sizes of the last call."""
        outputs = []
        for signature in self._signatures.values():
            for declared in signature.declared.outputs:
                array = self._graphs.GetTensor(signature.outputs[declared.name], signature.graph)
                tensor = Tensor(list(array.shape), declared.dtype.name)
                outputs.append(from_bytes(array.tobytes(), tensor, range(array.ndim)))
        return outputs


_WRAPPER, _OPERATORS = "_interpreter", "_get_ops_details"


def _called_signatures(model: TfliteModel, path: Path, calls: Sequence[str]) -> dict[str, _Called]:
    """Return the called signatures by name, in the order of first calls. Raises RunError if the model lacks one."""
    declared = read_callable(path)
    signatures = {signature.name: signature for signature in declared.signatures}
    wrong = next((name for name in calls if name not in signatures), None)
    if wrong is not None:
        raise RunError(f"the model has no signature {wrong!r}; it has: {', '.join(sorted(signatures))}")
    names = tuple(dict.fromkeys(calls)) or (declared.signatures[0].name,)
    order = [signature.name for signature in declared.signatures]
    return {name: _with_tensors(signatures[name], model, order.index(name)) for name in names}


def _with_tensors(declared: Signature, model: TfliteModel, number: int) -> _Called:
    """Return a signature with the tensors of its graph; a model without signatures uses its first graph."""
    if not model.signatures:
        graph = model.subgraphs[0]
        sides = [{graph.tensors[at].name: at for at in side} for side in (graph.inputs, graph.outputs)]
        return _Called(declared, 0, *sides)
    signature = model.signatures[number]
    return _Called(declared, signature.subgraph, dict(signature.inputs), dict(signature.outputs))


if __name__ == "__main__":
    sys.exit(serve_runs(sys.argv[1:], InterpreterRun, RuntimeError))
