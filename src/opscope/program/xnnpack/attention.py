"""Attention in a program, found by what surrounds its softmax: the lines and modules of the model are not asked.

An attention is a softmax whose input comes from a product of two computed tensors, and whose output goes to another
product. With ``scaled_dot_product_attention`` ExecuTorch's exporter adds operators there that no delegate takes: the
scale of both factors, and what makes the softmax of a row that is masked as a whole zero
(torch/_decomp/decompositions.py, ``_safe_softmax``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.operators.kinds import AttentionPart
from opscope.program.operators.taxonomy import aten_operator
from opscope.program.structure.plan import InstructionKind, ValueList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.graph import XnnGraph

    _Value: TypeAlias = "int | tuple[int, int]"  # of the plan, or instruction and number inside of a delegate

_SOFTMAX = frozenset({"Softmax", "softmax"})
_PRODUCTS = frozenset({"BatchMatrixMultiply", "bmm", "matmul"})
_COMPUTING = (
    _SOFTMAX
    | _PRODUCTS
    | frozenset("FullyConnected Conv2d DepthwiseConv2d ConvTranspose2d linear addmm mm convolution embedding".split())
    | frozenset({"native_layer_norm", "rms_norm", "mean", "unknown"})
)
_MOVING = frozenset(
    "StaticReshape StaticTranspose StaticSlice Copy Convert clone clone_dim_order to_dim_order expand permute "
    "repeat reshape select slice split split_with_sizes squeeze t transpose unbind unsqueeze view".split()
)
_PROJECTIONS = frozenset({"addmm", "linear", "mm"})
_SCALING = frozenset({"mul.Scalar", "Multiply", "Div"})


class _Node(NamedTuple):
    """A kernel, or a node of a delegate's graph."""

    instruction: int
    operator: str
    inputs: tuple[_Value, ...]
    outputs: tuple[_Value, ...]
    portable: bool
    scaling: bool  # by a number, or by a constant tensor


def attention_parts(plan: MethodPlan, graphs: Mapping[int, XnnGraph]) -> dict[int, AttentionPart]:
    """Kernels outside of delegates that belong to an attention and to nothing else, by instruction.

    Empty without an attention, and for a plan that was kept without its values.
    """
    flow = _Flow(list(_nodes(plan, graphs)) if plan.values else [])
    found: dict[int, AttentionPart] = {}
    around: set[int] = set()
    for number, node in enumerate(flow.nodes):
        if node.operator in _SOFTMAX:
            parts = flow.attention(number)
            around |= parts.keys()
            found |= {at: part for at, part in parts.items() if flow.nodes[at].portable}
    kept = flow.without_others(found, around)
    return {flow.nodes[at].instruction: found[at] for at in sorted(kept)}


