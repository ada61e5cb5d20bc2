"""Inputs that nobody gave: sizes and values that are usual for what their names, types and dimensions tell.

They let a model run; what it computes of them means nothing, and its time is that of these sizes.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import UsageError, did_you_mean
from opscope.experiment.inputs import TensorRecipe, parse_input
from opscope.program.structure.plan import UNNAMED, Dynamism, PlannedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.experiment.inputs import AskedInput
    from opscope.program.structure.plan import NamedValue


class UsualInputs(NamedTuple):
    """Sizes and values to try for what a model leaves open."""

    height: int  # height of a picture, in pixels
    width: int
    samples: int  # samples of a waveform
    frames: int  # frames of features over time
    length: int  # length of a row of numbers of which nothing else is known
    mask: str = "ones"  # fills a mask: in some models a one keeps an element, in others it hides it

    def with_opposite_masks(self) -> UsualInputs:
        """Return these inputs with masks that hide what these keep."""
        return self._replace(mask="zeros" if self.mask == "ones" else "ones")


USUAL_INPUTS = (
    UsualInputs(224, 224, 16_000, 100, 128),
    UsualInputs(640, 640, 512, 128, 512),
    UsualInputs(48, 320, 576, 300, 576),
)
"""Usual inputs in the order in which they are tried: of a classifier, a detector, a reader of text lines."""
ALL_GUESSES = tuple(guess for usual in USUAL_INPUTS for guess in (usual, usual.with_opposite_masks()))
"""Guesses in the order in which they are tried."""

_CHANNELS, _TOKENS, _PAST = 3, 128, 16
_ROWS = 100
"""Number of rows assumed for an index into an unknown table: fewer than any usual table has."""
_FEW = 16
"""Number of elements below which an integer input holds settings, lengths or steps, not a text."""

_SIZE_BY_SYMBOL = (
    (r"batch|\bbs?\b|num (seq|images|samples)|beam", 1),
    (r"past", _PAST),
    (r"channel|\bc\b", _CHANNELS),
)
_MASK = r"mask"
_FILL_BY_NAME = (
    (r"\bsr\b|rate", "16000"),
    (r"token type|segment", "zeros"),
    (r"position", "range"),
)
_SOUND = r"audio|wav|sound|speech|signal|sample|pcm"
_STATE = r"state|hidden|cell|\b[hc][0n]?\b"
_LENGTH = r"len|num (frames|samples)"


def with_dimensions(
    inputs: Sequence[NamedValue], asked_inputs: Sequence[AskedInput | None], sizes: Mapping[str, int]
) -> list[AskedInput | None]:
    """Return inputs with sizes for those whose symbols all have a number.

    ``inputs``: by their names, as a program declares them; ``asked_inputs``: what was asked for, in this order, or
    None; ``sizes``: of symbols, by their names.

    Raises UsageError: no input has such a symbol.
    """
    tensors = {number: value for number, (_, value) in enumerate(inputs) if isinstance(value, PlannedTensor)}
    symbols = {symbol for value in tensors.values() for symbol in value.symbols} - {"", UNNAMED}
    for name in sizes:
        if name not in symbols:
            hint = did_you_mean(name, sorted(symbols)) if symbols else "give sizes with --input NAME=TYPE[SIZE,...]"
            raise UsageError(f"no input has a dynamic size {name!r}", where="--dim", hint=hint)
    completed = [*asked_inputs, *[None] * (len(inputs) - len(asked_inputs))]
    for number, value in tensors.items():
        if any(value.symbols) and {*value.symbols} <= {"", *sizes} and _lacks_sizes(completed[number]):
            shape = [sizes.get(symbol, size) for symbol, size in zip(value.symbols, value.sizes, strict=True)]
            completed[number] = _with_sizes(inputs[number], shape, completed[number])
    return completed


def guess_inputs(
    inputs: Sequence[NamedValue],
    asked_inputs: Sequence[AskedInput | None],
    sizes: Mapping[str, int],
    rows: Mapping[str, int],
    usual: UsualInputs = USUAL_INPUTS[0],
) -> list[AskedInput | None]:
    """Return inputs with a guess of all open sizes, and of integer values that nobody requested.

    ``asked_inputs`` stands in the order of the inputs; ``sizes`` are those of symbols, as far as they were given;
    ``rows`` of the table that an input is an index into, by its name; ``usual`` what to take for sizes and
    masks of which no name says more.
    """
    completed = [*asked_inputs, *[None] * (len(inputs) - len(asked_inputs))]
    tensors = {number: value for number, (_, value) in enumerate(inputs) if isinstance(value, PlannedTensor)}
    known = _sizes_of_symbols(list(tensors.values()), sizes, usual)
    shapes = {number: _guess_shape(value, known, usual) for number, value in tensors.items()}
    longest = max((size for number, value in tensors.items() for size in _open_sizes(value, shapes[number])), default=1)
    for number, value in tensors.items():
        name, before = inputs[number][0], completed[number]
        is_open = value.dynamism is Dynamism.UNBOUNDED
        if before is None:
            fill = (
                ""
                if _is_float(value) or not name
                else _guess_fill(name, value, shapes[number], longest, rows.get(name), usual.mask)
            )
            if is_open or fill:
                completed[number] = _with_sizes(inputs[number], shapes[number], None, fill)
        elif is_open and _lacks_sizes(before):
            completed[number] = _with_sizes(inputs[number], shapes[number], before)
    return completed


def input_words(inputs: Sequence[NamedValue], asked_inputs: Sequence[AskedInput | None]) -> list[str]:
    """Return the word after ``--input`` for each input: what was requested, else what the program declares."""
    return [
        requested.source
        if requested is not None
        else _input_text(declared, declared[1].sizes, "")
        if isinstance(declared[1], PlannedTensor)
        else "default"
        for declared, requested in zip(inputs, asked_inputs, strict=True)
    ]


def _lacks_sizes(asked_input: AskedInput | None) -> bool:
    """Return whether nothing was requested that has sizes of its own."""
    if asked_input is None:
        return True
    if isinstance(asked_input.wish, TensorRecipe):
        return asked_input.wish.shape is None
    return isinstance(asked_input.wish, bool | int | float)


def _is_float(value: PlannedTensor) -> bool:
    return "float" in value.dtype.name


def _open_sizes(value: PlannedTensor, shape: Sequence[int]) -> list[int]:
    """Return the open sizes of a tensor after the first, which is the batch."""
    return [size for symbol, size in zip(value.symbols[1:], shape[1:], strict=False) if symbol]


def _with_sizes(
    declared: NamedValue, shape: Sequence[int], before: AskedInput | None, fill: str = ""
) -> AskedInput | None:
    """Return an input of these sizes, filled as requested before, or as a word says."""
    if before is not None:
        fill = before.source.partition("=")[2] if before.name else before.source
    return parse_input(_input_text(declared, shape, fill))


def _input_text(declared: NamedValue, shape: Sequence[int], fill: str) -> str:
    name, value = declared
    assert isinstance(value, PlannedTensor)  # noqa: S101 - only tensors have sizes
    tensor = f"{value.dtype.name}[{','.join(map(str, shape))}]"
    return "=".join(word for word in (name, tensor, fill) if word)


def _spaced_words(name: str) -> str:
    """Return a name in lower case, its parts separated by blanks."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower())


