"""Between which layers a layout change or a conversion stands.

The partitioner adds transposes at the borders of a delegate and between nodes that want different layouts, and XNNPACK
adds conversions; no line of the model caused them. Each is there for a pair of layers: the one whose output is changed
and the one that wants it changed.
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
    """Who makes and who reads the values of a graph."""

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


class Link(NamedTuple):
    """An instruction that makes or reads a value; for calls of delegates, the value's number in the graph."""

    instruction: int
    inside: int | None


class Links:
    """Makers and readers of the values of a method.

    ``graphs``: of its delegates by number; of one that is absent every argument may be read and made.
    """

    def __init__(self, plan: MethodPlan, graphs: Mapping[int, XnnGraph]) -> None:
        self._plan = plan
        self._graphs = graphs
        self._makers: dict[int, list[Link]] = {}
        self._readers: dict[int, list[Link]] = {}
        for number, step in enumerate(plan.chains[0].steps if plan.chains else ()):
            for made, value, inside in self._ends(step):
                (self._makers if made else self._readers).setdefault(value, []).append(Link(number, inside))

    def makers(self, value: int) -> list[Link]:
        """Instructions that write a value, in order; none for inputs of the method and for weights."""
        return self._makers.get(value, [])

    def readers(self, value: int) -> list[Link]:
        """Instructions that read a value, in order; none for outputs of the method only."""
        return self._readers.get(value, [])

    def argument(self, step: PlannedStep, inside: int) -> int | None:
        """The value of the plan that a call of a delegate passes for an external value of its graph."""
        graph = self._graphs.get(step.target)
        return dict(zip(graph.arguments(), step.arguments, strict=False)).get(inside) if graph else None

    def _ends(self, step: PlannedStep) -> Iterator[tuple[bool, int, int | None]]:
        """Whether a step makes it, the value, and its number in the delegate's graph."""
        if step.kind is InstructionKind.DELEGATE:
            graph = self._graphs.get(step.target)
            inside = graph.arguments() if graph else ()
            for place, (value, name) in enumerate(zip(step.arguments, inside, strict=False)):
                yield place >= len(graph.inputs if graph else ()), value, name
        elif step.kind in {InstructionKind.KERNEL, InstructionKind.MOVE}:
            *read, made_value = self._plan.tensors(step) or (-1,)
            yield True, made_value, None
            yield from ((False, value, None) for value in read)