class _Flow:
    """Who makes and who reads the values of a method, inside of delegates and outside."""

    def __init__(self, nodes: list[_Node]) -> None:
        self.nodes = nodes
        self._makers = {value: at for at, node in enumerate(nodes) for value in node.outputs}
        self._readers: dict[_Value, list[int]] = {}
        for at, node in enumerate(nodes):
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(at)

    def attention(self, softmax: int) -> dict[int, AttentionPart]:
        """What stands between both products of an attention, and around them; nothing where it is none."""
        below = self._reach([softmax], self._after, self._is_simple)
        second = {at for at in self._ends(below, self._after) if self._is_product(at)}
        above = self._reach([softmax], self._before, self._is_simple)
        first = {at for at in self._ends(above, self._before) if self._is_product(at)}
        if not first or not second:
            return {}
        weights = {at for product in second for at in self._before(product) if at in below}
        between = (above | self._reach(weights, self._before, self._is_simple)) - {softmax}
        factors = {at for product in (*first, *second) for at in self._before(product)} - between - {softmax}
        beside = self._reach(filter(self._moves, factors), self._before, self._moves)
        made = {at for at in factors | self._ends(beside, self._before) if self._cuts_weights(at)}
        cut = {at for projection in made for at in self._before(projection) if self._moves(at)}
        results = [at for product in second for at in self._after(product)]
        beside |= self._reach(cut, self._before, self._moves)
        beside |= self._reach(filter(self._moves, results), self._after, self._moves)
        parts = dict.fromkeys(made, AttentionPart.PROJECTING) | dict.fromkeys(beside, AttentionPart.PREPARING)
        masks = {at: AttentionPart.PREPARING if self._moves(at) else AttentionPart.MASKING for at in between}
        return parts | masks

    def _cuts_weights(self, number: int) -> bool:
        """Whether it is a product outside of delegates of which more than one factor is computed."""
        node = self.nodes[number]
        return node.portable and node.operator in _PROJECTIONS and len(self._before(number)) > 1

    def without_others(self, wanted: Iterable[int], around: set[int]) -> set[int]:
        """Those whose values nothing reads but what belongs to an attention."""
        kept = set(wanted)
        while True:
            own = kept | {at for at in around if not self.nodes[at].portable}
            lost = {
                at
                for at in kept
                if any(reader not in own and not self._is_computing(reader) for reader in self._after(at))
            }
            if not lost:
                return kept
            kept -= lost

    def _reach(self, start: Iterable[int], step: _Step, wanted: Callable[[int], bool]) -> set[int]:
        """Everything that is reached in one direction through wanted nodes, the start with it."""
        found = set(start)
        waiting = list(found)
        while waiting:
            for at in step(waiting.pop()):
                if at not in found and wanted(at):
                    found.add(at)
                    waiting.append(at)
        return found

    def _ends(self, reached: set[int], step: _Step) -> set[int]:
        return {at for inside in reached for at in step(inside) if at not in reached}

    def _before(self, number: int) -> list[int]:
        return [self._makers[value] for value in self.nodes[number].inputs if value in self._makers]

    def _after(self, number: int) -> list[int]:
        return [at for value in self.nodes[number].outputs for at in self._readers.get(value, ())]

    def _is_product(self, number: int) -> bool:
        return self.nodes[number].operator in _PRODUCTS

    def _is_computing(self, number: int) -> bool:
        return self.nodes[number].operator in _COMPUTING

    def _is_simple(self, number: int) -> bool:
        return not self._is_computing(number)

    def _moves(self, number: int) -> bool:
        return self.nodes[number].operator in _MOVING or self.nodes[number].scaling


def _nodes(plan: MethodPlan, graphs: Mapping[int, XnnGraph]) -> Iterator[_Node]:
    for number, step in enumerate(plan.chains[0].steps if plan.chains else ()):
        graph = graphs.get(step.target) if step.kind is InstructionKind.DELEGATE else None
        if step.kind is InstructionKind.KERNEL:
            yield _kernel(plan, number, step)
        elif graph is not None:
            yield from _inside(graph, number, step)


def _kernel(plan: MethodPlan, number: int, step: PlannedStep) -> _Node:
    called, last = plan.called(step), step.arguments[-1] if step.arguments else -1
    value = plan.values[last] if last >= 0 else None
    made = tuple(at for at in value.members if at >= 0) if isinstance(value, ValueList) else (last,)
    read = tuple(at for at in plan.tensors(step) if at not in made)
    scaling = called.rpartition("::")[2].removesuffix("_out") in _SCALING
    return _Node(number, aten_operator(called), read, made, portable=True, scaling=scaling)


def _inside(graph: XnnGraph, number: int, step: PlannedStep) -> Iterator[_Node]:
    passed: dict[int, _Value] = dict(zip(graph.arguments(), step.arguments, strict=False))
    constant = {value.id for value in graph.values if value.is_constant}
    for node in graph.nodes:
        read, made = (
            tuple(passed.get(value, (number, value)) for value in side if value not in constant)
            for side in (node.inputs, node.outputs)
        )
        scaling = node.kind in _SCALING and len(read) == 1
        yield _Node(number, node.kind, read, made, portable=False, scaling=scaling)


if TYPE_CHECKING:
    _Step: TypeAlias = Callable[[int], Iterable[int]]
