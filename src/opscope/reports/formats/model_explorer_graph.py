"""Graph of a program as Model Explorer reads it: a node per operator, inside delegates too.

Nodes are the instructions of a method's chain; of a delegate whose payload can be read, the nodes of that payload, and
one node more for the call itself, which holds time that belongs to none of them. Inputs and outputs of the method are
nodes as well. Jumps and frees compute nothing and are left out.

An id is the operator's place in the program, so it stays the same from run to run: ``i3`` is instruction 3, ``i3.n7``
node 7 of the delegate that it calls, ``input0`` and ``output0`` what the caller gives and gets.

Source of the format: ``graph_builder.py`` of the package ai-edge-model-explorer 0.1.34, whose names these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from opscope.analysis.operators.attribution import node_origin
from opscope.program.structure.plan import InstructionKind, PlannedTensor
from opscope.program.xnnpack.boundaries import Neighbours, is_added
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.program.model import ModelMethod
    from opscope.program.origin import OperatorOrigin
    from opscope.program.structure.plan import MethodPlan, PlannedStep, Value
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode

_LONGEST = 200
_NO_MODULE = "module unknown"
_CALLS = "delegate calls"


class KeyValue(msgspec.Struct, frozen=True):
    """Line of the side panel."""

    key: str
    value: str


class MetadataItem(msgspec.Struct, frozen=True):
    """Properties of an input or output."""

    id: str
    attrs: list[KeyValue]


class IncomingEdge(msgspec.Struct, frozen=True, rename="camel"):
    """Source of an input: node and number of its output, and the number of the input here."""

    source_node_id: str
    source_node_output_id: str
    target_node_input_id: str


class ExplorerNode(msgspec.Struct, frozen=True, rename="camel"):
    """Node of the graph; ``namespace`` is the path of the layers around it, separated by ``/``."""

    id: str
    label: str
    namespace: str
    attrs: list[KeyValue]
    incoming_edges: list[IncomingEdge]
    outputs_metadata: list[MetadataItem]
    inputs_metadata: list[MetadataItem]


class NodeLocation(NamedTuple):
    """Node before it gets a namespace."""

    node: ExplorerNode  # node with an empty namespace
    modules: tuple[str, ...] | None  # names of the modules around it, from the outermost; None if unknown
    delegate: str | None  # name of the call it is inside of; None for what runs outside of delegates


_Producer: TypeAlias = "tuple[str, str]"
"""Node that produces a value, and the number of its output."""


def _build_node(
    name: str,
    label: str,
    attrs: Sequence[KeyValue],
    edges: list[IncomingEdge],
    values: Iterable[Iterable[list[KeyValue]]],
) -> ExplorerNode:
    """Return a node without a namespace; ``values`` describe the values it reads and those it produces."""
    inputs, outputs = (
        [MetadataItem(str(number), attributes_of_value) for number, attributes_of_value in enumerate(side)]
        for side in values
    )
    return ExplorerNode(name, plain(label, _LONGEST), "", list(attrs), edges, outputs, inputs)


def _build_edges(read: Sequence[int], makers: Mapping[int, _Producer]) -> list[IncomingEdge]:
    return [IncomingEdge(*makers[value], str(number)) for number, value in enumerate(read) if value in makers]


def instruction_id(instruction: int) -> str:
    """Return the id of an instruction's node, which for a delegate is the call."""
    return f"i{instruction}"


def payload_id(instruction: int, node: int) -> str:
    """Return the id of a node of the payload of the delegate that an instruction calls."""
    return f"i{instruction}.n{node}"


def group_by_module(locations: Iterable[NodeLocation]) -> list[ExplorerNode]:
    """Return the nodes inside their modules."""
    return [
        _with_namespace(location.node, [_NO_MODULE] if location.modules is None else location.modules)
        for location in locations
    ]


def group_by_delegate(locations: Iterable[NodeLocation]) -> list[ExplorerNode]:
    """Return the nodes inside the calls of their delegates; other nodes are at the top."""
    return [_with_namespace(location.node, [location.delegate] if location.delegate else []) for location in locations]


def _with_namespace(node: ExplorerNode, layers: Sequence[str]) -> ExplorerNode:
    return msgspec.structs.replace(node, namespace="/".join(layers))


def layer(name: str) -> str:
    """Return a name as one layer of a namespace: on one line, and without the separator of layers."""
    return plain(name, _LONGEST).replace("/", "\N{DIVISION SLASH}")


