"""Least bytes that an event of a delegate moves: each tensor once, at its own width."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.dimensions import MOST_DIMENSIONS, NotKnownError, elements
from opscope.program.cost.node_cost import NodeShapes, window_elements
from opscope.program.xnnpack.graph import QuantisationKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.program.cost.dimensions import Shape
    from opscope.program.structure.dtypes import NumberType
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode

# Bytes of a stored scale: fp32 for a channel, bf16 for a group of a channel.
# Source: get_quant_params in backends/xnnpack/operators/node_visitor.py of ExecuTorch 1.5.1.
_SCALE_BYTES = {QuantisationKind.PER_CHANNEL: 4, QuantisationKind.PER_CHANNEL_GROUP: 2}
_BYTE = 8


class Traffic(NamedTuple):
    """Bytes of inputs that are computed elsewhere, of outputs that are needed elsewhere, and of constants."""

    read: int
    written: int
    weights: int


class GraphTraffic:
    """The values of a graph with their shapes, and who uses them.

    Args:
        graph: of a delegate.
        dims: real shapes by value; None: those of the file. When given, every value that is no constant needs one.
    """

    def __init__(self, graph: XnnGraph, dims: Mapping[int, Shape] | None = None) -> None:
        self._nodes = graph.nodes
        self._values = graph.by_id()
        self._dims = dims
        self._outputs = set(graph.outputs)
        self._users: dict[int, set[int]] = {}
        for number, node in enumerate(graph.nodes):
            for each in node.inputs:
                self._users.setdefault(each, set()).add(number)

    def shaped(self, number: int) -> NodeShapes:
        """A node with its shapes."""
        if not 0 <= number < len(self._nodes):
            raise NotKnownError
        node = self._nodes[number]
        return NodeShapes(node, tuple(map(self._shape, node.inputs)), tuple(map(self._shape, node.outputs)))

    def bytes_of(self, number: int) -> int:
        """Bytes of a value with its stored scales."""
        value, shape = self._values.get(number), self._shape(number)
        if value is None:
            raise NotKnownError
        data = stored_bytes(value.dtype, shape)
        if not value.is_constant or value.dtype.bits is None or value.dtype.bits > _BYTE:
            return data
        return data + value.quantisation.scales * _SCALE_BYTES.get(value.quantisation.kind, 0)

    def of(self, numbers: Sequence[int]) -> Traffic:
        """Bytes of one event that computes these nodes."""
        group = {number: self.shaped(number) for number in numbers}
        made = {value for each in group.values() for value in each.node.outputs}
        taken = {value for each in group.values() for value in each.node.inputs} - made
        constants = {value for value in taken if self._values[value].is_constant}
        return Traffic(
            read=sum(self._read(value, list(group.values())) for value in taken - constants),
            written=sum(self.bytes_of(value) for value in made if self._needed_outside(value, group)),
            weights=sum(map(self.bytes_of, constants)),
        )

    def _shape(self, number: int) -> Shape:
        value = self._values.get(number)
        shape = value.dims if value and (self._dims is None or value.is_constant) else (self._dims or {}).get(number)
        if value is None or shape is None or len(shape) > MOST_DIMENSIONS:
            raise NotKnownError
        return shape

    def _needed_outside(self, value: int, group: Mapping[int, NodeShapes]) -> bool:
        """What nobody uses is written all the same."""
        users = self._users.get(value)
        return not users or value in self._outputs or any(user not in group for user in users)

    def _read(self, number: int, group: Sequence[NodeShapes]) -> int:
        """Of a tensor, as much as the nodes look at."""
        parts = [self._part(number, shaped) for shaped in group if number in shaped.node.inputs]
        return min(sum(parts), self.bytes_of(number))

    def _part(self, number: int, shaped: NodeShapes) -> int:
        seen = window_elements(shaped) if _only_data(number, shaped.node) else None
        return self.bytes_of(number) if seen is None else stored_bytes(self._values[number].dtype, (seen,))


def _only_data(number: int, node: XnnNode) -> bool:
    return node.inputs[0] == number and number not in node.inputs[1:]


def stored_bytes(dtype: NumberType, shape: Shape) -> int:
    """Bytes of elements; rows of half bytes are filled up to whole ones."""
    if dtype.bits is None:
        raise NotKnownError
    row = (shape[-1] if shape else 1) * dtype.bits
    return elements(shape[:-1]) * ((row + _BYTE - 1) // _BYTE)
