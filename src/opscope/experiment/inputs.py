"""Inputs that a user names for a program: one word each, or the arrays of an .npz; checked against what it declares.

A word is a number, ``true``, ``false``, ``none``, ``default``, what fills a tensor, or the type and the sizes of a
tensor with what fills it: ``float32[1,3,224,224]``, ``int64[1,16]=random(0,32000)``. Before it may stand the name of
the input: ``tokens=int64[1,16]``.

Labelled inputs: an .npz with an array ``labels``, whose other arrays hold one input after the other.

Each input is a slice of length one along the first axis, for a program that takes a batch of one.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from opscope.bundle.manifest import PlannedInput
from opscope.core.errors import TraceFormatError, UsageError, did_you_mean
from opscope.core.units import counted_text
from opscope.experiment.tensors import NUMBER_TYPES, random_inputs
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import UNNAMED, Dynamism, PlannedTensor
from opscope.readers.outputs import read_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.experiment.tensors import Array
    from opscope.program.structure.plan import Value


InputValue: TypeAlias = "Array | int | float | bool | None"
"""Value of an input that came with a program; None if it has none."""
GRAMMAR = (
    "TYPE[SIZE,...], FILL, TYPE[SIZE,...]=FILL, none or default, after NAME= if inputs have names; FILL is zeros, "
    "ones, range, range(FIRST), random, random(LOW,HIGH), a number, true or false"
)
"""Grammar of one input, in one line."""

_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\](?:=(?P<fill>.+))?\Z")
_RANDOM = re.compile(r"random\((?P<low>[^,]+),(?P<high>[^,]+)\)\Z")
_RANGE = re.compile(r"range\((?P<first>\d{1,18})\)\Z")
_FILLS = ("zeros", "ones", "range", "random")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}
_DEFAULT = "default"
_NAMED = re.compile(r"arr_(\d+)\Z")
_MOST_BYTES = 1 << 34
_MOST_INPUTS = 10_000
LABELS = "labels"
"""Name of the array that makes the arrays beside it a set of labelled inputs."""
MOST_SAMPLES = 100_000
"""Largest number of labelled inputs: each is a process or a call, so a larger file is a mistake."""
UNKNOWN = -1


class TensorRecipe(NamedTuple):
    """Tensor to make."""

    dtype: str | None  # number type; None: as declared
    shape: tuple[int, ...] | None  # its sizes; None: as declared
    fill: str | float  # `zeros`, `ones`, `range` (0, 1, 2, ...), `random`, or the number that fills it
    # of random values, the lower one included, the upper one not; None: as without a wish
    bounds: tuple[float, float] | None = None
    first: int = 0  # first number of a range


Wish: TypeAlias = "TensorRecipe | Array | bool | int | float | None"


class AskedInput(NamedTuple):
    """Input that a user requests."""

    source: str  # what was written, for messages and the manifest
    wish: Wish  # a tensor to make, an array, or the value itself
    name: str = ""  # of the input; empty: by its place


class MadeInputs(NamedTuple):
    """Inputs of all calls."""

    planned: list[PlannedInput]  # what each is; empty where all are tensors as the program declares them
    arrays: dict[int, Array]  # values of the tensors among them, by position; empty where they are drawn from the seed


def parse_input(text: str) -> AskedInput | None:
    """Parse one input as the command line gives it; None for ``default``."""
    word = text.strip()
    if word == _DEFAULT:
        return None
    wish = _parse_wish(word)
    if wish is not _NO_WISH:
        return AskedInput(word, wish)
    name, _, rest = word.partition("=")
    wish_of_name = _parse_wish(rest.strip()) if name else _NO_WISH
    if wish_of_name is _NO_WISH:
        raise UsageError(f"{text!r} is not an input", where="--input", hint=f"write {GRAMMAR}")
    return AskedInput(word, wish_of_name, name.strip())


_NO_WISH = TensorRecipe("", None, "")
"""Value for a text that is no input."""


def _parse_wish(word: str) -> Wish:
    """Return what a text without a name requests."""
    if word in _WORDS:
        return _WORDS[word]
    number = _parse_number(word)
    if number is not None:
        return number
    if word in _FILLS or _RANDOM.match(word.replace(" ", "")) or _RANGE.match(word):
        return _parse_fill(word, None, None)
    match = _TENSOR.match(word)
    return _NO_WISH if match is None else _parse_tensor(word, match["dtype"], match["sizes"], match["fill"] or "random")


def _parse_number(word: str) -> int | float | None:
    if re.fullmatch(r"[+-]?\d{1,18}", word):
        return int(word)
    try:
        return float(word)
    except ValueError:
        return None


def _parse_tensor(text: str, dtype: str, sizes: str, fill: str) -> TensorRecipe:
    words = [word.strip() for word in sizes.split(",")] if sizes.strip() else []
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{text!r} has no sizes", where="--input", hint="for example float32[1,3,224,224]")
    if dtype not in NUMBER_TYPES:
        raise UsageError(f"{dtype!r} is not a number type", where="--input", hint=did_you_mean(dtype, NUMBER_TYPES))
    shape = tuple(map(int, words))
    if math.prod(shape) * 8 > _MOST_BYTES:
        raise UsageError(f"{text!r} would need more than 16 GiB", where="--input", hint="give smaller sizes")
    return _parse_fill(fill, dtype, shape)


def _parse_fill(fill: str, dtype: str | None, shape: tuple[int, ...] | None) -> TensorRecipe:
    if fill in _FILLS:
        return TensorRecipe(dtype, shape, fill)
    behind = _RANGE.match(fill)
    if behind:
        return TensorRecipe(dtype, shape, "range", first=int(behind["first"]))
    number = {"true": 1, "false": 0}.get(fill, _parse_number(fill))
    if number is not None:
        return TensorRecipe(dtype, shape, number)
    bounds = _RANDOM.match(fill.replace(" ", ""))
    low, high = (_parse_number(bounds["low"]), _parse_number(bounds["high"])) if bounds else (None, None)
    if low is None or high is None or not low < high:
        hint = f"use one of {', '.join(_FILLS)}, a number, or random(LOW,HIGH) with LOW below HIGH"
        raise UsageError(f"{fill!r} cannot fill a tensor", where="--input", hint=hint)
    return TensorRecipe(dtype, shape, "random", (low, high))


def read_input_file(path: Path) -> list[AskedInput | None]:
    """Return the arrays of an .npz: ``arr_0``, ``arr_1`` and so on by number, others in the order of the file.

    Of labelled inputs, see :mod:`opscope.experiment.inputs`, it returns the first one, which is the one that is timed.
    """
    arrays = read_arrays(path)
    labelled = labelled_inputs(path, arrays)
    return by_position(path, arrays if labelled is None else labelled.sample(0))


def by_position(path: Path, arrays: Mapping[str, Array]) -> list[AskedInput | None]:
    """Return the arrays of a file as inputs, in the order of the program's if they are numbered."""
    asked_inputs = {name: AskedInput(f"{name} of {path.name}", array, name) for name, array in arrays.items()}
    matches = {name: _NAMED.match(name) for name in arrays}
    if not all(matches.values()):
        return list(asked_inputs.values())
    numbered = {int(match[1]): asked_inputs[name] for name, match in matches.items() if match}
    if max(numbered, default=0) > _MOST_INPUTS:
        raise TraceFormatError(f"arr_{max(numbered)} is the input of no program", where=path)
    return [
        asked_input._replace(name="") if (asked_input := numbered.get(number)) else None
        for number in range(1 + max(numbered, default=-1))
    ]


