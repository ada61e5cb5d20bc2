"""Attributing the operators of a trace with the model of the program that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.attribution import attribute, method_names
from opscope.program.structure.plan import PlannedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.analysis.operators.attribution import Attributions
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
    return AttributedSide(side._replace(table=table), attribute(table, model, _inputs(side, model)))


def _inputs(side: Side, model: ProgramModel) -> dict[str, Sequence[tuple[int, ...]]]:
    """Shapes of the inputs that were recorded beside the trace, by method."""
    if side.bundle is None or side.variant is None:
        return {}
    measured = [r.measurement for r in side.bundle.manifest.completed(side.variant.name) if r.measurement]
    if not measured:
        return {}
    shapes = [tuple(tensor.shape) for tensor in measured[0].inputs]
    called = list(dict.fromkeys(side.bundle.manifest.plan.of(side.variant.name).calls))
    if not called:
        return dict.fromkeys(model.methods, shapes)
    found: dict[str, Sequence[tuple[int, ...]]] = {}
    for method in called:
        plan = model.methods[method].plan if method in model.methods else None
        count = sum(isinstance(plan.values[number], PlannedTensor) for number in plan.inputs) if plan else 0
        found[method], shapes = shapes[:count], shapes[count:]
    return found
