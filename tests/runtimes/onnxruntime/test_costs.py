"""Multiply-accumulates of nodes by the shapes of a run, held against counts by hand."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.runtimes.onnxruntime import attribution
from opscope.runtimes.onnxruntime.attribution import SessionCosts
from opscope.runtimes.onnxruntime.graph import SessionNode, SessionTensor
from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode, OnnxValue
from opscope.runtimes.onnxruntime.origins import SessionOrigins

if TYPE_CHECKING:
    from opscope.program.cost.operator_cost import Cost
    from opscope.runtimes.onnxruntime.onnx_file import Attribute

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


@pytest.mark.parametrize(
    ("op", "read", "made", "wanted"),
    [
        # 5 steps of 2 sequences: 4 gates of 8 from 3 inputs and from 8 numbers of state.
        ("LSTM", [(5, 2, 3), (1, 32, 3), (1, 32, 8)], (5, 1, 2, 8), 5 * 2 * (4 * 8 * 3 + 4 * 8 * 8)),
        ("GRU", [(5, 2, 3), (2, 24, 3), (2, 24, 8)], (5, 2, 2, 8), 5 * 2 * 2 * (3 * 8 * 3 + 3 * 8 * 8)),
        ("RNN", [(1, 1, 4), (1, 6, 4), (1, 6, 6)], (1, 1, 1, 6), 6 * 4 + 6 * 6),
        ("MatMul", [(2, 3, 4), (4, 5)], (2, 3, 5), 2 * 3 * 5 * 4),
        ("Conv", [(1, 4, 8, 8), (6, 4, 3, 3)], (1, 6, 8, 8), 6 * 64 * 4 * 9),
    ],
)
def test_work_follows_from_shapes(op: str, read: list[tuple[int, ...]], made: tuple[int, ...], wanted: int) -> None:
    """Also where the filter is not stored in the model."""
    assert macs(op, read, made) == wanted


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
    assert cost is not None
    assert cost.padding_macs == 2 * 6 * 2 * outside
    assert cost.macs == 2 * 6 * 2 * math.prod(made) * math.prod(taps)


@pytest.mark.parametrize(
    ("equation", "read", "wanted"),
    [
        ("bsd,de->bse", [(2, 5, 3), (3, 7)], 2 * 5 * 3 * 7),
        ("bhqd, bhkd -> bhqk", [(1, 4, 6, 8), (1, 4, 9, 8)], 4 * 6 * 9 * 8),
        ("ij->ji", [(2, 3)], 0),
        ("i,j,k->ijk", [(2,), (3,), (4,)], None),
        ("...d,de->...e", [(2, 3), (3, 4)], None),
        ("ab,bc->ac", [(2, 3, 4), (3, 4)], None),
    ],
)
def test_a_sum_over_indices_multiplies_every_combination_once(
    equation: str, read: list[tuple[int, ...]], wanted: int | None
) -> None:
    """Of two tensors; of more the order is not known."""
    assert macs("Einsum", read, (1,), {"equation": equation}) == wanted


def test_attention_counts_scores_and_their_sum() -> None:
    """Of ONNX, with heads as a dimension or side by side, shared heads and a cache of keys."""
    scores = 2 * 8 * 5 * 9 * (16 + 16)
    assert macs("Attention", [(2, 8, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16)], (2, 8, 5, 16)) == scores
    side = [(2, 5, 128), (2, 9, 64), (2, 9, 64)]
    assert macs("Attention", side, (2, 5, 128), {"q_num_heads": 8, "kv_num_heads": 4}) == scores
    assert macs("Attention", side, (2, 5, 128)) is None
    cached = [(2, 8, 1, 16), (2, 4, 1, 16), (2, 4, 1, 16), (), (2, 4, 8, 16), (2, 4, 8, 16)]
    assert macs("Attention", cached, (2, 8, 1, 16)) == 2 * 8 * 1 * 9 * 32


def test_attention_of_onnx_runtime_may_make_its_own_queries() -> None:
    """One matrix for queries, keys and values; with a cache the shapes do not tell how much of it is used."""
    own = [(2, 5, 12), (12, 36)]
    assert macs("Attention", own, (2, 5, 12), domain=MICROSOFT) == 2 * 5 * 12 * 36 + 2 * 2 * 5 * 5 * 12
    assert macs("Attention", own, (2, 5, 12), {"qkv_hidden_sizes": (12, 12, 12)}, MICROSOFT) is None
    assert macs("Attention", [*own, (), (), (2, 2, 1, 7, 6)], (2, 5, 12), domain=MICROSOFT) is None
    apart = [(2, 5, 12), (2, 9, 12), (2, 9, 12)]
    assert macs("MultiHeadAttention", apart, (2, 5, 12), domain=MICROSOFT) == 2 * 5 * 9 * 24
    assert macs("GroupQueryAttention", apart, (2, 5, 12), domain=MICROSOFT) is None


def test_weights_of_four_bits_multiply_like_others() -> None:
    """Their number of columns is an option of the node."""
    assert (
        macs("MatMulNBits", [(2, 3, 64), (128, 2, 16)], (2, 3, 128), {"K": 64, "N": 128}, MICROSOFT) == 2 * 3 * 64 * 128
    )


def test_damaged_shapes_give_no_count() -> None:
    """Too few dimensions, or too few inputs."""
    assert macs("LSTM", [(5, 3), (1, 32, 3), (1, 32, 8)], (5, 8)) is None
    assert macs("Gemm", [(3,), (3, 4)], (4,), {"transA": 1}) == 4 * 3
    assert macs("FusedMatMul", [(3,), (3, 4)], (4,), {"transA": 1}, MICROSOFT) is None


def test_what_only_moves_data_multiplies_nothing() -> None:
    """Whatever the model's node that it stands for: a session computes a size with Gather in place of a layer."""
    layer = OnnxNode("c", "Conv", "", ("x", "w"), ("o",), {}, {})
    size = (SessionTensor("int64", (3,)), SessionTensor("int64", ()))
    ran = SessionNode("g", "Gather", "", ("s", "i"), ("o",), size, (SessionTensor("int64", ()),))
    cost = cost_of(ran, layer)
    assert cost is not None
    assert cost.macs == cost.flops == 0


def test_work_that_no_machine_holds_is_not_known() -> None:
    """Sizes of a damaged file; they would not fit into the numbers of a document."""
    assert macs("Conv", [(1, 4, 8, 8), (2**60, 2**60, 3, 3)], (1, 6, 8, 8)) is None
    assert macs("MatMul", [(2**40, 4), (4, 2**40)], (2**40, 2**40)) is None


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


@pytest.mark.parametrize(("stride", "taps"), [(0, 3), (-1, 3), (1, 1 << 40)])
def test_a_damaged_convolution_costs_no_time(stride: int, taps: int) -> None:
    """Steps that none can take and filters that none has: nothing is said to be left out."""
    found = macs("Conv", [(1, 1, 8), (1, 1, taps)], (1, 1, 8), {"strides": (stride,)})
    assert found == 8 * taps