def attributes(known: Iterable[tuple[str, object]]) -> list[KeyValue]:
    """Return lines of the side panel for the values that are known."""
    return [
        KeyValue(key, plain(str(getattr(value, "value", value)), 2 * _LONGEST))
        for key, value in known
        if value is not None and value not in ("", [], ())
    ]


def method_nodes(method: ModelMethod) -> list[NodeLocation]:
    """Return every node of a method, in program order."""
    return _MethodWalk(method).run()


class _MethodWalk:
    """Walk over the instructions of a method that records which node produced each value.

    ``method``: of the model.
    """

    def __init__(self, method: ModelMethod) -> None:
        self._method = method
        self._plan: MethodPlan = method.plan
        self._producers: dict[int, _Producer] = {}
        self._locations: list[NodeLocation] = []

    def run(self) -> list[NodeLocation]:
        """Return the nodes in program order."""
        for number, value in enumerate(self._plan.inputs):
            self._producers[value] = (f"input{number}", "0")
            self._add_location(self._build_node(f"input{number}", "input", made=[value]))
        for number, step in enumerate(self._plan.chains[0].steps if self._plan.chains else ()):
            graph = self._method.graphs.get(step.target) if step.kind is InstructionKind.DELEGATE else None
            if graph is not None:
                self._add_delegate(number, step, graph)
            elif step.kind in {InstructionKind.KERNEL, InstructionKind.DELEGATE, InstructionKind.MOVE}:
                self._add_instruction(number, step)
        for number, value in enumerate(self._plan.outputs):
            self._add_location(self._build_node(f"output{number}", "output", read=[value]))
        return self._locations

    def _add_instruction(self, number: int, step: PlannedStep) -> None:
        """Add a portable operator, a move, or a delegate whose payload cannot be read."""
        tensors = self._plan.tensors(step)
        outputs = self._find_outputs(step, tensors)
        read = [value for value in tensors if value not in outputs or value in self._producers]
        label = self._plan.called(step) or step.kind.value
        handles = self._method.handles.get(number, ())
        origins = self._method.origins
        origin = origins.of_handles(handles, label) if origins else None
        is_call = step.kind is InstructionKind.DELEGATE
        known = [
            ("instruction", number),
            ("runs", "in a delegate" if is_call else "in the runtime"),
            *_origin_attributes(origin),
        ]
        delegate = _call_name(label, number) if is_call else None
        node = self._build_node(instruction_id(number), label, attributes(known), read, outputs)
        self._add_location(node, self._module_path(origin), delegate)
        self._producers |= {value: (instruction_id(number), str(output)) for output, value in enumerate(outputs)}

    def _find_outputs(self, step: PlannedStep, tensors: Sequence[int]) -> list[int]:
        """Find the values that a step produces: its last tensor, and every tensor that nothing produced before."""
        if step.kind is not InstructionKind.DELEGATE:
            inputs = [value for value in tensors[:-1] if value in self._producers or self._is_stored(value)]
        else:
            inputs = [value for value in tensors if value in self._producers or self._is_stored(value)]
        return [value for value in tensors if value not in inputs]

    def _is_stored(self, value: int) -> bool:
        """Return whether a tensor has data before anything ran."""
        tensor = self._plan_value(value)
        return isinstance(tensor, PlannedTensor) and (tensor.constant or tensor.data_buffer > 0 or tensor.external)

    def _build_node(
        self,
        name: str,
        label: str,
        attrs: Sequence[KeyValue] = (),
        read: Sequence[int] = (),
        made: Sequence[int] = (),
    ) -> ExplorerNode:
        """Return a node that reads and produces values of the plan."""
        values = (map(self._shape_attributes, side) for side in (read, made))
        return _build_node(name, label, attrs, _build_edges(read, self._producers), values)

    def _add_location(
        self, node: ExplorerNode, modules: tuple[str, ...] | None = (), delegate: str | None = None
    ) -> None:
        self._locations.append(NodeLocation(node, modules, delegate))

    def _plan_value(self, number: int) -> Value | None:
        """Return a value of the plan; None for a plan that was kept without its values."""
        return self._plan.values[number] if self._plan.values else None

    def _shape_attributes(self, value: int) -> list[KeyValue]:
        tensor = self._plan_value(value)
        if not isinstance(tensor, PlannedTensor):
            return []
        stored = [("stored", tensor.name or "with the program")] if tensor.constant else []
        return attributes([("tensor_shape", _shape_text(tensor.dtype.name, tensor.sizes)), *stored])

    def _add_delegate(self, number: int, step: PlannedStep, graph: XnnGraph) -> None:
        """Add the call of a delegate, and the nodes of its payload."""
        backend = self._plan.called(step)
        call = _call_name(backend, number)
        known = [("instruction", number), ("nodes", len(graph.nodes)), ("schema", graph.identifier)]
        known += [("holds", "time of this call outside any single node")]
        self._add_location(
            self._build_node(instruction_id(number), f"{backend} call", attributes(known)), (_CALLS,), call
        )
        payload = _DelegatePayload(self._method, graph, number)
        outer_values = dict(zip(graph.arguments(), step.arguments, strict=False))
        producers = {inner: self._producers[outer] for inner, outer in outer_values.items() if outer in self._producers}
        for node in range(len(graph.nodes)):
            origin = payload.origin(node)
            self._add_location(payload.node(node, producers, origin), self._module_path(origin), call)
        for inner in graph.outputs:
            if inner in outer_values and inner in producers:
                self._producers[outer_values[inner]] = producers[inner]

    def _module_path(self, origin: OperatorOrigin | None) -> tuple[str, ...] | None:
        """Return the layers of a module's path, each with its module's class; None if the module is unknown."""
        if origin is None or origin.module is None or self._method.origins is None:
            return None
        types = self._method.origins.modules
        parts = origin.module.split(".") if origin.module else []
        paths = [".".join(parts[: count + 1]) for count in range(len(parts))]
        return tuple(_module_name(part, types.get(path)) for part, path in zip(parts, paths, strict=True))


