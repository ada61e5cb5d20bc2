"""Find attention in a program by what surrounds its softmax; lines and modules of the model are not used.

An attention is a softmax whose input comes from a product of two computed tensors, and whose output goes to
another product. With ``scaled_dot_product_attention`` ExecuTorch's exporter adds operators there that no
delegate takes: the scale of both factors, and what sets the softmax of a fully masked row to zero
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
    """Return kernels outside of delegates that belong to an attention and to nothing else, by instruction.

    Empty without an attention, and for a plan that was kept without its values.
    """
    flow = _Flow(list(_flow_nodes(plan, graphs)) if plan.values else [])
    parts_by_node: dict[int, AttentionPart] = {}
    around: set[int] = set()
    for number, node in enumerate(flow.nodes):
        if node.operator in _SOFTMAX:
            parts = flow.attention(number)
            around |= parts.keys()
            parts_by_node |= {at: part for at, part in parts.items() if flow.nodes[at].portable}
    exclusive = flow.without_others(parts_by_node, around)
    return {flow.nodes[at].instruction: parts_by_node[at] for at in sorted(exclusive)}


class _Flow:
    """Makers and readers of the values of a method, inside and outside of delegates."""

    def __init__(self, nodes: list[_Node]) -> None:
        self.nodes = nodes
        self._makers = {value: at for at, node in enumerate(nodes) for value in node.outputs}
        self._readers: dict[_Value, list[int]] = {}
        for at, node in enumerate(nodes):
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(at)

    def attention(self, softmax: int) -> dict[int, AttentionPart]:
        """Return the nodes between and around both products of an attention, by number; empty if it is none."""
        below = self._find_reachable([softmax], self._find_readers, self._is_simple)
        second = {at for at in self._find_ends(below, self._find_readers) if self._is_product(at)}
        above = self._find_reachable([softmax], self._find_makers, self._is_simple)
        first = {at for at in self._find_ends(above, self._find_makers) if self._is_product(at)}
        if not first or not second:
            return {}
        weights = {at for product in second for at in self._find_makers(product) if at in below}
        between = (above | self._find_reachable(weights, self._find_makers, self._is_simple)) - {softmax}
        factors = {at for product in (*first, *second) for at in self._find_makers(product)} - between - {softmax}
        beside = self._find_reachable(filter(self._only_moves_data, factors), self._find_makers, self._only_moves_data)
        made = {at for at in factors | self._find_ends(beside, self._find_makers) if self._is_computed_projection(at)}
        cut = {at for projection in made for at in self._find_makers(projection) if self._only_moves_data(at)}
        results = [at for product in second for at in self._find_readers(product)]
        beside |= self._find_reachable(cut, self._find_makers, self._only_moves_data)
        beside |= self._find_reachable(
            filter(self._only_moves_data, results), self._find_readers, self._only_moves_data
        )
        parts = dict.fromkeys(made, AttentionPart.PROJECTING) | dict.fromkeys(beside, AttentionPart.PREPARING)
        masks = {at: AttentionPart.PREPARING if self._only_moves_data(at) else AttentionPart.MASKING for at in between}
        return parts | masks

    def _is_computed_projection(self, number: int) -> bool:
        """Return whether a node is a product outside of delegates with more than one computed factor."""
        node = self.nodes[number]
        return node.portable and node.operator in _PROJECTIONS and len(self._find_makers(number)) > 1

    def without_others(self, candidates: Iterable[int], around: set[int]) -> set[int]:
        """Return the nodes whose values only an attention reads."""
        exclusive = set(candidates)
        while True:
            allowed = exclusive | {at for at in around if not self.nodes[at].portable}
            lost = {
                at
                for at in exclusive
                if any(reader not in allowed and not self._is_computing(reader) for reader in self._find_readers(at))
            }
            if not lost:
                return exclusive
            exclusive -= lost

    def _find_reachable(self, start: Iterable[int], step: _Step, is_allowed: Callable[[int], bool]) -> set[int]:
        """Return the start and everything that is reached from it in one direction through allowed nodes."""
        reached = set(start)
        waiting = list(reached)
        while waiting:
            for at in step(waiting.pop()):
                if at not in reached and is_allowed(at):
                    reached.add(at)
                    waiting.append(at)
        return reached

    def _find_ends(self, reached: set[int], step: _Step) -> set[int]:
        return {at for node in reached for at in step(node) if at not in reached}

    def _find_makers(self, number: int) -> list[int]:
        return [self._makers[value] for value in self.nodes[number].inputs if value in self._makers]

    def _find_readers(self, number: int) -> list[int]:
        return [at for value in self.nodes[number].outputs for at in self._readers.get(value, ())]

    def _is_product(self, number: int) -> bool:
        return self.nodes[number].operator in _PRODUCTS

    def _is_computing(self, number: int) -> bool:
        return self.nodes[number].operator in _COMPUTING

    def _is_simple(self, number: int) -> bool:
        return not self._is_computing(number)

    def _only_moves_data(self, number: int) -> bool:
        return self.nodes[number].operator in _MOVING or self.nodes[number].scaling


def _flow_nodes(plan: MethodPlan, graphs: Mapping[int, XnnGraph]) -> Iterator[_Node]:
    for number, step in enumerate(plan.chains[0].steps if plan.chains else ()):
        graph = graphs.get(step.target) if step.kind is InstructionKind.DELEGATE else None
        if step.kind is InstructionKind.KERNEL:
            yield _kernel_node(plan, number, step)
        elif graph is not None:
            yield from _delegate_nodes(graph, number, step)


def _kernel_node(plan: MethodPlan, number: int, step: PlannedStep) -> _Node:
    operator_name, last = plan.called(step), step.arguments[-1] if step.arguments else -1
    value = plan.values[last] if last >= 0 else None
    made = tuple(at for at in value.members if at >= 0) if isinstance(value, ValueList) else (last,)
    read = tuple(at for at in plan.tensors(step) if at not in made)
    scaling = operator_name.rpartition("::")[2].removesuffix("_out") in _SCALING
    return _Node(number, aten_operator(operator_name), read, made, portable=True, scaling=scaling)


def _delegate_nodes(graph: XnnGraph, number: int, step: PlannedStep) -> Iterator[_Node]:
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
