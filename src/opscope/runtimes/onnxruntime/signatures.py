"""What a caller of an .onnx has to know: its inputs and outputs, and whether they can be given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.exported import Signature
from opscope.program.structure.plan import UNNAMED, Dynamism, PlannedTensor
from opscope.runtimes.onnxruntime.graph import METHOD
from opscope.runtimes.onnxruntime.onnx_file import external_paths, read_onnx

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.runtimes.onnxruntime.onnx_file import OnnxModel, OnnxValue

_GATHER = "Gather"
_SAME_VALUES = frozenset({"Cast", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Transpose"})
_NOT_GIVEN = frozenset({"string", "complex64", "complex128"})


def read_signature(path: Path) -> Signature:
    """The function of an .onnx."""
    return signature_of(read_onnx(path), path)


def signature_of(model: OnnxModel, path: Path) -> Signature:
    """The function of a model."""
    for one in model.graph.inputs:
        if one.dtype is None or one.dtype.name in _NOT_GIVEN or one.dtype.bits is None:
            kind = one.dtype.name if one.dtype else "no tensor"
            raise UsageError(f"its input {one.name!r} is {kind}, but opscope provides only numeric tensors", where=path)
    return Signature(METHOD, tuple(map(_planned, model.graph.inputs)), tuple(map(_planned, model.graph.outputs)))


def check_runnable(path: Path) -> None:
    """Refuse a model that no session can be made of, as far as its file shows it."""
    model = read_onnx(path)
    signature_of(model, path)
    external_paths(model, path)


def index_limits(path: Path) -> dict[str, int]:
    """Rows of the smallest stored table that an input is an index into, as it is or in another type or shape."""
    graph = read_onnx(path).graph
    tables = {one.name: one.shape[0] for one in graph.all_weights() if one.shape}
    indices = {one.name: one.name for one in graph.inputs}
    limits: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in _SAME_VALUES and node.inputs[:1] and node.inputs[0] in indices:
            indices[node.outputs[0]] = indices[node.inputs[0]]
        elif node.op == _GATHER and len(node.inputs) > 1 and node.inputs[1] in indices and node.inputs[0] in tables:
            name, rows = indices[node.inputs[1]], tables[node.inputs[0]]
            if not node.attributes.get("axis"):
                limits[name] = min(rows, limits.get(name, rows))
    return limits


def _planned(value: OnnxValue) -> PlannedTensor:
    sizes = value.sizes or ()
    return PlannedTensor(
        dtype=value.dtype or NumberType("unknown", None),
        sizes=tuple(size if isinstance(size, int) else 1 for size in sizes),
        dim_order=(),
        dynamism=Dynamism.STATIC if value.fixed else Dynamism.UNBOUNDED,
        data_buffer=0,
        planned=False,
        name=value.name,
        external=False,
        symbols=() if value.fixed else tuple("" if isinstance(size, int) else size or UNNAMED for size in sizes),
    )
