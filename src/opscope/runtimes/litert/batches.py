"""Fix the open batch of a model at the batch that ran.

Converters of Keras leave the first size of every tensor open. The file then states each shape for a batch of
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.program.structure.plan import Dynamism, PlannedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opscope.analysis.operators.attribution import GivenInputs
    from opscope.program.model import ProgramModel
    from opscope.runtimes.litert.tflite import TfliteModel, TfliteTensor

_BATCH = (0,)


def find_batch(model: ProgramModel, inputs: Mapping[str, GivenInputs]) -> int | None:
    """Return the batch with which all methods ran; None if no input leaves it open, or other sizes differ as well.

    ``inputs`` are the tensors of each method's calls, in the order of the program.
    """
    batches: set[int] = set()
    for name, method_inputs in inputs.items():
        method = model.called(name)
        values = [method.plan.values[number] for number in method.plan.inputs] if method else []
        tensors = [value for value in values if isinstance(value, PlannedTensor)]
        for tensor, shape in zip(tensors, method_inputs.shapes, strict=False):
            if tensor.dynamism is Dynamism.STATIC:
                continue
            if not shape or len(shape) != len(tensor.sizes) or tuple(shape[1:]) != tuple(tensor.sizes[1:]):
                return None
            batches.add(shape[0])
    return batches.pop() if len(batches) == 1 else None


def fix_batch(model: TfliteModel, batch: int) -> TfliteModel | None:
    """Return a model whose open tensors have this batch; None if it leaves any other size open."""
    tensors = [tensor for subgraph in model.subgraphs for tensor in subgraph.tensors]
    if any(tensor.open_axes not in {(), _BATCH} for tensor in tensors):
        return None
    subgraphs = tuple(
        msgspec.structs.replace(subgraph, tensors=tuple(_fix_tensors(subgraph.tensors, batch)))
        for subgraph in model.subgraphs
    )
    return msgspec.structs.replace(model, subgraphs=subgraphs)


def _fix_tensors(tensors: Iterable[TfliteTensor], batch: int) -> Iterable[TfliteTensor]:
    for tensor in tensors:
        if tensor.open_axes:
            # Where a reshape folded other sizes into the batch, the file states their product.
            shape = (tensor.shape[0] * batch, *tensor.shape[1:])
            yield msgspec.structs.replace(tensor, shape=shape, open_axes=())
        else:
            yield tensor
