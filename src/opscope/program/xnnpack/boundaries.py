"""Find the layers between which a layout change or a conversion stands.

The partitioner adds transposes at the borders of a delegate and between nodes that want different layouts, and
XNNPACK adds conversions; no line of the model caused them. Each is there for a pair of layers: the one whose
output is changed and the one that wants it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.structure.plan import InstructionKind
from opscope.program.xnnpack.graph import NO_HANDLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode


class NodeBoundary(NamedTuple):
    """The layers around a node."""

    before: tuple[int, ...]  # numbers of the nodes that made its input
    after: tuple[int, ...]  # numbers of the nodes that read its output
    inputs: tuple[int, ...]  # values of the delegate's caller that it comes from
    outputs: tuple[int, ...]  # values of the delegate's caller that it goes to


class Neighbours:
    """Makers and readers of the values of a graph."""

    def __init__(self, graph: XnnGraph) -> None:
        self._nodes = graph.nodes
        self._inputs, self._outputs = frozenset(graph.inputs), frozenset(graph.outputs)
        self._makers = {value: number for number, node in enumerate(graph.nodes) for value in node.outputs}
        self._readers: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(number)

    def around(self, number: int) -> NodeBoundary:
        """Return the nearest layers before and after a node, looking through added nodes."""
        before, above = self._find_nearest(number, self._find_makers)
        after, below = self._find_nearest(number, self._find_readers)
        inputs = [value for node in above for value in self._nodes[node].inputs if value in self._inputs]
        outputs = [value for node in below for value in self._nodes[node].outputs if value in self._outputs]
        return NodeBoundary(tuple(before), tuple(after), tuple(inputs), tuple(outputs))

    def carrier(self, number: int) -> int | None:
        """Return the nearest node with a debug handle that an added node serves.

        It is the one that reads the added node's output, else the one that made its input.
        """
        border = self.around(number)
        return next(iter((*border.after, *border.before)), None)

    def _find_makers(self, number: int) -> Iterator[int]:
        return (self._makers[value] for value in self._nodes[number].inputs if value in self._makers)

    def _find_readers(self, number: int) -> Iterator[int]:
        return (reader for value in self._nodes[number].outputs for reader in self._readers.get(value, ()))

    def _find_nearest(self, number: int, step: _Step) -> tuple[list[int], list[int]]:
        """Return the nearest layers in one direction, and the added nodes on the way, including this one first."""
        passed, layers = [number], []
        for added in passed:
            for neighbour in step(added):
                if not is_added(self._nodes[neighbour]):
                    layers.append(neighbour)
                elif neighbour not in passed:
                    passed.append(neighbour)
        return list(dict.fromkeys(layers)), passed


def is_added(node: XnnNode) -> bool:
    """Return whether the partitioner added a node: no operator of the model caused it."""
    return node.debug_handle == NO_HANDLE


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Step: TypeAlias = Callable[[int], Iterable[int]]


class Link(NamedTuple):
    """An instruction that writes or reads a value; for calls of delegates, the value's number in the graph."""

    instruction: int
    inside: int | None


class Links:
    """Makers and readers of the values of a method.

    ``graphs``: of its delegates by number; of one that is missing every argument may be read and written.
    """

    def __init__(self, plan: MethodPlan, graphs: Mapping[int, XnnGraph]) -> None:
        self._plan = plan
        self._graphs = graphs
        self._makers: dict[int, list[Link]] = {}
        self._readers: dict[int, list[Link]] = {}
        for number, step in enumerate(plan.chains[0].steps if plan.chains else ()):
            for made, value, inner_value in self._values_of_step(step):
                (self._makers if made else self._readers).setdefault(value, []).append(Link(number, inner_value))

    def makers(self, value: int) -> list[Link]:
        """Return the instructions that write a value, in order; none for inputs of the method and for weights."""
        return self._makers.get(value, [])

    def readers(self, value: int) -> list[Link]:
        """Return the instructions that read a value, in order; none for outputs of the method only."""
        return self._readers.get(value, [])

    def argument(self, step: PlannedStep, inner_value: int) -> int | None:
        """Return the value of the plan that a call of a delegate passes for an external value of its graph."""
        graph = self._graphs.get(step.target)
        return dict(zip(graph.arguments(), step.arguments, strict=False)).get(inner_value) if graph else None

    def _values_of_step(self, step: PlannedStep) -> Iterator[tuple[bool, int, int | None]]:
        """Yield whether a step writes a value, the value, and its number in the delegate's graph."""
        if step.kind is InstructionKind.DELEGATE:
            graph = self._graphs.get(step.target)
            inner_values = graph.arguments() if graph else ()
            for position, (value, name) in enumerate(zip(step.arguments, inner_values, strict=False)):
                yield position >= len(graph.inputs if graph else ()), value, name
        elif step.kind in {InstructionKind.KERNEL, InstructionKind.MOVE}:
            *read, made_value = self._plan.tensors(step) or (-1,)
            yield True, made_value, None
            yield from ((False, value, None) for value in read)
