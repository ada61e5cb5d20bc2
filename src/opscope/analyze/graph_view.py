"""What the payload of a delegate and the export record say about the delegate's events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.analyze.operator_facts import LayoutChange, OperatorFacts, with_origin
from opscope.analyze.surroundings import node_label, node_origin
from opscope.program.borders import Neighbours, is_added
from opscope.program.cost import Cost, GraphCosts
from opscope.program.eligibility import eligibility
from opscope.program.taxonomy import classify, classify_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from opscope.analyze.surroundings import Outside
    from opscope.program.attribution import EventNodes
    from opscope.program.model import ModelMethod
    from opscope.program.origin import Origin
    from opscope.program.xnn_graph import XnnGraph, XnnNode

    Shape: TypeAlias = tuple[int, ...]


class GraphView:
    """Facts of the events of one delegate.

    Args:
        graph: its payload.
        method: with the origins of its nodes.
        listed: debug handles of the instruction.
        dims: real shapes by value; None where those of the file hold.
        outside: who is on the other side of the delegate's inputs and outputs.
    """

    def __init__(
        self,
        graph: XnnGraph,
        method: ModelMethod,
        listed: Sequence[int],
        dims: Mapping[int, Shape] | None,
        outside: Outside,
    ) -> None:
        self._outside = outside
        self._graph = graph
        self._origins = method.origins
        self._values = graph.by_id()
        self._neighbours = Neighbours(graph)
        self._costs = GraphCosts(graph, dims)
        self._dims = dims
        carried = {node.debug_handle for node in graph.nodes}
        self._fused = method.origins.fused(carried, listed) if method.origins else {}
        self._shown: set[int] = set()

    def facts(self, event: EventNodes) -> OperatorFacts:
        """Facts of one event."""
        if event.main is None:
            names = tuple(dict.fromkeys(self.label(number) for number in event.candidates))
            return OperatorFacts(attribution=event.attribution, candidates=names)
        node = self._graph.nodes[event.main]
        known = self._own(event, node)
        carrier = self._neighbours.carrier(event.main) if is_added(node) else event.main
        origin = self._origin(carrier)
        if origin is None:
            return known
        return with_origin(known, origin, aten=not is_added(node) and not event.inserted)

    def _own(self, event: EventNodes, node: XnnNode) -> OperatorFacts:
        handles = tuple(dict.fromkeys(self._handles(event.nodes)))
        operator_class = classify_node(node.kind)
        if event.inserted:
            operator_class = classify("Convert (NC)")
        elif event.activation:
            operator_class = classify_node("Clamp")
        return OperatorFacts(
            operator_class=operator_class,
            attribution=event.attribution,
            handles=handles,
            computes=tuple(self._graph.nodes[number].kind for number in event.nodes),
            fused=() if event.inserted or event.activation else self._fused_into(handles),
            cost=self._cost(event),
            change=self._change(event, node),
            activation=event.activation,
            dtype=self._type_of(node.inputs[:1]),
            weights=self._type_of([name for name in node.inputs[1:2] if self._values[name].is_constant]),
            shape=self._shape_of(node.outputs[0]),
            elements=self._elements(node),
            taps=self._taps(node),
            sme=None if event.inserted or event.activation else eligibility(node, self._values),
        )

    def _handles(self, nodes: Iterable[int]) -> list[int]:
        return [self._graph.nodes[number].debug_handle for number in nodes if not is_added(self._graph.nodes[number])]

    def _fused_into(self, handles: Iterable[int]) -> tuple[str, ...]:
        """Operators fused into these handles; each is shown once, with the first event of its handle."""
        new = [handle for handle in handles if handle in self._fused and handle not in self._shown]
        self._shown.update(new)
        return tuple(target for handle in new for target in self._fused[handle])

    def _cost(self, event: EventNodes) -> Cost | None:
        if event.inserted or event.main is None:
            return None
        return self._costs.activation(event.main) if event.activation else self._costs.nodes(event.nodes)

    def _change(self, event: EventNodes, node: XnnNode) -> LayoutChange | None:
        if event.main is None or not (event.inserted or is_added(node)):
            return None
        border = self._neighbours.around(event.main)
        if event.inserted and not is_added(node):
            return LayoutChange("runtime", [], [self.label(event.main)])
        before = [self.label(n) for n in border.before] + self._outside.given(border.inputs)
        after = [self.label(n) for n in border.after] + self._outside.taken(border.outputs)
        return LayoutChange("runtime" if event.inserted else "partitioner", before, after)

    def label(self, number: int) -> str:
        """A name for a node that a person finds in the model."""
        return node_label(self._graph, number, self._origins)

    def _origin(self, number: int | None) -> Origin | None:
        return None if number is None else node_origin(self._graph, number, self._origins)

    def _elements(self, node: XnnNode) -> int | None:
        shapes = [self._shape_of(name) for name in (*node.inputs[:1], node.outputs[0])]
        return None if None in shapes else max(math.prod(shape or ()) for shape in shapes)

    def _taps(self, node: XnnNode) -> int | None:
        """Positions of a depthwise filter, which has the shape 1, height, width, channels."""
        return math.prod(self._values[node.inputs[1]].dims[1:3]) if node.kind == "DepthwiseConv2d" else None

    def _type_of(self, names: Sequence[int]) -> str | None:
        return self._values[names[0]].dtype.name if names else None

    def _shape_of(self, name: int) -> Shape | None:
        return self._values[name].dims if self._dims is None else self._dims.get(name)