def order_inputs(asked_inputs: Sequence[AskedInput | None], names: Sequence[str]) -> list[AskedInput | None]:
    """Return the requested inputs in the order of a program's; UsageError for an unknown or repeated name.

    Inputs without a name stand in the order of the program's inputs, as do arrays whose names no input has. ``names``
    are the inputs' names as a person writes them; empty if the program states none.
    """
    arrays = all(asked_input is None or isinstance(asked_input.wish, np.ndarray) for asked_input in asked_inputs)
    if arrays and not all(asked_input is None or asked_input.name in names for asked_input in asked_inputs):
        return [asked_input._replace(name="") if asked_input else None for asked_input in asked_inputs]
    ordered = [asked_input for asked_input in asked_inputs if asked_input is None or not asked_input.name]
    for asked_input in asked_inputs:
        if asked_input is None or not asked_input.name:
            continue
        if asked_input.name not in names:
            known = [name for name in names if name]
            hint = did_you_mean(asked_input.name, known) if known else "give them in order, without names"
            raise UsageError(f"no input has the name {asked_input.name!r}", where="--input", hint=hint)
        position = names.index(asked_input.name)
        ordered.extend([None] * (position + 1 - len(ordered)))
        if ordered[position] is not None:
            hint = "unnamed inputs are used in order; name all or none"
            raise UsageError(f"the input {asked_input.name!r} is given twice", where="--input", hint=hint)
        ordered[position] = asked_input
    return ordered


