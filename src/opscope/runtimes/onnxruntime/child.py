"""The process that runs an .onnx, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that it was started with; here that is proved, once the
session has chosen its kernels. One process serves one variant once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement, Tensor
from opscope.core.errors import RunError
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent, own_peak
from opscope.machine.processor import stay_on
from opscope.machine.switch.switch import proof
from opscope.runtimes.child import Stages, answer_request, inferred, input_arrays, measurement_of, timed_calls
from opscope.runtimes.onnxruntime.graph import GRAPH, SCHEMA, SessionGraph, session_nodes
from opscope.runtimes.onnxruntime.installed import PACKAGE, installed_onnxruntime
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.options import session_choice
from opscope.runtimes.onnxruntime.signatures import read_signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.machine.off_cpu import OffCpuMeter
    from opscope.program.structure.exported import Signature
    from opscope.runtimes.onnxruntime.options import SessionChoice

    Session: TypeAlias = Any
    Runtime: TypeAlias = Any
    """Of the package, which ships without types."""

_QUIET = 3  # errors alone: the file of the optimised graph is said to fit this machine only, which is what it is for


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    end_with_parent()
    _, path = arguments
    # The errors of the runtime are of classes of its own, all of them Exceptions.
    return answer_request(Path(path), run, Exception)


def run(request: RunRequest, began: int) -> Measurement:
    """Run one request in this process."""
    stay_on(request.affinity)
    version = installed_onnxruntime().version
    signature = read_signature(Path(request.program))
    choice = session_choice(request.options)
    runtime = import_module(PACKAGE)
    _check(runtime, choice)
    started = time.perf_counter_ns()
    traces = tempfile.mkdtemp(dir=".") if request.trace is not None else None
    session = _session(runtime, request, choice, traces)
    loaded = time.perf_counter_ns()
    tensors = _tensors(signature, request)
    arrays = [np.ascontiguousarray(array) for array in input_arrays(request.values, request.seed, tensors)]
    # The session reads them where they are: these names keep them there until the last call.
    values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    binding = _bound(session, signature, values)
    done = inferred(request, repeat(0), partial(_call, session, binding))
    # The session chose its kernels when it was made: asked behind it, the counters hold all questions.
    proved = proof(Path(request.record)) if request.record is not None else None
    outputs: list[Array] = [np.ascontiguousarray(array) for array in binding.copy_outputs_to_cpu()]
    peak = own_peak()
    measured = time.perf_counter_ns()
    if request.trace is not None:
        Path(session.end_profiling()).replace(request.trace)
        _keep_graph(runtime, request, choice, version)
    if traces is not None:
        Path(traces).rmdir()
    return measurement_of(
        request,
        done,
        Stages(began, started, loaded, measured),
        outputs,
        inputs=tensors,
        versions={PACKAGE: version, "numpy": np.__version__},
        mask=proved,
        peak=peak,
    )


def _check(runtime: Runtime, choice: SessionChoice) -> None:
    """Refuse providers that the package does not have; it would go on without them, and only say so."""
    there = runtime.get_available_providers()
    lacking = [name for name in choice.providers if name not in there]
    if lacking:
        raise RunError(f"the installed onnxruntime has no {', '.join(lacking)}; it has: {', '.join(there)}")


def _session(runtime: Runtime, request: RunRequest, choice: SessionChoice, traces: str | None) -> Session:
    options = _options(runtime, request.threads, choice)
    if traces is not None:
        options.enable_profiling = True
        options.profile_file_prefix = f"{traces}/profile"
    return runtime.InferenceSession(request.program, options, providers=list(choice.providers))


def _options(runtime: Runtime, threads: int, choice: SessionChoice) -> Any:  # noqa: ANN401 - likewise
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = choice.inter_op_threads
    if choice.parallel:
        options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, choice.level_name)
    options.log_severity_level = _QUIET
    for key, value in choice.entries.items():
        options.add_session_config_entry(key, value)
    return options


def _keep_graph(runtime: Runtime, request: RunRequest, choice: SessionChoice, version: str) -> None:
    """Write the graph that ran beside the trace: a second session, behind all that is measured, saves it."""
    options = _options(runtime, request.threads, choice)
    with tempfile.TemporaryDirectory(dir=".") as directory:
        file = Path(directory) / "optimised.onnx"
        options.optimized_model_filepath = str(file)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        runtime.InferenceSession(request.program, options, providers=list(choice.providers))
        nodes = session_nodes(read_onnx(file), Path(str(request.trace)))
    graph = SessionGraph(SCHEMA, version, choice.level, choice.providers, nodes)
    write_atomically(Path(GRAPH), msgspec.json.encode(graph))


def _tensors(signature: Signature, request: RunRequest) -> list[Tensor]:
    """What the inputs are: as they were asked for, else as the model declares them."""
    if request.inputs:
        return [Tensor(list(one.shape or ()), one.dtype) for one in request.inputs]
    return [Tensor(list(one.sizes), one.dtype.name) for one in signature.inputs]


def _bound(session: Session, signature: Signature, values: Sequence[Any]) -> Any:  # noqa: ANN401 - likewise
    """Inputs and outputs, bound once: a call then neither copies inputs nor makes Python objects."""
    binding = session.io_binding()
    for one, value in zip(signature.inputs, values, strict=True):
        binding.bind_ortvalue_input(one.name, value)
    for one in signature.outputs:
        binding.bind_output(one.name)
    return binding


def _call(session: Session, binding: Any, calls: Iterable[int], wall: list[int], meter: OffCpuMeter) -> None:  # noqa: ANN401 - likewise
    clock, run_model = time.perf_counter_ns, session.run_with_iobinding

    def call(_: int) -> tuple[int, int]:
        before = clock()
        run_model(binding)
        return before, clock()

    timed_calls(calls, wall, meter, call)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
