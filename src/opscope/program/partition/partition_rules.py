"""What XNNPACK's partitioner takes, operator by operator.

Source: ``backends/xnnpack/partition/config`` of the release in ``RULES_OF``: its list of operators, the checks that all
of them share, and those of each. A program names the form of an operator that writes to a given output; the partitioner
saw ``add.Tensor`` where the program has ``aten::add.out``. Conditions on what a program does not keep, as which results
are used, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.program.partition import partition_conditions as conditions

if TYPE_CHECKING:
    from opscope.program.partition.partition_conditions import Condition

RULES_OF = "executorch 1.5.1"
"""The release whose partitioner the rules are of. A program does not say which release exported it."""

_GEMM = "gemm_configs.py"
_GENERIC = "generic_node_configs.py"
_NODE = "node_configs.py"
_FLOATS = frozenset({"float32", "float16"})
_QUANTISED = _FLOATS | {"int8", "qint8", "quint8", "qint32"}


class OperatorRule(NamedTuple):
    """How the partitioner takes an operator."""

    target: str  # the operator's name there
    file: str = _GENERIC  # of the partitioner's configuration that holds the rule
    condition: Condition | None = None  # of its own
    dtypes: frozenset[str] = _FLOATS  # number types that its tensors may have
    results: bool = True  # whether that goes for its results too
    inferred: str | None = None  # a form that the program has only when the operator that is taken was not used


_PLAIN = """
abs bmm ceil clamp div exp floor hardtanh hardswish leaky_relu log maximum minimum mul neg permute_copy rsqrt relu
tanh sigmoid sin cos sqrt
"""
_OVERLOADED = {"div": "div.Tensor", "mul": "mul.Tensor"}

RULES: dict[str, OperatorRule] = {
    **{f"aten::{name}.out": OperatorRule(_OVERLOADED.get(name, f"{name}.default")) for name in _PLAIN.split()},
    "aten::add.out": OperatorRule("add.Tensor", condition=conditions.whole_scale),
    "aten::sub.out": OperatorRule("sub.Tensor", condition=conditions.whole_scale),
    "aten::addmm.out": OperatorRule("addmm.default", _GEMM, conditions.stored(2, 0)),
    "aten::mm.out": OperatorRule("mm.default", _GEMM, conditions.stored(1)),
    "aten::linear.out": OperatorRule("linear.default", _GEMM, conditions.stored(1, 2)),
    "aten::convolution.out": OperatorRule("convolution.default", _GEMM, conditions.convolution),
    "aten::avg_pool2d.out": OperatorRule("avg_pool2d.default", condition=conditions.average),
    "aten::max_pool2d_with_indices.out": OperatorRule(
        "max_pool2d.default",
        condition=conditions.maximum,
        results=False,
        inferred="XNNPACK does not support pooling that returns indices",
    ),
    "aten::_native_batch_norm_legit_no_training.out": OperatorRule(
        "_native_batch_norm_legit_no_training.default", _NODE, conditions.batch_norm
    ),
    "aten::cat.out": OperatorRule("cat.default", condition=conditions.several),
    "aten::clone.out": OperatorRule("clone.default", condition=conditions.same_order),
    "dim_order_ops::_clone_dim_order.out": OperatorRule("_clone_dim_order.default", condition=conditions.same_order),
    "dim_order_ops::_to_dim_order_copy.out": OperatorRule("_to_dim_order_copy.default", condition=conditions.same_type),
    "aten::constant_pad_nd.out": OperatorRule("constant_pad_nd.default", condition=conditions.no_cropping),
    "aten::gelu.out": OperatorRule("gelu.default", condition=conditions.not_half),
    "aten::max.dim_max": OperatorRule(
        "max.dim", _NODE, conditions.maximum_of_image, frozenset({*_FLOATS, "int8", "qint8"}), results=False
    ),
    "aten::mean.out": OperatorRule("mean.dim", condition=conditions.image_mean),
    "aten::pow.Tensor_Scalar_out": OperatorRule("pow.Tensor_Scalar", condition=conditions.square),
    "aten::slice_copy.Tensor_out": OperatorRule("slice_copy.Tensor", condition=conditions.plain_slice),
    "aten::_softmax.out": OperatorRule("_softmax.default", condition=conditions.last_dimension),
    "aten::unsqueeze_copy.out": OperatorRule("unsqueeze_copy.default", condition=conditions.trailing),
    "aten::upsample_bilinear2d.vec_out": OperatorRule("upsample_bilinear2d.vec", condition=conditions.fixed_shapes),
    "aten::view_copy.out": OperatorRule("view_copy.default", condition=conditions.fixed_view),
    "executorch_prim::et_view.default": OperatorRule("view_copy.default", condition=conditions.fixed_view),
    "quantized_decomposed::quantize_per_tensor.out": OperatorRule("quantize_per_tensor.default", dtypes=_QUANTISED),
    "quantized_decomposed::dequantize_per_tensor.out": OperatorRule("dequantize_per_tensor.default", dtypes=_QUANTISED),
}
"""By the name that a program has; an operator that is not listed is never taken."""
