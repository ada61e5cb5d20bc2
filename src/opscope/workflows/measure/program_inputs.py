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
    """Export a model into a directory; return its program, its ETRecord if there is one, the record and the log.

    Raises:
        ExportError: the export failed; its log is kept beside ``out``.
    """
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
    """Return a plan with the inputs of its calls; their values, if any, are written to ``work/inputs.npz``.

    Inputs are those that the experiment asks for, else those that came with the program, else drawn from the seed.
    """
    wishes = wished_inputs(experiment, program, plan.calls, usual)
    if not wishes and bundled:
        declared = runtime_of(program).inputs(program, plan.calls)
        bundled_values = [
            value for name, values in declared.items() for value in bundled.get(name) or [None] * len(values)
        ]
        wishes = [None if value is None else AskedInput(BUNDLED, value) for value in bundled_values]
    made = make_inputs(declared_inputs(program, plan.calls), wishes, plan.seed or 0)
    if not made.arrays:
        return msgspec.structs.replace(plan, inputs=made.planned)
    save_inputs(work / INPUTS, made.arrays)
    return msgspec.structs.replace(
        plan, inputs=made.planned, values=f"{MODEL}/{INPUTS}", values_sha256=sha256_of(work / INPUTS)
    )


def check_no_inputs(experiment: Experiment) -> None:
    """Refuse options of inputs for a user's own runner, which takes none."""
    if any(asked_inputs(experiment)) or experiment.dim or experiment.guess_inputs:
        hint = "leave out input options, or use --target local or native"
        raise UsageError("your own runner makes its own inputs, all ones", where="--input", hint=hint)


def called_methods(experiment: Experiment, program: Path) -> list[str]:
    """Return the methods that each process calls in turn; empty for a program with one method.

    A graph that could be called for several phases is called once, as it is, if the user gave inputs.
    """
    has_inputs = bool(experiment.input or experiment.inputs or experiment.dim)
    return runtime_of(program).calls(program, experiment.methods, phases=bool(experiment.methods) or not has_inputs)


def asked_calls(experiment: Experiment, program: Path) -> AskedCalls:
    """Return the methods that an experiment calls of an existing program, and the inputs it gives them."""
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
        if experiment.against is not None or _find_difference_of_inputs(declared, taken, first.name) is not None:
            make_inputs(taken, wished, experiment.seed or 0)


def check_same_inputs(plan: Plan, experiment: Experiment, programs: tuple[Path, Path], calls: Sequence[str]) -> None:
    """Refuse a second program that does not take what the first one is given."""
    if list(calls) != plan.calls:
        called = [" ".join(methods) or "the only method" for methods in (plan.calls, calls)]
        raise _different_inputs_error(
            programs, f"it calls {called[0]}, there {called[1]} would be called", "name the same ones with --methods"
        )
    declared_by_program = [declared_inputs(program, plan.calls) for program in programs]
    hint = "export both for the same inputs, or give inputs that fit both with --input"
    if len(declared_by_program[0]) != len(declared_by_program[1]):
        raise _different_inputs_error(
            programs,
            f"it takes {counted_text(len(declared_by_program[0]), 'input')}, there are {len(declared_by_program[1])}",
            hint,
        )
    texts = [
        _describe_given_inputs(
            methods, make_inputs(methods, wished_inputs(experiment, program, plan.calls), plan.seed or 0)
        )
        for methods, program in zip(declared_by_program, programs, strict=True)
    ]
    for number, (first_text, second_text) in enumerate(zip(*texts, strict=True)):
        if first_text != second_text:
            raise _different_inputs_error(programs, f"input {number} is {first_text}, there {second_text}", hint)


def _describe_given_inputs(declared: Sequence[Value], made: MadeInputs) -> list[str]:
    """Return for each input, in words, what it is given; without wishes, all that the program declares."""
    if made.arrays:
        return [
            planned.dtype + str(planned.shape if planned.value is None else planned.value) for planned in made.planned
        ]
    return [declared_text(value).removeprefix("up to ") for value in declared]


def _different_inputs_error(programs: tuple[Path, Path], problem: str, hint: str) -> MismatchError:
    program, first = programs
    return MismatchError(f"it does not take the inputs of {first.name}: {problem}", where=program.name, hint=hint)


def asked_inputs(experiment: Experiment) -> list[AskedInput | None]:
    """Return the inputs that an experiment asks for, in the order of its options or file; empty if it asks for none.

    Raises:
        UsageError: both ``--input`` and ``--inputs`` are given.
    """
    if experiment.inputs is not None and experiment.input:
        raise UsageError("--inputs is also given", where="--input", hint="leave out one of the two")
    if experiment.inputs is not None:
        return read_input_file(Path(experiment.inputs))
    return [parse_input(text) for text in experiment.input]


