"""Between which layers a layout change or a conversion stands.

The partitioner adds transposes at the borders of a delegate and between nodes that want different layouts, and XNNPACK
adds conversions; no line of the model caused them. Each is there for a pair of layers: the one whose output is changed
and the one that wants it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.xnnpack.graph import NO_HANDLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opscope.program.xnnpack.graph import XnnGraph, XnnNode


class NodeBoundary(NamedTuple):
    """The layers around a node."""

    before: tuple[int, ...]  # numbers of the nodes that made its input
    after: tuple[int, ...]  # numbers of the nodes that read its output
    inputs: tuple[int, ...]  # values of the delegate's caller that it comes from
    outputs: tuple[int, ...]  # values of the delegate's caller that it goes to


class Neighbours:
    """Who makes and who reads the values of a graph.

    Args:
        graph: of a delegate.
    """

    def __init__(self, graph: XnnGraph) -> None:
        self._nodes = graph.nodes
        self._inputs, self._outputs = frozenset(graph.inputs), frozenset(graph.outputs)
        self._makers = {value: number for number, node in enumerate(graph.nodes) for value in node.outputs}
        self._readers: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(number)

    def around(self, number: int) -> NodeBoundary:
        """The nearest layers before and after a node: added nodes in between are passed."""
        before, above = self._nearest(number, self._sources)
        after, below = self._nearest(number, self._targets)
        inputs = [value for node in above for value in self._nodes[node].inputs if value in self._inputs]
        outputs = [value for node in below for value in self._nodes[node].outputs if value in self._outputs]
        return NodeBoundary(tuple(before), tuple(after), tuple(inputs), tuple(outputs))

    def carrier(self, number: int) -> int | None:
        """The nearest node with a debug handle that an added node serves: who reads it, else who made its input."""
        border = self.around(number)
        return next(iter((*border.after, *border.before)), None)

    def _sources(self, number: int) -> Iterator[int]:
        return (self._makers[value] for value in self._nodes[number].inputs if value in self._makers)

    def _targets(self, number: int) -> Iterator[int]:
        return (reader for value in self._nodes[number].outputs for reader in self._readers.get(value, ()))

    def _nearest(self, number: int, step: _Step) -> tuple[list[int], list[int]]:
        """The nearest layers in one direction, and the added nodes on the way, this one first."""
        passed, found = [number], []
        for added in passed:
            for other in step(added):
                if not is_added(self._nodes[other]):
                    found.append(other)
                elif other not in passed:
                    passed.append(other)
        return list(dict.fromkeys(found)), passed


def is_added(node: XnnNode) -> bool:
    """Whether the partitioner added a node: no operator of the model caused it."""
    return node.debug_handle == NO_HANDLE


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Step: TypeAlias = Callable[[int], Iterable[int]]
