"""From the graph that a session ran back to the model as it was given: which of its nodes each node of it computes.

ONNX Runtime fuses nodes, renames them and their tensors, and adds nodes that lay data out anew. What remains are
tensors: a node's outputs are tensors of the given model, by their own name, by that of the node, or since the node
only moves another one. The nodes of the model between a node's inputs and its outputs are then what it computes.
Names were seen with 1.31.1: ``X_nchwc`` is a node that makes tensor X in blocks of channels, and a fusion is named
``NODE/NAME/`` behind the node that it replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.operators.attribution import Attribution

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.runtimes.onnxruntime.graph import SessionNode
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode

_MOVES = frozenset({"ReorderInput", "ReorderOutput", "Transpose", "Cast", "Identity", "Reshape"})
"""Operators that ONNX Runtime adds of its own accord."""
_BACK = frozenset({"ReorderOutput", "Transpose"})
_BLOCKED = "_nchwc"
_SUM = 3
"""Place of the tensor that a convolution adds, among its inputs."""
_PRODUCTS = frozenset(
    """
    Conv ConvTranspose Gemm MatMul MatMulInteger ConvInteger QLinearConv QLinearMatMul Attention LSTM GRU RNN
    """.split()
)


class NodeOrigin(NamedTuple):
    """What a node of the session's graph computes."""

    nodes: tuple[int, ...]  # of the given model, by number; empty for one that was added
    main: int | None  # the one that the work is in; None for one that was added, or that is not known
    moved: str | None  # tensor of the given model that an added node lays out anew; None for others
    attribution: Attribution  # how that is known


_UNKNOWN = NodeOrigin((), None, None, Attribution.NAME)


def node_origins(given: OnnxGraph, ran: Sequence[SessionNode]) -> list[NodeOrigin]:
    """The origin of each node of a session's graph."""
    return _Walk(given).origins(ran)


class _Walk:
    def __init__(self, given: OnnxGraph) -> None:
        self._nodes = given.nodes
        self._maker = {name: number for number, node in enumerate(given.nodes) for name in node.outputs if name}
        self._named = _unique(given.nodes)
        self._stored = {one.name for one in given.weights}
        self._inputs = {one.name for one in given.inputs}
        self._meaning: dict[str, str] = {}

    def origins(self, ran: Sequence[SessionNode]) -> list[NodeOrigin]:
        # What is laid out as the model wants it bears the model's own name again: that tells what went in.
        back = [node for node in ran if node.op in _BACK and node.inputs and node.outputs and self._added(node)]
        self._meaning = {node.inputs[0]: node.outputs[0] for node in back}
        return [self._origin(node) for node in ran]

    def _added(self, node: SessionNode) -> bool:
        """Whether a node makes a tensor of the model that the model makes in another way."""
        maker, (read, *_), (made, *_) = self._maker.get(node.outputs[0]), node.inputs, node.outputs
        known = read in self._maker or read in self._inputs or read in self._stored
        return maker is not None and not known and self._nodes[maker].op != node.op and made != read

    def _origin(self, node: SessionNode) -> NodeOrigin:
        if not node.outputs:
            return self._by_name(node)
        read = [self._means(name) for name in node.inputs if name]
        made = self._made(node)
        for name, meaning in zip(node.outputs, made, strict=True):
            if meaning is not None:
                self._meaning[name] = meaning
        targets = [name for name in made if name is not None]
        if targets and node.op in _MOVES and targets[0] in read[:1]:
            return NodeOrigin((), None, targets[0], Attribution.EXACT)
        if not targets:
            return _UNKNOWN
        nodes, closed = self._between({name for name in read if name is not None}, targets)
        alone = self._maker.get(targets[0])
        if not closed and alone is not None and self._nodes[alone].op == node.op:
            # It reads a tensor that was put in place of another, whose makers it does not compute again.
            return NodeOrigin((alone,), alone, None, Attribution.ALIGNED)
        main = max(nodes, key=lambda number: (self._nodes[number].op in _PRODUCTS, number), default=None)
        return NodeOrigin(nodes, main, None, Attribution.EXACT if closed else Attribution.ALIGNED)

    def _by_name(self, node: SessionNode) -> NodeOrigin:
        """Of a node whose tensors are not known."""
        blocked = self._maker.get(node.name.removesuffix(_BLOCKED)) if node.name.endswith(_BLOCKED) else None
        replaced = self._replaced(node.name)
        number = blocked if replaced is None else self._nodes.index(replaced)
        if number is None:
            return _UNKNOWN
        # A fusion bears the name of its last node, and the type of the one before it that the work is in.
        before = [self._maker[name] for name in self._nodes[number].inputs if name in self._maker]
        fused = [place for place in before if self._nodes[place].op == node.op != self._nodes[number].op]
        return NodeOrigin((*fused, number), fused[0] if fused else number, None, Attribution.ALIGNED)

    def _means(self, name: str) -> str | None:
        """The tensor of the given model that a tensor holds; None where that is not known."""
        if name in self._maker or name in self._inputs or name in self._stored:
            return name
        return self._meaning.get(name)

    def _made(self, node: SessionNode) -> list[str | None]:
        """What the outputs of a node hold."""
        own = [name if name in self._maker else None for name in node.outputs]
        if all(own) or not own:
            return own
        if node.outputs[0] in self._meaning:
            return [self._meaning[node.outputs[0]], *own[1:]]
        if node.name.endswith(_BLOCKED) and node.name.removesuffix(_BLOCKED) in self._maker:
            return [self._summed(node, node.name.removesuffix(_BLOCKED)), *own[1:]]
        replaced = self._replaced(node.name)
        if replaced is not None and len(replaced.outputs) >= len(own):
            return list(replaced.outputs[: len(own)])
        if node.op in _MOVES and node.inputs and own[0] is None:
            return [self._means(node.inputs[0]), *own[1:]]
        return own

    def _summed(self, node: SessionNode, made: str) -> str:
        """What a convolution leaves that also adds a tensor, its fourth input; else what its name says."""
        added = self._means(node.inputs[_SUM]) if len(node.inputs) > _SUM else None
        sums = (other for other in self._nodes if other.op in {"Add", "Sum"} and made in other.inputs)
        return next((other.outputs[0] for other in sums if added in other.inputs), made)

    def _replaced(self, name: str) -> OnnxNode | None:
        """The node of the same name, or the one whose name a fusion bears before a slash."""
        while name:
            number = self._named.get(name)
            if number is not None:
                return self._nodes[number]
            name = name.rpartition("/")[0]
        return None

    def _between(self, read: set[str], targets: Sequence[str]) -> tuple[tuple[int, ...], bool]:
        """Nodes of the model between tensors, and whether they read nothing else but what is stored."""
        found: set[int] = set()
        waiting, closed = list(targets), True
        while waiting:
            name = waiting.pop()
            maker = self._maker.get(name)
            if (name in read and name not in targets) or name in self._stored or not name:
                continue
            if maker is None:
                closed = False
            elif maker not in found:
                found.add(maker)
                waiting += [other for other in self._nodes[maker].inputs if other not in self._stored]
        return tuple(sorted(found)), closed


def _unique(nodes: Sequence[OnnxNode]) -> Mapping[str, int]:
    """Nodes by name, those whose name another one has left out."""
    found: dict[str, int] = {}
    several: set[str] = set()
    for number, node in enumerate(nodes):
        if node.name in found:
            several.add(node.name)
        found[node.name] = number
    return {name: number for name, number in found.items() if name and name not in several}
