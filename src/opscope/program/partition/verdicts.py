"""Verdicts on an operator: why it was not delegated and what to do about that, and whether it can run with SME.

:mod:`opscope.program.partition.partition_reasons` and :mod:`opscope.program.partition.sme_rules` find them.
"""

from __future__ import annotations

import enum

import msgspec


class SmeSupport(str, enum.Enum):
    """Ability of an operator to run with SME or SME2."""

    ELIGIBLE = "eligible"
    NOT_ELIGIBLE = "not eligible"
    UNKNOWN = "unknown"


class Form(str, enum.Enum):
    """Form in which XNNPACK runs a node that multiplies and accumulates."""

    PRODUCT = "matrix product"
    BATCH_PRODUCT = "batch matrix product"
    CONVOLUTION = "convolution"
    DEPTHWISE = "depthwise convolution"
    DECONVOLUTION = "transposed convolution"
    ATTENTION = "attention"
    PORTABLE = "portable"
    """Nothing: a kernel outside of delegates runs it."""


class Eligibility(msgspec.Struct, frozen=True):
    """Ability of a node to run with SME or SME2, and how that is known.

    Attributes:
        verdict: whether.
        form: what XNNPACK makes of it.
        types: number types, as XNNPACK names them where a rule is known.
        reason: why.
        source: file and function of XNNPACK that decides; null when no rule is known.
        tried: the rule was tried under an emulator.
        advice: what would make it eligible; null when nothing simple does.
    """

    verdict: SmeSupport
    form: Form
    types: str
    reason: str
    source: str | None
    tried: bool
    advice: str | None = None


class Cause(str, enum.Enum):
    """Kinds of reasons."""

    NO_RULE = "no rule"
    NUMBER_TYPE = "number type"
    MIXED_TYPES = "mixed number types"
    EMPTY = "empty tensor"
    OPTION = "option"
    COMPUTED_WEIGHTS = "computed weights"
    DYNAMIC_SHAPE = "dynamic shape"
    NESTED = "inside a branch or loop"
    SIZES = "computes sizes"
    NOT_LOWERED = "not lowered"
    SWITCHED_OFF = "delegate switched off"
    NOT_KNOWN = "not known"


class PortableReason(msgspec.Struct, frozen=True):
    """Reason why an operator was not delegated.

    Attributes:
        cause: sort of the reason.
        text: the rule, in words.
        evidence: what the program shows; None where the name is all it takes.
        source: file of ExecuTorch that holds the rule; None when the reason is not known.
    """

    cause: Cause
    text: str
    evidence: str | None = None
    source: str | None = None


_BY_CAUSE = {
    Cause.NO_RULE: "replace it with operators that XNNPACK supports, or move it to the start or the end of the model",
    Cause.NUMBER_TYPE: "keep the data in float32 or float16",
    Cause.MIXED_TYPES: "convert the inputs to one number type",
    Cause.EMPTY: "remove the empty tensor",
    Cause.OPTION: "change the option in the model if the result stays the same",
    Cause.COMPUTED_WEIGHTS: "store the weights with the model, or use torch.bmm, which takes two computed tensors",
    Cause.DYNAMIC_SHAPE: "export with fixed shapes, or use constant sizes",
    Cause.NESTED: "unroll the loop or branch, or move the operator before it",
    Cause.NOT_LOWERED: "export with to_edge_transform_and_lower(..., partitioner=[XnnpackPartitioner()])",
    Cause.SWITCHED_OFF: "run with --delegate xnnpack, or compare both with --delegate both",
    Cause.NOT_KNOWN: "see why with XnnpackPartitioner(verbose=True)",
}
_BY_OPERATOR = {
    "cat.out": "remove it if it has a single input; if it repeats one tensor, broadcast instead",
    "convolution.out": "fold the third dimension into the batch if possible: at most two are supported",
    "_native_batch_norm_legit_no_training.out": "reshape to two, three or four dimensions before it",
    "max.dim_max": "reshape to four dimensions before it",
    "expand_copy.out": "reshape to three dimensions and call torch.bmm: torch.matmul inserts it, often as a no-op",
    "select_copy.int_out": "use a slice of length one and reshape it: slices are delegated",
    "index.Tensor_out": "for reflection padding, use opscope.patterns.ReflectionPad2d, which is delegated; otherwise "
    "use slices, or move it to the start or end of the model",
    "_native_batch_norm_legit.no_stats_out": "use opscope.patterns.InstanceNorm2d, which is delegated",
    "split_with_sizes_copy.out": "use slices: they are delegated",
    "split_copy.Tensor_out": "use slices: they are delegated",
    "mean.out": "use mean((2, 3), keepdim=True) on four dimensions, which is delegated; flatten after it",
    "native_layer_norm.out": "try opscope.patterns.LayerNorm, which is delegated, and compare: it is not always faster",
    "log1p.out": "for Softplus or Mish, use those of opscope.patterns, which are delegated",
    "elu.out": "use opscope.patterns.ELU, which is delegated",
    "gelu.out": "compute GELU in float32, or use another activation in half precision",
    "_to_dim_order_copy.out": "keep one number type throughout: a conversion ends a delegate",
    "squeeze_copy.dims_out": "reshape instead: reshapes are delegated",
    "unsqueeze_copy.out": "reshape instead: reshapes are delegated",
}
_OF_LITERT = {
    Cause.NUMBER_TYPE: "keep the data in float32 or float16, or quantise the operator if the delegate supports that",
    Cause.COMPUTED_WEIGHTS: "store the weights with the model",
    Cause.DYNAMIC_SHAPE: "convert the model with fixed sizes, so that shapes and positions are stored numbers",
    Cause.NOT_LOWERED: "run it with the XNNPACK delegate",
    Cause.NOT_KNOWN: "see LiteRT's log for what the delegate rejected",
}
_OPTIONS_OF_LITERT = {
    "CONCATENATION": "concatenate at most five tensors at a time",
    "SPLIT": "split into at most four parts, or use slices, which are delegated",
    "STRIDED_SLICE": "slice with strides of 1, keep the dimension, and reshape after it",
}
_SCALARS = "write Python numbers in the model as floats: an integer becomes an int64 tensor that needs a conversion"


def advice(operator: str, cause: Cause, evidence: str | None) -> str:
    """Return advice on an operator that no delegate took."""
    if operator.isupper():  # LiteRT's built-in operators; those of ExecuTorch have names of PyTorch
        option_advice = _OPTIONS_OF_LITERT.get(operator) if cause is Cause.OPTION else None
        return option_advice or _OF_LITERT.get(cause) or _BY_CAUSE.get(cause, _OF_LITERT[Cause.NOT_KNOWN])
    if cause is Cause.NUMBER_TYPE and (evidence or "").endswith("[]"):
        return _SCALARS
    space, _, name = operator.removeprefix("native_call_").rpartition("::")
    if space == "llama":
        return "leave it: this is ExecuTorch's own kernel for language models, and no delegate has one"
    if cause in {Cause.NO_RULE, Cause.OPTION} and name in _BY_OPERATOR:
        return _BY_OPERATOR[name]
    return _BY_CAUSE.get(cause, _BY_CAUSE[Cause.NOT_KNOWN])
