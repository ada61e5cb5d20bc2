"""Shapes of what portable ATen operators leave, from those of what they are given: one rule for each operator.

There is no rule where a shape depends on data, as of what ``nonzero`` leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.cost import compute_shapes as compute
from opscope.program.cost import movement_shapes as movement
from opscope.program.cost.dimensions import NotKnownError, Shape, broadcast
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.cost.call import OperatorCall


def output_shapes(call: OperatorCall) -> tuple[Shape, ...]:
    """The shapes of the outputs of a call; an operator that leaves fewer tensors has the first of them."""
    rule = _RULES.get(call.operator)
    if rule is not None:
        return rule(call)
    if call.in_place:
        return (call.shape(0),)
    if classify(call.name).category is not Category.ELEMENTWISE or call.operator == "glu":
        raise NotKnownError
    return (broadcast(*map(call.shape_of, call.inputs)),)


_SAME = """
softmax log_softmax cumsum clone clone_dim_order to to_dim_order alias detach lift_fresh contiguous copy fill
full_like zeros_like ones_like empty_like flip roll tril triu masked_fill masked_scatter scatter scatter_add index_put
slice_scatter select_scatter prelu quantize_per_tensor dequantize_per_tensor quantize_per_channel
dequantize_per_channel quantize_per_token dequantize_per_token native_batch_norm_legit_no_training custom_sdpa
""".split()

_PADS = (
    "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d".split()
)

_RULES: dict[str, Callable[[OperatorCall], tuple[Shape, ...]]] = {
    **dict.fromkeys(_SAME, lambda call: (call.shape(0),)),
    **dict.fromkeys(_PADS, movement.pad),
    **dict.fromkeys("view et_view reshape".split(), movement.view),
    **dict.fromkeys("full zeros ones empty".split(), lambda call: (call.numbers(0),)),
    **dict.fromkeys("mm bmm matmul mixed_mm".split(), compute.product_of(0)),
    **dict.fromkeys("addmm baddbmm".split(), compute.product_of(1)),
    **dict.fromkeys("mean sum amax amin argmax argmin max min any all".split(), compute.reduction(1, 2)),
    **dict.fromkeys("var var_mean".split(), compute.reduction(1, 3)),
    "prod": compute.prod,
    "linear": compute.linear,
    "scaled_dot_product_attention": compute.attention,
    "convolution": compute.convolution,
    "avg_pool2d": compute.pooling(ceil=4, dilation=None),
    "max_pool2d_with_indices": compute.pooling(ceil=5, dilation=4),
    "adaptive_avg_pool2d": compute.adaptive,
    "native_layer_norm": compute.layer_norm,
    "native_group_norm": compute.group_norm,
    "topk": compute.topk,
    "upsample_bilinear2d": compute.upsample(3),
    "upsample_nearest2d": compute.upsample(2),
    "pixel_shuffle": compute.pixel_shuffle,
    "pixel_unshuffle": compute.pixel_unshuffle,
    "embedding": movement.embedding(1),
    "embedding_byte": movement.embedding(5),
    "embedding_4bit": movement.embedding(5, packed=2),
    "embedding_2bit": movement.embedding(5, packed=4),
    "cat": movement.cat,
    "stack": movement.stack,
    "unsqueeze": movement.unsqueeze,
    "squeeze": movement.squeeze,
    "slice": movement.slice_of,
    "narrow": movement.narrow,
    "select": movement.select,
    "unbind": movement.unbind,
    "split": movement.split,
    "split_with_sizes": movement.split_with_sizes,
    "permute": movement.permute,
    "transpose": movement.transpose,
    "t": movement.t,
    "expand": movement.expand,
    "repeat": movement.repeat,
    "index": movement.index,
    "index_select": movement.index_select,
    "gather": lambda call: (call.shape(2),),
    "arange": movement.arange,
}
