"""Which instruction makes and which reads each value of a method."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.structure.plan import InstructionKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.graph import XnnGraph


class Link(NamedTuple):
    """An instruction that makes or reads a value; for calls of delegates, the value's number in the graph."""

    instruction: int
    inside: int | None


class Links:
    """Makers and readers of the values of a method.

    Args:
        plan: the method.
        graphs: of its delegates by number; of one that is absent every argument may be read and made.
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
