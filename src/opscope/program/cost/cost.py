"""What an operator must cost: multiply-accumulates, operations and the least bytes it can move.

The numbers follow from shapes and number types alone, so they hold on every machine. Bytes are a lower bound: each
tensor that enters or leaves the operator counts once. Formulas: ``docs/concepts/cost-model.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.call import OperatorCall
from opscope.program.cost.dimensions import NotKnownError, at_least, elements
from opscope.program.cost.node_cost import GraphTraffic, activation_operations, node_arithmetic, stored_bytes
from opscope.program.cost.operator_cost import Cost
from opscope.program.cost.portable_cost import COLLECT, EMBEDDINGS, call_arithmetic, touches_no_data, window_elements
from opscope.program.structure.plan import InstructionKind
from opscope.program.xnnpack.subgraph import SEPARATE_ACTIVATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.program.cost.dimensions import Shape
    from opscope.program.structure.plan import MethodPlan, PlannedStep
    from opscope.program.xnnpack.graph import XnnGraph


def call_traffic(call: OperatorCall) -> Cost:
    """Bytes of one call."""
    if touches_no_data(call):
        return Cost(0, 0, 0, 0, 0)
    if call.in_place or call.operator == COLLECT:
        given = [number for number in call.inputs if number not in call.tensors_at(0)]
        if not given:
            raise NotKnownError
        into = call.tensors_at(0) if call.operator == "copy" else given[-1:]
        return Cost(0, 0, sum(map(call.bytes_of, given)), sum(map(call.bytes_of, into)), 0)
    needed = {number: _needed(call, number) for number in call.inputs}
    weights = sum(size for number, size in needed.items() if call.tensor(number).constant)
    return Cost(0, 0, sum(needed.values()) - weights, sum(map(call.bytes_of, call.outputs)), weights)


def _needed(call: OperatorCall, number: int) -> int:
    """Bytes of an input that the outputs depend on."""
    whole = call.bytes_of(number)
    if call.operator in EMBEDDINGS:
        return min(whole, _rows(call, number))
    seen = window_elements(call) if call.tensors_at(0) == (number,) else None
    return whole if seen is None else min(whole, stored_bytes(call.tensor(number).dtype, (seen,)))


def _rows(call: OperatorCall, number: int) -> int:
    """Bytes of the rows of a table, of its scales or of its zero points that the indices name, each once."""
    position = EMBEDDINGS[call.operator]
    if number in call.tensors_at(position):
        return call.bytes_of(number)
    rows = at_least(call.shape_of(number), 1)[0]
    return elements(call.shape(position)) * (call.bytes_of(number) // rows) if rows else 0


class GraphCosts:
    """Costs of the events of one delegate; prepared once, since each needs to know who uses its values.

    Args:
        graph: of the delegate.
        dims: real shapes by value number; None: those of the file, which of dynamic tensors are the upper bound. When
            given, a value that is neither constant nor listed has an unknown shape.
    """

    def __init__(self, graph: XnnGraph, dims: Mapping[int, Shape] | None = None) -> None:
        self._traffic = GraphTraffic(graph, dims)

    def nodes(self, numbers: Sequence[int]) -> Cost | None:
        """Cost of one event that computes these nodes; tensors passed between them cost nothing.

        None when a kind, a width or a shape is unknown, when there is no such node, and for no nodes. The activation
        of a node whose kind is in ``SEPARATE_ACTIVATION`` is left out.
        """
        distinct = list(dict.fromkeys(numbers))
        try:
            counts = [self._count(number) for number in distinct]
            traffic = self._traffic.of(distinct)
        except NotKnownError:
            return None
        return _cost(sum(macs for macs, _ in counts), sum(flops for _, flops in counts), traffic) if counts else None

    def activation(self, number: int) -> Cost | None:
        """Cost of a node's fused activation that runs as an event of its own: it reads and writes the node's output.

        None when a width or a shape is unknown, and when there is no such node.
        """
        try:
            shaped = self._traffic.shaped(number)
            operations = activation_operations(shaped.node, shaped.output())
            size = self._traffic.bytes_of(shaped.node.outputs[0])
        except NotKnownError:
            return None
        return Cost(0, operations, size, size, 0).if_possible()

    def _count(self, number: int) -> tuple[int, int]:
        """Multiply-accumulates and operations of a node."""
        shaped = self._traffic.shaped(number)
        found = node_arithmetic(shaped)
        if shaped.node.kind in SEPARATE_ACTIVATION or shaped.node.kind == "Clamp":
            return found.macs, found.flops
        return found.macs, found.flops + activation_operations(shaped.node, shaped.output())


def step_cost(plan: MethodPlan, step: PlannedStep, sizes: Mapping[int, Shape] | None = None) -> Cost | None:
    """Cost of one instruction that calls a portable kernel.

    Returns:
        None when the operator, a width or a shape is unknown, and for instructions that call no kernel.
    """
    if step.kind is not InstructionKind.KERNEL:
        return None
    call = OperatorCall(plan, step, sizes)
    try:
        count, traffic = call_arithmetic(call), call_traffic(call)
    except NotKnownError:
        return None
    return _cost(count.macs, count.flops, traffic)


def _cost(macs: int, flops: int, traffic: Cost) -> Cost | None:
    """None for what a damaged file says and no machine holds."""
    return msgspec.structs.replace(traffic, macs=macs, flops=flops).if_possible()
