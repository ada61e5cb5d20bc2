"""The tensors of a model as it was given: who makes them, who reads them, and which of them hold the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.runtimes.onnxruntime.passes import BRANCHES, CARRIERS, PRODUCTS, SIZES, family, names_before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from opscope.runtimes.onnxruntime.graph import SessionNode
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode

_MADE_OF_NOTHING = frozenset({"Constant", "ConstantOfShape"})
"""Operators whose value is an attribute, which is not kept: two of them are never known to be the same."""
_FUSED = frozenset(
    """
    Add Sum Sub Mul Div BatchNormalization Relu LeakyRelu Clip Sigmoid Tanh HardSigmoid HardSwish PRelu Elu Selu
    Softplus Softsign ThresholdedRelu Swish Silu Gelu Pad Erf
    """.split()
)
"""Operators that are fused into the one before them."""
_LONGEST = 10
_NEAR = 40
_MOST = 1_000
"""Nodes that one node may compute."""


def with_branches(given: OnnxGraph, ran: Sequence[SessionNode]) -> OnnxGraph:
    """A graph with the nodes of the branches that a session runs in place of their ``If``, behind all others.

    What the ``If`` leaves is then left by the nodes of its branch, and the ``If`` leaves nothing.
    """
    chosen = {name for node in ran if node.op == "If" for name in node.outputs}
    made = {name for node in ran for output in node.outputs for name in names_before(output)}
    nodes, weights = list(given.nodes), list(given.weights)
    for number, node in enumerate(nodes):  # which grows: a branch may hold another
        if node.op != "If" or set(node.outputs) & chosen or not set(node.outputs) & made:
            continue
        ran_of = {
            name: sum(bool(made & set(one.outputs)) for one in graph.nodes) for name, graph in node.graphs.items()
        }
        names = {name for output in ran for name in output.outputs}
        told = {name for name in BRANCHES if any(one.startswith(f"_if_{name}_") for one in names)}
        branch = node.graphs.get(max(ran_of, key=lambda name: (ran_of[name], name in told), default=""))
        if branch is None:
            continue
        renamed = {one.name: name for one, name in zip(branch.outputs, node.outputs, strict=False)}
        nodes[number] = msgspec.structs.replace(node, outputs=())
        nodes += [
            msgspec.structs.replace(
                one,
                inputs=tuple(renamed.get(name, name) for name in one.inputs),
                outputs=tuple(renamed.get(name, name) for name in one.outputs),
            )
            for one in branch.nodes
        ]
        weights += branch.weights
    return msgspec.structs.replace(given, nodes=tuple(nodes), weights=tuple(weights))


class GivenTensors:
    """What a model says of its tensors."""

    def __init__(self, given: OnnxGraph) -> None:
        self._nodes = given.nodes
        self._maker = {name: number for number, node in enumerate(given.nodes) for name in node.outputs if name}
        self._known = {*self._maker, *(one.name for one in given.inputs), *(one.name for one in given.weights)}
        self._named = _unique(given.nodes)
        self._stored = {one.name for one in given.weights}
        self._same: dict[str, str] = {}
        first: dict[object, str] = {}
        for one in given.weights:
            if one.values is not None:
                self._same[one.name] = first.setdefault((one.dtype.name, one.shape, one.values), one.name)
        self._identify()
        self._readers: dict[str, list[int]] = {}
        for number, node in enumerate(given.nodes):
            if node.op not in CARRIERS:
                for name in {self.same(name) for name in node.inputs if name}:
                    self._readers.setdefault(name, []).append(number)

    def _identify(self) -> None:
        """Tensors that are the same in another type of number, or computed again; those that need no input."""
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
        """Whether the model has a tensor of that name."""
        return name in self._known

    def same(self, name: str) -> str:
        """The first tensor that holds the same."""
        return self._same.get(name, name)

    def is_stored(self, name: str) -> bool:
        """Whether a tensor needs no input of the model."""
        return name in self._stored

    def named(self, name: str) -> int | None:
        """The only node of that name."""
        return self._named.get(name)

    def maker(self, name: str) -> int | None:
        """The node that leaves a tensor."""
        return self._maker.get(name)

    def maker_op(self, name: str) -> str | None:
        """Its type."""
        number = self._maker.get(name)
        return None if number is None else self._nodes[number].op

    def readers(self, name: str) -> Sequence[int]:
        """Nodes that read a tensor, in whatever type of number."""
        return self._readers.get(self.same(name), ())

    def dynamic_inputs(self, number: int) -> list[str]:
        """Tensors that a node reads and that are not stored."""
        return [name for name in self._nodes[number].inputs if name and name not in self._stored]

    def stored_inputs(self, number: int) -> list[str]:
        """Tensors that a node reads and that are stored, and what they are made from."""
        own = [name for name in self._nodes[number].inputs if name in self._stored]
        return [*own, *map(self.same, own)]

    def readers_alike(self, read: Collection[str], kind: str) -> list[int]:
        """Nodes of a kind that read just these tensors, beside stored ones."""
        first = min(read, key=lambda name: len(self._readers.get(name, ())))
        return [
            number
            for number in self._readers.get(first, ())
            if family(self._nodes[number].op) == kind
            and {self.same(name) for name in self.dynamic_inputs(number)} == set(read)
        ]

    def chain(self, name: str) -> list[str]:
        """A tensor, and those behind it that one node after another makes of it alone."""
        found = [name]
        while len(found) < _LONGEST:
            readers = self.readers(found[-1])
            if len(readers) != 1 or self._nodes[readers[0]].op not in _FUSED:
                break
            found.append(self._nodes[readers[0]].outputs[0])
        return found

    def before(self, name: str, kind: str) -> int | None:
        """The nearest node of a kind that a tensor comes from; nothing is looked for above a product."""
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
                waiting += [one for one in node.inputs if one]
        return None

    def between(self, read: Iterable[str], targets: Sequence[str]) -> tuple[tuple[int, ...], set[str] | None]:
        """Nodes between tensors, and which of those that are read they do not need.

        None where they read anything else but what is stored, and sizes.
        """
        names = set(read) - set(targets)
        made = {self.same(name) for name in targets}
        content = {self.same(name) for name in names} - made
        found: set[int] = set()
        waiting, closed, needed = list(targets), True, set[str]()
        while waiting and len(found) < _MOST:
            name = waiting.pop()
            if not name or (name not in targets and name in self._stored):
                continue
            maker = self._maker.get(name)
            whole = self.same(name) in content and not (maker is not None and self._carries(maker, names))
            if name in names or whole:
                needed.add(self.same(name))
                continue
            if maker is None:
                closed = False
            elif maker not in found:
                found.add(maker)
                node = self._nodes[maker]
                if node.op in SIZES:
                    needed |= {self.same(name) for name in node.inputs}
                else:
                    waiting += node.inputs
        return tuple(sorted(found)), {
            name for name in names if self.same(name) not in needed
        } if closed and not waiting else None

    def _carries(self, number: int, names: Collection[str]) -> bool:
        """Whether a node is one of those that carry one of some tensors on."""
        node = self._nodes[number]
        while node.op in CARRIERS:
            if node.inputs[0] in names:
                return True
            before = self._maker.get(node.inputs[0])
            if before is None or before >= number:
                return False  # a damaged file may have nodes that read each other
            number, node = before, self._nodes[before]
        return False


def _unique(nodes: Sequence[OnnxNode]) -> Mapping[str, int]:
    """Nodes by name, those whose name another one has left out."""
    found: dict[str, int] = {}
    several: set[str] = set()
    for number, node in enumerate(nodes):
        if node.name in found:
            several.add(node.name)
        found[node.name] = number
    return {name: number for name, number in found.items() if name and name not in several}
