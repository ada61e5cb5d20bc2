"""Attribute the operators of a trace to the model of the program that ran."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.attribution import GivenInputs, attribute, method_names
from opscope.core.files import sha256_of
from opscope.program.structure.plan import PlannedTensor
from opscope.readers.outputs import read_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opscope.analysis.operators.attribution import Attributions
    from opscope.bundle.bundle import Bundle
    from opscope.core.errors import OpscopeError
    from opscope.program.model import ProgramModel
    from opscope.runtimes.side import Side


class AttributedSide(NamedTuple):
    """A side, and the attributions of its operators to the program."""

    side: Side  # with the places of its operators in the program
    found: Attributions  # of the operators
    record: Path | None = None  # of the export, where it could be used
    problem: OpscopeError | None = None  # why it could not


def attributed_by_model(side: Side, model: ProgramModel, first_calls: Mapping[str, int]) -> AttributedSide:
    """Attribute the operators of a side to the model of its program.

    ``first_calls`` is the instruction of the first delegate call of each method; see
    :meth:`opscope.runtimes.runtime.Runtime.first_calls`.
    """
    side = side._replace(table=side.table.with_delegate_calls_from(first_calls))
    table = side.table.with_method_names(method_names(side.table, model))
    return AttributedSide(side._replace(table=table), attribute(table, model, recorded_inputs(side, model)))


def recorded_inputs(side: Side, model: ProgramModel) -> dict[str, GivenInputs]:
    """Return the inputs that were recorded beside the trace, by method; empty if a trace alone is read."""
    if side.bundle is None or side.variant is None:
        return {}
    measured = [r.measurement for r in side.bundle.manifest.completed(side.variant.name) if r.measurement]
    if not measured:
        return {}
    shapes = [tuple(tensor.shape) for tensor in measured[0].inputs]
    methods = list(dict.fromkeys(side.bundle.manifest.plan.of(side.variant.name).calls))
    numbers = _read_scalar_inputs(side.bundle, side.variant.name)
    if not methods:
        return dict.fromkeys(model.methods, GivenInputs(shapes, numbers))
    given_inputs: dict[str, GivenInputs] = {}
    for method in methods:
        model_method = model.called(method)
        count = (
            sum(isinstance(model_method.plan.values[number], PlannedTensor) for number in model_method.plan.inputs)
            if model_method
            else 0
        )
        given_inputs[method] = GivenInputs(shapes[:count], numbers[:count])
        shapes, numbers = shapes[count:], numbers[count:]
    return given_inputs


def _read_scalar_inputs(bundle: Bundle, variant: str) -> list[int | None]:
    """Read the values of one-element integer inputs that a bundle keeps; None for every other tensor.

    The list is in the order of the plan's tensors. It is empty if there are no such inputs or the values were not
    kept.
    """
    plan = bundle.manifest.plan.of(variant)
    tensors = [tensor for tensor in plan.inputs if tensor.shape is not None]
    positions = [
        position
        for position, tensor in enumerate(tensors)
        if math.prod(tensor.shape or ()) == 1 and "int" in tensor.dtype
    ]
    if plan.values is None or not positions or not (bundle.path / plan.values).is_file():
        return []
    bundle.check_hash(plan.values, sha256_of(bundle.path / plan.values), plan.values_sha256)
    arrays = list(read_arrays(bundle.path / plan.values).values())
    numbers: list[int | None] = [None] * len(tensors)
    for position in positions:
        if position < len(arrays) and arrays[position].size == 1:
            numbers[position] = int(arrays[position].item())
    return numbers
