"""Which nodes of a payload each XNNPACK operator computed, worked out from what ``attribution_truth.c`` recorded.

Nothing is taken from the operators' names, and nothing is known here of how XNNPACK rewrites graphs. An operator
computed every node that lies between the values it reads and the values it writes in the graph as the delegate defined
it. What XNNPACK adds is recognised by its values: they are in no payload. Where the two graphs cannot be brought
together without doubt there is no truth, but an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from opscope.program.xnnpack.graph import DelegateGraph, XnnGraph

# Values of enum xnn_node_type, from src/xnnpack/node-type-defs.inc of XNNPACK.
_BINARY, _CONVERT, _CONVOLUTION, _COPY, _FULLY_CONNECTED, _RESHAPE, _UNARY = 4, 6, 7, 8, 13, 33, 39
_TYPES = {
    "ArgMaxPooling2d": {1},
    "AvgPooling2d": {2},
    "BatchMatrixMultiply": {3},
    "Concatenate2": {5},
    "Concatenate3": {5},
    "Concatenate4": {5},
    "Concatenate5": {5},
    "Conv2d": {_CONVOLUTION, _FULLY_CONNECTED},
    "ConvTranspose2d": {9},
    "Convert": {_CONVERT, _UNARY},
    "Copy": {_COPY},
    "DepthwiseConv2d": {11},
    "FullyConnected": {_FULLY_CONNECTED},
    "GlobalAvgPooling2d": {29},
    "MaxPooling2d": {19},
    "Softmax": {22},
    "StaticConstantPad": {24},
    "StaticReshape": {_RESHAPE},
    "StaticResizeBilinear2D": {34},
    "StaticSlice": {35},
    "StaticTranspose": {38},
} | {kind: {_BINARY} for kind in "Add Div Maximum Minimum Multiply PReLU Subtract".split()}
# Operators that hand on what they read: where one vanished, the values on both sides of it are one.
_PASSING = {_CONVERT, _COPY, _RESHAPE, _UNARY}
# What replaces a chain by a lookup table is a unary node without an operator.
_NO_OPERATION = -1 % 2**32


class NoTruthError(Exception):
    """The record and the program cannot be brought together without doubt."""


class Node(msgspec.Struct, frozen=True):
    """A node of XNNPACK's graph: its type and operator as numbers, its mark, the values that it reads and writes."""

    type: int
    operation: int
    mark: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Value(msgspec.Struct, frozen=True):
    """A value of XNNPACK's graph."""

    datatype: int
    flags: int
    static: bool
    dims: tuple[int, ...]


