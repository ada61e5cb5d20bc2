"""The process that runs a model in OpenVINO, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that was preloaded; the proof is read here, after the
kernels were chosen. One process serves one variant once.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.core.errors import RunError
from opscope.core.system.launch import own_peak
from opscope.core.writing import write_atomically
from opscope.program.structure.exported import Tensor
from opscope.runtimes.child import ProgramRun, input_arrays, serve_runs
from opscope.runtimes.openvino.graph import GRAPH, SCHEMA, ModelNode, NodeTensor, OpenVinoGraph, RunNode
from opscope.runtimes.openvino.installed import (
    PACKAGE,
    imported_openvino,
    installed_openvino,
    properties,
    reason_of,
    text_of,
)
from opscope.runtimes.openvino.trace import SCHEMA as TRACE_SCHEMA
from opscope.runtimes.openvino.trace import OpenVinoTrace, TracedCall, TracedNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array

    Model: TypeAlias = Any
    Node: TypeAlias = Any
    """Type of a node of the package, whose types are stubs of pybind."""

_DEVICE = "CPU"
_CONSTANT = "Const"
_FINE, _COARSE = 1, 1_000


class FineClock:
    """A library that refines OpenVINO's clock in this process; it must be loaded before OpenVINO."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self._library.opscope_asked.restype = ctypes.c_int64

    def is_read(self) -> bool:
        """Return whether anything has read the clock; if not, counters have their usual unit."""
        return bool(self._library.opscope_asked())


