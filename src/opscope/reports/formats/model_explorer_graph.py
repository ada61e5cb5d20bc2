"""The graph of a program as Model Explorer reads it: one node an operator, inside delegates too.

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
    """A line of the side panel."""

    key: str
    value: str


class MetadataItem(msgspec.Struct, frozen=True):
    """What is known of an input or output."""

    id: str
    attrs: list[KeyValue]


class IncomingEdge(msgspec.Struct, frozen=True, rename="camel"):
    """Where an input comes from: node, number of its output, and number of the input here."""

    source_node_id: str
    source_node_output_id: str
    target_node_input_id: str


class ExplorerNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node; ``namespace`` is the path of the layers around it, with ``/`` between them."""

    id: str
    label: str
    namespace: str
    attrs: list[KeyValue]
    incoming_edges: list[IncomingEdge]
    outputs_metadata: list[MetadataItem]
    inputs_metadata: list[MetadataItem]


class NodeLocation(NamedTuple):
    """A node before it is given a namespace."""

    node: ExplorerNode  # with an empty namespace
    modules: tuple[str, ...] | None  # names of the modules around it, from the outermost; None where that is not known
    delegate: str | None  # name of the call it is inside of; None for what runs outside of delegates


_Made: TypeAlias = "tuple[str, str]"
"""Who makes a value: node, number of its output."""


def _node(
    name: str,
    label: str,
    attrs: Sequence[KeyValue],
    edges: list[IncomingEdge],
    values: Iterable[Iterable[list[KeyValue]]],
) -> ExplorerNode:
    """A node that is not inside of anything yet; ``values``: what is said of those that it reads and makes."""
    read, made = ([MetadataItem(str(place), said) for place, said in enumerate(side)] for side in values)
    return ExplorerNode(name, plain(label, _LONGEST), "", list(attrs), edges, made, read)


def _edges(read: Sequence[int], makers: Mapping[int, _Made]) -> list[IncomingEdge]:
    return [IncomingEdge(*makers[value], str(place)) for place, value in enumerate(read) if value in makers]


def instruction_id(instruction: int) -> str:
    """Id of an instruction's node, which for a delegate is the call."""
    return f"i{instruction}"


def payload_id(instruction: int, node: int) -> str:
    """Id of a node of the payload of the delegate that an instruction calls."""
    return f"i{instruction}.n{node}"


def by_module(places: Iterable[NodeLocation]) -> list[ExplorerNode]:
    """The nodes inside their modules."""
    return [_inside(place.node, [_NO_MODULE] if place.modules is None else place.modules) for place in places]


def by_delegate(places: Iterable[NodeLocation]) -> list[ExplorerNode]:
    """The nodes inside the calls of their delegates; others at the top."""
    return [_inside(place.node, [place.delegate] if place.delegate else []) for place in places]


def _inside(node: ExplorerNode, layers: Sequence[str]) -> ExplorerNode:
    return msgspec.structs.replace(node, namespace="/".join(layers))


def layer(name: str) -> str:
    """A name as one layer of a namespace: on one line, and without the sign that separates layers."""
    return plain(name, _LONGEST).replace("/", "\N{DIVISION SLASH}")


def attributes(known: Iterable[tuple[str, object]]) -> list[KeyValue]:
    """Lines of the side panel, for what is known."""
    return [
        KeyValue(key, plain(str(getattr(value, "value", value)), 2 * _LONGEST))
        for key, value in known
        if value is not None and value not in ("", [], ())
    ]


def method_nodes(method: ModelMethod) -> list[NodeLocation]:
    """Every node of a method, in the order of its program."""
    return _Walk(method).run()