def make_inputs(declared: Sequence[Value], asked_inputs: Sequence[AskedInput | None], seed: int) -> MadeInputs:
    """Return the inputs of all calls, as requested, else as the program declares them."""
    if len(asked_inputs) > len(declared):
        kinds = ", ".join(map(declared_text, declared)) or "none"
        problem = f"{len(asked_inputs)} inputs are given, the program takes {len(declared)}: {kinds}"
        raise UsageError(problem, where="--input", hint="inputs of several methods follow one another")
    if not any(asked_inputs) and all(isinstance(value, PlannedTensor) for value in declared):
        return MadeInputs([], {})
    requested = [*asked_inputs, *[None] * (len(declared) - len(asked_inputs))]
    planned = [
        _plan_input(number, value, wish) for number, (value, wish) in enumerate(zip(declared, requested, strict=True))
    ]
    return MadeInputs(planned, _make_arrays(planned, requested, seed) if any(asked_inputs) else {})


def declared_text(value: Value) -> str:
    """Return an input as the program declares it, in a few words."""
    match value:
        case PlannedTensor():
            if value.dynamism is Dynamism.UNBOUNDED:
                return f"{value.dtype.name}[{','.join(_open_sizes(value))}]"
            bound = "" if value.dynamism is Dynamism.STATIC else "up to "
            return f"{bound}{value.dtype.name}[{','.join(map(str, value.sizes))}]"
        case bool() | int() | float() | str():
            return f"the {type(value).__name__} {str(value).lower()}"
        case None:
            return "none"
        case _:
            return "a list"


def _open_sizes(value: PlannedTensor) -> list[str]:
    """Return the sizes of a tensor in words, open ones by symbol; dots for an unknown number of dimensions."""
    if not value.symbols:
        return [*map(str, value.sizes)] or ["..."]
    return [symbol or str(size) for symbol, size in zip(value.symbols, value.sizes, strict=True)]


def _plan_input(number: int, value: Value, asked_input: AskedInput | None) -> PlannedInput:
    if isinstance(value, PlannedTensor):
        return _plan_tensor(number, value, asked_input)
    if isinstance(value, bool | int | float):
        return _plan_scalar(number, value, asked_input)
    if value is None:
        if asked_input is not None and asked_input.wish is not None:
            hint = "give none, or export the program with an example for it"
            raise _unfit_error(number, f"is {asked_input.source}, the program was exported for none", hint)
        return PlannedInput(None, "none", source=asked_input.source if asked_input else "")
    kind = "a text" if isinstance(value, str) else "a list"
    raise _unfit_error(
        number, f"is {kind}, which ExecuTorch's runtime does not accept", "export with tensors and numbers"
    )