def _sizes_of_symbols(
    tensors: Sequence[PlannedTensor], given_sizes: Mapping[str, int], usual: UsualInputs
) -> dict[str, int]:
    """Return a size for each symbol: as given, by its name, else by its position in the first tensor with it."""
    by_name: dict[str, int] = {}
    by_position: dict[str, int] = {}
    for value in tensors:
        for symbol, size in zip(value.symbols, _usual_shape(value, usual), strict=False):
            if symbol not in {"", UNNAMED} and "+" not in symbol:
                named_size = next(
                    (size for words, size in _SIZE_BY_SYMBOL if re.search(words, _spaced_words(symbol))), None
                )
                (by_position if named_size is None else by_name).setdefault(
                    symbol, size if named_size is None else named_size
                )
    return by_position | by_name | dict(given_sizes)


def _guess_shape(value: PlannedTensor, known: Mapping[str, int], usual: UsualInputs) -> list[int]:
    """Return the sizes of a tensor, where a symbol may be a sum: ``past + sequence``."""
    if value.dynamism is Dynamism.UNBOUNDED and not value.symbols:
        return [1, _CHANNELS, usual.height, usual.width] if _is_float(value) else [1]
    shape = list(value.sizes)
    for axis, (symbol, size) in enumerate(zip(value.symbols, _usual_shape(value, usual), strict=False)):
        if symbol:
            parts = [part.strip() for part in symbol.split("+")]
            numbers = [int(part) if part.isdecimal() else known.get(part, 0) for part in parts]
            shape[axis] = sum(numbers) or size
    return shape


def _usual_shape(value: PlannedTensor, usual: UsualInputs) -> list[int]:
    """Return a usual size for each dimension, by the type and the number of dimensions of a tensor."""
    words = " ".join((_spaced_words(value.name), *map(_spaced_words, value.symbols)))
    length = usual.samples if re.search(_SOUND, words) else usual.length
    match len(value.sizes), _is_float(value):
        case 0, _:
            return []
        case 1, is_float:
            return [length if is_float else 1]
        case 2, is_float:
            return [1, length if is_float else _TOKENS]
        case 3, _:
            # A state of several layers has its batch behind them.
            between = bool(value.symbols) and not value.symbols[0] and not value.symbols[2]
            state = between and (value.sizes[0] > 1 or re.search(_STATE, _spaced_words(value.name)))
            return [1, 1 if state else usual.frames, usual.frames]
        case rank, _:
            last_is_fixed = bool(value.symbols) and not value.symbols[-1] and value.sizes[-1] <= _CHANNELS + 1
            picture = [1] * (rank - 4) + [usual.height, usual.width]
            channels_last = last_is_fixed and bool(value.symbols[1])
            return [1, *picture, _CHANNELS] if channels_last else [1, _CHANNELS, *picture]


def _guess_fill(
    name: str, value: PlannedTensor, shape: Sequence[int], longest: int, rows: int | None, mask_fill: str
) -> str:
    """Return what fills an input of integers or truth values, in the words of ``--input``."""
    if rows:
        return f"random(0,{rows})"
    if re.search(_MASK, _spaced_words(name)):
        return mask_fill
    for words, fill in _FILL_BY_NAME:
        if re.search(words, _spaced_words(name)):
            return fill
    if re.search(_LENGTH, _spaced_words(name)):
        return str(longest)
    if value.dtype.name == "bool":
        return "zeros"
    return "ones" if math.prod(shape) < _FEW else f"random(0,{_ROWS})"
