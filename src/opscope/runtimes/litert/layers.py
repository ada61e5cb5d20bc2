"""Names of layers: operators of a .tflite have none, but converters name tensors after what makes them.

TensorFlow's converter joins the names of all that became one operator with semicolons, and those of other layers whose
constants were found to be equal: ``model/bn/FusedBatchNormV3;model/dw_1/depthwise;model/conv_3/Conv2D``. The part that
names the sort of the operator is taken, the last of several. It is a hint for people, and nothing is decided by it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opscope.runtimes.litert.tflite import TfliteOperator, TfliteSubgraph

# What TensorFlow calls the operation, at the end of a tensor's name.
_SORTS = {
    "ADD": ("add", "Add", "AddV2"),
    "AVERAGE_POOL_2D": ("AvgPool",),
    "BATCH_MATMUL": ("MatMul", "BatchMatMulV2"),
    "CONV_2D": ("Conv2D",),
    "DEPTHWISE_CONV_2D": ("depthwise", "DepthwiseConv2dNative"),
    "FULLY_CONNECTED": ("MatMul",),
    "MAX_POOL_2D": ("MaxPool",),
    "MEAN": ("Mean",),
    "MUL": ("mul", "Mul"),
    "PAD": ("Pad",),
    "RESHAPE": ("Reshape",),
    "SOFTMAX": ("Softmax",),
    "TRANSPOSE_CONV": ("conv2d_transpose",),
}
# Ends that name an operation of TensorFlow and no layer.
_OPERATION = re.compile(
    r"(?:Conv2D|depthwise|MatMul|BiasAdd|FusedBatchNormV3|Relu6?|Elu|Sigmoid|Tanh|Softmax|AddV2|add|mul|Mean|Pad|PadV2"
    r"|AvgPool|MaxPool|Reshape|conv2d_transpose|concat|ReadVariableOp|Shape|StridedSlice|strided_slice)(?:_?\d+)?"
)
_ADDED = re.compile(r"_(?:dequantize|requantized|quant)\d*\Z")
_CALL = re.compile(
    r"\A(?:StatefulPartitionedCall|PartitionedCall|serving_default|main|model|functional)(?:_\d+)?(?::\d+)?/"
)
_LONGEST = 200


def layer_names(graph: TfliteSubgraph) -> dict[int, str]:
    """Names of layers by number of the operator; those whose tensors tell none are left out."""
    found = ((number, layer_name(graph, operator)) for number, operator in enumerate(graph.operators))
    return {number: name for number, name in found if name}


def layer_name(graph: TfliteSubgraph, operator: TfliteOperator) -> str:
    """The layer that an operator is of, as ``block_2.conv``; empty where its tensor tells none."""
    if not operator.outputs or operator.outputs[0] < 0:
        return ""
    parts = [_ADDED.sub("", part) for part in graph.tensors[operator.outputs[0]].name.split(";") if part]
    sorts = _SORTS.get(operator.name, ())
    own = [part for part in parts if _ends_as(part, sorts)]
    chosen = own[-1] if own else parts[0] if parts else ""
    return _path(chosen)[:_LONGEST]


def _ends_as(part: str, sorts: tuple[str, ...]) -> bool:
    return re.sub(r"_?\d+\Z", "", part.rpartition("/")[2]) in sorts


def _path(part: str) -> str:
    """The path of a layer: without what called the model, and without the operation at its end."""
    shorter = _CALL.sub("", part)
    while shorter != part:
        part, shorter = shorter, _CALL.sub("", shorter)
    steps = [step for step in part.split("/") if step]
    if len(steps) > 1 and _OPERATION.fullmatch(steps[-1]):
        steps = steps[:-1]
    return ".".join(dict.fromkeys(steps))