def _plan_scalar(number: int, value: bool | float, asked_input: AskedInput | None) -> PlannedInput:
    """Plan a number or truth value: the runtime accepts only the one of the export."""
    wish = value if asked_input is None else asked_input.wish
    wish = wish.item() if isinstance(wish, np.ndarray) and wish.ndim == 0 else wish
    alike = isinstance(wish, bool | int | float) and isinstance(wish, bool) == isinstance(value, bool)
    if not alike or not math.isclose(float(wish), float(value), rel_tol=1e-6):  # type: ignore[arg-type]
        source = asked_input.source if asked_input else ""
        problem = f"is {source}, the program was exported for {declared_text(value)} and accepts no other"
        hint = "use default, export the program for that value, or make it a tensor"
        raise _unfit_error(number, problem, hint)
    return PlannedInput(None, type(value).__name__, value, asked_input.source if asked_input else "")


def _plan_tensor(number: int, value: PlannedTensor, asked_input: AskedInput | None) -> PlannedInput:
    if asked_input is None:
        return PlannedInput(list(value.sizes), value.dtype.name)
    dtype, shape = _requested_type_and_shape(number, value, asked_input)
    if dtype != value.dtype.name:
        problem = f"has the number type {dtype}, the program takes {declared_text(value)}"
        raise _unfit_error(number, problem, f"convert it to {value.dtype.name}")
    if not _fits_shape(shape, value):
        fixed = "which is fixed" if value.dynamism is Dynamism.STATIC else "at most"
        problem = f"has the sizes [{','.join(map(str, shape))}], the program takes {declared_text(value)}, {fixed}"
        raise _unfit_error(
            number, problem, "give these sizes, or export or convert the model with other or dynamic sizes"
        )
    return PlannedInput(list(shape), dtype, source=asked_input.source)


def _requested_type_and_shape(
    number: int, value: PlannedTensor, asked_input: AskedInput
) -> tuple[str, tuple[int, ...]]:
    wish = asked_input.wish
    if isinstance(wish, TensorRecipe) and wish.shape is not None:
        return wish.dtype or value.dtype.name, wish.shape
    if isinstance(wish, np.ndarray):
        # numpy has no 16-bit brain floats.
        wide = value.dtype.name == "bfloat16" and wish.dtype.name == "float32"
        return "bfloat16" if wide else wish.dtype.name, wish.shape
    if wish is not None:
        if value.dynamism is Dynamism.UNBOUNDED:
            problem = f"is {asked_input.source} without sizes, but the sizes of {declared_text(value)} are dynamic"
            raise _unfit_error(number, problem, f"give the sizes first: TYPE[SIZE,...]={asked_input.source}")
        return value.dtype.name, value.sizes
    raise _unfit_error(
        number, f"is {asked_input.source}, the program takes the tensor {declared_text(value)}", "give a tensor"
    )


def _fits_shape(shape: Sequence[int], value: PlannedTensor) -> bool:
    if value.dynamism is Dynamism.STATIC:
        return tuple(shape) == value.sizes
    if value.dynamism is Dynamism.UNBOUNDED and not value.sizes:
        return True
    if len(shape) != len(value.sizes):
        return False
    if value.dynamism is not Dynamism.UNBOUNDED:
        return all(size <= most for size, most in zip(shape, value.sizes, strict=True))
    fixed = value.symbols or [UNNAMED] * len(shape)
    return all(
        symbol or size == declared_size for symbol, size, declared_size in zip(fixed, shape, value.sizes, strict=True)
    )


def _unfit_error(number: int, problem: str, hint: str) -> UsageError:
    return UsageError(f"input {number} {problem}", where="--input", hint=hint)


def _make_arrays(
    planned: Sequence[PlannedInput], asked_inputs: Sequence[AskedInput | None], seed: int
) -> dict[int, Array]:
    """Return the values of all tensors; those that nobody requested are drawn from the seed."""
    tensors = {
        number: Tensor(planned_input.shape, planned_input.dtype)
        for number, planned_input in enumerate(planned)
        if planned_input.shape is not None
    }
    drawn = dict(zip(tensors, random_inputs(list(tensors.values()), seed), strict=True))
    return {number: _make_array(asked_inputs[number], drawn[number], (seed, number)) for number in tensors}


