"""What a caller of a .tflite has to know: its signatures with their inputs and outputs, and what it needs to run.

Source of the layout: ``schema.fbs`` of LiteRT (``tflite/converter/schema``), file identifier ``TFL3``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.errors import TraceFormatError, UsageError
from opscope.core.regular_files import opened
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import Dynamism, PlannedTensor
from opscope.readers.flatbuffer import FlatBuffer, Tables
from opscope.readers.mapped import mapped_file
from opscope.readers.other_files import not_recognised

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIX = ".tflite"
_IDENTIFIER, _AT = b"TFL3", 4
_HINT = "give a .tflite file"
_DAMAGED = "the file is truncated or damaged: copy it again from where it was written"
_CUSTOM, _PLACEHOLDER = 32, 127
_FLEX = "Flex"
# TensorType of the schema, by code.
_TYPES = (
    *(("float32", 32), ("float16", 16), ("int32", 32), ("uint8", 8), ("int64", 64), ("string", None), ("bool", 8)),
    *(("int16", 16), ("complex64", 64), ("int8", 8), ("float64", 64), ("complex128", 128), ("uint64", 64)),
    *(("resource", None), ("variant", None), ("uint32", 32), ("uint16", 16), ("int4", 4), ("bfloat16", 16)),
)
_ONLY = "serving_default"
"""What a model without signatures is called by; LiteRT makes one of its first subgraph."""


class SignatureTensor(NamedTuple):
    """An input or output.

    Attributes:
        name: that the signature gives it; the tensor's own without a signature.
        tensor: its type and sizes; a size that is not known is 1, and the tensor then of any sizes.
    """

    name: str
    tensor: PlannedTensor


class Signature(NamedTuple):
    """A function of a model that can be called.

    Attributes:
        name: by which it is called.
        inputs: in the order of the file.
        outputs: likewise.
    """

    name: str
    inputs: tuple[SignatureTensor, ...]
    outputs: tuple[SignatureTensor, ...]


class CallableModel(NamedTuple):
    """A .tflite as its caller sees it.

    Attributes:
        signatures: never empty.
        custom: names of operators that LiteRT itself does not have.
        operators: how many the model has, all subgraphs together.
        version: of the schema.
    """

    signatures: tuple[Signature, ...]
    custom: tuple[str, ...]
    operators: int
    version: int

    def signature(self, name: str) -> Signature | None:
        """The signature of a name."""
        return next((one for one in self.signatures if one.name == name), None)


def is_tflite(path: Path) -> bool:
    """Whether a file is one, or is named like one."""
    if path.suffix == SUFFIX:
        return True
    if not path.is_file():
        return False
    with opened(path) as stream:
        return stream.read(_AT + len(_IDENTIFIER))[_AT:] == _IDENTIFIER


def read_callable(path: Path) -> CallableModel:
    """The signatures of a .tflite.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is not a .tflite, truncated, or damaged.
    """
    data = mapped_file(path)
    if bytes(data[_AT : _AT + len(_IDENTIFIER)]) != _IDENTIFIER:
        raise not_recognised(path, "not a LiteRT model", _HINT)
    return decode_callable(data, str(path))


def decode_callable(data: bytes | memoryview, where: str) -> CallableModel:
    """The signatures in these bytes; ``where`` names them in errors.

    Raises:
        TraceFormatError: they are truncated or damaged.
    """
    root = FlatBuffer(data, where).root()
    graphs = root.buffer.tables(root.children(2)[0])
    if not len(graphs):
        raise TraceFormatError("the model has no subgraph", where=where, hint=_DAMAGED)
    signatures = tuple(_signatures(root, graphs)) or (_unsigned(graphs.only(0)),)
    operators = len(graphs.children(3)[0])
    return CallableModel(signatures, _custom(root), operators, int(root.int32(0)[0]))


def check_callable(model: CallableModel, path: Path) -> None:
    """Refuse a model that the runtime of the wheel cannot run.

    Raises:
        UsageError: naming the operators.
    """
    flex = [name for name in model.custom if name.startswith(_FLEX)]
    if flex:
        problem = f"it calls operators of TensorFlow itself, which LiteRT does not have: {', '.join(flex)}"
        hint = "convert the model without SELECT_TF_OPS; opscope runs models of LiteRT's own operators"
        raise UsageError(problem, where=path, hint=hint)
    if model.custom:
        problem = f"it calls custom operators, which the installed LiteRT does not have: {', '.join(model.custom)}"
        raise UsageError(problem, where=path, hint="convert the model to built-in operators")


def _signatures(root: Tables, graphs: Tables) -> list[Signature]:
    found = []
    definitions = root.buffer.tables(root.children(7)[0])
    codes, texts = definitions.strings(2)
    numbers = _unsigned_words(definitions, 4)
    for row in range(len(definitions)):
        if not 0 <= numbers[row] < len(graphs):
            raise TraceFormatError("a signature names no subgraph", where=root.buffer.where, hint=_DAMAGED)
        tensors = _tensors(graphs.only(numbers[row]))
        own = definitions.only(row)
        name = texts[codes[row]] if codes[row] >= 0 else _ONLY
        found.append(Signature(name, _mapped(own, 0, tensors), _mapped(own, 1, tensors)))
    return found


def _mapped(definition: Tables, slot: int, tensors: Sequence[SignatureTensor]) -> tuple[SignatureTensor, ...]:
    """Inputs or outputs of a signature, which gives tensors names of its own."""
    maps = definition.buffer.tables(definition.children(slot)[0])
    codes, texts = maps.strings(0)
    numbers = _unsigned_words(maps, 1)
    return tuple(
        _at(tensors, number, maps)._replace(name=texts[code] if code >= 0 else "")
        for code, number in zip(codes.tolist(), numbers, strict=True)
    )


def _unsigned(graph: Tables) -> Signature:
    """What LiteRT makes of a model without signatures."""
    tensors = _tensors(graph)
    sides = [tuple(_at(tensors, number, graph) for number in _numbers(graph, slot)) for slot in (1, 2)]
    return Signature(_ONLY, *sides)


def _at(tensors: Sequence[SignatureTensor], number: int, table: Tables) -> SignatureTensor:
    if not 0 <= number < len(tensors):
        raise table.buffer.error("an input or output is not a tensor of its subgraph")
    return tensors[number]


def _tensors(graph: Tables) -> list[SignatureTensor]:
    tables = graph.buffer.tables(graph.children(0)[0])
    codes, texts = tables.strings(3)
    types = tables.uint8(1).tolist()
    return [
        SignatureTensor(texts[codes[row]] if codes[row] >= 0 else "", _tensor(tables.only(row), types[row]))
        for row in range(len(tables))
    ]


def _tensor(table: Tables, code: int) -> PlannedTensor:
    sizes, asked = _numbers(table, 0), _numbers(table, 7)
    name, bits = _TYPES[code] if code < len(_TYPES) else (f"type {code}", None)
    dynamic = any(size < 0 for size in (*sizes, *asked))
    return PlannedTensor(
        dtype=NumberType(name, bits),
        sizes=tuple(max(1, size) for size in sizes),
        dim_order=(),
        dynamism=Dynamism.UNBOUNDED if dynamic else Dynamism.STATIC,
        data_buffer=0,
        allocation=None,
        name="",
        external=False,
    )


def _numbers(table: Tables, slot: int) -> list[int]:
    """A vector of signed 32-bit numbers of one table."""
    first, count = (int(part[0]) for part in table.vector(slot))
    values: list[int] = table.buffer.i32(first + 4 * np.arange(count, dtype=np.int64)).tolist()
    return values


def _unsigned_words(tables: Tables, slot: int) -> list[int]:
    values: list[int] = tables.int32(slot).tolist()
    return values


def _custom(root: Tables) -> tuple[str, ...]:
    """Names of custom operators; older files state the number of an operator in a byte."""
    codes = root.buffer.tables(root.children(1)[0])
    narrow, wide = codes.uint8(0), codes.int32(3)
    names, texts = codes.strings(1)
    custom = np.where(narrow == _PLACEHOLDER, wide, np.maximum(narrow, wide)) == _CUSTOM
    return tuple(texts[name] if name >= 0 else "without a name" for name in names[custom].tolist())
