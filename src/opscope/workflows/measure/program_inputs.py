"""The program of a bundle, exported where it has to be, and its inputs, the same for all of one bundle.

Inputs are as somebody asked for them, else as the program declares them.
"""

from __future__ import annotations

import io
import shlex
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from opscope.bundle.bundle import MODEL, is_bundle
from opscope.bundle.manifest import PlannedInput, VariantInputs
from opscope.core.errors import ExportError, MismatchError, NotFoundError, UsageError
from opscope.core.files import sha256_of, storage_errors
from opscope.core.system.stages import enter
from opscope.core.units import counted_text
from opscope.core.writing import write_atomically
from opscope.experiment.guesses import USUAL_INPUTS, guess_inputs, input_words, with_dimensions
from opscope.experiment.inputs import AskedInput, declared_text, make_inputs, order_inputs, parse_input, read_input_file
from opscope.experiment.tensors import random_inputs
from opscope.program.structure.dtypes import axes_between
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import PlannedTensor
from opscope.readers.outputs import read_arrays
from opscope.runtimes.exports import EXPORT_LOG, RECORD, Choice
from opscope.runtimes.registry import EXPORTER, RUNTIMES, runtime_of
from opscope.runtimes.runtime import AskedCalls
from opscope.workflows.exporting import with_kept_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.bundle.manifest import Plan
    from opscope.experiment.guesses import UsualInputs
    from opscope.experiment.inputs import InputValue, MadeInputs
    from opscope.experiment.planned import Experiment
    from opscope.experiment.tensors import Array
    from opscope.program.structure.plan import NamedValue, Value


_SHOWN = 5


def program_source(model: str, runtime: str | None = None, models: Path | None = None) -> Path | None:
    """The program that was named, that of a directory that was named, or None for a model to export.

    ``runtime`` is that which was asked for, by its name.
    """
    try:
        return runtime_of(model, runtime).program(model, models)
    except NotFoundError:
        if not Path(model).is_dir():
            raise
        return _program_in(Path(model), runtime)


def _program_in(directory: Path, runtime: str | None) -> Path:
    if is_bundle(directory):
        hint = "opscope report rewrites its reports; to measure again, name its program in model/"
        raise UsageError("a bundle, not a model", where=directory, hint=hint)
    known = {suffix for one in RUNTIMES for suffix in one.suffixes}
    with storage_errors(directory):
        paths = sorted(file for file in directory.iterdir() if file.suffix in known)
    if not paths:
        hint = "write one with opscope export MODEL --out DIRECTORY, or name a model: `opscope models` lists them"
        *most, last = (one.suffix for one in RUNTIMES)
        raise NotFoundError(f"no program ({', '.join(most)} or {last}) in the directory", where=directory, hint=hint)
    if len(paths) > 1:
        names = ", ".join(file.name for file in paths[:_SHOWN])
        raise UsageError(
            f"{counted_text(len(paths), 'program')} in the directory: {names}", where=directory, hint="name one of them"
        )
    return program_source(str(paths[0]), runtime) or paths[0]


def exported_files(experiment: Experiment, work: Path, out: Path) -> list[Path]:
    """The program, its ETRecord, the record and the log of the export, in a directory that is thrown away."""
    stage = f"exporting {experiment.model}"
    try:
        enter(stage)
        choice = Choice(experiment.dtype)
        record = EXPORTER.export(
            experiment.model, choice, work, experiment.models, None, lambda step: enter(stage, step)
        )
    except ExportError as error:
        raise with_kept_log(error, work, out) from error
    etrecord = [record.etrecord.name] if record.etrecord else []
    return [work / name for name in (record.program.name, *etrecord, RECORD, EXPORT_LOG)]


INPUTS = "inputs.npz"
"""The values of inputs in a bundle, beside the program."""


_INTEGERS = ("int", "uint")
BUNDLED = "bundled program's input"
"""Source of an input that came with its program."""


