"""Compute what an operator must cost: multiply-accumulates, operations and the least bytes it can move.

The numbers follow from shapes and number types alone, so they hold on every machine. Bytes are a lower bound:
each tensor that enters or leaves the operator counts once. Formulas: ``docs/concepts/cost-model.md``.

Each portable ATen operator has a rule for its arithmetic. Positions of arguments are those of ATen's schemas.
Images are N, C, H, W; the filter of a convolution is [OC, IC / groups, KH, KW], of a transposed one [IC, OC /
groups, KH, KW].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.call import OperatorCall
from opscope.program.cost.dimensions import NotKnownError, at_least, elements, replaced
from opscope.program.cost.node_cost import GraphTraffic, activation_operations, node_arithmetic, stored_bytes
from opscope.program.cost.operator_cost import (
    BILINEAR,
    NORMALISATION,
    NOTHING,
    SOFTMAX,
    VARIANCE,
    Arithmetic,
    Cost,
    operations,
)
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify
from opscope.program.structure.plan import InstructionKind
from opscope.program.xnnpack.subgraph import SEPARATE_ACTIVATION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.program.cost.dimensions import Shape
    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.graph import XnnGraph


_MATRIX = 2
_IMAGE = 3  # channels, and at least one dimension of an image
_TRANSPOSED = 6

# Operators that gather rows, and where their indices stand.
EMBEDDINGS = {"embedding": 1, "embedding_byte": 5, "embedding_4bit": 5, "embedding_2bit": 5}
COLLECT = "et_copy_index"  # lays the result of one trip of a loop into a tensor
_MOVEMENTS = frozenset({*EMBEDDINGS, COLLECT})  # those that the taxonomy does not know, too


def call_arithmetic(call: OperatorCall) -> Arithmetic:
    """Return the arithmetic of a call. Raises NotKnownError for unknown operators."""
    if touches_no_data(call) or call.operator in _MOVEMENTS:
        return NOTHING
    rule = _RULES.get(call.operator)
    if rule is not None:
        return rule(call)
    category = classify(call.name).category
    if category is Category.ELEMENTWISE:
        return _per_output_rule(operations(call.operator))(call)
    if category is Category.DATA_MOVEMENT:
        return NOTHING
    raise NotKnownError


def touches_no_data(call: OperatorCall) -> bool:
    """Return whether a call computes with sizes, or gives a tensor another shape in place."""
    return call.name.startswith(("executorch_prim::", "aten::sym_")) and call.operator != COLLECT


def window_elements(call: OperatorCall) -> int | None:
    """Return how many elements of its first argument a call reads at most; None if it reads all of them."""
    rule = _SEEN.get(call.operator)
    return None if rule is None else rule(call)


def _matrix_product_rule(first: int) -> Callable[[OperatorCall], Arithmetic]:
    """Return the rule of a matrix product whose first factor is argument ``first``, summed over its last dimension."""
    return lambda call: Arithmetic(elements(call.output()) * at_least(call.shape(first), 1)[-1])


def _count_convolution(call: OperatorCall) -> Arithmetic:
    data, weight = at_least(call.shape(0), _IMAGE), at_least(call.shape(1), _IMAGE)
    if call.is_set(_TRANSPOSED):
        return Arithmetic(elements(data) * elements(weight[1:]))
    return Arithmetic(elements(call.output()) * elements(weight[1:]))


def _count_attention(call: OperatorCall) -> Arithmetic:
    """Count scores, their softmax with a scale and perhaps a mask, and the weighted mean of the values."""
    query, key = (at_least(call.shape(position), _MATRIX) for position in (0, 1))
    scores = elements(query[:-1]) * key[-2]
    extra = 2 if call.tensors_at(3) else 1
    return Arithmetic(scores * query[-1] + elements(call.output()) * key[-2], (SOFTMAX + extra) * scores)


def _count_normalisation(call: OperatorCall) -> Arithmetic:
    """Count a normalisation; each tensor that scales or shifts the data costs one more operation an element."""
    return Arithmetic(others=(NORMALISATION + len(call.inputs) - 1) * elements(call.shape(0)))


def _count_batch_norm(call: OperatorCall) -> Arithmetic:
    """Count a batch norm with given mean and deviation: one operation an element for each of its parameters."""
    return Arithmetic(others=(len(call.inputs) - 1) * elements(call.shape(0)))


def _count_window_elements(call: OperatorCall) -> int:
    """Count the elements in all windows. Raises NotKnownError for a size that is not in the file, which is 0."""
    kernel = call.numbers(1)
    if not 1 <= len(kernel) <= _IMAGE or min(kernel) < 1:
        raise NotKnownError
    square = kernel * _MATRIX if len(kernel) == 1 else kernel
    return elements(call.output()) * elements(square)


def _reduction_rule(count: int) -> Callable[[OperatorCall], Arithmetic]:
    """Return the rule of so many operations for each element of the first argument."""
    return lambda call: Arithmetic(others=count * elements(call.shape(0)))


def _per_output_rule(count: int) -> Callable[[OperatorCall], Arithmetic]:
    """Return the rule of so many operations for each element of the output."""
    return lambda call: Arithmetic(others=count * elements(call.output()))


def _elements_read_by_convolution(call: OperatorCall) -> int:
    data, weight = at_least(call.shape(0), _IMAGE), at_least(call.shape(1), _IMAGE)
    if call.is_set(_TRANSPOSED):
        return elements(data)
    return elements(replaced(call.output(), 1, data[1])) * elements(weight[2:])


def _output_multiple_rule(count: int) -> Callable[[OperatorCall], int]:
    return lambda call: count * sum(elements(call.shape_of(number)) for number in call.outputs)


_RULES: dict[str, Callable[[OperatorCall], Arithmetic]] = {
    **dict.fromkeys("mm bmm matmul linear mixed_mm mixed_linear".split(), _matrix_product_rule(0)),
    **dict.fromkeys("addmm addmv baddbmm".split(), _matrix_product_rule(1)),
    "convolution": _count_convolution,
    "scaled_dot_product_attention": _count_attention,
    "native_layer_norm": _count_normalisation,
    "native_group_norm": _count_normalisation,
    "native_batch_norm_legit_no_training": _count_batch_norm,
    "softmax": _per_output_rule(SOFTMAX),
    "log_softmax": _per_output_rule(SOFTMAX),
    **dict.fromkeys(
        ("avg_pool2d", "max_pool2d_with_indices"), lambda call: Arithmetic(others=_count_window_elements(call))
    ),
    "adaptive_avg_pool2d": _reduction_rule(1),
    "upsample_nearest2d": _per_output_rule(0),
    "upsample_bilinear2d": _per_output_rule(BILINEAR),
    "clamp": lambda call: Arithmetic(others=(call.has(1) + call.has(2)) * elements(call.output())),
    **dict.fromkeys("mean sum amax amin max min argmax argmin prod any all cumsum".split(), _reduction_rule(1)),
    **dict.fromkeys("var var_mean".split(), _reduction_rule(VARIANCE)),
}

_PARTS = "slice select narrow split split_with_sizes unbind diagonal index index_select gather masked_select"

_SEEN: dict[str, Callable[[OperatorCall], int]] = {
    **dict.fromkeys("full_like zeros_like ones_like empty_like fill copy".split(), _output_multiple_rule(0)),
    **dict.fromkeys(_PARTS.split(), _output_multiple_rule(1)),
    "upsample_nearest2d": _output_multiple_rule(1),
    "upsample_bilinear2d": _output_multiple_rule(4),
    "avg_pool2d": _count_window_elements,
    "max_pool2d_with_indices": _count_window_elements,
    "convolution": _elements_read_by_convolution,
}


def call_traffic(call: OperatorCall) -> Cost:
    """Return the bytes of one call."""
    if touches_no_data(call):
        return Cost(0, 0, 0, 0, 0)
    if call.in_place or call.operator == COLLECT:
        read = [number for number in call.inputs if number not in call.tensors_at(0)]
        if not read:
            raise NotKnownError
        into = call.tensors_at(0) if call.operator == "copy" else read[-1:]
        return Cost(0, 0, sum(map(call.bytes_of, read)), sum(map(call.bytes_of, into)), 0)
    needed = {number: _needed_bytes(call, number) for number in call.inputs}
    weights = sum(size for number, size in needed.items() if call.tensor(number).constant)
    return Cost(0, 0, sum(needed.values()) - weights, sum(map(call.bytes_of, call.outputs)), weights)


def _needed_bytes(call: OperatorCall, number: int) -> int:
    """Return the bytes of an input that the outputs depend on."""
    total_bytes = call.bytes_of(number)
    if call.operator in EMBEDDINGS:
        return min(total_bytes, _row_bytes(call, number))
    read_elements = window_elements(call) if call.tensors_at(0) == (number,) else None
    return (
        total_bytes
        if read_elements is None
        else min(total_bytes, stored_bytes(call.tensor(number).dtype, (read_elements,)))
    )


def _row_bytes(call: OperatorCall, number: int) -> int:
    """Return the bytes of the rows of a table, its scales or zero points that indices name, each row once."""
    position = EMBEDDINGS[call.operator]
    if number in call.tensors_at(position):
        return call.bytes_of(number)
    rows = at_least(call.shape_of(number), 1)[0]
    return elements(call.shape(position)) * (call.bytes_of(number) // rows) if rows else 0


class GraphCosts:
    """Costs of the events of one delegate; prepared once, since each needs to know who uses its values.

    ``graph``: of the delegate. ``dims``: real shapes by value number; None: those of the file, which are upper
    bounds for dynamic tensors. If given, a value that is neither constant nor listed has an unknown shape.
    """

    def __init__(self, graph: XnnGraph, dims: Mapping[int, Shape] | None = None) -> None:
        self._traffic = GraphTraffic(graph, dims)

    def nodes(self, numbers: Sequence[int]) -> Cost | None:
        """Return the cost of one event that computes these nodes; tensors passed between them cost nothing.

        None if a kind, a width or a shape is unknown, if there is no such node, and for no nodes. The activation of a
        node whose kind is in ``SEPARATE_ACTIVATION`` is left out.
        """
        distinct = list(dict.fromkeys(numbers))
        try:
            counts = [self._count_node(number) for number in distinct]
            traffic = self._traffic.of(distinct)
        except NotKnownError:
            return None
        return (
            _complete_cost(sum(macs for macs, _ in counts), sum(flops for _, flops in counts), traffic)
            if counts
            else None
        )

    def activation(self, number: int) -> Cost | None:
        """Return the cost of a node's fused activation that runs as a separate event: it reads and writes the output.

        None if a width or a shape is unknown, and if there is no such node.
        """
        try:
            shaped = self._traffic.shaped(number)
            operations = activation_operations(shaped.node, shaped.output())
            size = self._traffic.bytes_of(shaped.node.outputs[0])
        except NotKnownError:
            return None
        return Cost(0, operations, size, size, 0).if_possible()

    def _count_node(self, number: int) -> tuple[int, int]:
        """Return multiply-accumulates and operations of a node."""
        shaped = self._traffic.shaped(number)
        arithmetic = node_arithmetic(shaped)
        if shaped.node.kind in SEPARATE_ACTIVATION or shaped.node.kind == "Clamp":
            return arithmetic.macs, arithmetic.flops
        return arithmetic.macs, arithmetic.flops + activation_operations(shaped.node, shaped.output())


def step_cost(plan: MethodPlan, step: PlannedStep, sizes: Mapping[int, Shape] | None = None) -> Cost | None:
    """Return the cost of one instruction that calls a portable kernel.

    None if the operator, a width or a shape is unknown, and for instructions that call no kernel.
    """
    if step.kind is not InstructionKind.KERNEL:
        return None
    call = OperatorCall(plan, step, sizes)
    try:
        count, traffic = call_arithmetic(call), call_traffic(call)
    except NotKnownError:
        return None
    return _complete_cost(count.macs, count.flops, traffic)


def _complete_cost(macs: int, flops: int, traffic: Cost) -> Cost | None:
    """Return the complete cost; None if a damaged file states impossible sizes."""
    return msgspec.structs.replace(traffic, macs=macs, flops=flops).if_possible()
