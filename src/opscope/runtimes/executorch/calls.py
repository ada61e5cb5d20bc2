"""Which methods of a program a process calls, in which order, and what they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.program.structure.plan import Nothing, PlannedTensor
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.export_record import record_of_export
from opscope.runtimes.runtime import asked_calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.analysis.preflight.exported import ExportRecord
    from opscope.program.structure.plan import MethodPlan, Value

LOOP_CALLS = 16
"""Calls of the method that makes one token, behind one call of each other method."""


def planned_calls(program: Path, asked: Sequence[str]) -> list[str]:
    """The methods that a process calls over and over; empty for a program with one method.

    Without a wish every method that runs anything and takes tensors only is called once, in the order of the export
    where its record stands beside the program; one that makes a single token is called ``LOOP_CALLS`` times, as a
    decode loop does.
    """
    plans = [plan for plan in read_executable(program).plans if plan.chains and plan.chains[0].steps]
    if asked:
        return asked_calls(asked, [plan.name for plan in plans])
    names = [
        plan.name for plan in plans if all(isinstance(plan.values[number], PlannedTensor) for number in plan.inputs)
    ]
    if len(names) < 2:  # noqa: PLR2004 - one method needs no order
        return []
    record = record_of_export(program)
    return [name for method in _ordered(names, record) for name in [method] * _times(method, record)]


def _ordered(names: Sequence[str], record: ExportRecord | None) -> list[str]:
    """Names in the order of the export, else of the program."""
    recorded = [one.method.name for one in record.methods] if record else []
    return [name for name in recorded if name in names] + [name for name in names if name not in recorded]


def _times(method: str, record: ExportRecord | None) -> int:
    tokens = {one.method.name: one.method.tokens for one in record.methods} if record else {}
    return LOOP_CALLS if tokens.get(method) == 1 else 1


def inputs_of(program: Path, calls: Sequence[str]) -> dict[str, list[tuple[str, Value]]]:
    """Inputs of the methods that a process calls, in the order of their first calls; a .pte has no names for them."""
    plans = {plan.name: plan for plan in read_executable(program).plans}
    called = dict.fromkeys(calls) or (list(plans) if len(plans) == 1 else ["forward"])
    own = [plans[name] for name in called if name in plans]
    for plan in own:
        _check_numbers(plan)
    return {plan.name: [("", plan.values[number]) for number in plan.inputs] for plan in own}


def _check_numbers(plan: MethodPlan) -> None:
    """Refuse numbers that may change: the exporter writes None for them, at which the runtime ends itself."""
    read = {number for chain in plan.chains for step in chain.steps for number in step.arguments}
    for place, number in enumerate(plan.inputs):
        if isinstance(plan.values[number], Nothing) and number in read:
            problem = (
                f"input {place} of {plan.name} is a number that may change, and ExecuTorch exported no type for it"
            )
            hint = "no runtime can be given it: export the program with a fixed number, or with a tensor"
            raise UsageError(problem, hint=hint)
