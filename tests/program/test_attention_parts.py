"""Which kernels belong to an attention, by what surrounds its softmax."""

from __future__ import annotations

from graphs import graph
from opscope.program.operators.kinds import AttentionPart
from opscope.program.structure.plan import InstructionKind
from opscope.program.xnnpack.attention import attention_parts
from plans import Given, Method, tensor

FIRST = """
    input q fp32 4x8x8
    input k fp32 4x8x8
    s fp32 4x8x8 = BatchMatrixMultiply q k
    p fp32 4x8x8 = Softmax s
    output s p
"""
SECOND = """
    input p fp32 4x8x8
    input v fp32 4x8x8
    o fp32 4x8x8 = BatchMatrixMultiply p v
    output o
"""


def guarded(*, product: bool = True) -> tuple[Method, Given]:
    """Scaled queries, a softmax in a delegate, its guard outside, and a product with the values in another delegate."""
    query, key, value, scaled, products, weights, seen, result = (tensor(4, 8, 8) for _ in range(8))
    no, some, none = (tensor(4, 8, size, dtype="bool") for size in (8, 1, 1))
    lost, zeros = tensor(4, 8, 8, dtype="bool"), tensor(4, 8, 8)
    method = Method(query, key, value)
    method.call("aten::mul.Scalar_out", query, 0.5, out=scaled)
    numbers = [method.number(each) for each in (scaled, key, products, weights)]
    method.step(InstructionKind.DELEGATE, tuple(numbers), target=0)
    method.call("aten::eq.Scalar_out", products, float("-inf"), out=no)
    method.call("aten::logical_not.out", no, out=lost)
    method.call("aten::any.out", lost, -1, 1, out=some)
    method.call("aten::logical_not.out", some, out=none)
    method.call("aten::full_like.out", products, 0, out=zeros)
    method.call("aten::where.self_out", none, zeros, weights, out=seen)
    if product:
        method.step(InstructionKind.DELEGATE, tuple(method.number(each) for each in (seen, value, result)), target=1)
    return method, seen


GRAPHS = {0: graph(FIRST), 1: graph(SECOND)}


def test_the_guard_of_a_softmax_and_the_scale_are_found_around_its_products() -> None:
    """No name of a module or text of a line is there to tell."""
    found = attention_parts(guarded()[0].plan(), GRAPHS)
    assert found == {0: AttentionPart.PREPARING, **dict.fromkeys(range(2, 8), AttentionPart.MASKING)}


def test_a_softmax_whose_weights_multiply_nothing_is_none_of_an_attention() -> None:
    """Such as that of a classifier, with the same guard."""
    assert attention_parts(guarded(product=False)[0].plan(), GRAPHS) == {}


def test_a_choice_that_others_read_is_not_told() -> None:
    """An attention that is written otherwise would not remove it."""
    method, seen = guarded()
    method.call("aten::argmax.out", seen, -1, 0, out=tensor(4, 8, dtype="int64"))
    assert set(attention_parts(method.plan(), GRAPHS)) == {0}


def test_projections_with_weights_that_are_cut_out_belong_to_it() -> None:
    """Attention to another sequence packs the weights of keys and values; a product with stored weights does not."""
    packed, cut, rest, bias, x, query, stored = (tensor(8, 8) for _ in range(7))
    method = Method(packed, bias, x)
    method.call("aten::split_with_sizes_copy.out", packed, [4, 4], 0, out=[cut, rest])
    key, value, scores, weights, result = (tensor(8, 8) for _ in range(5))
    method.call("aten::relu.out", x, out=query)
    method.call("aten::addmm.out", bias, query, cut, 1, 1, out=key)
    method.call("aten::addmm.out", bias, query, rest, 1, 1, out=value)
    method.call("aten::addmm.out", bias, query, tensor(8, 8, weight=True), 1, 1, out=stored)
    method.call("aten::bmm.out", stored, key, out=scores)
    method.call("aten::_softmax.out", scores, -1, 0, out=weights)
    method.call("aten::bmm.out", weights, value, out=result)
    assert attention_parts(method.plan(), {}) == {
        0: AttentionPart.PREPARING,
        2: AttentionPart.PROJECTING,
        3: AttentionPart.PROJECTING,
    }


def test_a_plan_without_values_has_no_attention() -> None:
    """Such as one that was kept for its instructions."""
    plan = guarded()[0].plan()
    assert attention_parts(type(plan)("forward", (), (), (), plan.operators, (), plan.chains, ()), {}) == {}