def _make_array(asked_input: AskedInput | None, drawn: Array, seed: tuple[int, int]) -> Array:
    wish = asked_input.wish if asked_input else None
    if isinstance(wish, np.ndarray):
        return wish
    if isinstance(wish, TensorRecipe):
        return _fill_array(wish, drawn, seed)
    return drawn if wish is None else _constant_array(drawn, wish)


def _fill_array(spec: TensorRecipe, drawn: Array, seed: tuple[int, int]) -> Array:
    if spec.bounds is not None:
        generator, (low, high) = np.random.RandomState(list(seed)), spec.bounds
        is_integer = np.issubdtype(drawn.dtype, np.integer) or drawn.dtype == np.bool_
        values = (
            generator.randint(int(low), math.ceil(high), drawn.shape, np.int64)
            if is_integer
            else generator.uniform(low, high, drawn.shape)
        )
        return values.astype(drawn.dtype)
    if spec.fill == "range":
        _check_fits(spec.first + drawn.size - 1, drawn)
        return np.arange(spec.first, spec.first + drawn.size).reshape(drawn.shape).astype(drawn.dtype)
    if spec.fill == "random":
        return drawn
    return _constant_array(drawn, spec.fill == "ones" if isinstance(spec.fill, str) else spec.fill)


def _constant_array(drawn: Array, number: float) -> Array:
    """Return a tensor of one number."""
    _check_fits(number, drawn)
    return np.full(drawn.shape, number, drawn.dtype)


def _check_fits(number: float, drawn: Array) -> None:
    """Refuse a number that the tensor's type cannot hold."""
    name = drawn.dtype.name
    limits = np.iinfo(name) if name.startswith(("int", "uint")) else None
    if limits and not (float(number).is_integer() and limits.min <= number <= limits.max):
        raise UsageError(f"{number:g} is not of type {name}", where="--input", hint="give a number of the input's type")


class LabelledInputs(NamedTuple):
    """Inputs with the class of each."""

    labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]]  # int64, shape (n,); -1 where the class is not known
    arrays: dict[str, Array]  # arrays by name, each with n along its first axis

    def sample(self, number: int) -> dict[str, Array]:
        """Return the arrays of one input, with a batch of one."""
        return {name: array[number : number + 1] for name, array in self.arrays.items()}


def labelled_inputs(path: Path, arrays: Mapping[str, Array]) -> LabelledInputs | None:
    """Return the labelled inputs of a file; None if it has no array ``labels``, and is one input."""
    if LABELS not in arrays:
        return None
    labels = arrays[LABELS]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        problem = f"the array labels is {labels.dtype.name}{list(labels.shape)}, not a list of whole numbers"
        raise TraceFormatError(problem, where=path, hint=_HINT)
    input_arrays = {name: array for name, array in arrays.items() if name != LABELS}
    if not 0 < len(labels) <= MOST_SAMPLES or not input_arrays:
        problem = f"there are {len(labels)} labels for {counted_text(len(input_arrays), 'array')} of inputs"
        raise TraceFormatError(problem, where=path, hint=f"{_HINT}; at most {MOST_SAMPLES:,} of them")
    for name, array in input_arrays.items():
        if array.shape[:1] != labels.shape:
            problem = f"there are {len(labels)} labels, and {name} has the shape {list(array.shape)}"
            raise TraceFormatError(problem, where=path, hint=_HINT)
    classes = labels.astype(np.int64)
    if int(classes.min()) < UNKNOWN:
        raise TraceFormatError(f"a label is {int(classes.min())}", where=path, hint=_HINT)
    return LabelledInputs(classes, dict(input_arrays))


_HINT = (
    "use numpy.savez(FILE, images, labels=classes): inputs along the first axis of each array, and one class per "
    "input, from 0, or -1 if unknown; name other program inputs arr_0, arr_1, ..."
)


def stack_outputs(outputs: list[list[Any]]) -> list[Any]:
    """Return outputs of several inputs, each stacked along a new first axis."""
    return [np.stack(outputs_of_position) for outputs_of_position in zip(*outputs, strict=True)]