class OpenVinoRun(ProgramRun[int]):
    """A model in an infer request whose inputs are set once: a call copies none of them."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        # It must come first: what OpenVINO finds when it is loaded is what it keeps.
        self._clock = FineClock(request.recorder) if request.recorder else None
        self._version = installed_openvino().version
        self._versions = {PACKAGE: self._version}
        if request.sides is None:
            raise RunError("the request does not say what the program takes")
        self._sides = request.sides
        self._properties = {
            **properties(self._job.variant.options),
            "INFERENCE_NUM_THREADS": str(self._job.threads),
            "PERF_COUNT": "YES" if self._traced else "NO",
        }
        self._package = imported_openvino()
        self._core = self._package.Core()
        self._calls: list[TracedCall] = []

    def load(self) -> None:
        """Read and compile the model. Raises RunError if OpenVINO cannot."""
        try:
            model = self._core.read_model(self._job.program)
            self._compiled = self._core.compile_model(model, _DEVICE, self._properties)
        except RuntimeError as error:
            raise RunError(f"OpenVINO cannot load it: {reason_of(error)}") from error
        self._request = self._compiled.create_infer_request()
        # Names of nodes that have none in the file are numbered anew each time it is read.
        self._model: Model = model if self._traced else None

    def fill(self) -> list[Tensor]:
        """Make the inputs as requested, else as the model declares them."""
        job = self._job
        if job.inputs:
            tensors = [Tensor(list(planned.shape or ()), planned.dtype) for planned in job.inputs]
        else:
            tensors = self._sides.tensors
        # The request reads them where they are: these names keep them there until the last call.
        self._arrays = [np.asarray(array, order="C") for array in input_arrays(job.values, job.seed, tensors)]
        self._values = [self._package.Tensor(array, shared_memory=True) for array in self._arrays]
        for port, value in zip(self._order_ports(self._compiled.inputs, self._sides.inputs), self._values, strict=True):
            self._request.set_tensor(port, value)
        return tensors

    def _order_ports(self, ports: Sequence[Node], names: Sequence[str] | None) -> list[Node]:
        """Return ports in the order of the program, by the names of tensors, which the file and OpenVINO share.

        Raises RunError if a name has no port.
        """
        if names is None:
            return list(ports)
        ordered = [next((port for port in ports if name in port.names), None) for name in names]
        if len(ordered) == len(ports) and None not in ordered:
            return ordered
        if len(ports) == len(names) == 1:
            return list(ports)
        text = ", ".join(sorted(name for port in ports for name in port.names))
        raise RunError(f"OpenVINO has {text or 'tensors without names'} for {', '.join(names)}")

    def calls(self) -> Iterator[int]:
        """Yield the single function, endlessly."""
        return repeat(0)

    def call(self, function: int) -> tuple[int, int, int]:  # noqa: ARG002 - there is but one
        """Run the request."""
        clock, infer = time.perf_counter_ns, self._request.infer
        before = clock()
        infer()
        after = clock()
        return before, after, after - before

    def keep(self, function: int, duration_ns: int) -> None:  # noqa: ARG002 - there is but one
        """Read the counters after a call."""
        if not self._traced:
            return
        counters = self._request.profiling_info
        started = time.perf_counter_ns() - duration_ns
        averages = [round(counter.real_time.total_seconds() * 1_000_000) for counter in counters]
        self._calls.append(TracedCall(started, duration_ns, averages))
        self._told = counters

    def threads(self) -> int | None:
        """Return the number of threads that the plugin states."""
        return int(self._compiled.get_property("INFERENCE_NUM_THREADS"))

    def write_trace(self, path: Path) -> None:
        """Write the counters of the nodes that ran, and beside them the graphs."""
        self.peak = own_peak()
        ran = [number for number in range(len(self._told)) if any(call.averages[number] for call in self._calls)]
        calls = [
            msgspec.structs.replace(call, averages=[call.averages[number] for number in ran]) for call in self._calls
        ]
        unit = _FINE if self._clock is not None and self._clock.is_read() else _COARSE
        nodes = [self._told[number] for number in ran]
        trace = OpenVinoTrace(
            TRACE_SCHEMA,
            self._version,
            self._sides.method,
            unit,
            [TracedNode(counter.node_name, counter.node_type, counter.exec_type) for counter in nodes],
            calls,
        )
        write_atomically(path, msgspec.json.encode(trace))
        properties = {name: str(self._compiled.get_property(name)) for name in self._properties}
        graph = OpenVinoGraph(SCHEMA, self._version, properties, self._describe_model(), self._describe_run_graph())
        write_atomically(Path(GRAPH), msgspec.json.encode(graph))

    def _describe_model(self) -> tuple[ModelNode, ...]:
        """Return the model as it was read, with the sizes of this run where all operators allow them."""
        model = self._model
        ports = self._order_ports(model.inputs, self._sides.inputs)
        with contextlib.suppress(RuntimeError):  # some operator fixes its sizes: those that are known are told
            model.reshape({port: list(array.shape) for port, array in zip(ports, self._arrays, strict=True)})
        return tuple(_describe_node(node, node.get_type_name()) for node in model.get_ordered_ops())

    def _describe_run_graph(self) -> tuple[RunNode, ...]:
        """Return the nodes of the compiled model."""
        nodes = []
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            details = {
                name: text_of(node.get_rt_info()[name]) for name in ("layerType", "primitiveType", "outputLayouts")
            }
            layers = text_of(node.get_rt_info()["originalLayersNames"])
            model_layers = tuple(filter(None, layers.split(",")))
            nodes.append(
                RunNode(
                    _describe_node(node, details["layerType"]),
                    details["primitiveType"],
                    model_layers,
                    details["outputLayouts"],
                )
            )
        return tuple(nodes)

    def outputs(self) -> list[Array]:
        """Copy the outputs from the request."""
        ports = self._order_ports(self._compiled.outputs, self._sides.outputs)
        return [np.array(self._request.get_tensor(port).data, order="C") for port in ports]


def _describe_node(node: Node, kind: str) -> ModelNode:
    sources = [port.get_source_output() for port in node.inputs()]
    across = (False, False)
    if node.get_type_name() == "MatMul":
        attributes = node.get_attributes()
        across = bool(attributes.get("transpose_a")), bool(attributes.get("transpose_b"))
    return ModelNode(
        name=node.get_friendly_name(),
        type=kind,
        inputs=tuple((source.get_node().get_friendly_name(), source.get_index()) for source in sources),
        outputs=tuple(_describe_tensor(port) for port in node.outputs()),
        transposed=across,
    )


def _describe_tensor(port: Node) -> NodeTensor:
    shape = port.get_partial_shape()
    return NodeTensor(port.get_element_type().get_type_name(), tuple(port.get_shape()) if shape.is_static else None)


if __name__ == "__main__":
    sys.exit(serve_runs(sys.argv[1:], OpenVinoRun, RuntimeError))
