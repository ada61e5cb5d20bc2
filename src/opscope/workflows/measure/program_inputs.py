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
from opscope.experiment.target import capabilities
from opscope.measurements.programs import kind_of_program
from opscope.program.structure.plan import Dynamism, Nothing, PlannedTensor
from opscope.runtimes.executorch.pte import read_executable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.bundle.manifest import Plan
    from opscope.experiment.inputs import MadeInputs
    from opscope.experiment.planned import Experiment
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array
    from opscope.measurements.programs import ProgramKind
    from opscope.program.structure.plan import MethodPlan, Value
    from opscope.program.structure.signature import NamedTensor
    from opscope.runtimes.executorch.bundled import Given

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
    bundled: Mapping[str, Sequence[Given]],
) -> Plan:
    """A plan with the inputs of its calls; their values are left in a directory, as ``inputs.npz``.

    Args:
        plan: with its calls.
        experiment: says what inputs are asked for.
        target: where it runs; a build of the user's makes its own.
        program: the .pte.
        work: takes the values, where there are any.
        bundled: inputs that came with the program, by method; what is asked for goes before them.

    Raises:
        UsageError: an input does not fit the program, or the target takes none.
        NotFoundError: there is no such .npz.
        TraceFormatError: it is none.
    """
    asked = asked_inputs(experiment)
    if capabilities(target).is_build:
        if any(asked):
            hint = "leave out --input and --inputs, or run it with --target local or native"
            raise UsageError("a runner of your own makes its inputs itself, all ones", where="--input", hint=hint)
        return plan
    if not asked and bundled:
        asked = [_came_with(value) for own in _called(program, plan.calls) for value in _all_of(own, bundled)]
    declared = declared_inputs(program, plan.calls)
    check_sizes(program, plan.calls, asked)
    made = made_inputs(declared, asked, plan.seed or 0)
    if not made.arrays:
        return msgspec.structs.replace(plan, inputs=made.planned)
    save_inputs(work / INPUTS, made.arrays)
    return msgspec.structs.replace(
        plan, inputs=made.planned, values=f"{MODEL}/{INPUTS}", values_sha256=sha256_of(work / INPUTS)
    )


def check_same_inputs(plan: Plan, experiment: Experiment, programs: tuple[Path, Path], calls: Sequence[str]) -> None:
    """Refuse a second program that does not take what the first one is given.

    Args:
        plan: with the calls and the inputs of the first program.
        experiment: says what inputs are asked for.
        programs: the first .pte and the second.
        calls: of the second program.

    Raises:
        MismatchError: its methods, or the number, sizes or types of its inputs are others.
        UsageError: what was asked for does not fit it.
    """
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
    """What inputs an experiment asks for; empty where it asks for none.

    Raises:
        UsageError: there is a file and words, too, or a word is not an input.
        NotFoundError: there is no such file.
        TraceFormatError: it is not an .npz.
    """
    if experiment.inputs is not None and experiment.input:
        raise UsageError("there is --inputs, too", where="--input", hint="leave out one of the two")
    if experiment.inputs is not None:
        return read_input_file(Path(experiment.inputs))
    return [parse_input(text) for text in experiment.input]


def _all_of(plan: MethodPlan, bundled: Mapping[str, Sequence[Given]]) -> Sequence[Given]:
    """What came with the program for a method; None for each input where nothing did."""
    return bundled.get(plan.name) or [None] * len(plan.inputs)


def _came_with(value: Given) -> AskedInput | None:
    return None if value is None else AskedInput(BUNDLED, value)


def _called(program: Path, calls: Sequence[str]) -> list[MethodPlan]:
    """The methods that a process calls, in the order of their first calls."""
    plans = {plan.name: plan for plan in read_executable(program).plans}
    called = dict.fromkeys(calls) or (list(plans) if len(plans) == 1 else ["forward"])
    return [plans[name] for name in called if name in plans]


def declared_inputs(program: Path, calls: Sequence[str]) -> list[Value]:
    """Inputs of the methods that a process calls, one method after the other.

    Raises:
        UsageError: the runtime cannot be given one of them.
        TraceFormatError: the program is damaged.
    """
    kind = kind_of_program(program)
    if kind is None:
        return _declared(_called(program, calls))
    return [one.tensor for one in _named_inputs(kind, program, calls)]


def _named_inputs(kind: ProgramKind, program: Path, calls: Sequence[str]) -> list[NamedTensor]:
    signatures = {one.name: one for one in kind.signatures(program)}
    called = dict.fromkeys(calls) or [next(iter(signatures))]
    return [one for name in called for one in signatures[name].inputs]


def drawn_integers(program: Path, plan: Plan) -> list[str]:
    """Integer inputs whose values were drawn, since nothing was asked for and no program states a range, in words.

    An index, a rate or a length that is drawn may lead the model down another path than real ones do.

    Args:
        program: the program of the bundle.
        plan: of the bundle.
    """
    kind = kind_of_program(program)
    values = declared_inputs(program, plan.calls)
    names = [one.name for one in _named_inputs(kind, program, plan.calls)] if kind else [*map(str, range(len(values)))]
    asked = [own.source for own in plan.inputs] or [""] * len(values)
    return [
        f"{name}, {described(value)}"
        for name, value, source in zip(names, values, asked, strict=False)
        if isinstance(value, PlannedTensor) and value.dtype.name.startswith(("int", "uint")) and not source
    ]


def check_sizes(program: Path, calls: Sequence[str], asked: Sequence[AskedInput | None]) -> None:
    """Refuse sizes that a program of another runtime leaves open, unless they are given.

    Raises:
        UsageError: naming the input.
    """
    kind = kind_of_program(program)
    if kind is None:
        return
    for place, (name, value) in enumerate(_named_inputs(kind, program, calls)):
        given = place < len(asked) and asked[place] is not None
        if value.dynamism is Dynamism.STATIC or given:
            continue
        sizes = ",".join(map(str, value.sizes))
        hint = f"give them, for each input in its order: --input '{value.dtype.name}[{sizes}]', with your numbers"
        raise UsageError(f"its input {name!r} has no fixed sizes", where=program, hint=hint)


def _declared(own: Sequence[MethodPlan]) -> list[Value]:
    """Inputs of methods, one method after the other."""
    for plan in own:
        _check_numbers(plan)
    return [plan.values[number] for plan in own for number in plan.inputs]


def _check_numbers(plan: MethodPlan) -> None:
    """Refuse numbers that may change: the exporter writes None for them, and the runtime ends itself when it reads it.

    Raises:
        UsageError: an input is one.
    """
    read = {number for chain in plan.chains for step in chain.steps for number in step.arguments}
    for place, number in enumerate(plan.inputs):
        if isinstance(plan.values[number], Nothing) and number in read:
            problem = (
                f"input {place} of {plan.name} is a number that may change, and ExecuTorch exported no type for it"
            )
            hint = "no runtime can be given it: export the program with a fixed number, or with a tensor"
            raise UsageError(problem, hint=hint)


def save_inputs(path: Path, arrays: Mapping[int, Array]) -> None:
    """Write the values of inputs, by their numbers."""
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"arr_{number}": array for number, array in arrays.items()}
    np.savez(buffer, **named)
    write_atomically(path, buffer.getvalue())
