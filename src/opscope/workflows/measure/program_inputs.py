"""The inputs of a program: as somebody asked for them, else as the program declares them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from opscope.bundle.bundle import MODEL
from opscope.core.errors import MismatchError, UsageError
from opscope.core.files import sha256_of, write_atomically
from opscope.experiment.inputs import AskedInput, described, made_inputs, parse_input, read_input_file
from opscope.program.structure.plan import PlannedTensor
from opscope.runtimes.registry import runtime_of
from opscope.runtimes.runtime import AskedCalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.bundle.manifest import Plan
    from opscope.experiment.inputs import InputValue, MadeInputs
    from opscope.experiment.planned import Experiment
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array
    from opscope.program.structure.plan import Value
    from opscope.runtimes.runtime import NamedValue

INPUTS = "inputs.npz"
"""The values of inputs in a bundle, beside the program."""


BUNDLED = "input of the bundled program"
"""Source of an input that came with its program."""


def with_inputs(
    plan: Plan,
    experiment: Experiment,
    target: RunTarget,
    program: Path,
    work: Path,
    bundled: Mapping[str, Sequence[InputValue]],
) -> Plan:
    """A plan with the inputs of its calls; their values are left in a directory, as ``inputs.npz``."""
    asked = asked_inputs(experiment)
    if target.capabilities().is_build:
        if any(asked):
            hint = "leave out --input and --inputs, or run it with --target local or native"
            raise UsageError("a runner of your own makes its inputs itself, all ones", where="--input", hint=hint)
        return plan
    if not asked and bundled:
        declared = runtime_of(program).inputs(program, plan.calls)
        given = [value for name, own in declared.items() for value in bundled.get(name) or [None] * len(own)]
        asked = [None if value is None else AskedInput(BUNDLED, value) for value in given]
    check_sizes(program, plan.calls, asked)
    made = made_inputs(declared_inputs(program, plan.calls), asked, plan.seed or 0)
    if not made.arrays:
        return msgspec.structs.replace(plan, inputs=made.planned)
    save_inputs(work / INPUTS, made.arrays)
    return msgspec.structs.replace(
        plan, inputs=made.planned, values=f"{MODEL}/{INPUTS}", values_sha256=sha256_of(work / INPUTS)
    )


def asked_calls(experiment: Experiment, program: Path) -> AskedCalls:
    """What an experiment calls of a program that is one already, with the sizes of its inputs."""
    calls = runtime_of(program).calls(program, experiment.methods)
    made = made_inputs(declared_inputs(program, calls), asked_inputs(experiment), experiment.seed or 0)
    return AskedCalls(calls, made.planned)


def check_same_inputs(plan: Plan, experiment: Experiment, programs: tuple[Path, Path], calls: Sequence[str]) -> None:
    """Refuse a second program that does not take what the first one is given."""
    if list(calls) != plan.calls:
        told = [" ".join(own) or "the only method" for own in (plan.calls, calls)]
        raise _unlike(
            programs, f"it calls {told[0]}, there {told[1]} would be called", "name the same ones by --methods"
        )
    sides = [declared_inputs(program, plan.calls) for program in programs]
    hint = "export both for the same inputs, or name some that fit both by --input"
    if len(sides[0]) != len(sides[1]):
        raise _unlike(programs, f"it takes {len(sides[0])} inputs, there are {len(sides[1])}", hint)
    asked = asked_inputs(experiment)
    texts = [_told(own, made_inputs(own, asked, plan.seed or 0)) for own in sides]
    for number, (one, other) in enumerate(zip(*texts, strict=True)):
        if one != other:
            raise _unlike(programs, f"input {number} is {one}, there {other}", hint)


def _told(declared: Sequence[Value], made: MadeInputs) -> list[str]:
    """What each input is given, in words: as asked for, else all that the program declares."""
    if made.arrays:
        return [one.dtype + str(one.shape if one.value is None else one.value) for one in made.planned]
    return [described(value).removeprefix("up to ") for value in declared]


def _unlike(programs: tuple[Path, Path], problem: str, hint: str) -> MismatchError:
    one, other = programs
    return MismatchError(f"it does not take the inputs of {other.name}: {problem}", where=one.name, hint=hint)


def asked_inputs(experiment: Experiment) -> list[AskedInput | None]:
    """What inputs an experiment asks for; empty where it asks for none."""
    if experiment.inputs is not None and experiment.input:
        raise UsageError("there is --inputs, too", where="--input", hint="leave out one of the two")
    if experiment.inputs is not None:
        return read_input_file(Path(experiment.inputs))
    return [parse_input(text) for text in experiment.input]


def declared_inputs(program: Path, calls: Sequence[str]) -> list[Value]:
    """Inputs of the methods that a process calls, one method after the other."""
    return [value for _, value in _inputs(program, calls)]


def _inputs(program: Path, calls: Sequence[str]) -> list[NamedValue]:
    return [one for own in runtime_of(program).inputs(program, calls).values() for one in own]


def drawn_integers(program: Path, plan: Plan) -> list[str]:
    """Integer inputs whose values were drawn, since nothing was asked for and no program states a range, in words.

    An index, a rate or a length that is drawn may lead the model down another path than real ones do.
    """
    inputs = _inputs(program, plan.calls)
    asked = [own.source for own in plan.inputs] or [""] * len(inputs)
    return [
        f"{name or number}, {described(value)}"
        for number, ((name, value), source) in enumerate(zip(inputs, asked, strict=False))
        if isinstance(value, PlannedTensor) and value.dtype.name.startswith(("int", "uint")) and not source
    ]


def check_sizes(program: Path, calls: Sequence[str], asked: Sequence[AskedInput | None]) -> None:
    """Refuse sizes that a program leaves open, unless they are given."""
    inputs = _inputs(program, calls)
    lacking = [one for place, one in enumerate(inputs) if place >= len(asked) or asked[place] is None]
    for name, value in runtime_of(program).open_inputs(lacking):
        form = described(value).removeprefix("up to ")
        hint = f"give them, for each input in its order: --input '{form}', with your numbers"
        raise UsageError(f"its input {name!r} has no fixed sizes", where=program, hint=hint)


def save_inputs(path: Path, arrays: Mapping[int, Array]) -> None:
    """Write the values of inputs, by their numbers."""
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"arr_{number}": array for number, array in arrays.items()}
    np.savez(buffer, **named)
    write_atomically(path, buffer.getvalue())
