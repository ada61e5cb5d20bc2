"""Attributing the operators of a trace with the model of the program that ran."""

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
    """A side, and what its program says of its operators."""

    side: Side  # with the places of its operators in the program
    found: Attributions  # of the operators
    record: Path | None = None  # of the export, where it could be used
    problem: OpscopeError | None = None  # why it could not


def attributed_by_model(side: Side, model: ProgramModel, first_calls: Mapping[str, int]) -> AttributedSide:
    """A side attributed with the model of its program."""
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
    called = list(dict.fromkeys(side.bundle.manifest.plan.of(side.variant.name).calls))
    numbers = _numbers(side.bundle, side.variant.name)
    if not called:
        return dict.fromkeys(model.methods, GivenInputs(shapes, numbers))
    given_inputs: dict[str, GivenInputs] = {}
    for method in called:
        model_method = model.called(method)
        count = (
            sum(isinstance(model_method.plan.values[number], PlannedTensor) for number in model_method.plan.inputs)
            if model_method
            else 0
        )
        given_inputs[method] = GivenInputs(shapes[:count], numbers[:count])
        shapes, numbers = shapes[count:], numbers[count:]
    return given_inputs


def _numbers(bundle: Bundle, variant: str) -> list[int | None]:
    """The only elements of whole-number inputs that have one, in the order of all tensors; empty where none is kept."""
    plan = bundle.manifest.plan.of(variant)
    tensors = [one for one in plan.inputs if one.shape is not None]
    places = [place for place, one in enumerate(tensors) if math.prod(one.shape or ()) == 1 and "int" in one.dtype]
    if plan.values is None or not places or not (bundle.path / plan.values).is_file():
        return []
    bundle.check_hash(plan.values, sha256_of(bundle.path / plan.values), plan.values_sha256)
    arrays = list(read_arrays(bundle.path / plan.values).values())
    numbers: list[int | None] = [None] * len(tensors)
    for place in places:
        if place < len(arrays) and arrays[place].size == 1:
            numbers[place] = int(arrays[place].item())
    return numbers