def wished_inputs(
    experiment: Experiment, program: Path, calls: Sequence[str], usual: UsualInputs = USUAL_INPUTS[0]
) -> list[AskedInput | None]:
    """Return the wish for each input of a program, in its order; None for an input that nobody asked for.

    Wishes come from the experiment's inputs and sizes by name, from the program's calls, and from guesses if allowed.

    Raises:
        UsageError: the program has no such input or symbol, or sizes stay open.
    """
    inputs, sizes = _read_named_inputs(program, calls), experiment.dim
    wishes = _fill_unasked_inputs(
        order_inputs(asked_inputs(experiment), input_names(program, calls)), runtime_of(program).fills(program, calls)
    )
    if sizes:
        wishes = with_dimensions(inputs, wishes, sizes)
    if experiment.guess_inputs:
        return guess_inputs(inputs, wishes, sizes, runtime_of(program).index_limits(program), usual)
    _check_sizes(program, inputs, wishes, sizes)
    return wishes


def _fill_unasked_inputs(wishes: list[AskedInput | None], words: Sequence[str | None]) -> list[AskedInput | None]:
    """Return the wishes, with the value that the calls imply for each input that nobody asked for."""
    padded = [*wishes, *[None] * (len(words) - len(wishes))]
    return [wish or (parse_input(word) if word else None) for wish, word in zip_longest(padded, words)]


def declared_inputs(program: Path, calls: Sequence[str]) -> list[Value]:
    """Return the inputs that a program declares for the methods a process calls, one method after the other."""
    return [value for _, value in _read_named_inputs(program, calls)]


def input_names(program: Path, calls: Sequence[str]) -> list[str]:
    """Return the names of these inputs as users write them; an empty text for each input without a name."""
    return [name for name, _ in _read_named_inputs(program, calls)]


def _read_named_inputs(program: Path, calls: Sequence[str]) -> list[NamedValue]:
    """Return name and declaration of each input of all calls; a name that several methods share follows its method."""
    by_method = runtime_of(program).inputs(program, calls)
    count = Counter(name for inputs in by_method.values() for name, _ in inputs)
    return [
        (f"{method}.{name}" if name and count[name] > 1 else name, value)
        for method, inputs in by_method.items()
        for name, value in inputs
    ]


def drawn_integers(program: Path, plan: Plan) -> list[str]:
    """Return in words the integer inputs whose values were drawn, since nothing states them or their range.

    An index, a rate or a length that is drawn may lead the model down another path than real ones do.
    """
    inputs = _read_named_inputs(program, plan.calls)
    sources = [planned_input.source for planned_input in plan.inputs] or [""] * len(inputs)
    return [
        f"{name or number}, {declared_text(value)}"
        for number, ((name, value), source) in enumerate(zip(inputs, sources, strict=False))
        if isinstance(value, PlannedTensor) and value.dtype.name.startswith(_INTEGERS) and not source
    ]


def guessed_inputs(program: Path, plan: Plan, asked: Sequence[str]) -> list[str]:
    """Return the inputs that were guessed, as words of ``--input``: neither asked for nor implied by the calls."""
    words = [word or "" for word in runtime_of(program).fills(program, plan.calls)]
    pairs = zip_longest([planned_input.source for planned_input in plan.inputs], words, fillvalue="")
    return [source for source, word in pairs if source and source not in {word, *asked}]


def _check_sizes(
    program: Path, inputs: Sequence[NamedValue], wishes: Sequence[AskedInput | None], sizes: Mapping[str, int]
) -> None:
    """Refuse a program whose inputs have open sizes that no wish gives."""
    unasked = [named for position, named in enumerate(inputs) if position >= len(wishes) or wishes[position] is None]
    open_inputs = runtime_of(program).open_inputs(unasked)
    if open_inputs:
        line = _input_options_text(program, inputs, wishes, sizes)
        hint = f"add --guess-inputs to use typical sizes, or copy these and edit them: {line}"
        raise UsageError(
            f"its inputs have dynamic sizes: {_declared_inputs_text(open_inputs)}", where=program, hint=hint
        )


def _input_options_text(
    program: Path, inputs: Sequence[NamedValue], wishes: Sequence[AskedInput | None], sizes: Mapping[str, int]
) -> str:
    """Return the options that give all inputs: as they were asked for, else as guessed."""
    guesses = guess_inputs(inputs, wishes, sizes, runtime_of(program).index_limits(program))
    return " ".join(f"--input {shlex.quote(word)}" for word in input_words(inputs, guesses))


def _declared_inputs_text(inputs: Sequence[NamedValue]) -> str:
    return ", ".join(f"{name} {declared_text(value)}".strip() for name, value in inputs) or "none"


