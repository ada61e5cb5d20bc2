"""A working copy of an XNNPACK graph, for replaying what the library does to it before it runs.

Source: ``src/subgraph.c`` of XNNPACK (2026), read for ``xnn_subgraph_analyze_consumers_and_producers`` and
``xnn_subgraph_clean_up``, and ``src/subgraph/*.c`` for what each definition turns into.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from opscope.program.xnnpack.graph import Convolution, QuantisationKind

if TYPE_CHECKING:
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode

UNBOUNDED = (-math.inf, math.inf)
LUT, PACKED_CONVERT, CONCATENATE = "Lut", "PackedConvert", "Concatenate"
MEAN_SQUARED, SUM_SQUARED = "MeanSquared", "SumSquared"
"""Kinds of nodes that no payload holds: a fused lookup table, a Convert that packs or requantises for a matrix
multiplication, a concatenation of any number of inputs, and the mean of squares."""

UNARY = frozenset(
    """
    Sigmoid Clamp Floor Convert SquareRoot Ceiling Hardswish LeakyReLU Negate Square ELU Abs ReciprocalSquareRoot Log
    Gelu Tanh Exp Sin Cos BankersRounding
    """.split()
)
BINARY = frozenset("Add Div Minimum Maximum Multiply Subtract PReLU SquaredDifference".split())
SEPARATE_ACTIVATION = frozenset("Add Subtract Multiply Div GlobalAvgPooling2d".split())
"""Kinds whose fused activation XNNPACK runs as an operator of its own, a Clamp."""
_DYNAMIC = frozenset({"qdint8", "qpint8"})


@dataclass
class Value:
    """A tensor while the graph is rewritten."""

    dtype: str  # name of its number type
    dims: tuple[int, ...]  # its shape
    constant: bool = False  # it is stored with the model
    external_input: bool = False  # the caller sets it
    external_output: bool = False  # the caller gets it
    zero_point: int | None = None  # of a tensor with one scale; None for the others
    static_shape: bool = False  # the library knows that its shape cannot change
    widened: bool = False  # a 16-bit type was replaced by fp32
    consumers: int = 0  # number of nodes that read it, and one for the caller of an output
    producer: int | None = None  # the node that writes it
    first_consumer: int | None = None  # the first node that reads it

    @property
    def external(self) -> bool:
        """Return whether the caller sets or gets it."""
        return self.external_input or self.external_output

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return math.prod(self.dims)

    @property
    def bits(self) -> int:
        """Width of an element where data are moved; packed and 4-bit values are never moved alone."""
        if self.dtype.endswith("int8"):
            return 8
        return 16 if self.dtype in {"fp16", "bf16"} else 32


@dataclass
class Node:
    """An operator while the graph is rewritten."""

    kind: str  # of the payload's node, or one of the kinds of this module
    inputs: list[int]  # ids of values
    outputs: list[int]  # ids of values
    sources: list[int]  # numbers of the payload's nodes that it computes
    bounds: tuple[float, float] = UNBOUNDED  # of its activation
    inserted: bool = False  # the library added it
    origin: XnnNode | None = None  # the payload's node with its attributes; None for an added one
    activation: bool = False  # it is only the activation of the payload's node
    packed: bool = False  # it quantises its left side while it packs it
    alive: bool = True  # it was not removed

    def absorb(self, absorbed: Node) -> None:
        """Take over what another node computes, and remove it."""
        self.sources = [*absorbed.sources, *self.sources]
        absorbed.alive = False

    def read_instead(self, old: int, new: int) -> bool:
        """Replace an input; return whether the node had it."""
        had_input = old in self.inputs
        self.inputs = [new if value == old else value for value in self.inputs]
        return had_input

    def write_instead(self, old: int, new: int) -> None:
        """Replace an output."""
        self.outputs = [new if value == old else value for value in self.outputs]


@dataclass
class Subgraph:
    """Values by id, and nodes in the order in which they would run."""

    values: dict[int, Value]
    nodes: list[Node] = field(default_factory=list)
    _unused: int = -1

    @classmethod
    def of(cls, graph: XnnGraph) -> Subgraph:
        """Return the graph as the library is told to build it."""
        subgraph = cls({})
        # The library numbers what the caller sets and gets first; the order in which it looks at values follows that.
        order = {name: position for position, name in enumerate(graph.arguments())}
        for value in sorted(graph.values, key=lambda value: order.get(value.id, len(order))):
            scale = value.quantisation
            subgraph.values[value.id] = Value(
                dtype=value.dtype.name,
                dims=value.dims,
                constant=value.is_constant,
                external_input=value.external_input,
                external_output=value.external_output,
                zero_point=scale.zero_point if scale.kind is QuantisationKind.PER_TENSOR else None,
                static_shape=value.is_constant,
            )
        for number, node in enumerate(graph.nodes):
            subgraph.define(number, node)
        return subgraph

    def new_value(self, like: Value, dtype: str | None = None) -> int:
        """Add a value of the library, with the shape and type of another value, or with another type."""
        number = self._unused = max(self._unused, *self.values) + 1 if self._unused < 0 else self._unused + 1
        zero_point = like.zero_point if dtype is None else None
        self.values[number] = Value(dtype or like.dtype, like.dims, zero_point=zero_point)
        return number

    def define(self, number: int, node: XnnNode) -> None:
        """Add a node of the payload; some definitions add two."""
        inputs, outputs = list(node.inputs), list(node.outputs)
        types = [self.values[value].dtype for value in (*inputs, *outputs)]
        low = -math.inf if node.output_min is None else node.output_min
        high = math.inf if node.output_max is None else node.output_max
        made = Node(_defined_kind(node, types), inputs, outputs, [number], (low, high), origin=node)
        self.nodes.append(made)
        if made.kind == "FullyConnected" and {*types[:2], types[-1]} == {"bf16"}:
            self._add_successor(made, "Convert", "fp32")
        elif made.kind in SEPARATE_ACTIVATION and made.bounds != UNBOUNDED:
            limit = self._add_successor(made, "Clamp", None)
            limit.bounds, limit.activation, made.bounds = made.bounds, True, UNBOUNDED

    def _add_successor(self, node: Node, kind: str, dtype: str | None) -> Node:
        """Let another node write the output of this one, from a value in between."""
        outputs = list(node.outputs)
        node.outputs = [self.new_value(self.values[outputs[0]], dtype)]
        second = Node(kind, list(node.outputs), outputs, list(node.sources), origin=node.origin)
        self.nodes.append(second)
        return second

    def analyse(self) -> None:
        """Find producers and consumers anew."""
        for value in self.values.values():
            value.consumers, value.producer, value.first_consumer = int(value.external_output), None, None
        for number, node in enumerate(self.nodes):
            if node.alive:
                self._connect_node(number, node)

    def _connect_node(self, number: int, node: Node) -> None:
        for name in dict.fromkeys(node.inputs):
            value = self.values[name]
            value.consumers += 1
            value.first_consumer = number if value.first_consumer is None else value.first_consumer
        for name in node.outputs:
            self.values[name].producer = number

    def clean(self) -> None:
        """Remove what nobody reads, and order the nodes so that each follows its inputs."""
        self.analyse()
        waiting = [number for number, node in enumerate(self.nodes) if node.alive and self._is_unread(node)]
        while waiting:
            number = waiting.pop()
            self.nodes[number].alive = False
            now_unread = []
            for name in dict.fromkeys(self.nodes[number].inputs):
                value = self.values[name]
                value.consumers -= 1
                if not value.consumers and value.producer is not None and self.nodes[value.producer].alive:
                    now_unread += [value.producer] if len(self.nodes[value.producer].outputs) == 1 else []
            waiting += now_unread
        self.nodes = [node for node in self.nodes if node.alive]
        self.analyse()
        order = self._find_order()
        if order != sorted(order):
            self.nodes = [self.nodes[number] for number in order]
            self.analyse()

    def _is_unread(self, node: Node) -> bool:
        return len(node.outputs) == 1 and not self.values[node.outputs[0]].consumers

    def _find_order(self) -> list[int]:
        """Return an order of several passes, each of which emits every node whose inputs exist.

        A node waits for the next pass if one of its inputs is written after it. Nodes of a cycle come last.
        """
        needs = [
            {p for name in node.inputs if (p := self._find_writer(name)) is not None and p != number}
            for number, node in enumerate(self.nodes)
        ]
        readers: dict[int, list[int]] = {}
        for number, producers in enumerate(needs):
            for producer in producers:
                readers.setdefault(producer, []).append(number)
        missing_counts = [len(producers) for producers in needs]
        ready = [(0, number) for number, count in enumerate(missing_counts) if not count]
        order, seen = [], set()
        while ready:
            turn, number = heappop(ready)
            order.append(number)
            seen.add(number)
            for reader in readers.get(number, ()):
                missing_counts[reader] -= 1
                if not missing_counts[reader]:
                    heappush(ready, (turn + (reader < number), reader))
        return order + [number for number in range(len(self.nodes)) if number not in seen]

    def _find_writer(self, name: int) -> int | None:
        value = self.values[name]
        return None if value.external_input else value.producer

    def producer(self, name: int) -> Node | None:
        """Return the live node that writes a value; None without one."""
        number = self.values[name].producer
        if number is None or not self.nodes[number].alive:
            return None
        return self.nodes[number]


def _defined_kind(node: XnnNode, types: list[str]) -> str:
    if node.kind.startswith("Concatenate"):
        return CONCATENATE
    if node.kind == "Conv2d" and is_matrix_product(node):
        return "FullyConnected"
    if node.kind == "Convert" and (types[-1] in _DYNAMIC or types == ["qint8", "qcint8"]):
        return PACKED_CONVERT
    return node.kind


def is_matrix_product(node: XnnNode) -> bool:
    """Return whether a convolution runs as a fully connected layer: one pixel, stride 1, no border, no groups."""
    shape = node.attributes
    if node.kind != "Conv2d" or not isinstance(shape, Convolution):
        return False
    window = (shape.groups, shape.kernel_height, shape.kernel_width, shape.subsampling_height, shape.subsampling_width)
    border = shape.padding_top or shape.padding_right or shape.padding_bottom or shape.padding_left
    channels = shape.group_input_channels + shape.group_output_channels
    return set(window) == {1} and not border and channels > 2  # noqa: PLR2004 - one to one is a product of scalars
