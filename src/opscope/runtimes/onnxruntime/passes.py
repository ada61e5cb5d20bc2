"""Changes to operators and tensors by ONNX Runtime's passes over a graph, as far as attribution has to know them.

Seen with 1.20 to 1.32, and read in ``onnxruntime/core/optimizer``: the quantised form of a node (``QDQ``),
channels last (``nhwc_transformer``), blocks of channels (``nchwc_transformer``), casts around nodes that lack
fp16 (``insert_cast_transformer``), transposes pulled through nodes (``transpose_optimization``), quantised
tensors pulled through nodes that only move data (``qdq_propagation``, ``ensure_unique_dq_for_node_unit``), and
fusions.
"""

from __future__ import annotations

import re

CARRIERS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "CastLike", "Identity"})
"""Operators whose output has the values of their input, in another number type."""
MOVERS = CARRIERS | {"ReorderInput", "ReorderOutput", "Transpose", "Reshape", "Unsqueeze", "Squeeze"}
"""Operators that ONNX Runtime adds by itself: their output is their first input in another layout."""
BLOCKED = "com.microsoft.nchwc"
"""Domain of operators on blocks of channels, which are padded with zeros."""
BLOCKED_NAME = "_nchwc"
"""Suffix of a blocked node's name, after its tensor's name; an activation or a sum may still be fused after it."""
SIZES = frozenset({"Shape", "Size"})
"""Operators that read no element of their input."""
BRANCHES = ("then_branch", "else_branch")
"""Graphs of an ``If``; ``_if_then_branch_X`` is tensor X of a branch that runs in place of its node."""
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
"""Families of operators with multiply-accumulates."""
OF_MANY = frozenset({"Attention"})
"""Families of operators that compute several products of the model at once."""
_MADE = re.compile(
    r"""
    (?:_token_\d+ | /duplicated | _q_to_dq | _post_dq | _pre_q | _out\d+)$
    | ^Inserted(?:PrecisionFree)?Cast_ | ^_if_(?:then|else)_branch_
    """,
    re.VERBOSE,
)


def family(op: str) -> str:
    """Return the family of an operator: what it computes, in any number type and layout."""
    plain = _PREFIX.sub("", op)
    return _FAMILIES.get(plain, plain)


def names_before(name: str) -> list[str]:
    """Return a name and the names that passes made it from, the nearest first."""
    names = [name]
    while (shorter := _MADE.sub("", names[-1], count=1)) not in {names[-1], ""}:
        names.append(shorter)
    return names