def with_inputs(
    plan: Plan,
    experiment: Experiment,
    program: Path,
    work: Path,
    bundled: Mapping[str, Sequence[InputValue]],
    usual: UsualInputs = USUAL_INPUTS[0],
) -> Plan:
    """A plan with the inputs of its calls; their values are left in a directory, as ``inputs.npz``."""
    asked = wished_inputs(experiment, program, plan.calls, usual)
    if not asked and bundled:
        declared = runtime_of(program).inputs(program, plan.calls)
        given = [value for name, own in declared.items() for value in bundled.get(name) or [None] * len(own)]
        asked = [None if value is None else AskedInput(BUNDLED, value) for value in given]
    made = make_inputs(declared_inputs(program, plan.calls), asked, plan.seed or 0)
    if not made.arrays:
        return msgspec.structs.replace(plan, inputs=made.planned)
    save_inputs(work / INPUTS, made.arrays)
    return msgspec.structs.replace(
        plan, inputs=made.planned, values=f"{MODEL}/{INPUTS}", values_sha256=sha256_of(work / INPUTS)
    )


def check_no_inputs(experiment: Experiment) -> None:
    """Refuse inputs of a runner that takes none."""
    if any(asked_inputs(experiment)) or experiment.dim or experiment.guess_inputs:
        hint = "leave out input options, or use --target local or native"
        raise UsageError("your own runner makes its own inputs, all ones", where="--input", hint=hint)


def called_methods(experiment: Experiment, program: Path) -> list[str]:
    """The methods that a process calls over and over; with inputs of somebody's own a graph is called as it is."""
    given = bool(experiment.input or experiment.inputs or experiment.dim)
    return runtime_of(program).calls(program, experiment.methods, phases=bool(experiment.methods) or not given)


def asked_calls(experiment: Experiment, program: Path) -> AskedCalls:
    """What an experiment calls of a program that is one already, with the sizes of its inputs."""
    calls = called_methods(experiment, program)
    made = make_inputs(declared_inputs(program, calls), wished_inputs(experiment, program, calls), experiment.seed or 0)
    return AskedCalls(calls, made.planned)


def check_inputs(experiment: Experiment, programs: Sequence[Path]) -> None:
    """Refuse inputs and methods that programs, of which there is at least one, do not take.

    Inputs are asked of the first program. What they give another program that takes the same, or the same in another
    order of axes, is moved into its order, so that only their names are checked there.
    """
    first = programs[0]
    declared = declared_inputs(first, asked_calls(experiment, first).calls)
    for program in programs[1:]:
        calls = called_methods(experiment, program)
        wished = wished_inputs(experiment, program, calls)
        taken = declared_inputs(program, calls)
        if experiment.against is not None or _unlike_values(declared, taken, first.name) is not None:
            make_inputs(taken, wished, experiment.seed or 0)


def check_same_inputs(plan: Plan, experiment: Experiment, programs: tuple[Path, Path], calls: Sequence[str]) -> None:
    """Refuse a second program that does not take what the first one is given."""
    if list(calls) != plan.calls:
        told = [" ".join(own) or "the only method" for own in (plan.calls, calls)]
        raise _unlike(
            programs, f"it calls {told[0]}, there {told[1]} would be called", "name the same ones with --methods"
        )
    sides = [declared_inputs(program, plan.calls) for program in programs]
    hint = "export both for the same inputs, or give inputs that fit both with --input"
    if len(sides[0]) != len(sides[1]):
        raise _unlike(programs, f"it takes {counted_text(len(sides[0]), 'input')}, there are {len(sides[1])}", hint)
    texts = [
        _input_texts(own, make_inputs(own, wished_inputs(experiment, program, plan.calls), plan.seed or 0))
        for own, program in zip(sides, programs, strict=True)
    ]
    for number, (one, other) in enumerate(zip(*texts, strict=True)):
        if one != other:
            raise _unlike(programs, f"input {number} is {one}, there {other}", hint)


def _input_texts(declared: Sequence[Value], made: MadeInputs) -> list[str]:
    """What each input is given, in words: as asked for, else all that the program declares."""
    if made.arrays:
        return [one.dtype + str(one.shape if one.value is None else one.value) for one in made.planned]
    return [declared_text(value).removeprefix("up to ") for value in declared]


def _unlike(programs: tuple[Path, Path], problem: str, hint: str) -> MismatchError:
    one, other = programs
    return MismatchError(f"it does not take the inputs of {other.name}: {problem}", where=one.name, hint=hint)


def asked_inputs(experiment: Experiment) -> list[AskedInput | None]:
    """What inputs an experiment asks for; empty where it asks for none."""
    if experiment.inputs is not None and experiment.input:
        raise UsageError("--inputs is also given", where="--input", hint="leave out one of the two")
    if experiment.inputs is not None:
        return read_input_file(Path(experiment.inputs))
    return [parse_input(text) for text in experiment.input]


