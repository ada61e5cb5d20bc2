"""What ONNX Runtime's passes over a graph do to operators and tensors, as far as attribution has to know it.

Seen with 1.20 to 1.32, and read in ``onnxruntime/core/optimizer``: the quantised form of a node (``QDQ``), channels
last (``nhwc_transformer``), blocks of channels (``nchwc_transformer``), casts around nodes that lack fp16
(``insert_cast_transformer``), transposes pulled through nodes (``transpose_optimization``), quantised tensors pulled
through nodes that only move data (``qdq_propagation``, ``ensure_unique_dq_for_node_unit``), and fusions.
"""

from __future__ import annotations

import re

CARRIERS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "CastLike", "Identity"})
"""Operators that leave what they are given, in another type of number."""
MOVERS = CARRIERS | {"ReorderInput", "ReorderOutput", "Transpose", "Reshape", "Unsqueeze", "Squeeze"}
"""Operators that ONNX Runtime adds of its own accord: their output is their first input, laid out anew."""
BLOCKED = "com.microsoft.nchwc"
"""Domain of operators on blocks of channels, which are filled up with zeros."""
BLOCKED_NAME = "_nchwc"
"""Behind the tensor that such a node makes, in its name; behind it an activation or a sum may still be fused."""
SIZES = frozenset({"Shape", "Size"})
"""Operators that read no element of what they are given."""
BRANCHES = ("then_branch", "else_branch")
"""Graphs of an ``If``; ``_if_then_branch_X`` is tensor X of one that is run in place of its node."""
CONTROL = frozenset({"If", "Loop", "Scan"})

_FAMILIES = {
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose"), "Conv"),
    **dict.fromkeys(
        """
        Gemm QGemm MatMul MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul MatMulNBits TransposeMatMul
        GemmFloat8 MatMulFpQ4 MatMulBnb4 Einsum
        """.split(),
        "MatMul",
    ),
    **dict.fromkeys(("LSTM", "DynamicQuantizeLSTM"), "LSTM"),
    **dict.fromkeys(
        """
        Attention MultiHeadAttention QAttention GroupQueryAttention SparseAttention DecoderMaskedMultiHeadAttention
        LinearAttention PackedAttention PackedMultiHeadAttention
        """.split(),
        "Attention",
    ),
}
_PREFIX = re.compile(r"^(?:QLinear|Nhwc|Fused)+(?=[A-Z])")
PRODUCTS = frozenset({"Conv", "MatMul", "LSTM", "GRU", "RNN", "Attention"})
"""Families in which multiply-accumulates are."""
OF_MANY = frozenset({"Attention"})
"""Families that compute several products of the model at once."""
_MADE = re.compile(
    r"""
    (?:_token_\d+ | /duplicated | _q_to_dq | _post_dq | _pre_q | _out\d+)$
    | ^Inserted(?:PrecisionFree)?Cast_ | ^_if_(?:then|else)_branch_
    """,
    re.VERBOSE,
)


def family(op: str) -> str:
    """What a type of operator computes, whatever the numbers and the layout it does that with."""
    plain = _PREFIX.sub("", op)
    return _FAMILIES.get(plain, plain)


def names_before(name: str) -> list[str]:
    """The name, and those that it was made from, the nearest first."""
    found = [name]
    while (shorter := _MADE.sub("", found[-1], count=1)) not in {found[-1], ""}:
        found.append(shorter)
    return found
