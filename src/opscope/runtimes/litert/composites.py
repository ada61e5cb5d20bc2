"""Composites of a .tflite taken apart: operators that stand for a subgraph of simpler ones, which LiteRT runs instead.

Converters write a norm or an attention as ``STABLEHLO_COMPOSITE`` with its decomposition. An attention is taken by the
XNNPACK delegate as a whole. Tried with ai-edge-litert 2.3.0 on models of litert-torch 0.10.0, event by event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.runtimes.litert.tflite import TfliteModel, TfliteOperator, TfliteSubgraph, TfliteTensor

COMPOSITE = "STABLEHLO_COMPOSITE"
ATTENTION = "odml.scaled_dot_product_attention"
"""Of queries, keys, values and a mask, which the delegate defines by its own nodes."""
_ATTENDED = 4
_DEEPEST = 8
_MOST = 1 << 20


class Decomposed(NamedTuple):
    """A subgraph without composites."""

    graph: TfliteSubgraph  # its operators keep their numbers, those of decompositions stand behind them
    order: tuple[int, ...]  # in which they run; composites are not in it


def decomposed(model: TfliteModel, graph: TfliteSubgraph, *, delegated: bool = True) -> Decomposed:
    """A subgraph with the decompositions of its composites in their places.

    With the delegate an attention stays one operator, which is named :data:`ATTENTION`.

    Raises:
        TraceFormatError: composites lie in each other too deeply, as only those of a damaged file do.
    """
    if all(operator.name != COMPOSITE for operator in graph.operators):
        return Decomposed(graph, tuple(range(len(graph.operators))))
    building = _Building(model, graph, delegated=delegated)
    order = tuple(building.of(enumerate(graph.operators), 0))
    whole = msgspec.structs.replace(graph, tensors=tuple(building.tensors), operators=tuple(building.operators))
    return Decomposed(whole, order)


class _Building:
    """Tensors and operators of a subgraph, to which those of decompositions are added."""

    def __init__(self, model: TfliteModel, graph: TfliteSubgraph, *, delegated: bool) -> None:
        self._model, self._delegated = model, delegated
        self.tensors: list[TfliteTensor] = list(graph.tensors)
        self.operators: list[TfliteOperator] = list(graph.operators)

    def of(self, numbered: Iterator[tuple[int, TfliteOperator]], depth: int) -> Iterator[int]:
        """Numbers of what runs in place of these operators."""
        if depth > _DEEPEST or len(self.operators) > _MOST:
            raise TraceFormatError("composite operators lie in each other too deeply")
        for number, operator in numbered:
            if operator.name != COMPOSITE or not operator.options.subgraphs:
                yield number
                continue
            if self._delegated and self._attends(operator):
                self.operators[number] = msgspec.structs.replace(operator, name=ATTENTION)
                yield number
                continue
            inner = self._model.subgraphs[operator.options.subgraphs[0]]
            places = self._placed(operator, inner)
            first = len(self.operators)
            self.operators += [_moved(one, places) for one in inner.operators]
            yield from self.of(
                ((first + at, self.operators[first + at]) for at in range(len(inner.operators))), depth + 1
            )

    def _attends(self, operator: TfliteOperator) -> bool:
        """Whether the delegate takes a composite as an attention: heads of queries are shared among those of keys."""
        if operator.options.composite != ATTENTION or len(operator.inputs) != _ATTENDED or min(operator.inputs) < 0:
            return False
        queries, keys, values = (self.tensors[number].shape for number in operator.inputs[:3])
        ranked = len(queries) == len(keys) == len(values) == _ATTENDED
        return ranked and keys[2] > 0 and queries[2] % keys[2] == 0

    def _placed(self, operator: TfliteOperator, inner: TfliteSubgraph) -> Sequence[int]:
        """The tensor that each of a decomposition is here; those only inside are named as what the composite makes."""
        given = dict(zip(inner.inputs, operator.inputs, strict=False)) | dict(
            zip(inner.outputs, operator.outputs, strict=False)
        )
        name = self.tensors[operator.outputs[0]].name if operator.outputs else ""
        found = []
        for number, tensor in enumerate(inner.tensors):
            if number not in given:
                self.tensors.append(tensor if tensor.constant else msgspec.structs.replace(tensor, name=name))
            found.append(given.get(number, len(self.tensors) - 1))
        return found


def _moved(operator: TfliteOperator, places: Sequence[int]) -> TfliteOperator:
    inputs, outputs = (
        tuple(places[number] if number >= 0 else number for number in side)
        for side in (operator.inputs, operator.outputs)
    )
    return msgspec.structs.replace(operator, inputs=inputs, outputs=outputs)
