"""Read OpenVINO IR: the description of a model in its .xml; the weights in the .bin beside it are not read.

Source: ``src/frontends/ir/src/ir_deserializer.cpp`` and ``docs/.../openvino-ir-format`` of OpenVINO 2026.4, IR
versions 10 and 11. Bodies of ``TensorIterator``, ``Loop`` and ``If`` are skipped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from xml.parsers import expat

from opscope.core.errors import TraceFormatError, UsageError
from opscope.core.files import head_of
from opscope.core.system.memory import limited
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.exported import Signature
from opscope.program.structure.plan import UNNAMED, Dynamism, PlannedTensor
from opscope.readers.compressed import mapped_file

if TYPE_CHECKING:
    from pathlib import Path

METHOD = "main"
"""Name of a model's only function."""
_HEAD = 512
_NET = re.compile(rb"^(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>)?\s*(?:<!--.*?-->\s*)*<net[\s>]", re.DOTALL)
_RAN = b'execTimeMcs="'
"""Attribute of nodes in execution graphs that models do not have."""
_VERSIONS = {"10", "11"}
_MOST_DIMENSIONS, _LARGEST = 64, 1 << 62
_LAYER_DEPTH = 3
_TYPES = {
    "f64": ("float64", 64),
    "f32": ("float32", 32),
    "f16": ("float16", 16),
    "bf16": ("bfloat16", 16),
    "i64": ("int64", 64),
    "i32": ("int32", 32),
    "i16": ("int16", 16),
    "i8": ("int8", 8),
    "u64": ("uint64", 64),
    "u32": ("uint32", 32),
    "u16": ("uint16", 16),
    "u8": ("uint8", 8),
    "boolean": ("bool", 8),
    "i4": ("int4", 4),
    "u4": ("uint4", 4),
}


class IrModel(NamedTuple):
    """Description of a model in an .xml."""

    inputs: tuple[PlannedTensor, ...]  # in the order of the file; a size that is open is 1
    weights: tuple[PlannedTensor, ...]  # that are stored
    bin_bytes: int  # that the .bin has to have


def is_ir(path: Path) -> bool:
    """Return whether a file begins like an IR without a document type, which might define entities."""
    return bool(_NET.match(head_of(path, _HEAD)))


def read_ir(path: Path) -> IrModel:
    """Read the model of an .xml."""
    with limited(path):
        return decode_ir(bytes(mapped_file(path)), path)


def decode_ir(data: bytes, path: Path) -> IrModel:
    """Decode a model; ``path`` is named in errors.

    Raises TraceFormatError if the XML is damaged or no model, UsageError for other versions of the format.
    """
    if not _NET.match(data[:_HEAD]):
        raise TraceFormatError("it is not an OpenVINO IR: it has no <net>", where=path, hint="give the .xml of a model")
    if _RAN in data:
        hint = "opscope analyze FILE reads its times; to profile, give the model that was compiled"
        raise TraceFormatError("it is the execution graph of a compiled model, without weights", where=path, hint=hint)
    layers = _Layers(path)
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = layers.start, layers.end
    try:
        parser.Parse(data, True)  # noqa: FBT003 - the interface of expat
    except expat.ExpatError as error:
        hint = "it is truncated or edited: convert the model again"
        raise TraceFormatError(f"the XML is damaged: {error}", where=path, hint=hint) from None
    return IrModel(tuple(layers.inputs), tuple(layers.weights), layers.bin_bytes)


def weights_file(path: Path) -> Path | None:
    """Return the .bin of an .xml; None for a model without weights. Raises UsageError if it is missing or too short."""
    model, file = read_ir(path), path.with_suffix(".bin")
    if not model.bin_bytes:
        return file if file.is_file() else None
    if not file.is_file():
        raise UsageError(
            f"its weights are in {file.name}, which is not next to it", where=path, hint=f"copy it to {file}"
        )
    if file.stat().st_size < model.bin_bytes:
        problem = f"its weights need {model.bin_bytes:,} bytes, and {file.name} has {file.stat().st_size:,}"
        raise UsageError(problem, where=path, hint="convert the model again, and keep both files")
    return file


def read_ir_signature(path: Path) -> Signature:
    """Return the signature of a model; its outputs are only known when it runs."""
    return Signature(METHOD, read_ir(path).inputs, ())


class _Layers:
    """Collects inputs and weights from the elements of a file, in the order in which expat reports them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth, self._layer = 0, {"type": "", "name": ""}
        self.inputs: list[PlannedTensor] = []
        self.weights: list[PlannedTensor] = []
        self.bin_bytes = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and attributes.get("version") not in _VERSIONS:
            hint = "convert the model with a current OpenVINO"
            version = attributes.get("version", "none")
            raise UsageError(f"its IR version is {version}; 10 and 11 are supported", where=self._path, hint=hint)
        if tag == "layer" and self._depth == _LAYER_DEPTH:
            self._layer = attributes
        elif tag == "data" and self._depth == _LAYER_DEPTH + 1:
            self._read_data(attributes)

    def end(self, _: str) -> None:
        self._depth -= 1

    def _read_data(self, attributes: dict[str, str]) -> None:
        kind = self._layer.get("type")
        if kind == "Parameter":
            self.inputs.append(self._plan_tensor(attributes))
        elif kind == "Const":
            self.weights.append(self._plan_tensor(attributes))
            sizes = (attributes.get(name, "") for name in ("offset", "size"))
            self.bin_bytes = max(self.bin_bytes, sum(self._parse_size(text, "weights") for text in sizes))

    def _plan_tensor(self, attributes: dict[str, str]) -> PlannedTensor:
        name, written = self._layer.get("name", ""), attributes.get("element_type", "")
        shape = attributes.get("shape", "").strip()
        words = [word.strip() for word in shape.split(",")] if shape else []
        if len(words) > _MOST_DIMENSIONS:
            raise TraceFormatError(f"the layer {name!r} has {len(words)} dimensions", where=self._path)
        fixed = all(word.isdecimal() for word in words)
        return PlannedTensor(
            dtype=NumberType(*_TYPES.get(written, (written or "unknown", None))),
            sizes=tuple(self._parse_size(word, name) if word.isdecimal() else 1 for word in words),
            dim_order=(),
            dynamism=Dynamism.STATIC if fixed else Dynamism.UNBOUNDED,
            data_buffer=0,
            planned=False,
            name=name,
            external=False,
            symbols=() if fixed else tuple("" if word.isdecimal() else UNNAMED for word in words),
        )

    def _parse_size(self, text: str, owner: str) -> int:
        if not text.isdecimal() or int(text) > _LARGEST:
            raise TraceFormatError(f"{text!r} is not a size, of {owner}", where=self._path)
        return int(text)
