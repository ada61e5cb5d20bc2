"""The process that runs an .onnx, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that was preloaded; the proof is read here, after the
session chose its kernels. One process serves one variant once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.core.errors import RunError
from opscope.core.system.launch import own_peak
from opscope.core.writing import write_atomically
from opscope.program.phases import phase_of
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import ProgramRun, input_arrays, serve_runs
from opscope.runtimes.onnxruntime.graph import GRAPH, METHOD, SCHEMA, SessionCall, SessionGraph
from opscope.runtimes.onnxruntime.installed import PACKAGE, imported_onnxruntime, installed_onnxruntime
from opscope.runtimes.onnxruntime.language import shared_outputs
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.options import session_choice
from opscope.runtimes.onnxruntime.rows import session_nodes, tensors_of
from opscope.runtimes.onnxruntime.signatures import read_signature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.runtimes.onnxruntime.graph import SessionNode, SessionTensor

    Session: TypeAlias = Any
    Options: TypeAlias = Any
    _Declared: TypeAlias = Any
    _Value: TypeAlias = Any
    """Type of a value of the package, which ships without types."""

_QUIET = 3  # errors alone: the file of the optimised graph is said to fit this machine only, which is what it is for

_REFUSALS = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
"""Errors of the package by which a session says that it cannot run a model."""


class _Bound:
    """The inputs and outputs of a call, bound once: a call copies and allocates nothing in Python."""

    def __init__(self, name: str, binding: Any, values: Mapping[str, Any], shared_buffers: Mapping[str, Any]) -> None:  # noqa: ANN401 - of the package
        self.name, self.binding = name, binding
        self.values = values  # by the name of the input
        self.shared_buffers = (
            shared_buffers  # buffers of inputs that outputs are written into, by the name of the output
        )
        self.misdeclared: bool | None = None  # not known before the first call

    def bind_outputs(self, names: Sequence[str], binding: Any = None) -> None:  # noqa: ANN401 - likewise
        """Bind each output to the buffer that it shares with an input, else to memory that is allocated in the call.

        Without ``binding``, the outputs of this call's own binding are bound.
        """
        binding = binding or self.binding
        binding.clear_binding_outputs()
        for name in names:
            if name in self.shared_buffers:
                binding.bind_ortvalue_output(name, self.shared_buffers[name])
            else:
                binding.bind_output(name)


class OnnxRun(ProgramRun[_Bound]):
    """An .onnx in a session. Its graph is called as it is, or for the phases of a language model."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        self._version = installed_onnxruntime().version
        self._versions = {PACKAGE: self._version}
        self._signature = read_signature(Path(self._job.program))
        self._left: list[Array] | None = None
        self._choice = session_choice(self._job.variant.options)
        self._runtime = imported_onnxruntime()
        # The package would go on without providers that it does not have, and only say so.
        available = self._runtime.get_available_providers()
        lacking = [name for name in self._choice.providers if name not in available]
        if lacking:
            raise RunError(f"the installed onnxruntime has no {', '.join(lacking)}; it has: {', '.join(available)}")

    def load(self) -> None:
        """Make the session. Its profile gets its own directory, since the session chooses the file name."""
        options = self._make_options()
        if self._traced:
            self._traces = tempfile.mkdtemp(dir=".")
            options.enable_profiling = True
            options.profile_file_prefix = f"{self._traces}/profile"
        self._session = self._open_session(options)

    def fill(self) -> list[Tensor]:
        """Make the inputs as requested, else as the model declares them."""
        job, signature = self._job, self._signature
        names = list(dict.fromkeys(job.calls)) or [METHOD]
        if job.inputs:
            tensors = [Tensor(list(planned.shape or ()), planned.dtype) for planned in job.inputs]
        else:
            tensors = [Tensor(list(declared.sizes), declared.dtype.name) for declared in signature.inputs] * len(names)
        # The session reads them where they are: these names keep them there until the last call.
        self._arrays = [np.asarray(array, order="C") for array in input_arrays(job.values, job.seed, tensors)]
        input_count = len(signature.inputs)
        self._bound = {
            name: self._bind_call(name, self._arrays[index * input_count : (index + 1) * input_count])
            for index, name in enumerate(names)
        }
        return tensors

    def _bind_call(self, name: str, arrays: Sequence[Array]) -> _Bound:
        """Bind the tensors of a call; keys and values of a phase with a cache stay in their input buffers."""
        inputs, outputs = (
            [tensor.name for tensor in side] for side in (self._signature.inputs, self._signature.outputs)
        )
        values = dict(zip(inputs, map(self._runtime.OrtValue.ortvalue_from_numpy, arrays), strict=True))
        phase = phase_of(name)
        cache_inputs = shared_outputs(inputs, outputs) if phase is not None and phase.cache is not None else {}
        bound = _Bound(
            name,
            self._session.io_binding(),
            values,
            {tensor_name: values[into] for tensor_name, into in cache_inputs.items()},
        )
        for tensor_name, value in values.items():
            bound.binding.bind_ortvalue_input(tensor_name, value)
        bound.bind_outputs(outputs)
        return bound

    def calls(self) -> Iterator[_Bound]:
        """Yield the phases in turn, or the single graph."""
        return (self._bound[name] for name in cycle(self._job.calls or self._bound))

    def call(self, bound: _Bound) -> tuple[int, int, None]:
        """Run the session."""
        clock, run_model, binding = time.perf_counter_ns, self._session.run_with_iobinding, bound.binding
        if bound.misdeclared:
            bound.bind_outputs([tensor.name for tensor in self._signature.outputs])
        before = clock()
        run_model(binding)
        after = clock()
        if bound.misdeclared is None:
            bound.misdeclared = any(map(_is_misdeclared, self._session.get_outputs(), binding.get_outputs()))
        return before, after, None

    def write_trace(self, path: Path) -> None:
        """Write the profile, and beside it the graph that ran, which a second session saves after all measurements."""
        self.peak = own_peak()
        self._left = self.outputs()  # before further sessions run, which write into the same buffers
        Path(self._session.end_profiling()).replace(path)
        Path(self._traces).rmdir()
        choice = self._choice
        order = self._job.calls or (METHOD,)
        last = [order[number % len(order)] for number in reversed(range(self._job.inferences))]
        session_calls = {
            name: SessionCall(
                self._save_graph(self._make_options(), path, bound, last.index(name)), self._given_tensors(bound)
            )
            for name, bound in self._bound.items()
            if name in last
        }
        last_call = session_calls[last[0]]
        graph = SessionGraph(SCHEMA, self._version, choice.level, choice.providers, last_call.nodes, last_call.shapes)
        if self._job.calls:
            graph = msgspec.structs.replace(graph, calls=session_calls)
        write_atomically(Path(GRAPH), msgspec.json.encode(graph))

    def _save_graph(
        self, options: Options, profile: Path | None, bound: _Bound, runs: int = 0
    ) -> tuple[SessionNode, ...]:
        """Save the graph that a session with these options runs, and return its nodes with what a run of it tells.

        The run is the one that is ``runs`` before the last in ``profile``; without a profile the call is run again.
        """
        program = Path(self._job.program)
        with tempfile.TemporaryDirectory(dir=".") as directory:
            file = Path(directory) / "saved.onnx"
            options.optimized_model_filepath = str(file)
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
            options.enable_profiling = profile is None
            options.profile_file_prefix = f"{directory}/profile"
            session = self._open_session(options)
            if profile is None:
                again = session.io_binding()
                for name, value in bound.values.items():
                    again.bind_ortvalue_input(name, value)
                bound.bind_outputs([tensor.name for tensor in self._signature.outputs], again)
                session.run_with_iobinding(again)
                profile = Path(session.end_profiling())
            return session_nodes(read_onnx(file).graph, profile, read_onnx(program).graph, runs)

    def _given_tensors(self, bound: _Bound) -> dict[str, SessionTensor]:
        """Return the tensors of the original model: a session without optimisation runs once to get their shapes.

        Its kernels do not pack weights, since a profile leaves packed ones out. Empty for a model that cannot run
        without an optimiser pass.
        """
        state = import_module(f"{PACKAGE}.capi.onnxruntime_pybind11_state")
        refused = tuple(getattr(state, name) for name in _REFUSALS if hasattr(state, name))
        options = self._make_options()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_mode = self._runtime.ExecutionMode.ORT_SEQUENTIAL
        options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            return tensors_of(self._save_graph(options, None, bound))
        except refused:
            return {}

    def outputs(self) -> list[Array]:
        """Copy the outputs from the bindings."""
        if self._left is not None:
            return self._left
        copied = (array for bound in self._bound.values() for array in bound.binding.copy_outputs_to_cpu())
        return [np.asarray(array, order="C") for array in copied]

    def _make_options(self) -> Options:
        runtime, choice = self._runtime, self._choice
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self._job.threads
        options.inter_op_num_threads = choice.inter_op_threads
        if choice.parallel:
            options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, choice.level_name)
        options.log_severity_level = _QUIET
        for key, value in choice.entries.items():
            options.add_session_config_entry(key, value)
        return options

    def _open_session(self, options: Options) -> Session:
        return self._runtime.InferenceSession(self._job.program, options, providers=list(self._choice.providers))


def _is_misdeclared(declared: _Declared, value: _Value) -> bool:
    """Return whether an output has undeclared dimensions, so that a session refuses to fill it again."""
    return bool(value.is_tensor() and declared.shape and len(value.shape()) != len(declared.shape))


if __name__ == "__main__":
    # The errors of the runtime are of classes of its own, all of them Exceptions.
    sys.exit(serve_runs(sys.argv[1:], OnnxRun, Exception))