class _Walk:
    """Goes through the instructions of a method and remembers who made each value.

    ``method``: of the model.
    """

    def __init__(self, method: ModelMethod) -> None:
        self._method = method
        self._plan: MethodPlan = method.plan
        self._made: dict[int, _Made] = {}
        self._places: list[NodeLocation] = []

    def run(self) -> list[NodeLocation]:
        """The nodes."""
        for number, value in enumerate(self._plan.inputs):
            self._made[value] = (f"input{number}", "0")
            self._add(self._node(f"input{number}", "input", made=[value]))
        for number, step in enumerate(self._plan.chains[0].steps if self._plan.chains else ()):
            graph = self._method.graphs.get(step.target) if step.kind is InstructionKind.DELEGATE else None
            if graph is not None:
                self._delegate(number, step, graph)
            elif step.kind in {InstructionKind.KERNEL, InstructionKind.DELEGATE, InstructionKind.MOVE}:
                self._instruction(number, step)
        for number, value in enumerate(self._plan.outputs):
            self._add(self._node(f"output{number}", "output", read=[value]))
        return self._places

    def _instruction(self, number: int, step: PlannedStep) -> None:
        """A portable operator, a move, or a delegate whose payload cannot be read."""
        tensors = self._plan.tensors(step)
        made = self._outputs(step, tensors)
        read = [value for value in tensors if value not in made or value in self._made]
        called = self._plan.called(step) or step.kind.value
        handles = self._method.handles.get(number, ())
        origins = self._method.origins
        origin = origins.of_handles(handles, called) if origins else None
        is_call = step.kind is InstructionKind.DELEGATE
        known = [("instruction", number), ("runs", "in a delegate" if is_call else "in the runtime"), *_caused(origin)]
        delegate = _call_name(called, number) if is_call else None
        node = self._node(instruction_id(number), called, attributes(known), read, made)
        self._add(node, self._modules(origin), delegate)
        self._made |= {value: (instruction_id(number), str(place)) for place, value in enumerate(made)}

    def _outputs(self, step: PlannedStep, tensors: Sequence[int]) -> list[int]:
        """What a step makes: its last tensor, and whatever nobody gave it."""
        if step.kind is not InstructionKind.DELEGATE:
            given = [value for value in tensors[:-1] if value in self._made or self._stored(value)]
        else:
            given = [value for value in tensors if value in self._made or self._stored(value)]
        return [value for value in tensors if value not in given]

    def _stored(self, value: int) -> bool:
        """Whether a tensor has data before anything ran."""
        tensor = self._value(value)
        return isinstance(tensor, PlannedTensor) and (tensor.constant or tensor.data_buffer > 0 or tensor.external)

    def _node(
        self,
        name: str,
        label: str,
        attrs: Sequence[KeyValue] = (),
        read: Sequence[int] = (),
        made: Sequence[int] = (),
    ) -> ExplorerNode:
        """A node that reads and makes values of the plan."""
        values = (map(self._shape, side) for side in (read, made))
        return _node(name, label, attrs, _edges(read, self._made), values)

    def _add(self, node: ExplorerNode, modules: tuple[str, ...] | None = (), delegate: str | None = None) -> None:
        self._places.append(NodeLocation(node, modules, delegate))

    def _value(self, number: int) -> Value | None:
        """A value of the plan; None for a plan that was kept without its values."""
        return self._plan.values[number] if self._plan.values else None

    def _shape(self, value: int) -> list[KeyValue]:
        tensor = self._value(value)
        if not isinstance(tensor, PlannedTensor):
            return []
        stored = [("stored", tensor.name or "with the program")] if tensor.constant else []
        return attributes([("tensor_shape", _shape_text(tensor.dtype.name, tensor.sizes)), *stored])

    def _delegate(self, number: int, step: PlannedStep, graph: XnnGraph) -> None:
        """The call, and the nodes of its payload."""
        backend = self._plan.called(step)
        call = _call_name(backend, number)
        known = [("instruction", number), ("nodes", len(graph.nodes)), ("schema", graph.identifier)]
        known += [("holds", "time of this call outside any single node")]
        self._add(self._node(instruction_id(number), f"{backend} call", attributes(known)), (_CALLS,), call)
        inside = _Payload(self._method, graph, number)
        given = dict(zip(graph.arguments(), step.arguments, strict=False))
        made = {inner: self._made[outer] for inner, outer in given.items() if outer in self._made}
        for node in range(len(graph.nodes)):
            origin = inside.origin(node)
            self._add(inside.node(node, made, origin), self._modules(origin), call)
        for inner in graph.outputs:
            if inner in given and inner in made:
                self._made[given[inner]] = made[inner]

    def _modules(self, origin: OperatorOrigin | None) -> tuple[str, ...] | None:
        """The layers of a module's path, each with the class of its module; None where it is not recorded."""
        if origin is None or origin.module is None or self._method.origins is None:
            return None
        types = self._method.origins.modules
        parts = origin.module.split(".") if origin.module else []
        paths = [".".join(parts[: count + 1]) for count in range(len(parts))]
        return tuple(_module_name(part, types.get(path)) for part, path in zip(parts, paths, strict=True))


class _Payload:
    """The nodes of a delegate's payload.

    ``method``: that calls the delegate.
    """

    def __init__(self, method: ModelMethod, graph: XnnGraph, instruction: int) -> None:
        self._origins = method.origins
        self._graph = graph
        self._instruction = instruction
        self._values = graph.by_id()
        self._neighbours = Neighbours(graph)

    def origin(self, number: int) -> OperatorOrigin | None:
        """What caused a node; of one that the partitioner added, what caused the layer that it serves."""
        carrier = self._neighbours.carrier(number) if is_added(self._graph.nodes[number]) else number
        return None if carrier is None else node_origin(self._graph, carrier, self._origins)

    def node(self, number: int, made: dict[int, _Made], origin: OperatorOrigin | None) -> ExplorerNode:
        """One node; what it makes is entered into ``made``, which tells who made each value of the payload."""
        node = self._graph.nodes[number]
        name = payload_id(self._instruction, number)
        values = (map(self._shape, side) for side in (node.inputs, node.outputs))
        known = attributes(self._known(number, node, origin))
        shown = _node(name, node.kind, known, _edges(node.inputs, made), values)
        made |= {value: (name, str(place)) for place, value in enumerate(node.outputs)}
        return shown

    def _known(self, number: int, node: XnnNode, origin: OperatorOrigin | None) -> list[tuple[str, object]]:
        added = "by the partitioner, for the layer it serves" if is_added(node) else None
        bounds = [bound for bound in (node.output_min, node.output_max) if bound is not None]
        return [
            ("instruction", self._instruction),
            ("node", number),
            ("debug handle", None if is_added(node) else node.debug_handle),
            ("added", added),
            ("activation bounds", ", ".join(map(str, bounds))),
            *_caused(origin, aten=not is_added(node)),
        ]

    def _shape(self, value: int) -> list[KeyValue]:
        tensor = self._values.get(value)
        if tensor is None:
            return []
        stored = [("stored", "with the program")] if tensor.is_constant else []
        return attributes([("tensor_shape", _shape_text(tensor.dtype.name, tensor.dims)), *stored])


def _caused(origin: OperatorOrigin | None, *, aten: bool = True) -> list[tuple[str, object]]:
    """Lines about what caused an operator."""
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
    """A module in its path, with the name of its class."""
    short = module_type.rpartition(".")[2] if module_type else ""
    return layer(f"{part} ({short})" if short else part)


def _shape_text(dtype: str, sizes: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"
