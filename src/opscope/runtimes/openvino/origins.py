"""Which nodes of the model each node that ran computes.

OpenVINO names them (``originalLayersNames``), but for those that passes took apart or joined before its plugin saw
them: a bias that is added, a scale. Such a node belongs to the product before it whose result it changes, else to the
one node that reads what it makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.operators.kinds import Attribution, Category
from opscope.program.operators.taxonomy import classify
from opscope.program.origin import NodeOrigin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.runtimes.openvino.graph import ModelNode, OpenVinoGraph

PRODUCTS = (Category.CONVOLUTION, Category.GEMM)
_FUSED = (Category.ELEMENTWISE,)
_QUANTISES = "quantisation"
_NOT_RUN = frozenset({"Constant", "ShapeOf"})
_ENDS = frozenset({"Parameter", "Result"})


class RunOrigins:
    """The nodes of a graph that ran, each with where it comes from."""

    def __init__(self, graph: OpenVinoGraph) -> None:
        self.given = graph.given
        self.numbers = {node.name: number for number, node in enumerate(graph.given)}
        self.stored = _stored(graph.given)
        self._readers = _readers(graph.given)
        self._owners = self._claimed(graph)
        self._join_forwards()
        self._join_backwards()
        owned: dict[int, list[int]] = {}
        for number, owner in sorted(self._owners.items()):
            owned.setdefault(owner, []).append(number)
        self.nodes = [self._origin(graph, place, owned.get(place, [])) for place in range(len(graph.ran))]

    def kind(self, number: int) -> Category:
        """Category of a node of the model."""
        return classify(f"{self.given[number].type}: ").category

    def readers(self, number: int) -> Sequence[int]:
        """Nodes of the model that read what one makes."""
        return self._readers.get(self.given[number].name, ())

    def _claimed(self, graph: OpenVinoGraph) -> dict[int, int]:
        """Places of the nodes that ran, by the nodes of the model that they name."""
        found: dict[int, int] = {}
        for place, one in enumerate(graph.ran):
            for name in one.layers:
                number = self.numbers.get(name)
                if number is not None and number not in self.stored and graph.given[number].type not in _ENDS:
                    found.setdefault(number, place)
        return found

    def _free(self, number: int) -> bool:
        return number not in self._owners and number not in self.stored and self.given[number].type not in _ENDS

    def _join_forwards(self) -> None:
        """What changes the result of a product belongs to it."""
        for number, node in enumerate(self.given):
            known = classify(f"{node.type}: ")
            if not self._free(number) or (known.category not in _FUSED and known.kind != _QUANTISES):
                continue
            before = [self.numbers[name] for name, _ in node.inputs if self.numbers[name] not in self.stored]
            owners = {self._owners[one] for one in before if one in self._owners and self._makes_product(one)}
            if len(owners) == 1 and len(before) == 1:
                self._owners[number] = owners.pop()

    def _makes_product(self, number: int) -> bool:
        """Whether a node is a product, or changes the result of one."""
        for _ in range(len(self.given)):
            if self.kind(number) in PRODUCTS:
                return True
            before = [self.numbers[name] for name, _ in self.given[number].inputs]
            same = [one for one in before if self._owners.get(one) == self._owners[number] and one < number]
            if not same:
                return False
            number = same[0]
        return False

    def _join_backwards(self) -> None:
        """What only one node reads belongs to it."""
        for number in reversed(range(len(self.given))):
            if self._free(number):
                owners = {self._owners.get(reader) for reader in self.readers(number)}
                if len(owners) == 1 and None not in owners:
                    self._owners[number] = next(owner for owner in owners if owner is not None)

    def _origin(self, graph: OpenVinoGraph, place: int, own: Sequence[int]) -> NodeOrigin:
        one = graph.ran[place]
        if not own:
            return NodeOrigin((), None, Attribution.NAME if one.layers else Attribution.EXACT)
        products = [number for number in own if self.kind(number) in PRODUCTS]
        named = self.numbers.get(one.node.name)
        main = products[0] if products else named if named in own else own[0]
        several = len(products) > 1
        lacking = not products and classify(f"{one.node.type}: ").category in PRODUCTS
        return NodeOrigin(tuple(own), main, Attribution.ALIGNED if several or lacking else Attribution.EXACT)


def _stored(given: Sequence[ModelNode]) -> set[int]:
    """Nodes that need no input of the model: weights, and what is computed of them or of sizes alone."""
    found: set[int] = set()
    names: set[str] = set()
    for number, node in enumerate(given):
        if node.type in _NOT_RUN or (node.inputs and all(name in names for name, _ in node.inputs)):
            found.add(number)
            names.add(node.name)
    return found


def _readers(given: Sequence[ModelNode]) -> dict[str, list[int]]:
    readers: dict[str, list[int]] = {}
    for number, node in enumerate(given):
        for name in dict.fromkeys(name for name, _ in node.inputs):
            readers.setdefault(name, []).append(number)
    return readers
