"""What a program tells before it runs: schema ``opscope.preflight/1``.

Will it be accelerated, what share of its work, what holds it back, and what to do. All counts are of one inference in
which every instruction runs once, at the upper bounds of shapes that can differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analyze.contents import Count, TensorSummary, counted, tensors_of
from opscope.analyze.forecast import Forecast, forecast
from opscope.analyze.preflight_findings import examine_plan
from opscope.analyze.preflight_operators import Planned, planned_operators
from opscope.analyze.preflight_parts import (
    Borders,
    CategoryWork,
    Layout,
    MatrixWork,
    PortableGroup,
    borders,
    by_category,
    layout,
    matrix_work,
    portable_groups,
)
from opscope.analyze.rules import Finding
from opscope.program.partition_rules import RULES_OF
from opscope.program.plan import InstructionKind
from opscope.program.shapes import is_dynamic
from opscope.program.sme_rules import TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.model import Model, ModelMethod
    from opscope.program.plan import Step

XNNPACK = "XnnpackBackend"


class Partition(msgspec.Struct, frozen=True):
    """What goes to XNNPACK and what stays.

    Attributes:
        delegates: of XNNPACK.
        calls: instructions that call them.
        delegated_operators: that XNNPACK will run, over all calls.
        portable_operators: instructions that call a portable kernel on tensors.
        size_operators: instructions that only compute sizes.
        unread: delegates of XNNPACK whose graph the program does not hold: their work is not known.
        other_backends: delegates of other backends, which are not looked into.
    """

    delegates: int
    calls: int
    delegated_operators: int
    portable_operators: int
    size_operators: int
    unread: int
    other_backends: list[Count]


class MethodPreflight(msgspec.Struct, frozen=True):
    """One method of a program.

    Attributes:
        name: of the method.
        inputs: tensors that the caller sets.
        outputs: tensors that the caller gets.
        dynamic: shapes can differ between calls; the figures are for the largest.
        branches: it has branches or loops; the figures count every instruction once.
        partition: what is delegated.
        work: by category.
        matrix: multiply-accumulates by whether SME and SME2 can run them.
        layout: layout changes and conversions.
        borders: what passes between delegates and the rest.
        portable: operators outside of delegates, with the reason; most bytes first.
        forecast: what will take the time; null when the work is not known.
        findings: what holds it back, and what to do.
    """

    name: str
    inputs: list[TensorSummary]
    outputs: list[TensorSummary]
    dynamic: bool
    branches: bool
    partition: Partition
    work: list[CategoryWork]
    matrix: MatrixWork
    layout: Layout
    borders: Borders
    portable: list[PortableGroup]
    forecast: Forecast | None
    findings: list[Finding]


class Preflight(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.preflight/1"):
    """What a program tells before it runs.

    Attributes:
        path: of the program.
        sha256: of the program.
        acceleration_rules: the release that the table of SME and SME2 kernels is of.
        partition_rules: the release that the rules of the partitioner are of.
        methods: in the order of the program.
    """

    path: str
    sha256: str
    acceleration_rules: str
    partition_rules: str
    methods: list[MethodPreflight]


def preflight(model: Model, path: str, sha256: str) -> Preflight:
    """What a model's program tells before it runs.

    Args:
        model: its program and the graphs of its delegates.
        path: of the program.
        sha256: of the program.
    """
    return Preflight(path, sha256, TABLE, RULES_OF, [_method(method) for method in model.methods.values()])


def _method(method: ModelMethod) -> MethodPreflight:
    plan = method.plan
    operators = planned_operators(method)
    steps = plan.chains[0].steps if plan.chains else ()
    partition = _partition(method, operators, steps)
    work, matrix, moved = by_category(operators), matrix_work(operators), layout(operators)
    passing, left = borders(method), portable_groups(operators)
    predicted = None if partition.unread else forecast(operators, partition.calls)
    found = MethodPreflight(
        name=plan.name,
        inputs=tensors_of(plan, plan.inputs),
        outputs=tensors_of(plan, plan.outputs),
        dynamic=is_dynamic(plan),
        branches=any(step.kind is InstructionKind.JUMP for step in steps),
        partition=partition,
        work=work,
        matrix=matrix,
        layout=moved,
        borders=passing,
        portable=left,
        forecast=predicted,
        findings=[],
    )
    return msgspec.structs.replace(found, findings=examine_plan(found))


def _partition(method: ModelMethod, operators: Sequence[Planned], steps: Sequence[Step]) -> Partition:
    plan = method.plan
    own = [number for number, delegate in enumerate(plan.delegates) if delegate.id == XNNPACK]
    portable = [operator for operator in operators if not operator.delegated]
    sizes = sum(operator.only_sizes for operator in portable)
    return Partition(
        delegates=len(own),
        calls=sum(plan.called(step) == XNNPACK for step in steps if step.kind is InstructionKind.DELEGATE),
        delegated_operators=sum(operator.calls for operator in operators if operator.delegated),
        portable_operators=len(portable) - sizes,
        size_operators=sizes,
        unread=sum(number not in method.graphs for number in own),
        other_backends=counted(delegate.id for delegate in plan.delegates if delegate.id != XNNPACK),
    )
