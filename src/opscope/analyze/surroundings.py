"""Names for what stands around a layer: other layers, other calls, the model's inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.borders import Neighbours, is_added
from opscope.program.plan import InstructionKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.program.links import Link, Links
    from opscope.program.model import ModelMethod
    from opscope.program.origin import Origin, Origins
    from opscope.program.plan import Step
    from opscope.program.xnn_graph import XnnGraph


class Outside:
    """Who is on the other side of the inputs and outputs of one delegate call.

    Args:
        method: of the model.
        links: makers and readers of its values.
        step: the call.
    """

    def __init__(self, method: ModelMethod, links: Links, step: Step) -> None:
        self._method = method
        self._links = links
        self._step = step

    def given(self, values: Iterable[int]) -> list[str]:
        """Who makes the values that the delegate is given."""
        return self._names(self._passed(values, self._links.makers), "input of the model")

    def taken(self, values: Iterable[int]) -> list[str]:
        """Who reads the values that the delegate leaves."""
        return self._names(self._passed(values, self._links.readers), "output of the model")

    def makers(self, values: Iterable[int]) -> list[str]:
        """Who makes values of the plan."""
        return self._names([(value, self._links.makers(value)) for value in values], "a constant or input of the model")

    def readers(self, values: Iterable[int]) -> list[str]:
        """Who reads values of the plan."""
        return self._names([(value, self._links.readers(value)) for value in values], "output of the model")

    def _passed(self, values: Iterable[int], ends: _Ends) -> list[tuple[int, list[Link]]]:
        """For values of the delegate's graph, who is on the other side."""
        arguments = ((value, self._links.argument(self._step, value)) for value in values)
        return [(value, [] if argument is None else ends(argument)) for value, argument in arguments]

    def _names(self, ends: Iterable[tuple[int, list[Link]]], otherwise: str) -> list[str]:
        found = [name for _, links in ends for name in [self._name(link) for link in links] or [otherwise]]
        return list(dict.fromkeys(found))

    def _name(self, link: Link) -> str:
        plan = self._method.plan
        step = plan.chains[0].steps[link.instruction]
        if step.kind is InstructionKind.DELEGATE:
            graph = self._method.graphs.get(step.target)
            layer = _layer(graph, link.inside, self._method.origins) if graph else None
            return layer or f"{plan.called(step)} at instruction {link.instruction}"
        return f"{plan.called(step) or step.kind.value} at instruction {link.instruction}"


def node_label(graph: XnnGraph, number: int, origins: Origins | None) -> str:
    """A name for a node: its module and kind, else its aten operator, else its kind and number."""
    node = graph.nodes[number]
    origin = node_origin(graph, number, origins)
    if origin is None:
        return f"{node.kind} {number}"
    return f"{origin.module} ({node.kind})" if origin.module else f"{origin.aten} ({node.kind} {number})"


def node_origin(graph: XnnGraph, number: int, origins: Origins | None) -> Origin | None:
    """What caused a node; None without a record."""
    if origins is None:
        return None
    node = graph.nodes[number]
    dims = next((value.dims for value in graph.values if value.id == node.outputs[0]), ())
    return origins.of_node(node, dims)


def _layer(graph: XnnGraph, inside: int | None, origins: Origins | None) -> str | None:
    """The layer of another delegate that makes or reads a value; the added nodes in between are passed."""
    for number, node in enumerate(graph.nodes):
        if inside in node.outputs or inside in node.inputs:
            border = Neighbours(graph).around(number)
            near = border.before if inside in node.outputs else border.after
            numbers = near if is_added(node) else (number,)
            return node_label(graph, numbers[0], origins) if numbers else None
    return None


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Ends: TypeAlias = Callable[[int], list[Link]]
