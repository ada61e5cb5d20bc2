"""Multiply-accumulates of nodes by the shapes of a run, held against counts by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.program.cost.operator_cost import Cost
from opscope.runtimes.onnxruntime import attribution
from opscope.runtimes.onnxruntime.attribution import SessionCosts
from opscope.runtimes.onnxruntime.graph import SessionNode, SessionTensor
from opscope.runtimes.onnxruntime.onnx_file import Attribute, OnnxGraph, OnnxNode, OnnxValue
from opscope.runtimes.onnxruntime.origins import SessionOrigins

MICROSOFT = "com.microsoft"


def macs(
    op: str,
    read: list[tuple[int, ...]],
    made: tuple[int, ...],
    attributes: dict[str, Attribute] | None = None,
    domain: str = "",
) -> int | None:
    """Of a node that ran as the model has it; a shape of no dimensions is an input that is left out."""
    inputs = tuple(f"i{place}" if shape else "" for place, shape in enumerate(read))
    given = OnnxNode("n", op, domain, inputs, ("o",), attributes or {}, {})
    shapes = tuple(SessionTensor("float", shape) for shape in read if shape)
    ran = SessionNode("n", op, domain, inputs, ("o",), shapes, (SessionTensor("float", made),))
    cost = cost_of(ran, given)
    return None if cost is None else cost.macs


def cost_of(ran: SessionNode, given: OnnxNode) -> Cost | None:
    """The cost of a node that ran of a model of one node, whose inputs are those of the model."""
    inputs = tuple(OnnxValue(name, None, None) for name in given.inputs if name)
    graph = OnnxGraph("g", (given,), inputs, (), (), ())
    return SessionCosts(graph, [ran], SessionOrigins(graph, [ran]), {}).of(0, set(ran.inputs))


SCORES = 2 * 8 * 5 * 9 * (16 + 16)
HEADS = [(2, 8, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16)]
SIDE = [(2, 5, 128), (2, 9, 64), (2, 9, 64)]
CACHED = [(2, 8, 1, 16), (2, 4, 1, 16), (2, 4, 1, 16), (), (2, 4, 8, 16), (2, 4, 8, 16)]
OWN, APART = [(2, 5, 12), (12, 36)], [(2, 5, 12), (2, 9, 12), (2, 9, 12)]
LINE = [(1, 1, 8), (1, 1, 3)]


@pytest.mark.parametrize(
    ("op", "read", "made", "attributes", "domain", "wanted"),
    [
        # 5 steps of 2 sequences: 4 gates of 8 from 3 inputs and from 8 numbers of state.
        ("LSTM", [(5, 2, 3), (1, 32, 3), (1, 32, 8)], (5, 1, 2, 8), {}, "", 5 * 2 * (4 * 8 * 3 + 4 * 8 * 8)),
        ("GRU", [(5, 2, 3), (2, 24, 3), (2, 24, 8)], (5, 2, 2, 8), {}, "", 5 * 2 * 2 * (3 * 8 * 3 + 3 * 8 * 8)),
        ("RNN", [(1, 1, 4), (1, 6, 4), (1, 6, 6)], (1, 1, 1, 6), {}, "", 6 * 4 + 6 * 6),
        ("MatMul", [(2, 3, 4), (4, 5)], (2, 3, 5), {}, "", 2 * 3 * 5 * 4),
        ("Conv", [(1, 4, 8, 8), (6, 4, 3, 3)], (1, 6, 8, 8), {}, "", 6 * 64 * 4 * 9),
        # A sum over indices multiplies every combination once, of two tensors; of more the order is not known.
        ("Einsum", [(2, 5, 3), (3, 7)], (1,), {"equation": "bsd,de->bse"}, "", 2 * 5 * 3 * 7),
        ("Einsum", [(1, 4, 6, 8), (1, 4, 9, 8)], (1,), {"equation": "bhqd, bhkd -> bhqk"}, "", 4 * 6 * 9 * 8),
        ("Einsum", [(2, 3)], (1,), {"equation": "ij->ji"}, "", 0),
        ("Einsum", [(2,), (3,), (4,)], (1,), {"equation": "i,j,k->ijk"}, "", None),
        ("Einsum", [(2, 3), (3, 4)], (1,), {"equation": "...d,de->...e"}, "", None),
        ("Einsum", [(2, 3, 4), (3, 4)], (1,), {"equation": "ab,bc->ac"}, "", None),
        # Attention of ONNX counts scores and their sum: heads as a dimension or side by side, shared ones, a cache.
        ("Attention", HEADS, (2, 8, 5, 16), {}, "", SCORES),
        ("Attention", SIDE, (2, 5, 128), {"q_num_heads": 8, "kv_num_heads": 4}, "", SCORES),
        ("Attention", SIDE, (2, 5, 128), {}, "", None),
        ("Attention", CACHED, (2, 8, 1, 16), {}, "", 2 * 8 * 1 * 9 * 32),
        # That of ONNX Runtime may make its own queries, keys and values by one matrix; a cache's use is not known.
        ("Attention", OWN, (2, 5, 12), {}, MICROSOFT, 2 * 5 * 12 * 36 + 2 * 2 * 5 * 5 * 12),
        ("Attention", OWN, (2, 5, 12), {"qkv_hidden_sizes": (12, 12, 12)}, MICROSOFT, None),
        ("Attention", [*OWN, (), (), (2, 2, 1, 7, 6)], (2, 5, 12), {}, MICROSOFT, None),
        ("MultiHeadAttention", APART, (2, 5, 12), {}, MICROSOFT, 2 * 5 * 9 * 24),
        ("GroupQueryAttention", APART, (2, 5, 12), {}, MICROSOFT, None),
        # Weights of four bits multiply like others; their number of columns is an option of the node.
        ("MatMulNBits", [(2, 3, 64), (128, 2, 16)], (2, 3, 128), {"K": 64, "N": 128}, MICROSOFT, 2 * 3 * 64 * 128),
        # Damaged shapes: too few dimensions or inputs, sizes that no machine holds, steps and filters that none has.
        ("LSTM", [(5, 3), (1, 32, 3), (1, 32, 8)], (5, 8), {}, "", None),
        ("Gemm", [(3,), (3, 4)], (4,), {"transA": 1}, "", 4 * 3),
        ("FusedMatMul", [(3,), (3, 4)], (4,), {"transA": 1}, MICROSOFT, None),
        ("Conv", [(1, 4, 8, 8), (2**60, 2**60, 3, 3)], (1, 6, 8, 8), {}, "", None),
        ("MatMul", [(2**40, 4), (4, 2**40)], (2**40, 2**40), {}, "", None),
        ("Conv", LINE, (1, 1, 8), {"strides": (0,)}, "", 8 * 3),
        ("Conv", LINE, (1, 1, 8), {"strides": (-1,)}, "", 8 * 3),
        ("Conv", [(1, 1, 8), (1, 1, 1 << 40)], (1, 1, 8), {"strides": (1,)}, "", 8 << 40),
    ],
)
def test_work_follows_from_shapes(
    op: str,
    read: list[tuple[int, ...]],
    made: tuple[int, ...],
    attributes: dict[str, Attribute],
    domain: str,
    wanted: int | None,
) -> None:
    """Also where the filter is not stored in the model; None where the shapes do not tell."""
    assert macs(op, read, made, attributes, domain) == wanted


@settings(deadline=None)
@given(st.data(), st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER"]))
def test_products_with_padding_are_those_of_taps_that_lie_outside(data: st.DataObject, how: str) -> None:
    """Counted one by one, along two dimensions."""
    size, taps, stride, dilation, before, behind = (
        [data.draw(st.integers(low, high)) for _ in range(2)]
        for low, high in ((5, 9), (1, 3), (1, 3), (1, 2), (0, 3), (0, 3))
    )
    reach = [(one - 1) * step + 1 for one, step in zip(taps, dilation, strict=True)]
    if how == "pads":
        made = [(size[i] + before[i] + behind[i] - reach[i]) // stride[i] + 1 for i in range(2)]
        attributes: dict[str, Attribute] = {"pads": (*before, *behind)}
    else:
        made = [-(-size[i] // stride[i]) for i in range(2)]
        around = [max(0, (made[i] - 1) * stride[i] + reach[i] - size[i]) for i in range(2)]
        before = [one // 2 if how == "SAME_UPPER" else one - one // 2 for one in around]
        attributes = {"auto_pad": how}
    attributes |= {"strides": tuple(stride), "dilations": tuple(dilation)}
    outside = sum(
        not all(0 <= at[i] * stride[i] - before[i] + tap[i] * dilation[i] < size[i] for i in range(2))
        for at in product(*map(range, made))
        for tap in product(*map(range, taps))
    )
    names = ("x", "w")
    tensors = tuple(
        SessionTensor("float", (2, 4, *one) if place == 0 else (6, 2, *one)) for place, one in enumerate((size, taps))
    )
    node = OnnxNode("n", "Conv", "", names, ("o",), {**attributes, "group": 2}, {})
    left = (SessionTensor("float", (2, 6, *made)),)
    cost = cost_of(SessionNode("n", "Conv", "", names, ("o",), tensors, left), node)
    assert cost.padding_macs == 2 * 6 * 2 * outside
    assert cost.macs == 2 * 6 * 2 * math.prod(made) * math.prod(taps)


def test_what_only_moves_data_multiplies_nothing() -> None:
    """Whatever the model's node that it stands for: a session computes a size with Gather in place of a layer."""
    layer = OnnxNode("c", "Conv", "", ("x", "w"), ("o",), {}, {})
    size = (SessionTensor("int64", (3,)), SessionTensor("int64", ()))
    ran = SessionNode("g", "Gather", "", ("s", "i"), ("o",), size, (SessionTensor("int64", ()),))
    cost = cost_of(ran, layer)
    assert cost.macs == cost.flops == 0


_SHAPES = st.lists(st.integers(0, 5), max_size=6).map(tuple)
_OPERATORS = sorted(
    {*attribution._CONVOLUTIONS, *attribution._COUNTS, "ConvTranspose", "Gather", "Relu"}
)  # all that are told apart


@settings(max_examples=300)
@given(
    op=st.sampled_from(_OPERATORS),
    read=st.lists(_SHAPES, max_size=8),
    made=_SHAPES,
    domain=st.sampled_from(["", MICROSOFT]),
    options=st.dictionaries(
        st.sampled_from(["transA", "N", "q_num_heads", "kv_num_heads", "equation", "qkv_hidden_sizes"]),
        st.one_of(st.integers(-2, 4), st.sampled_from(["ij,jk->ik", "->", "a,b", ""]), st.just((1, 2))),
    ),
)
def test_any_shapes_give_a_count_or_none(
    op: str, read: list[tuple[int, ...]], made: tuple[int, ...], domain: str, options: dict[str, Attribute]
) -> None:
    """What a profile says of shapes is a file's word."""
    found = macs(op, read, made, options, domain)
    assert found is None or found >= 0
