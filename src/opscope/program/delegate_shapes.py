"""Shapes that pass between the arguments of a delegate's call and the values of its graph.

A payload says at which place of a call each of its external values stands. An argument whose stated shape is not that
of its value belongs to another program, and then nothing is known.

The runtime hands dimensions over in the order in which they lie in memory. Source:
``backends/xnnpack/runtime/XNNExecutor.cpp`` of ExecuTorch 1.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.dimensions import Shape, fits
from opscope.program.node_shapes import graph_shapes
from opscope.program.plan import Dynamism, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.program.plan import Plan, Step
    from opscope.program.xnn_graph import XnnGraph


class Called(NamedTuple):
    """Shapes of one call of a delegate.

    Attributes:
        dims: of values of its graph; those that cannot be derived are absent.
        left: of the tensors that the call leaves, by value number of the plan; None for those that are unknown.
    """

    dims: dict[int, Shape]
    left: dict[int, Shape | None]


def call_shapes(plan: Plan, step: Step, graph: XnnGraph, sizes: Mapping[int, Shape]) -> Called:
    """What a call of a delegate makes of known shapes.

    Args:
        plan: the method.
        step: an instruction that calls the delegate.
        graph: of the delegate.
        sizes: known shapes of tensors of the plan.
    """
    values = graph.by_id()
    places = list(zip(step.arguments, graph.arguments(), strict=False))
    given, left = places[: len(graph.inputs)], places[len(graph.inputs) :]
    known = {}
    for number, name in given:
        value = _value(plan, number)
        if isinstance(value, Tensor) and number in sizes and name in values and _alike(value, values[name].dims):
            known[name] = _stored(value, sizes[number])
    dims = graph_shapes(graph, known)
    found: dict[int, Shape | None] = {}
    for number, name in left:
        value = _value(plan, number)
        if isinstance(value, Tensor):
            fitting = name in values and _alike(value, values[name].dims)
            found[number] = _logical(value, dims.get(name)) if fitting else None
    return Called(dims, found)


def _alike(value: Tensor, dims: Shape) -> bool:
    """Whether a tensor and a value of a graph are stated to have the same shape."""
    return _stored(value, value.sizes) == dims


def possible(value: Tensor, shape: Shape) -> bool:
    """Whether a tensor can have a shape; that in the file is an upper bound unless the tensor is said to have none."""
    if value.dynamism is Dynamism.UNBOUNDED:
        return len(shape) == len(value.sizes) and min(shape, default=0) >= 0
    return fits(shape, value.sizes)


def _value(plan: Plan, number: int) -> object:
    return plan.values[number] if 0 <= number < len(plan.values) else None


def _stored(value: Tensor, shape: Shape) -> Shape:
    """A shape in the order of memory; a scalar stands as one element."""
    if len(value.dim_order) != len(shape):
        return shape or (1,)
    return tuple(shape[place] for place in value.dim_order) or (1,)


def _logical(value: Tensor, stored: Shape | None) -> Shape | None:
    """The shape of a tensor from that in the order of memory."""
    if stored is None or not value.sizes:
        return None if stored is None else ()
    if sorted(value.dim_order) != list(range(len(stored))):
        return stored
    return tuple(size for _, size in sorted(zip(value.dim_order, stored, strict=True)))
