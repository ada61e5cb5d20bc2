"""Inputs of several programs of one bundle: the same values, in the order of axes that each program declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.bundle.manifest import PlannedInput, Tensor, VariantInputs
from opscope.core.errors import MismatchError
from opscope.core.files import sha256_of
from opscope.core.units import counted_text
from opscope.experiment.inputs import described, made_inputs
from opscope.experiment.tensors import random_inputs
from opscope.program.structure.dtypes import axes_between
from opscope.program.structure.plan import PlannedTensor
from opscope.readers.outputs import read_arrays
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.program_inputs import INPUTS, declared_inputs, save_inputs, wished_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.bundle.manifest import Plan
    from opscope.experiment.planned import Experiment
    from opscope.experiment.tensors import Array
    from opscope.program.structure.plan import Value


class SharedInputs(NamedTuple):
    """What a program is called with beside another one."""

    calls: VariantInputs  # as a manifest keeps it
    files: list[Path]  # with the values of its inputs; empty where there are none of its own


class ProgramPlace(NamedTuple):
    """A program, and where its inputs go."""

    program: Path  # the file
    work: Path  # a directory for the values of its inputs
    home: str  # directory of its files in the bundle


def shared_inputs(
    plan: Plan, experiment: Experiment, first: Path, place: ProgramPlace, values: Path | None
) -> SharedInputs:
    """What a program is called with so that it computes the same as the first program of the bundle.

    Where both declare the same tensors, or the same with the channels elsewhere, it gets the same values. Otherwise it
    gets inputs of its own, drawn from the same seed, and the bundle says why.
    """
    calls = runtime_of(place.program).calls(place.program, experiment.methods)
    if calls != plan.calls and max(len(calls), len(plan.calls)) > 1:
        told = [" ".join(own) or "the only method" for own in (calls, plan.calls)]
        problem = f"it calls {told[0]}, {first.name} calls {told[1]}: the rounds do different work"
        raise MismatchError(problem, where=place.program.name, hint="name programs with the same methods")
    asked = wished_inputs(experiment, place.program, calls)
    sides = declared_inputs(first, plan.calls), declared_inputs(place.program, calls)
    unlike = _unlike(*sides, first.name)
    if unlike is not None:
        made = made_inputs(sides[1], asked, plan.seed or 0)
        return _kept(VariantInputs(made.planned, calls=calls, unlike=unlike), made.arrays, place)
    if all(_sizes(one) == _sizes(other) for one, other in zip(*sides, strict=True)):
        return SharedInputs(VariantInputs(plan.inputs, plan.values, plan.values_sha256, calls), [])
    planned, arrays = _moved(*sides, _values(sides[0], plan, values), first.name)
    return _kept(VariantInputs(planned, calls=calls), arrays, place)


def _unlike(first: Sequence[Value], other: Sequence[Value], name: str) -> str | None:
    """Why the inputs of two programs are not the same, as one sentence; None where their values can be."""
    if len(first) != len(other):
        return f"it takes {counted_text(len(other), 'input')}, {name} takes {len(first)}"
    for number, (one, own) in enumerate(zip(first, other, strict=True)):
        alike = described(one) == described(own)
        if isinstance(one, PlannedTensor) and isinstance(own, PlannedTensor):
            alike = one.dtype.name == own.dtype.name and axes_between(one.sizes, own.sizes) is not None
        if not alike:
            return f"its input {number} is {described(own)}, that of {name} {described(one)}"
    return None


def _sizes(value: Value) -> tuple[int, ...] | None:
    return tuple(value.sizes) if isinstance(value, PlannedTensor) else None


def _values(declared: Sequence[Value], plan: Plan, values: Path | None) -> Mapping[int, Array]:
    """Values of the tensors of the first program, by the numbers of its inputs."""
    if values is not None:
        return {int(name.removeprefix("arr_")): array for name, array in read_arrays(values).items()}
    tensors = {
        number: Tensor(list(value.sizes), value.dtype.name)
        for number, value in enumerate(declared)
        if isinstance(value, PlannedTensor)
    }
    return dict(zip(tensors, random_inputs(list(tensors.values()), plan.seed or 0), strict=True))


def _moved(
    first: Sequence[Value], other: Sequence[Value], values: Mapping[int, Array], name: str
) -> tuple[list[PlannedInput], dict[int, Array]]:
    """The inputs of the other program, with the values of the first one in its order of axes."""
    planned, arrays = [], {}
    for number, (one, own) in enumerate(zip(first, other, strict=True)):
        if not (isinstance(one, PlannedTensor) and isinstance(own, PlannedTensor)):
            planned += made_inputs([own], [], 0).planned
            continue
        axes = axes_between(one.sizes, own.sizes) or ()
        told = ",".join(map(str, axes))
        source = f"input {number} of {name}, axes {told}" if list(axes) != sorted(axes) else f"input {number} of {name}"
        arrays[number] = np.ascontiguousarray(np.transpose(values[number], axes))
        planned.append(PlannedInput(list(own.sizes), own.dtype.name, source=source))
    return planned, arrays


def _kept(calls: VariantInputs, arrays: Mapping[int, Array], place: ProgramPlace) -> SharedInputs:
    """The same with the values of its inputs in a file, where there are any."""
    if not arrays:
        return SharedInputs(calls, [])
    file = place.work / INPUTS
    save_inputs(file, arrays)
    values, digest = f"{place.home}/{INPUTS}", sha256_of(file)
    return SharedInputs(VariantInputs(calls.inputs, values, digest, calls.calls, calls.unlike), [file])