def inputs_in_words(program: Path, plan: Plan) -> tuple[str, str | None]:
    """Return names, types and sizes of a program's inputs, and the options that give them all as a plan does.

    The options are None where nothing has to be given: no size is open, and no integer would be drawn.
    """
    inputs = _read_named_inputs(program, plan.calls)
    wishes = [AskedInput(planned_input.source, None) if planned_input.source else None for planned_input in plan.inputs]
    words = " ".join(f"--input {shlex.quote(word)}" for word in input_words(inputs, wishes)) if any(wishes) else None
    return _declared_inputs_text(inputs), words


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
    plan: Plan, experiment: Experiment, first: Path, other: ProgramPlace, values: Path | None
) -> tuple[VariantInputs, list[Path]]:
    """Return what another program of a bundle is called with so that it computes the same as the first, and its files.

    If both declare the same tensors, or the same with the channels elsewhere, it gets the same values. Otherwise its
    inputs are drawn from the same seed, and the bundle says why. The files hold values that only this program has.

    Raises:
        MismatchError: it calls other methods.
    """
    calls = called_methods(experiment, other.program)
    if calls != plan.calls and max(len(calls), len(plan.calls)) > 1:
        called = [" ".join(methods) or "the only method" for methods in (calls, plan.calls)]
        problem = f"it calls {called[0]}, {first.name} calls {called[1]}: the rounds do different work"
        raise MismatchError(problem, where=other.program.name, hint="name programs with the same methods")
    wishes = wished_inputs(experiment, other.program, calls)
    declared = declared_inputs(first, plan.calls), declared_inputs(other.program, calls)
    difference = _find_difference_of_inputs(*declared, first.name)
    if difference is not None:
        made = make_inputs(declared[1], wishes, plan.seed or 0)
        return _with_saved_values(VariantInputs(made.planned, calls=calls, unlike=difference), made.arrays, other)
    if all(
        _tensor_sizes(first_input) == _tensor_sizes(own_input) for first_input, own_input in zip(*declared, strict=True)
    ):
        return VariantInputs(plan.inputs, plan.values, plan.values_sha256, calls), []
    planned, arrays = _move_values(*declared, _read_first_values(declared[0], plan, values), first.name)
    return _with_saved_values(VariantInputs(planned, calls=calls), arrays, other)


def _find_difference_of_inputs(first: Sequence[Value], second: Sequence[Value], name: str) -> str | None:
    """Return in a sentence why two programs cannot get the same values; None if they can."""
    if len(first) != len(second):
        return f"it takes {counted_text(len(second), 'input')}, {name} takes {len(first)}"
    for number, (value, own_value) in enumerate(zip(first, second, strict=True)):
        alike = declared_text(value) == declared_text(own_value)
        if isinstance(value, PlannedTensor) and isinstance(own_value, PlannedTensor):
            alike = value.dtype.name == own_value.dtype.name and axes_between(value.sizes, own_value.sizes) is not None
        if not alike:
            return f"its input {number} is {declared_text(own_value)}, that of {name} {declared_text(value)}"
    return None


def _tensor_sizes(value: Value) -> tuple[int, ...] | None:
    return tuple(value.sizes) if isinstance(value, PlannedTensor) else None


def _read_first_values(declared: Sequence[Value], plan: Plan, values: Path | None) -> Mapping[int, Array]:
    """Return the values of the first program's tensors, by the numbers of its inputs."""
    if values is not None:
        return {int(name.removeprefix("arr_")): array for name, array in read_arrays(values).items()}
    tensors = {
        number: Tensor(list(value.sizes), value.dtype.name)
        for number, value in enumerate(declared)
        if isinstance(value, PlannedTensor)
    }
    return dict(zip(tensors, random_inputs(list(tensors.values()), plan.seed or 0), strict=True))


def _move_values(
    first: Sequence[Value], second: Sequence[Value], values: Mapping[int, Array], name: str
) -> tuple[list[PlannedInput], dict[int, Array]]:
    """Return another program's inputs, with the first program's values in its order of axes."""
    planned, arrays = [], {}
    for number, (value, own_value) in enumerate(zip(first, second, strict=True)):
        if not (isinstance(value, PlannedTensor) and isinstance(own_value, PlannedTensor)):
            planned += make_inputs([own_value], [], 0).planned
            continue
        axes = axes_between(value.sizes, own_value.sizes) or ()
        text = ",".join(map(str, axes))
        source = f"input {number} of {name}, axes {text}" if list(axes) != sorted(axes) else f"input {number} of {name}"
        arrays[number] = np.ascontiguousarray(np.transpose(values[number], axes))
        planned.append(PlannedInput(list(own_value.sizes), own_value.dtype.name, source=source))
    return planned, arrays


def _with_saved_values(
    calls: VariantInputs, arrays: Mapping[int, Array], other: ProgramPlace
) -> tuple[VariantInputs, list[Path]]:
    """Write the values of inputs, if there are any, to a file; return the calls that refer to it, and the file."""
    if not arrays:
        return calls, []
    file = other.work / INPUTS
    save_inputs(file, arrays)
    values, digest = f"{other.home}/{INPUTS}", sha256_of(file)
    return VariantInputs(calls.inputs, values, digest, calls.calls, calls.unlike), [file]
