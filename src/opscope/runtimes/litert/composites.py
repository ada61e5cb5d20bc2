"""Expand composites of a .tflite: operators that stand for a subgraph of simpler ones, which LiteRT runs instead.

Converters write a norm or an attention as ``STABLEHLO_COMPOSITE`` with its decomposition. The XNNPACK delegate
takes an attention as a whole. Tested with ai-edge-litert 2.3.0 on models of litert-torch 0.10.0, event by
event.
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
"""Composite of an attention with queries, keys, values and a mask, which the delegate defines by its own nodes."""
_ATTENDED = 4
_DEEPEST = 8
_MOST = 1 << 20


class Decomposed(NamedTuple):
    """A subgraph without composites."""

    graph: TfliteSubgraph  # its operators keep their numbers, those of decompositions stand behind them
    order: tuple[int, ...]  # in which they run; composites are not in it


def decomposed(model: TfliteModel, graph: TfliteSubgraph, *, delegated: bool = True) -> Decomposed:
    """Return a subgraph in which composites are replaced by their decompositions.

    With the delegate an attention stays one operator, which is named :data:`ATTENTION`.

    Raises:
        TraceFormatError: composites are nested too deeply, which happens only in a damaged file.
    """
    if all(operator.name != COMPOSITE for operator in graph.operators):
        return Decomposed(graph, tuple(range(len(graph.operators))))
    building = _Building(model, graph, delegated=delegated)
    order = tuple(building.of(enumerate(graph.operators), 0))
    expanded = msgspec.structs.replace(graph, tensors=tuple(building.tensors), operators=tuple(building.operators))
    return Decomposed(expanded, order)


class _Building:
    """Tensors and operators of a subgraph, to which those of decompositions are added."""

    def __init__(self, model: TfliteModel, graph: TfliteSubgraph, *, delegated: bool) -> None:
        self._model, self._delegated = model, delegated
        self.tensors: list[TfliteTensor] = list(graph.tensors)
        self.operators: list[TfliteOperator] = list(graph.operators)

    def of(self, numbered: Iterator[tuple[int, TfliteOperator]], depth: int) -> Iterator[int]:
        """Yield the numbers of the operators that run in place of these operators."""
        if depth > _DEEPEST or len(self.operators) > _MOST:
            raise TraceFormatError("composite operators lie in each other too deeply")
        for number, operator in numbered:
            if operator.name != COMPOSITE or not operator.options.subgraphs:
                yield number
                continue
            if self._delegated and self._is_delegated_attention(operator):
                self.operators[number] = msgspec.structs.replace(operator, name=ATTENTION)
                yield number
                continue
            inner = self._model.subgraphs[operator.options.subgraphs[0]]
            tensor_numbers = self._map_tensors(operator, inner)
            first = len(self.operators)
            self.operators += [_renumber_operator(inner_operator, tensor_numbers) for inner_operator in inner.operators]
            yield from self.of(
                ((first + at, self.operators[first + at]) for at in range(len(inner.operators))), depth + 1
            )

    def _is_delegated_attention(self, operator: TfliteOperator) -> bool:
        """Return whether the delegate takes a composite as an attention.

        It does if the heads of queries are shared evenly among those of keys.
        """
        if operator.options.composite != ATTENTION or len(operator.inputs) != _ATTENDED or min(operator.inputs) < 0:
            return False
        queries, keys, values = (self.tensors[number].shape for number in operator.inputs[:3])
        ranked = len(queries) == len(keys) == len(values) == _ATTENDED
        return ranked and keys[2] > 0 and queries[2] % keys[2] == 0

    def _map_tensors(self, operator: TfliteOperator, inner: TfliteSubgraph) -> Sequence[int]:
        """Return the tensor of this graph for each tensor of a decomposition.

        Tensors that only the decomposition has are added, named after the composite's output.
        """
        numbers_of_inner = dict(zip(inner.inputs, operator.inputs, strict=False)) | dict(
            zip(inner.outputs, operator.outputs, strict=False)
        )
        name = self.tensors[operator.outputs[0]].name if operator.outputs else ""
        numbers = []
        for number, tensor in enumerate(inner.tensors):
            if number not in numbers_of_inner:
                self.tensors.append(tensor if tensor.constant else msgspec.structs.replace(tensor, name=name))
            numbers.append(numbers_of_inner.get(number, len(self.tensors) - 1))
        return numbers


def _renumber_operator(operator: TfliteOperator, tensor_numbers: Sequence[int]) -> TfliteOperator:
    inputs, outputs = (
        tuple(tensor_numbers[number] if number >= 0 else number for number in side)
        for side in (operator.inputs, operator.outputs)
    )
    return msgspec.structs.replace(operator, inputs=inputs, outputs=outputs)
