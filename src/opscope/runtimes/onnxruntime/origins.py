"""Trace the graph that a session ran back to the original model: find which of its nodes each session node computes.

ONNX Runtime fuses nodes, renames them and their tensors, and adds nodes that change layouts. What remains are
tensors: most have their original names, some names that the pass made, and what a node writes follows from what
it reads and from who reads it. A session node computes the original nodes between the tensors that it reads and
writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.grouping import grouped
from opscope.program.operators.kinds import Attribution
from opscope.program.origin import NodeOrigin
from opscope.runtimes.onnxruntime.given import GivenTensors
from opscope.runtimes.onnxruntime.passes import (
    BLOCKED,
    BLOCKED_NAME,
    CARRIERS,
    CONTROL,
    MOVERS,
    OF_MANY,
    PRODUCTS,
    family,
    names_before,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from opscope.runtimes.onnxruntime.graph import SessionNode
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph

_SUM = 3
"""Position of the tensor that a convolution adds, among its inputs."""
_MOST_ROUNDS = 12
"""Largest number of rounds over a graph; each passes what is known of a tensor on to its neighbours."""


_UNKNOWN = NodeOrigin((), None, Attribution.NAME)


def _input_dependent_tensors(model_graph: OnnxGraph, ran: Sequence[SessionNode]) -> set[str]:
    """Return the tensors that depend on an input: a pass may add nodes that only read stored tensors."""
    made = {name for node in ran for name in node.outputs if name}
    known = {name for node in model_graph.nodes for name in node.outputs} | {value.name for value in model_graph.inputs}
    for node in ran:
        if not node.graphs and not any(name in made or name in known for name in node.inputs):
            made -= set(node.outputs) - known
    return made


class SessionOrigins:
    """The origins of a session's nodes and tensors.

    ``holds`` maps a tensor to the tensor of the original model with the same values, in any layout and number type.
    """

    def __init__(self, model_graph: OnnxGraph, ran: Sequence[SessionNode]) -> None:
        self._given, self._nodes, self._ran = GivenTensors(model_graph), model_graph.nodes, ran
        self._made = _input_dependent_tensors(model_graph, ran)
        self._readers = grouped([(name, node) for node in ran for name in node.inputs if name], lambda pair: pair[0])
        self.holds: dict[str, str] = {}
        for name in dict.fromkeys(name for node in ran for name in (*node.inputs, *node.outputs) if name):
            known = next(
                (previous_name for previous_name in names_before(name) if self._given.has(previous_name)), None
            )
            if known is not None:
                self.holds[name] = known
        self.nodes = self._find_origins()

    def _find_origins(self) -> list[NodeOrigin]:
        """Find the origin of each node. Products without known tensors are matched by order, if their numbers agree."""
        for number in range(_MOST_ROUNDS):
            order = reversed(self._ran) if number % 2 else self._ran
            if not sum([self._infer_tensors(node) for node in order]) and number:
                break
        origins = [self._find_origin(node) for node in self._ran]
        for positions in self._group_connected_nodes():
            self._attribute_group(origins, positions)
        return self._match_remaining_products(origins)

    def _group_connected_nodes(self) -> list[list[int]]:
        """Return groups of nodes, by position, that exchange tensors which the original model does not have."""
        group = list(range(len(self._ran)))

        def first(position: int) -> int:
            while group[position] != position:
                group[position] = group[group[position]]
                position = group[position]
            return position

        makers = {name: position for position, node in enumerate(self._ran) for name in node.outputs if name}
        for position, node in enumerate(self._ran):
            for name in node.inputs:
                if name in makers and name not in self.holds:
                    group[first(position)] = first(makers[name])
        return [positions for positions in grouped(range(len(group)), first).values() if len(positions) > 1]

    def _attribute_group(self, origins: list[NodeOrigin], positions: Sequence[int]) -> None:
        """Attribute nodes that together compute one node of the model, as those of an ONNX function do."""
        nodes = [self._ran[position] for position in positions]
        read = [self.holds[name] for node in nodes for name in node.inputs if name in self.holds]
        made = [self.holds[name] for node in nodes for name in node.outputs if name in self.holds]
        made = [name for name in made if self._given.same(name) not in {self._given.same(tensor) for tensor in read}]
        numbers, unneeded = self._given.between(read, made) if made else ((), None)
        if unneeded is None or not numbers:
            return
        main = [number for number in numbers if self._nodes[number].op not in CARRIERS]
        product = any(family(self._nodes[number].op) in PRODUCTS for number in main)
        for position in positions:
            if origins[position].attribution is Attribution.EXACT:
                continue
            of_kind = [number for number in main if family(self._nodes[number].op) == family(self._ran[position].op)]
            if len(main) == 1 and not product:
                origins[position] = NodeOrigin((main[0],), main[0], Attribution.EXACT)
            elif len(of_kind) == 1:
                origins[position] = NodeOrigin((of_kind[0],), of_kind[0], Attribution.ALIGNED)
            elif not product:
                origins[position] = NodeOrigin(numbers, numbers[-1], Attribution.ALIGNED)

    def _infer_tensors(self, node: SessionNode) -> bool:
        """Infer tensors of a node from its other tensors; return whether anything was new."""
        before = len(self.holds)
        if any(name and name not in self.holds for name in node.outputs):
            for name, meaning in zip(node.outputs, self._infer_outputs(node), strict=False):
                if name and meaning:
                    self.holds.setdefault(name, meaning)
        if node.outputs and node.outputs[0] in self.holds:
            for name, meaning in self._infer_inputs(node):
                self.holds.setdefault(name, meaning)
        return len(self.holds) != before

    def _infer_outputs(self, node: SessionNode) -> Sequence[str]:
        """Infer what a node writes from readers that change its layout, from its name, or from what it reads."""
        for _, reader in self._readers.get(node.outputs[0], []):
            laid_out = self.holds.get(reader.outputs[0]) if reader.outputs else None
            if laid_out and reader.op in MOVERS and self._is_added(reader, laid_out):
                return (laid_out,)
        if node.name.endswith(BLOCKED_NAME):
            made = node.name.removesuffix(BLOCKED_NAME)
            if self._given.has(made):
                return (self._last_fused_tensor(node, made),)
        number = self._find_namesake(node)
        if number is None and node.op not in MOVERS:
            number = self._find_by_inputs(node)
        if number is not None:
            outputs = self._nodes[number].outputs
            return (self._last_fused_tensor(node, outputs[0]), *outputs[1:])
        if node.op in MOVERS and node.inputs:
            return (self.holds.get(node.inputs[0], ""),)
        return ()

    def _find_namesake(self, node: SessionNode) -> int | None:
        """Return the original node of a node's name, or of the name that a pass made it from."""
        for name in names_before(node.name):
            number = self._given.named(name)
            if number is not None:
                return number if family(self._nodes[number].op) == family(node.op) else None
        fused = node.name.rstrip("/").rpartition("/")[0]
        return self._given.named(fused) if fused and node.name.endswith("/") else None

    def _find_by_inputs(self, node: SessionNode) -> int | None:
        """Return the only original node of the same kind with the same inputs; None if there are several or none."""
        read = [self.holds.get(name) for name in self._dynamic_inputs(node)]
        if not read or None in read:
            return None
        tensors = {self._given.same(name) for name in read if name}
        candidates = self._given.readers_alike(tensors, family(node.op))
        if len(candidates) > 1:
            stored = set(node.inputs)
            candidates = [
                number for number in candidates if stored & set(self._given.stored_inputs(number))
            ] or candidates
        if len(candidates) > 1:
            known = {self._given.same(name) for name in self.holds.values()}
            candidates = [
                number for number in candidates if self._given.same(self._nodes[number].outputs[0]) not in known
            ]
        return candidates[0] if len(candidates) == 1 else None

    def _last_fused_tensor(self, node: SessionNode, made: str) -> str:
        """Return the tensor after all nodes that are fused into a node, which is the one that its readers expect."""
        chain = self._given.chain(made)
        if len(node.inputs) > _SUM and node.op == "Conv":
            chain = self._chain_from_ops(chain[1:], {"Add", "Sum"}) or chain
        if node.activation is not None and node.domain == BLOCKED:
            return ((self._chain_from_ops(chain, {node.activation}) if node.activation else []) or chain)[0]
        if len(chain) > 1:
            for reader in self._find_readers(node.outputs[0]):
                kind = family(reader.op)
                for name in chain:
                    if any(family(self._nodes[number].op) == kind for number in self._given.readers(name)):
                        return name
        return chain[0]

    def _chain_from_ops(self, chain: list[str], ops: Collection[str]) -> list[str]:
        """Return a chain of tensors from the first one on that a node of these types makes."""
        starts = [position for position, name in enumerate(chain) if self._given.maker_op(name) in ops]
        return chain[starts[0] :] if starts else []

    def _find_readers(self, name: str, depth: int = 0) -> Iterator[SessionNode]:
        """Yield the nodes that read a tensor, looking through nodes that only change its layout."""
        for _, node in self._readers.get(name, []):
            if node.op in MOVERS and depth < _SUM and node.outputs[0] not in self.holds:
                yield from self._find_readers(node.outputs[0], depth + 1)
            elif node.op not in MOVERS:
                yield node

    def _infer_inputs(self, node: SessionNode) -> Iterator[tuple[str, str]]:
        """Infer what a node reads from what it writes."""
        made = self.holds[node.outputs[0]]
        if node.op in MOVERS:
            if node.inputs[0] not in self.holds and self._is_added(node, made):
                yield node.inputs[0], made
            return
        tensor_name = node.name.removesuffix(BLOCKED_NAME)
        blocked = tensor_name != node.name and self._given.has(tensor_name)
        number = self._given.before(tensor_name if blocked else made, family(node.op))
        if number is None:
            return
        computed_inputs = self._dynamic_inputs(node)
        original_inputs = self._given.dynamic_inputs(number)
        if len(computed_inputs) > len(original_inputs):
            computed_inputs = computed_inputs[: len(original_inputs)] if len(node.inputs) > _SUM else []
        if len(computed_inputs) == len(original_inputs):
            yield from (
                (name, original)
                for name, original in zip(computed_inputs, original_inputs, strict=True)
                if name not in self.holds
            )

    def _is_added(self, node: SessionNode, made: str) -> bool:
        """Return whether a node that changes a layout was added by the session."""
        number = self._given.maker(made)
        maker = None if number is None else self._nodes[number]
        return maker is None or maker.op != node.op or maker.name not in {*names_before(node.name), ""}

    def _dynamic_inputs(self, node: SessionNode) -> list[str]:
        """Return the tensors that a node reads and that depend on an input of the model."""
        return [
            name
            for name in node.inputs
            if name in self._made or (self._given.has(name) and not self._given.is_stored(name))
        ]

    def _find_origin(self, node: SessionNode) -> NodeOrigin:
        if not node.outputs:
            return self._origin_by_name(node)
        targets = [self.holds[name] for name in node.outputs if name in self.holds]
        if not targets:
            return _UNKNOWN
        read = [self.holds[name] for name in node.inputs if name in self.holds]
        if node.op in MOVERS and read and self._given.same(read[0]) == self._given.same(targets[0]):
            maker = self._given.maker(node.outputs[0])
            if maker is not None and self._nodes[maker].op == node.op:
                return NodeOrigin((maker,), maker, Attribution.EXACT)
            return NodeOrigin((), None, Attribution.EXACT, targets[0])
        nodes, unneeded = self._given.between(read, targets)
        known_inputs = {self.holds.get(name, "") for name in self._dynamic_inputs(node)}
        needless = {name for name in unneeded or () if not self._given.is_stored(name)} & known_inputs
        closed = unneeded is not None and "" not in known_inputs and not needless
        return self._origin_of_nodes(node, nodes, targets[0], closed=closed)

    def _origin_of_nodes(self, node: SessionNode, nodes: tuple[int, ...], made: str, *, closed: bool) -> NodeOrigin:
        """Return a node's origin, given the original nodes before its output.

        Those that it cannot compute are left out.
        """
        kind = family(node.op)
        products = [number for number in nodes if family(self._nodes[number].op) in PRODUCTS]
        fits = len(products) == 1 if kind in PRODUCTS else not products
        is_function = any(self._nodes[number].domain not in {"", "com.microsoft"} for number in nodes)
        if closed and nodes and (fits or kind in OF_MANY or is_function):
            main = products[-1] if products else self._main_node(nodes, kind)
            return NodeOrigin(nodes, main, Attribution.EXACT)
        maker = self._given.maker(made)
        if maker is not None and family(self._nodes[maker].op) == kind:
            # It reads a tensor that was put in place of another, whose makers it does not compute again.
            return NodeOrigin((maker,), maker, Attribution.ALIGNED)
        before = self._given.before(made, kind)
        return _UNKNOWN if before is None else NodeOrigin((before,), before, Attribution.ALIGNED)

    def _main_node(self, nodes: tuple[int, ...], kind: str) -> int:
        """Return the original node that stands for several: the last of the same kind, else the last."""
        return max(nodes, key=lambda number: (family(self._nodes[number].op) == kind, number))

    def _origin_by_name(self, node: SessionNode) -> NodeOrigin:
        """Return the origin of a node whose tensors are unknown, by its name."""
        number = self._given.maker(node.name.removesuffix(BLOCKED_NAME)) if node.name.endswith(BLOCKED_NAME) else None
        name = node.name
        while number is None and name:
            number, name = self._given.named(name), name.rpartition("/")[0]
        if number is None:
            return _UNKNOWN
        # A fusion bears the name of its last node, and the type of the one before it that the work is in.
        before = [self._given.maker(name) for name in self._nodes[number].inputs]
        fused = [
            number_
            for number_ in before
            if number_ is not None and self._nodes[number_].op == node.op != self._nodes[number].op
        ]
        return NodeOrigin((*fused, number), fused[0] if fused else number, Attribution.ALIGNED)

    def _match_remaining_products(self, origins: list[NodeOrigin]) -> list[NodeOrigin]:
        """Match the remaining products in order, if equally many of a kind remain on both sides."""
        taken = {number for origin in origins for number in origin.nodes}
        unmatched = grouped(
            [position for position, origin in enumerate(origins) if origin.attribution is Attribution.NAME],
            lambda position: family(self._ran[position].op),
        )
        for kind, positions in unmatched.items():
            free = [
                number
                for number, node in enumerate(self._nodes)
                if family(node.op) == kind and number not in taken and not self._given.is_stored(node.outputs[0])
            ]
            if kind in PRODUCTS | CONTROL and len(free) == len(positions):
                for position, number in zip(positions, free, strict=True):
                    origins[position] = NodeOrigin((number,), number, Attribution.ALIGNED)
        return origins