class _DelegatePayload:
    """Nodes of a delegate's payload.

    ``method``: that calls the delegate.
    """

    def __init__(self, method: ModelMethod, graph: XnnGraph, instruction: int) -> None:
        self._origins = method.origins
        self._graph = graph
        self._instruction = instruction
        self._values = graph.by_id()
        self._neighbours = Neighbours(graph)

    def origin(self, number: int) -> OperatorOrigin | None:
        """Return the origin of a node; of a node that the partitioner added, the origin of the layer it serves."""
        carrier = self._neighbours.carrier(number) if is_added(self._graph.nodes[number]) else number
        return None if carrier is None else node_origin(self._graph, carrier, self._origins)

    def node(self, number: int, producers: dict[int, _Producer], origin: OperatorOrigin | None) -> ExplorerNode:
        """Return one node, and enter the values that it produces into ``producers``."""
        node = self._graph.nodes[number]
        name = payload_id(self._instruction, number)
        values = (map(self._shape_attributes, side) for side in (node.inputs, node.outputs))
        known = attributes(self._known_attributes(number, node, origin))
        explorer_node = _build_node(name, node.kind, known, _build_edges(node.inputs, producers), values)
        producers |= {value: (name, str(output)) for output, value in enumerate(node.outputs)}
        return explorer_node

    def _known_attributes(self, number: int, node: XnnNode, origin: OperatorOrigin | None) -> list[tuple[str, object]]:
        added = "by the partitioner, for the layer it serves" if is_added(node) else None
        bounds = [bound for bound in (node.output_min, node.output_max) if bound is not None]
        return [
            ("instruction", self._instruction),
            ("node", number),
            ("debug handle", None if is_added(node) else node.debug_handle),
            ("added", added),
            ("activation bounds", ", ".join(map(str, bounds))),
            *_origin_attributes(origin, aten=not is_added(node)),
        ]

    def _shape_attributes(self, value: int) -> list[KeyValue]:
        tensor = self._values.get(value)
        if tensor is None:
            return []
        stored = [("stored", "with the program")] if tensor.is_constant else []
        return attributes([("tensor_shape", _shape_text(tensor.dtype.name, tensor.dims)), *stored])


def _origin_attributes(origin: OperatorOrigin | None, *, aten: bool = True) -> list[tuple[str, object]]:
    """Return attributes of what an operator was exported from."""
    if origin is None:
        return []
    frame = origin.frame
    return [
        ("aten", origin.aten if aten else None),
        ("module", origin.module),
        ("module type", origin.module_type),
        ("source", f"{frame.file}:{frame.line}" if frame else None),
        ("code", frame.code if frame else None),
    ]


def _call_name(backend: str, instruction: int) -> str:
    return layer(f"{backend}, instruction {instruction}")


def _module_name(part: str, module_type: str | None) -> str:
    """Return a module's name in its path, with the name of its class."""
    short = module_type.rpartition(".")[2] if module_type else ""
    return layer(f"{part} ({short})" if short else part)


def _shape_text(dtype: str, sizes: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"
