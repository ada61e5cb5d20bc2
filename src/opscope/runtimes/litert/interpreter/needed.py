"""Why a .tflite runs in LiteRT's Interpreter alone, as far as its file shows it, and whether it shows enough.

Source: ``litert/core/model/model_load.cc`` of LiteRT 2.3.0 for variable tensors; the buffers of outputs are made before
a call, by ``litert/c/litert_compiled_model.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.runtimes.litert.tflite import TfliteModel, TfliteSubgraph

_Sides = tuple["TfliteSubgraph", "Sequence[int]", "Sequence[int]"]


def unsupported(model: TfliteModel) -> str | None:
    """What the compiled-model API is known not to do with a model, as a sentence."""
    variables = [tensor.name for graph in model.subgraphs for tensor in graph.tensors if tensor.variable]
    if variables:
        example = next((f", such as {name}" for name in variables if name), "")
        return f"the compiled-model API supports no variable tensors{example}"
    for graph, inputs, outputs in _called(model):
        if any(graph.tensors[number].open_axes for number in inputs):
            continue  # sizes of outputs follow from those of the inputs, which are given
        found = next((graph.tensors[number].name for number in outputs if graph.tensors[number].open_axes), None)
        if found is not None:
            return (
                f"the compiled-model API does not support outputs, such as {found}, whose sizes are known only "
                "after a call"
            )
    return None


def is_settled(model: TfliteModel) -> bool:
    """Whether the file leaves nothing open that the compiled-model API may stumble over: sizes, or custom operators."""
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    custom = any(operator.custom for graph in model.subgraphs for operator in graph.operators)
    outputs = [graph.tensors[number] for graph, _, own in _called(model) for number in own]
    return not (custom or any(tensor.open_axes for tensor in tensors)) and all(tensor.shape for tensor in outputs)


def _called(model: TfliteModel) -> Iterator[_Sides]:
    """Graphs that a caller can name, with their inputs and outputs."""
    for own in model.signatures:
        sides = [[number for _, number in side] for side in (own.inputs, own.outputs)]
        yield model.subgraphs[own.subgraph], sides[0], sides[1]
    if not model.signatures:
        graph = model.subgraphs[0]
        yield graph, graph.inputs, graph.outputs
