"""The tensors of the original model: which node makes and reads each, and which tensors hold the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.runtimes.onnxruntime.passes import BRANCHES, CARRIERS, PRODUCTS, SIZES, family, names_before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from opscope.runtimes.onnxruntime.graph import SessionNode
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode

_MADE_OF_NOTHING = frozenset({"Constant", "ConstantOfShape"})
"""Operators whose value is an attribute that is not kept, so two of them are never known to be equal."""
_FUSED = frozenset(
    """
    Add Sum Sub Mul Div BatchNormalization Relu LeakyRelu Clip Sigmoid Tanh HardSigmoid HardSwish PRelu Elu Selu
    Softplus Softsign ThresholdedRelu Swish Silu Gelu Pad Erf
    """.split()
)
"""Operators that are fused into the node before them."""
_LONGEST = 10
_NEAR = 40
_MOST = 1_000
"""Largest number of original nodes that one node may compute."""


def with_branches(model_graph: OnnxGraph, ran: Sequence[SessionNode]) -> OnnxGraph:
    """Add the nodes of the branches that a session runs in place of their ``If`` to a graph, after all other nodes.

    The outputs of the ``If`` become outputs of its branch's nodes, and the ``If`` has none.
    """
    chosen = {name for node in ran if node.op == "If" for name in node.outputs}
    made = {name for node in ran for output in node.outputs for name in names_before(output)}
    nodes, weights = list(model_graph.nodes), list(model_graph.weights)
    for number, node in enumerate(nodes):  # which grows: a branch may hold another
        if node.op != "If" or set(node.outputs) & chosen or not set(node.outputs) & made:
            continue
        ran_of = {
            name: sum(bool(made & set(branch_node.outputs)) for branch_node in graph.nodes)
            for name, graph in node.graphs.items()
        }
        names = {name for output in ran for name in output.outputs}
        branch_prefixes = {
            name for name in BRANCHES if any(output_name.startswith(f"_if_{name}_") for output_name in names)
        }
        branch = node.graphs.get(max(ran_of, key=lambda name: (ran_of[name], name in branch_prefixes), default=""))
        if branch is None:
            continue
        renamed = {value.name: name for value, name in zip(branch.outputs, node.outputs, strict=False)}
        nodes[number] = msgspec.structs.replace(node, outputs=())
        nodes += [
            msgspec.structs.replace(
                branch_node,
                inputs=tuple(renamed.get(name, name) for name in branch_node.inputs),
                outputs=tuple(renamed.get(name, name) for name in branch_node.outputs),
            )
            for branch_node in branch.nodes
        ]
        weights += branch.weights
    return msgspec.structs.replace(model_graph, nodes=tuple(nodes), weights=tuple(weights))


class GivenTensors:
    """Facts of a model about its tensors."""

    def __init__(self, model_graph: OnnxGraph) -> None:
        self._nodes = model_graph.nodes
        self._maker = {name: number for number, node in enumerate(model_graph.nodes) for name in node.outputs if name}
        self._known = {
            *self._maker,
            *(weight.name for weight in model_graph.inputs),
            *(weight.name for weight in model_graph.weights),
        }
        self._named = _unique_names(model_graph.nodes)
        self._stored = {weight.name for weight in model_graph.weights}
        self._same: dict[str, str] = {}
        first: dict[object, str] = {}
        for weight in model_graph.weights:
            if weight.values is not None:
                self._same[weight.name] = first.setdefault(
                    (weight.dtype.name, weight.shape, weight.values), weight.name
                )
        self._find_equal_tensors()
        self._readers: dict[str, list[int]] = {}
        for number, node in enumerate(model_graph.nodes):
            if node.op not in CARRIERS:
                for name in {self.same(name) for name in node.inputs if name}:
                    self._readers.setdefault(name, []).append(number)

    def _find_equal_tensors(self) -> None:
        """Find tensors that are equal up to their number type or computed twice, and those that need no input."""
        seen: dict[object, OnnxNode] = {}
        for node in self._nodes:
            read = [name for name in node.inputs if name]
            if not node.graphs and all(name in self._stored for name in read) and not node.op.startswith("Random"):
                self._stored.update(node.outputs)
            if node.op in CARRIERS and read:
                self._same[node.outputs[0]] = self.same(read[0])
                continue
            if node.graphs or node.op in _MADE_OF_NOTHING or node.op.startswith(("Random", "Multinomial")):
                continue
            options = tuple(sorted((name, str(value)) for name, value in node.attributes.items()))
            before = seen.setdefault((node.op, node.domain, options, *map(self.same, node.inputs)), node)
            if before is not node:
                self._same.update(
                    {name: self.same(first) for name, first in zip(node.outputs, before.outputs, strict=False)}
                )

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor of that name."""
        return name in self._known

    def same(self, name: str) -> str:
        """Return the first tensor with the same values."""
        return self._same.get(name, name)

    def is_stored(self, name: str) -> bool:
        """Return whether a tensor does not depend on an input of the model."""
        return name in self._stored

    def named(self, name: str) -> int | None:
        """Return the number of the only node of that name; None if there is none or several."""
        return self._named.get(name)

    def maker(self, name: str) -> int | None:
        """Return the number of the node that outputs a tensor; None for inputs and weights."""
        return self._maker.get(name)

    def maker_op(self, name: str) -> str | None:
        """Return the type of the node that outputs a tensor; None for inputs and weights."""
        number = self._maker.get(name)
        return None if number is None else self._nodes[number].op

    def readers(self, name: str) -> Sequence[int]:
        """Return the numbers of the nodes that read a tensor, in any number type."""
        return self._readers.get(self.same(name), ())

    def dynamic_inputs(self, number: int) -> list[str]:
        """Return the tensors that a node reads and that depend on an input of the model."""
        return [name for name in self._nodes[number].inputs if name and name not in self._stored]

    def stored_inputs(self, number: int) -> list[str]:
        """Return the stored tensors that a node reads, and the tensors that they are converted from."""
        stored = [name for name in self._nodes[number].inputs if name in self._stored]
        return [*stored, *map(self.same, stored)]

    def readers_alike(self, read: Collection[str], kind: str) -> list[int]:
        """Return the numbers of the nodes of a kind whose only inputs that are not stored are these tensors."""
        first = min(read, key=lambda name: len(self._readers.get(name, ())))
        return [
            number
            for number in self._readers.get(first, ())
            if family(self._nodes[number].op) == kind
            and {self.same(name) for name in self.dynamic_inputs(number)} == set(read)
        ]

    def chain(self, name: str) -> list[str]:
        """Return a tensor and its successors, as long as each is the only result that fusible nodes make of it."""
        tensors = [name]
        while len(tensors) < _LONGEST:
            readers = self.readers(tensors[-1])
            if len(readers) != 1 or self._nodes[readers[0]].op not in _FUSED:
                break
            tensors.append(self._nodes[readers[0]].outputs[0])
        return tensors

    def before(self, name: str, kind: str) -> int | None:
        """Return the nearest node of a kind before a tensor.

        None if a matrix product is in between or there is none.
        """
        waiting, seen = [name], set[str]()
        while waiting and len(seen) < _NEAR:
            this = waiting.pop(0)
            number = self._maker.get(this)
            if number is None or this in seen or this in self._stored:
                continue
            seen.add(this)
            node = self._nodes[number]
            if family(node.op) == kind:
                return number
            if family(node.op) not in PRODUCTS and node.op not in SIZES:
                waiting += [input_name for input_name in node.inputs if input_name]
        return None

    def between(self, read: Iterable[str], targets: Sequence[str]) -> tuple[tuple[int, ...], set[str] | None]:
        """Find the nodes between tensors, and which tensors of ``read`` they do not need.

        The latter is None if the nodes read anything else than ``read``, stored tensors and sizes.
        """
        names = set(read) - set(targets)
        made = {self.same(name) for name in targets}
        content = {self.same(name) for name in names} - made
        numbers: set[int] = set()
        waiting, closed, needed = list(targets), True, set[str]()
        while waiting and len(numbers) < _MOST:
            name = waiting.pop()
            if not name or (name not in targets and name in self._stored):
                continue
            maker = self._maker.get(name)
            is_boundary = self.same(name) in content and not (maker is not None and self._passes_on(maker, names))
            if name in names or is_boundary:
                needed.add(self.same(name))
                continue
            if maker is None:
                closed = False
            elif maker not in numbers:
                numbers.add(maker)
                node = self._nodes[maker]
                if node.op in SIZES:
                    needed |= {self.same(name) for name in node.inputs}
                else:
                    waiting += node.inputs
        return tuple(sorted(numbers)), {
            name for name in names if self.same(name) not in needed
        } if closed and not waiting else None

    def _passes_on(self, number: int, names: Collection[str]) -> bool:
        """Return whether a node only passes on one of these tensors, possibly through further such nodes."""
        node = self._nodes[number]
        while node.op in CARRIERS:
            if node.inputs[0] in names:
                return True
            before = self._maker.get(node.inputs[0])
            if before is None or before >= number:
                return False  # a damaged file may have nodes that read each other
            number, node = before, self._nodes[before]
        return False


def _unique_names(nodes: Sequence[OnnxNode]) -> Mapping[str, int]:
    """Return nodes by name, without names that several nodes have."""
    numbers: dict[str, int] = {}
    several: set[str] = set()
    for number, node in enumerate(nodes):
        if node.name in numbers:
            several.add(node.name)
        numbers[node.name] = number
    return {name: number for name, number in numbers.items() if name and name not in several}