def wished_inputs(
    experiment: Experiment, program: Path, calls: Sequence[str], usual: UsualInputs = USUAL_INPUTS[0]
) -> list[AskedInput | None]:
    """What an experiment asks for, in the order of a program's inputs, with sizes by their names, and with guesses.

    Raises a UsageError where the program has no such input or symbol, or sizes stay open.
    """
    inputs, sizes = _inputs(program, calls), experiment.dim
    asked = _filled(
        order_inputs(asked_inputs(experiment), input_names(program, calls)), runtime_of(program).fills(program, calls)
    )
    if sizes:
        asked = with_dimensions(inputs, asked, sizes)
    if experiment.guess_inputs:
        return guess_inputs(inputs, asked, sizes, runtime_of(program).index_limits(program), usual)
    _check_sizes(program, inputs, asked, sizes)
    return asked


def _filled(asked: list[AskedInput | None], words: Sequence[str | None]) -> list[AskedInput | None]:
    """What was asked for, and elsewhere what follows from the calls."""
    whole = [*asked, *[None] * (len(words) - len(asked))]
    return [one or (parse_input(word) if word else None) for one, word in zip_longest(whole, words)]


def declared_inputs(program: Path, calls: Sequence[str]) -> list[Value]:
    """Inputs of the methods that a process calls, one method after the other."""
    return [value for _, value in _inputs(program, calls)]


def input_names(program: Path, calls: Sequence[str]) -> list[str]:
    """Names of these inputs, as a person says them; empty where the program states none."""
    return [name for name, _ in _inputs(program, calls)]


def _inputs(program: Path, calls: Sequence[str]) -> list[NamedValue]:
    """Inputs of all calls; a name that several methods have follows that of the method."""
    by_method = runtime_of(program).inputs(program, calls)
    count = Counter(name for own in by_method.values() for name, _ in own)
    return [
        (f"{method}.{name}" if name and count[name] > 1 else name, value)
        for method, own in by_method.items()
        for name, value in own
    ]


def drawn_integers(program: Path, plan: Plan) -> list[str]:
    """Integer inputs whose values were drawn, since nothing was asked for and no program states a range, in words.

    An index, a rate or a length that is drawn may lead the model down another path than real ones do.
    """
    inputs = _inputs(program, plan.calls)
    asked = [planned_input.source for planned_input in plan.inputs] or [""] * len(inputs)
    return [
        f"{name or number}, {declared_text(value)}"
        for number, ((name, value), source) in enumerate(zip(inputs, asked, strict=False))
        if isinstance(value, PlannedTensor) and value.dtype.name.startswith(_INTEGERS) and not source
    ]


def guessed_inputs(program: Path, plan: Plan, asked: Sequence[str]) -> list[str]:
    """Return the inputs that were guessed, in the words of ``--input``: neither asked for nor given by the calls."""
    words = [word or "" for word in runtime_of(program).fills(program, plan.calls)]
    each = zip_longest([planned_input.source for planned_input in plan.inputs], words, fillvalue="")
    return [source for source, word in each if source and source not in {word, *asked}]


def _check_sizes(
    program: Path, inputs: Sequence[NamedValue], asked: Sequence[AskedInput | None], sizes: Mapping[str, int]
) -> None:
    """Refuse sizes that a program leaves open, unless they are given; with all inputs as they may be given."""
    lacking = [one for place, one in enumerate(inputs) if place >= len(asked) or asked[place] is None]
    found = runtime_of(program).open_inputs(lacking)
    if found:
        line = _line(program, inputs, asked, sizes)
        hint = f"add --guess-inputs to use typical sizes, or copy these and edit them: {line}"
        raise UsageError(f"its inputs have dynamic sizes: {_declared(found)}", where=program, hint=hint)


def _line(
    program: Path, inputs: Sequence[NamedValue], asked: Sequence[AskedInput | None], sizes: Mapping[str, int]
) -> str:
    """Options that give all inputs: as they were asked for, else as guessed."""
    whole = guess_inputs(inputs, asked, sizes, runtime_of(program).index_limits(program))
    return " ".join(f"--input {shlex.quote(word)}" for word in input_words(inputs, whole))


def _declared(inputs: Sequence[NamedValue]) -> str:
    return ", ".join(f"{name} {declared_text(value)}".strip() for name, value in inputs) or "none"


