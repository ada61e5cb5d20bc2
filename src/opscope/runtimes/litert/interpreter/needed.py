"""Why a .tflite runs in LiteRT's Interpreter alone, as far as its file shows it.

Source: ``litert/core/model/model_load.cc`` of LiteRT 2.3.0 for variable tensors; the buffers of outputs are made before
a call, by ``litert/c/litert_compiled_model.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.runtimes.litert.tflite import read_tflite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opscope.runtimes.litert.tflite import TfliteModel, TfliteSubgraph

_Sides = tuple["TfliteSubgraph", "Sequence[int]", "Sequence[int]"]


def interpreter_needed(path: Path) -> str | None:
    """What the compiled-model API does not do with a model, as a sentence; None for one that it runs."""
    model = read_tflite(path)
    kept = next((tensor.name for graph in model.subgraphs for tensor in graph.tensors if tensor.variable), None)
    if kept is not None:
        return f"the compiled-model API supports no variable tensors, such as {kept}"
    for graph, inputs, outputs in _called(model):
        if any(graph.tensors[number].dynamic for number in inputs):
            continue  # sizes of outputs follow from those of the inputs, which are given
        found = next((graph.tensors[number].name for number in outputs if graph.tensors[number].dynamic), None)
        if found is not None:
            return f"the compiled-model API has no output, such as {found}, whose sizes are known after a call only"
    return None


def _called(model: TfliteModel) -> Iterator[_Sides]:
    """Graphs that a caller can name, with their inputs and outputs."""
    for own in model.signatures:
        sides = [[number for _, number in side] for side in (own.inputs, own.outputs)]
        yield model.subgraphs[own.subgraph], sides[0], sides[1]
    if not model.signatures:
        graph = model.subgraphs[0]
        yield graph, graph.inputs, graph.outputs