class Graph(msgspec.Struct, frozen=True):
    """The graph after a pass."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    name: str = msgspec.field(name="pass")


class Operator(msgspec.Struct, frozen=True):
    """An operator that runs: its place in the last graph, its name and values."""

    node: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Record(msgspec.Struct, frozen=True):
    """One line of ``attribution_truth.c``: what became of one delegate."""

    graphs: tuple[Graph, ...]
    operators: tuple[Operator, ...]
    status: int
    refusal: str


class TrueEvent(msgspec.Struct, frozen=True):
    """What one event computed.

    Attributes:
        name: as in the trace.
        nodes: numbers of the XNodes, ascending.
        handles: their debug handles.
        main: the XNode whose operator it is, the others are fused into it; None for an operator that was inserted, and
            for a lookup table, which is as much one of its nodes as another.
        origin: ``inserted`` for an operator that XNNPACK added; its nodes are those that made it necessary.
    """

    name: str
    nodes: tuple[int, ...]
    handles: tuple[int, ...]
    main: int | None
    origin: str


class TrueDelegate(msgspec.Struct, frozen=True):
    """What the events of one delegate computed, in their order."""

    delegate: int
    instruction: int
    xnodes: tuple[str, ...]
    events: tuple[TrueEvent, ...]


def read_records(path: Path) -> list[Record]:
    """The records of one process, in the order in which delegates were created.

    Raises:
        NoTruthError: the shim refused to read XNNPACK's structs, or the runtime failed.
    """
    records = [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]
    for record in records:
        if record.refusal or record.status:
            raise NoTruthError(f"{path}: {record.refusal or f'XNNPACK status {record.status}'}")
    return records


def true_delegates(graphs: Sequence[DelegateGraph], records: Sequence[Record]) -> list[TrueDelegate]:
    """The truth of a program whose delegates were created in the order of the file.

    Raises:
        NoTruthError: for a delegate.
    """
    if len(graphs) != len(records):
        raise NoTruthError(f"{len(graphs)} delegates in the program, {len(records)} were created")
    return [_true_delegate(each, record) for each, record in zip(graphs, records, strict=True)]


def _true_delegate(delegate: DelegateGraph, record: Record) -> TrueDelegate:
    graph = delegate.graph
    try:
        events = _Tracer(graph, record).events()
    except NoTruthError as error:
        raise NoTruthError(f"delegate {delegate.delegate}: {error}") from error
    kinds = tuple(f"XNN{node.kind}" for node in graph.nodes)
    return TrueDelegate(delegate.delegate, delegate.instructions[0], kinds, tuple(events))


def owners(graph: XnnGraph, defined: Graph) -> list[int]:
    """For each node that the delegate defined, the XNode that it comes from.

    The delegate defines XNodes in their order, each as one node, or as several that hand values to each other which
    no payload has. Types, and which value is which, must agree throughout.

    Raises:
        NoTruthError: they do not.
    """
    same: dict[int, int] = {}
    owner: list[int] = []
    declared = len(graph.values)
    for number, xnode in enumerate(graph.nodes):
        start = len(owner)
        owner.append(number)
        while len(owner) <= len(defined.nodes) and defined.nodes[len(owner) - 1].outputs[0] >= declared:
            owner.append(number)
        if len(owner) > len(defined.nodes):
            raise NoTruthError("fewer nodes were defined than the payload has")
        first, last = defined.nodes[start], defined.nodes[len(owner) - 1]
        if first.type not in _TYPES.get(xnode.kind, {_UNARY}):
            raise NoTruthError(f"XNode {number}, {xnode.kind}, was defined as a node of type {first.type}")
        pairs = [*zip(xnode.inputs, first.inputs, strict=False), *zip(xnode.outputs, last.outputs, strict=False)]
        for ours, theirs in pairs:
            if same.setdefault(ours, theirs) != theirs:
                raise NoTruthError(f"value {ours} of XNode {number} is not the value that was defined")
    if len(owner) != len(defined.nodes) or len(set(same.values())) != len(same):
        raise NoTruthError("more nodes were defined than the payload has, or one value twice")
    return owner


@dataclass
class _Slice:
    """Nodes between values.

    Attributes:
        nodes: of the defined graph.
        seen: the values that it reads which are where it was to stop.
        leaks: values that no node writes and where it was not to stop.
        inside: the values between its nodes.
    """

    nodes: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    leaks: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)


class _Tracer:
    """Brings the operators of one runtime together with the graph that the delegate defined."""

    def __init__(self, graph: XnnGraph, record: Record) -> None:
        self.graph, self.record = graph, record
        self.defined, self.last = record.graphs[0], record.graphs[-1]
        self.owner = owners(graph, self.defined)
        self.producer = {value: index for index, node in enumerate(self.defined.nodes) for value in node.outputs}
        self.known = len(self.defined.values)
        self.alias = self._aliases()
        self.kept = {self.last.nodes[each.node].mark for each in record.operators}

    def _aliases(self) -> dict[int, int]:
        """For each value that XNNPACK added, the defined value whose contents it has, in another form."""
        alias: dict[int, int] = {}
        operators = self.record.operators
        for each in [*operators, *reversed(operators)]:
            if not self._converts(each):
                continue
            (source,), (result,) = each.inputs, each.outputs
            for new, old in ((result, source), (source, result)):
                known = alias.get(old, old)
                if new >= self.known and known < self.known:
                    alias.setdefault(new, known)
        return alias

    def _converts(self, operator: Operator) -> bool:
        node = self.last.nodes[operator.node]
        return len(node.inputs) == 1 and node.type in {_CONVERT, _UNARY} and operator.name.startswith("Convert")

    def _original(self, values: Iterable[int]) -> set[int]:
        """The defined values that these stand for; weights are left out."""
        found = {self.alias.get(value, value) for value in values if not self.last.values[value].static}
        if any(value >= self.known for value in found):
            raise NoTruthError("an operator reads or writes a value that is in no payload")
        return {value for value in found if not self.defined.values[value].static}

    def events(self) -> list[TrueEvent]:
        """The events in their order."""
        operators = self.record.operators
        found = [self._computed(each) for each in operators]
        inserted = [not nodes for nodes in found]
        if any(added and self.last.nodes[each.node].mark >= 0 for each, added in zip(operators, inserted, strict=True)):
            raise NoTruthError("an operator that the delegate defined computes nothing")
        for index, nodes in enumerate(found):
            if not nodes:
                found[index] = self._cause(index, found, inserted)
        counts: dict[str, int] = {}
        events = []
        for operator, nodes, added in zip(operators, found, inserted, strict=True):
            counts[operator.name] = counts.get(operator.name, 0) + 1
            numbers = tuple(sorted({self.owner[node] for node in nodes}))
            main = None if added else self._main(operator, nodes)
            handles = tuple(sorted({self.graph.nodes[number].debug_handle for number in numbers}))
            origin = "inserted" if added else ""
            events.append(TrueEvent(f"{operator.name} #{counts[operator.name]}", numbers, handles, main, origin))
        return events

    def _computed(self, operator: Operator) -> set[int]:
        """The defined nodes that lie between what an operator reads and writes."""
        targets, stops = self._original(operator.outputs), self._original(operator.inputs)
        found = self._between(targets, stops)
        for _ in range(self.known):
            lost = stops - found.seen - targets
            if not found.leaks and not lost:
                return found.nodes
            more = {value for value in self._equals(lost) if value in found.inside}
            if not more:
                raise NoTruthError(f"{operator.name} reads {sorted(lost)}, misses {sorted(found.leaks)}")
            stops = (stops - lost) | more
            found = self._between(targets, stops)
        raise NoTruthError(f"{operator.name} has no bounds")

    def _between(self, targets: set[int], stops: set[int]) -> _Slice:
        found = _Slice()
        todo = sorted(targets - stops)
        while todo:
            index = self.producer.get(value := todo.pop())
            if index is None:
                found.leaks.add(value)
            elif index not in found.nodes:
                found.nodes.add(index)
                reads = {value for value in self.defined.nodes[index].inputs if not self.defined.values[value].static}
                found.seen |= reads & stops
                found.inside |= reads
                todo += sorted(reads - stops)
        return found

    def _equals(self, values: set[int]) -> set[int]:
        """Values that are one with these, because the operators between them vanished."""
        equal, todo = set[int](), sorted(values)
        while todo:
            index = self.producer.get(todo.pop())
            if index is None or index in self.kept or self.defined.nodes[index].type not in _PASSING:
                continue
            source = self.defined.nodes[index].inputs[0]
            equal.add(source)
            todo.append(source)
        return equal

    def _cause(self, index: int, found: list[set[int]], inserted: list[bool]) -> set[int]:
        """The nodes that made an inserted operator necessary: of its first reader, else of the one before it."""
        operator = self.record.operators[index]
        if operator.outputs[0] >= self.known:
            for later in range(index + 1, len(found)):
                if operator.outputs[0] in self.record.operators[later].inputs and not inserted[later]:
                    return found[later]
        for earlier in range(index):
            if operator.inputs[0] in self.record.operators[earlier].outputs and not inserted[earlier]:
                return found[earlier]
        return set()

    def _main(self, operator: Operator, nodes: set[int]) -> int | None:
        """The node that XNNPACK kept, or, where it defined another in its place, the one of that type or the last."""
        last = self.last.nodes[operator.node]
        if last.type == _UNARY and last.operation == _NO_OPERATION:
            return None
        if last.mark >= 0 and last.mark not in nodes:
            raise NoTruthError(f"{operator.name} kept the node {last.mark} and computed {sorted(nodes)}")
        if last.mark in nodes:
            return self.owner[last.mark]
        free = nodes - self.kept or nodes
        alike = {index for index in free if self.defined.nodes[index].type == last.type}
        return self.owner[max(alike or free)]