def inputs_in_words(program: Path, plan: Plan) -> tuple[str, str | None]:
    """Names, types and sizes of a program's inputs, and the options that give them all as a plan does.

    The options are None where nothing has to be given: no size is open, and no integer would be drawn.
    """
    inputs = _inputs(program, plan.calls)
    asked = [AskedInput(planned_input.source, None) if planned_input.source else None for planned_input in plan.inputs]
    words = " ".join(f"--input {shlex.quote(word)}" for word in input_words(inputs, asked)) if any(asked) else None
    return _declared(inputs), words


def save_inputs(path: Path, arrays: Mapping[int, Array]) -> None:
    """Write the values of inputs, by their numbers."""
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"arr_{number}": array for number, array in arrays.items()}
    np.savez(buffer, **named)
    write_atomically(path, buffer.getvalue())


class ProgramPlace(NamedTuple):
    """A program, and where its inputs go."""

    program: Path  # the file
    work: Path  # a directory for the values of its inputs
    home: str  # directory of its files in the bundle


def shared_inputs(
    plan: Plan, experiment: Experiment, first: Path, place: ProgramPlace, values: Path | None
) -> tuple[VariantInputs, list[Path]]:
    """What a program is called with so that it computes the same as the first program of the bundle.

    Where both declare the same tensors, or the same with the channels elsewhere, it gets the same values. Otherwise it
    gets inputs of its own, drawn from the same seed, and the bundle says why. Values of its own
    are in files.
    """
    calls = called_methods(experiment, place.program)
    if calls != plan.calls and max(len(calls), len(plan.calls)) > 1:
        texts = [" ".join(own) or "the only method" for own in (calls, plan.calls)]
        problem = f"it calls {texts[0]}, {first.name} calls {texts[1]}: the rounds do different work"
        raise MismatchError(problem, where=place.program.name, hint="name programs with the same methods")
    asked = wished_inputs(experiment, place.program, calls)
    sides = declared_inputs(first, plan.calls), declared_inputs(place.program, calls)
    unlike = _unlike_values(*sides, first.name)
    if unlike is not None:
        made = make_inputs(sides[1], asked, plan.seed or 0)
        return _kept(VariantInputs(made.planned, calls=calls, unlike=unlike), made.arrays, place)
    if all(_sizes(one) == _sizes(other) for one, other in zip(*sides, strict=True)):
        return VariantInputs(plan.inputs, plan.values, plan.values_sha256, calls), []
    planned, arrays = _moved(*sides, _values(sides[0], plan, values), first.name)
    return _kept(VariantInputs(planned, calls=calls), arrays, place)


def _unlike_values(first: Sequence[Value], other: Sequence[Value], name: str) -> str | None:
    """Why the inputs of two programs are not the same, as one sentence; None where their values can be."""
    if len(first) != len(other):
        return f"it takes {counted_text(len(other), 'input')}, {name} takes {len(first)}"
    for number, (one, own) in enumerate(zip(first, other, strict=True)):
        alike = declared_text(one) == declared_text(own)
        if isinstance(one, PlannedTensor) and isinstance(own, PlannedTensor):
            alike = one.dtype.name == own.dtype.name and axes_between(one.sizes, own.sizes) is not None
        if not alike:
            return f"its input {number} is {declared_text(own)}, that of {name} {declared_text(one)}"
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
            planned += make_inputs([own], [], 0).planned
            continue
        axes = axes_between(one.sizes, own.sizes) or ()
        text = ",".join(map(str, axes))
        source = f"input {number} of {name}, axes {text}" if list(axes) != sorted(axes) else f"input {number} of {name}"
        arrays[number] = np.ascontiguousarray(np.transpose(values[number], axes))
        planned.append(PlannedInput(list(own.sizes), own.dtype.name, source=source))
    return planned, arrays


def _kept(calls: VariantInputs, arrays: Mapping[int, Array], place: ProgramPlace) -> tuple[VariantInputs, list[Path]]:
    """The same with the values of its inputs in a file, where there are any."""
    if not arrays:
        return calls, []
    file = place.work / INPUTS
    save_inputs(file, arrays)
    values, digest = f"{place.home}/{INPUTS}", sha256_of(file)
    return VariantInputs(calls.inputs, values, digest, calls.calls, calls.unlike), [file]
