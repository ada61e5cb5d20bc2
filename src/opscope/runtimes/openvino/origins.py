"""Find which nodes of the model each node that ran computes.

OpenVINO names them (``originalLayersNames``), except for those that passes split or joined before its plugin
saw them: an added bias, a scale. Such a node belongs to the product before it whose result it changes, else to
the only node that reads its output.
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
    """The origins of the nodes of a graph that ran."""

    def __init__(self, graph: OpenVinoGraph) -> None:
        self.given = graph.given
        self.numbers = {node.name: number for number, node in enumerate(graph.given)}
        self.stored = _find_stored_nodes(graph.given)
        self._readers = _find_readers(graph.given)
        self._owners = self._match_named_nodes(graph)
        self._join_forwards()
        self._join_backwards()
        owned: dict[int, list[int]] = {}
        for number, owner in sorted(self._owners.items()):
            owned.setdefault(owner, []).append(number)
        self.nodes = [self._find_origin(graph, position, owned.get(position, [])) for position in range(len(graph.ran))]

    def kind(self, number: int) -> Category:
        """Return the category of a node of the model."""
        return classify(f"{self.given[number].type}: ").category

    def readers(self, number: int) -> Sequence[int]:
        """Return the nodes of the model that read the output of another."""
        return self._readers.get(self.given[number].name, ())

    def _match_named_nodes(self, graph: OpenVinoGraph) -> dict[int, int]:
        """Return the positions of the nodes that ran, by the nodes of the model that they name."""
        positions: dict[int, int] = {}
        for position, run_node in enumerate(graph.ran):
            for name in run_node.layers:
                number = self.numbers.get(name)
                if number is not None and number not in self.stored and graph.given[number].type not in _ENDS:
                    positions.setdefault(number, position)
        return positions

    def _is_unassigned(self, number: int) -> bool:
        return number not in self._owners and number not in self.stored and self.given[number].type not in _ENDS

    def _join_forwards(self) -> None:
        """Assign nodes that change the result of a product to the product's node."""
        for number, node in enumerate(self.given):
            known = classify(f"{node.type}: ")
            if not self._is_unassigned(number) or (known.category not in _FUSED and known.kind != _QUANTISES):
                continue
            before = [self.numbers[name] for name, _ in node.inputs if self.numbers[name] not in self.stored]
            owners = {
                self._owners[producer]
                for producer in before
                if producer in self._owners and self._makes_product(producer)
            }
            if len(owners) == 1 and len(before) == 1:
                self._owners[number] = owners.pop()

    def _makes_product(self, number: int) -> bool:
        """Return whether a node is a product, or changes the result of one."""
        for _ in range(len(self.given)):
            if self.kind(number) in PRODUCTS:
                return True
            before = [self.numbers[name] for name, _ in self.given[number].inputs]
            joined = [
                producer
                for producer in before
                if self._owners.get(producer) == self._owners[number] and producer < number
            ]
            if not joined:
                return False
            number = joined[0]
        return False

    def _join_backwards(self) -> None:
        """Assign a node that only one node reads to its reader."""
        for number in reversed(range(len(self.given))):
            if self._is_unassigned(number):
                owners = {self._owners.get(reader) for reader in self.readers(number)}
                if len(owners) == 1 and None not in owners:
                    self._owners[number] = next(owner for owner in owners if owner is not None)

    def _find_origin(self, graph: OpenVinoGraph, position: int, numbers: Sequence[int]) -> NodeOrigin:
        run_node = graph.ran[position]
        if not numbers:
            return NodeOrigin((), None, Attribution.NAME if run_node.layers else Attribution.EXACT)
        products = [number for number in numbers if self.kind(number) in PRODUCTS]
        namesake = self.numbers.get(run_node.node.name)
        main = products[0] if products else namesake if namesake in numbers else numbers[0]
        several = len(products) > 1
        lacking = not products and classify(f"{run_node.node.type}: ").category in PRODUCTS
        return NodeOrigin(tuple(numbers), main, Attribution.ALIGNED if several or lacking else Attribution.EXACT)


def _find_stored_nodes(model_nodes: Sequence[ModelNode]) -> set[int]:
    """Return the nodes that depend on no input of the model: weights, and what is computed from them or from sizes."""
    numbers: set[int] = set()
    names: set[str] = set()
    for number, node in enumerate(model_nodes):
        if node.type in _NOT_RUN or (node.inputs and all(name in names for name, _ in node.inputs)):
            numbers.add(number)
            names.add(node.name)
    return numbers


def _find_readers(model_nodes: Sequence[ModelNode]) -> dict[str, list[int]]:
    readers: dict[str, list[int]] = {}
    for number, node in enumerate(model_nodes):
        for name in dict.fromkeys(name for name, _ in node.inputs):
            readers.setdefault(name, []).append(number)
    return readers
