"""The inputs and outputs of an .onnx, and whether a caller can give them."""

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
    """Read the signature of an .onnx."""
    return signature_of(read_onnx(path), path)


def signature_of(model: OnnxModel, path: Path) -> Signature:
    """Return the signature of a model. Raises UsageError if an input is no numeric tensor."""
    for value in model.graph.inputs:
        if value.dtype is None or value.dtype.name in _NOT_GIVEN or value.dtype.bits is None:
            kind = value.dtype.name if value.dtype else "no tensor"
            raise UsageError(
                f"its input {value.name!r} is {kind}, but opscope provides only numeric tensors", where=path
            )
    return Signature(
        METHOD, tuple(map(_plan_tensor, model.graph.inputs)), tuple(map(_plan_tensor, model.graph.outputs))
    )


def check_runnable(path: Path) -> None:
    """Raise UsageError for a model that no session can be made of, as far as its file shows it."""
    model = read_onnx(path)
    signature_of(model, path)
    external_paths(model, path)


def index_limits(path: Path) -> dict[str, int]:
    """Return the number of rows of the smallest stored table that each input indexes, by input name.

    The input may be converted to another type or shape before it is used as an index.
    """
    graph = read_onnx(path).graph
    tables = {weight.name: weight.shape[0] for weight in graph.all_weights() if weight.shape}
    indices = {value.name: value.name for value in graph.inputs}
    limits: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in _SAME_VALUES and node.inputs[:1] and node.inputs[0] in indices:
            indices[node.outputs[0]] = indices[node.inputs[0]]
        elif node.op == _GATHER and len(node.inputs) > 1 and node.inputs[1] in indices and node.inputs[0] in tables:
            name, rows = indices[node.inputs[1]], tables[node.inputs[0]]
            if not node.attributes.get("axis"):
                limits[name] = min(rows, limits.get(name, rows))
    return limits


def _plan_tensor(value: OnnxValue) -> PlannedTensor:
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
