"""The methods of a program: values, operators, delegates and instructions.

Source of the slots and union numbers: ``schema/program.fbs`` of ExecuTorch 1.5.1. Tables and unions of that schema only
ever grow, so it reads older files too; what they lack takes the schema's default. All plans are read together, one
gather a field: a file cannot make the same bytes be read once per method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.program.plan import Chain, Delegate, InstructionKind, Plan, Step
from opscope.read.evalue import read_values
from opscope.read.fields import INT32, INT64, Member, grouped, nested, numbers, referred, text_vectors, texts, union
from opscope.read.fields import vectors as number_vectors

if TYPE_CHECKING:
    from opscope.program.plan import Span, Value
    from opscope.read.flatbuffer import Tables

# ExecutionPlan
_NAME, _VALUES, _INPUTS, _OUTPUTS, _CHAINS, _OPERATORS, _DELEGATES, _BUFFER_SIZES = 0, 2, 3, 4, 5, 6, 7, 8
_OPERATOR_NAME, _OPERATOR_OVERLOAD = 0, 1
_DELEGATE_ID, _DELEGATE_PROCESSED, _DELEGATE_SPECS = 0, 1, 2
_SPEC_KEY = 0
_CHAIN_INPUTS, _CHAIN_OUTPUTS, _CHAIN_INSTRUCTIONS = 0, 1, 2
_INSTRUCTION = 0
_LOCATION, _INDEX = 0, 1

# InstructionArguments: kind, slot of the target (-1: none), slots of single arguments, slot of a list of arguments
_KINDS: dict[int, tuple[InstructionKind, int, tuple[int, ...], int]] = {
    1: (InstructionKind.KERNEL, 0, (), 1),
    2: (InstructionKind.DELEGATE, 0, (), 1),
    3: (InstructionKind.MOVE, -1, (0, 1), -1),
    4: (InstructionKind.JUMP, 1, (0,), -1),
    5: (InstructionKind.FREE, -1, (0,), -1),
}


class DataPlaces(NamedTuple):
    """Where payloads of delegates can stand: inside the program (location 0) and in segments (1)."""

    inline: tuple[Span, ...]
    segments: tuple[Span, ...]


def read_plans(plans: Tables, places: DataPlaces) -> tuple[Plan, ...]:
    """The methods, checked: every number in them refers to something.

    Raises:
        TraceFormatError: an offset or a number points to nothing.
    """
    count = len(plans)
    delegates, delegate_owner = nested(plans, _DELEGATES)
    chains, chain_owner = nested(plans, _CHAINS)
    columns = zip(
        texts(plans, _NAME),
        read_values(plans, _VALUES),
        number_vectors(plans, _INPUTS, INT32),
        number_vectors(plans, _OUTPUTS, INT32),
        _operators(plans),
        grouped(_delegates(delegates, places), delegate_owner, count),
        grouped(_chains(chains), chain_owner, count),
        number_vectors(plans, _BUFFER_SIZES, INT64),
        strict=True,
    )
    read = tuple(Plan(*row) for row in columns)
    for plan in read:
        _check(plan, plans)
    return read


def _operators(plans: Tables) -> list[tuple[str, ...]]:
    operators, owner = nested(plans, _OPERATORS)
    parts = zip(texts(operators, _OPERATOR_NAME), texts(operators, _OPERATOR_OVERLOAD), strict=True)
    return grouped([".".join(part for part in pair if part) for pair in parts], owner, len(plans))


def _delegates(delegates: Tables, places: DataPlaces) -> list[Delegate]:
    data: list[Span | None] = [None] * len(delegates)
    processed, rows = referred(delegates, _DELEGATE_PROCESSED)
    locations = processed.uint8(_LOCATION).tolist()
    indexes = processed.int32(_INDEX).tolist()
    for row, location, index in zip(rows, locations, indexes, strict=True):
        data[row] = _place(delegates, places, location, index)
    keys = text_vectors(delegates, _DELEGATE_SPECS, _SPEC_KEY)
    return [Delegate(*row) for row in zip(texts(delegates, _DELEGATE_ID), keys, data, strict=True)]


def _place(delegates: Tables, places: DataPlaces, location: int, index: int) -> Span:
    if location >= len(places):
        raise delegates.buffer.error(f"the data of a delegate are at a place of unknown kind {location}")
    known = places[location]
    if not 0 <= index < len(known):
        kind = places._fields[location]
        raise delegates.buffer.error(f"a delegate's data are number {index} of {len(known)} ({kind})")
    return known[index]


def _chains(chains: Tables) -> list[Chain]:
    instructions, owner = nested(chains, _CHAIN_INSTRUCTIONS)
    inputs, outputs = (number_vectors(chains, slot, INT32) for slot in (_CHAIN_INPUTS, _CHAIN_OUTPUTS))
    steps = grouped(_steps(instructions), owner, len(chains))
    return [Chain(*row) for row in zip(inputs, outputs, steps, strict=True)]


def _steps(instructions: Tables) -> list[Step]:
    steps = [Step(InstructionKind.UNKNOWN, -1, ())] * len(instructions)
    for member in union(instructions, _INSTRUCTION):
        if member.number in _KINDS:
            for row, step in zip(member.rows, _steps_of(member), strict=True):
                steps[row] = step
    return steps


def _steps_of(member: Member) -> list[Step]:
    kind, target, single, listed = _KINDS[member.number]
    targets = numbers(member.tables, target, INT32) if target >= 0 else [-1] * len(member.rows)
    if listed >= 0:
        arguments = number_vectors(member.tables, listed, INT32)
    else:
        arguments = list(zip(*(numbers(member.tables, slot, INT32) for slot in single), strict=True))
    return [Step(kind, *row) for row in zip(targets, arguments, strict=True)]


def _check(plan: Plan, plans: Tables) -> None:
    """Every number refers to something; a plan without values has none to check against."""
    for step in (step for chain in plan.chains for step in chain.steps):
        _check_target(plan, step, plans)
    if plan.values:
        _check_references(plan.values, _references(plan), plans)


def _check_target(plan: Plan, step: Step, plans: Tables) -> None:
    known = {InstructionKind.KERNEL: len(plan.operators), InstructionKind.DELEGATE: len(plan.delegates)}
    if step.kind in known and not 0 <= step.target < known[step.kind]:
        problem = f"an instruction calls {step.kind.value} {step.target}, there are {known[step.kind]}"
        raise plans.buffer.error(problem)


def _references(plan: Plan) -> list[int]:
    lists = [plan.inputs, plan.outputs]
    for chain in plan.chains:
        lists += [chain.inputs, chain.outputs, *(step.arguments for step in chain.steps)]
    return [number for members in lists for number in members]


def _check_references(values: tuple[Value, ...], references: list[int], plans: Tables) -> None:
    named = np.array(references, np.int64)
    wrong = named[(named < 0) | (named >= len(values))]
    if len(wrong):
        raise plans.buffer.error(f"value {int(wrong[0])} is used, there are {len(values)}")
