"""From the graph that a session ran back to the model as it was given: which of its nodes each node of it computes.

ONNX Runtime fuses nodes, renames them and their tensors, and adds nodes that lay data out anew. What remains are
tensors: most are called as before, some by the pass that made them, and what a node leaves follows from what it reads
and from who reads it. The nodes of the model between the tensors that a node reads and those that it leaves are what
it computes.
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
"""Place of the tensor that a convolution adds, among its inputs."""
_MOST_ROUNDS = 12
"""Rounds over a graph: each carries what is known of a tensor on to its neighbours."""


_UNKNOWN = NodeOrigin((), None, Attribution.NAME)


def _computed(given: OnnxGraph, ran: Sequence[SessionNode]) -> set[str]:
    """Tensors that nodes leave and that follow from an input: a pass may add nodes that only read what is stored."""
    made = {name for node in ran for name in node.outputs if name}
    known = {name for node in given.nodes for name in node.outputs} | {one.name for one in given.inputs}
    for node in ran:
        if not node.graphs and not any(name in made or name in known for name in node.inputs):
            made -= set(node.outputs) - known
    return made


class SessionOrigins:
    """Where a session's graph comes from.

    ``holds`` tells which tensor of the given model a tensor holds, in whatever layout and type of number.
    """

    def __init__(self, given: OnnxGraph, ran: Sequence[SessionNode]) -> None:
        self._given, self._nodes, self._ran = GivenTensors(given), given.nodes, ran
        self._made = _computed(given, ran)
        self._readers = grouped([(name, node) for node in ran for name in node.inputs if name], lambda one: one[0])
        self.holds: dict[str, str] = {}
        for name in dict.fromkeys(name for node in ran for name in (*node.inputs, *node.outputs) if name):
            known = next((one for one in names_before(name) if self._given.has(one)), None)
            if known is not None:
                self.holds[name] = known
        self.nodes = self._origins()

    def _origins(self) -> list[NodeOrigin]:
        """Of each node; products that no tensors tell are those that are left, where they are as many."""
        for number in range(_MOST_ROUNDS):
            order = reversed(self._ran) if number % 2 else self._ran
            if not sum([self._learn(node) for node in order]) and number:
                break
        origins = [self._origin(node) for node in self._ran]
        for places in self._joined():
            self._judge_together(origins, places)
        return self._aligned(origins)

    def _joined(self) -> list[list[int]]:
        """Nodes that pass tensors to each other which are none of the model, by their places."""
        group = list(range(len(self._ran)))

        def first(place: int) -> int:
            while group[place] != place:
                group[place] = group[group[place]]
                place = group[place]
            return place

        makers = {name: place for place, node in enumerate(self._ran) for name in node.outputs if name}
        for place, node in enumerate(self._ran):
            for name in node.inputs:
                if name in makers and name not in self.holds:
                    group[first(place)] = first(makers[name])
        return [places for places in grouped(range(len(group)), first).values() if len(places) > 1]

    def _judge_together(self, origins: list[NodeOrigin], places: Sequence[int]) -> None:
        """Nodes that together compute a node of the model, as those of the function that defines its operator."""
        nodes = [self._ran[place] for place in places]
        read = [self.holds[name] for node in nodes for name in node.inputs if name in self.holds]
        made = [self.holds[name] for node in nodes for name in node.outputs if name in self.holds]
        made = [name for name in made if self._given.same(name) not in {self._given.same(one) for one in read}]
        whole, left = self._given.between(read, made) if made else ((), None)
        if left is None or not whole:
            return
        main = [number for number in whole if self._nodes[number].op not in CARRIERS]
        product = any(family(self._nodes[number].op) in PRODUCTS for number in main)
        for place in places:
            if origins[place].attribution is Attribution.EXACT:
                continue
            of_kind = [number for number in main if family(self._nodes[number].op) == family(self._ran[place].op)]
            if len(main) == 1 and not product:
                origins[place] = NodeOrigin((main[0],), main[0], Attribution.EXACT)
            elif len(of_kind) == 1:
                origins[place] = NodeOrigin((of_kind[0],), of_kind[0], Attribution.ALIGNED)
            elif not product:
                origins[place] = NodeOrigin(whole, whole[-1], Attribution.ALIGNED)

    def _learn(self, node: SessionNode) -> bool:
        """Carry on what is known of a node's tensors; whether anything was new."""
        before = len(self.holds)
        if any(name and name not in self.holds for name in node.outputs):
            for name, meaning in zip(node.outputs, self._left(node), strict=False):
                if name and meaning:
                    self.holds.setdefault(name, meaning)
        if node.outputs and node.outputs[0] in self.holds:
            for name, meaning in self._needed(node):
                self.holds.setdefault(name, meaning)
        return len(self.holds) != before

    def _left(self, node: SessionNode) -> Sequence[str]:
        """What a node leaves, as far as who lays it out anew, its name, or what it reads tells."""
        for _, reader in self._readers.get(node.outputs[0], []):
            laid_out = self.holds.get(reader.outputs[0]) if reader.outputs else None
            if laid_out and reader.op in MOVERS and self._added(reader, laid_out):
                return (laid_out,)
        if node.name.endswith(BLOCKED_NAME):
            made = node.name.removesuffix(BLOCKED_NAME)
            if self._given.has(made):
                return (self._behind(node, made),)
        number = self._namesake(node)
        if number is None and node.op not in MOVERS:
            number = self._alike(node)
        if number is not None:
            outputs = self._nodes[number].outputs
            return (self._behind(node, outputs[0]), *outputs[1:])
        if node.op in MOVERS and node.inputs:
            return (self.holds.get(node.inputs[0], ""),)
        return ()

    def _namesake(self, node: SessionNode) -> int | None:
        """The given node of the name that a node has, or that its name was made from."""
        for name in names_before(node.name):
            number = self._given.named(name)
            if number is not None:
                return number if family(self._nodes[number].op) == family(node.op) else None
        fused = node.name.rstrip("/").rpartition("/")[0]
        return self._given.named(fused) if fused and node.name.endswith("/") else None

    def _alike(self, node: SessionNode) -> int | None:
        """The only given node of a kind that reads what a node reads."""
        read = [self.holds.get(name) for name in self._dynamic(node)]
        if not read or None in read:
            return None
        wanted = {self._given.same(name) for name in read if name}
        alike = self._given.readers_alike(wanted, family(node.op))
        if len(alike) > 1:
            stored = set(node.inputs)
            alike = [number for number in alike if stored & set(self._given.stored_inputs(number))] or alike
        if len(alike) > 1:
            known = {self._given.same(name) for name in self.holds.values()}
            alike = [number for number in alike if self._given.same(self._nodes[number].outputs[0]) not in known]
        return alike[0] if len(alike) == 1 else None

    def _behind(self, node: SessionNode, made: str) -> str:
        """The tensor behind all that is fused into a node: the one that its readers want."""
        chain = self._given.chain(made)
        if len(node.inputs) > _SUM and node.op == "Conv":
            chain = self._from(chain[1:], {"Add", "Sum"}) or chain
        if node.activation is not None and node.domain == BLOCKED:
            return ((self._from(chain, {node.activation}) if node.activation else []) or chain)[0]
        if len(chain) > 1:
            for reader in self._reading(node.outputs[0]):
                wanted = family(reader.op)
                for name in chain:
                    if any(family(self._nodes[number].op) == wanted for number in self._given.readers(name)):
                        return name
        return chain[0]

    def _from(self, chain: list[str], ops: Collection[str]) -> list[str]:
        """A chain from the first tensor on that a node of some types leaves."""
        places = [place for place, name in enumerate(chain) if self._given.maker_op(name) in ops]
        return chain[places[0] :] if places else []

    def _reading(self, name: str, depth: int = 0) -> Iterator[SessionNode]:
        """Nodes that read a tensor, also behind those that only lay it out anew."""
        for _, node in self._readers.get(name, []):
            if node.op in MOVERS and depth < _SUM and node.outputs[0] not in self.holds:
                yield from self._reading(node.outputs[0], depth + 1)
            elif node.op not in MOVERS:
                yield node

    def _needed(self, node: SessionNode) -> Iterator[tuple[str, str]]:
        """What a node reads, as what it leaves tells it."""
        made = self.holds[node.outputs[0]]
        if node.op in MOVERS:
            if node.inputs[0] not in self.holds and self._added(node, made):
                yield node.inputs[0], made
            return
        named = node.name.removesuffix(BLOCKED_NAME)
        blocked = named != node.name and self._given.has(named)
        number = self._given.before(named if blocked else made, family(node.op))
        if number is None:
            return
        own = self._dynamic(node)
        wanted = self._given.dynamic_inputs(number)
        if len(own) > len(wanted):
            own = own[: len(wanted)] if len(node.inputs) > _SUM else []
        if len(own) == len(wanted):
            yield from ((name, want) for name, want in zip(own, wanted, strict=True) if name not in self.holds)

    def _added(self, node: SessionNode, made: str) -> bool:
        """Whether a node that lays a tensor out anew is none of the model."""
        number = self._given.maker(made)
        maker = None if number is None else self._nodes[number]
        return maker is None or maker.op != node.op or maker.name not in {*names_before(node.name), ""}

    def _dynamic(self, node: SessionNode) -> list[str]:
        """Tensors that a node reads and that are computed, or given by a caller."""
        return [
            name
            for name in node.inputs
            if name in self._made or (self._given.has(name) and not self._given.is_stored(name))
        ]

    def _origin(self, node: SessionNode) -> NodeOrigin:
        if not node.outputs:
            return self._by_name(node)
        targets = [self.holds[name] for name in node.outputs if name in self.holds]
        if not targets:
            return _UNKNOWN
        read = [self.holds[name] for name in node.inputs if name in self.holds]
        if node.op in MOVERS and read and self._given.same(read[0]) == self._given.same(targets[0]):
            maker = self._given.maker(node.outputs[0])
            if maker is not None and self._nodes[maker].op == node.op:
                return NodeOrigin((maker,), maker, Attribution.EXACT)
            return NodeOrigin((), None, Attribution.EXACT, targets[0])
        nodes, left = self._given.between(read, targets)
        wanted = {self.holds.get(name, "") for name in self._dynamic(node)}
        needless = {name for name in left or () if not self._given.is_stored(name)} & wanted
        closed = left is not None and "" not in wanted and not needless
        return self._judged(node, nodes, targets[0], closed=closed)

    def _judged(self, node: SessionNode, nodes: tuple[int, ...], made: str, *, closed: bool) -> NodeOrigin:
        """A node with those that it computes; without those that it cannot compute, by its type."""
        kind = family(node.op)
        products = [number for number in nodes if family(self._nodes[number].op) in PRODUCTS]
        fits = len(products) == 1 if kind in PRODUCTS else not products
        whole = any(self._nodes[number].domain not in {"", "com.microsoft"} for number in nodes)
        if closed and nodes and (fits or kind in OF_MANY or whole):
            main = products[-1] if products else self._last(nodes, kind)
            return NodeOrigin(nodes, main, Attribution.EXACT)
        alone = self._given.maker(made)
        if alone is not None and family(self._nodes[alone].op) == kind:
            # It reads a tensor that was put in place of another, whose makers it does not compute again.
            return NodeOrigin((alone,), alone, Attribution.ALIGNED)
        before = self._given.before(made, kind)
        return _UNKNOWN if before is None else NodeOrigin((before,), before, Attribution.ALIGNED)

    def _last(self, nodes: tuple[int, ...], kind: str) -> int:
        """The node that is named for all: the last one of the same kind, else the last."""
        return max(nodes, key=lambda number: (family(self._nodes[number].op) == kind, number))

    def _by_name(self, node: SessionNode) -> NodeOrigin:
        """Of a node whose tensors are not known."""
        number = self._given.maker(node.name.removesuffix(BLOCKED_NAME)) if node.name.endswith(BLOCKED_NAME) else None
        name = node.name
        while number is None and name:
            number, name = self._given.named(name), name.rpartition("/")[0]
        if number is None:
            return _UNKNOWN
        # A fusion bears the name of its last node, and the type of the one before it that the work is in.
        before = [self._given.maker(name) for name in self._nodes[number].inputs]
        fused = [
            place
            for place in before
            if place is not None and self._nodes[place].op == node.op != self._nodes[number].op
        ]
        return NodeOrigin((*fused, number), fused[0] if fused else number, Attribution.ALIGNED)

    def _aligned(self, origins: list[NodeOrigin]) -> list[NodeOrigin]:
        """Products that are left, by their order, where as many of a kind are left on both sides."""
        taken = {number for one in origins for number in one.nodes}
        left = grouped(
            [place for place, one in enumerate(origins) if one.attribution is Attribution.NAME],
            lambda place: family(self._ran[place].op),
        )
        for kind, places in left.items():
            free = [
                number
                for number, node in enumerate(self._nodes)
                if family(node.op) == kind and number not in taken and not self._given.is_stored(node.outputs[0])
            ]
            if kind in PRODUCTS | CONTROL and len(free) == len(places):
                for place, number in zip(places, free, strict=True):
                    origins[place] = NodeOrigin((number,), number, Attribution.ALIGNED)
        return origins
