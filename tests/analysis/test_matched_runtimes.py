"""Operators of two runtimes in pairs: what is matched, how sure that is, and that no pair crosses another."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.compare.matching import MatchedBy, common_subsequence, match_runtimes, signature_of
from opscope.analysis.operators.operators import Operator
from opscope.program.operators.kinds import Attribution, Category
from opscope.program.structure.dtypes import axes_between


def operator(
    kind: str, macs: int = 0, shape: tuple[int, ...] | None = (1, 8), name: str = "op", module: str | None = None
) -> Operator:
    """An operator that a program knows exactly."""
    category = Category.CONVOLUTION if kind in {"convolution", "depthwise"} else Category.ELEMENTWISE
    return Operator(
        method="forward",
        instruction=0,
        position=0,
        name=name,
        category=category,
        kind=kind,
        backend="XNNPACK",
        calls=1.0,
        time_ns=1000.0,
        traced_ns=1000.0,
        share=0.1,
        module=module,
        attribution=Attribution.EXACT,
        macs=macs,
        bytes=None,
        uncertainty_ns=0.0,
        shape=shape,
    )


def ways(baseline: list[Operator], candidate: list[Operator]) -> list[MatchedBy | None]:
    """How each operator of the baseline is matched."""
    return [one.by for one in match_runtimes(baseline, candidate) if one.pair[0] is not None]


def test_channels_may_stand_anywhere() -> None:
    """The only convolution of its work and size is the same one; a second alike is told by its order."""
    first, last = operator("convolution", 900, (1, 8, 4, 4)), operator("convolution", 900, (1, 4, 4, 8))
    assert ways([first], [last]) == [MatchedBy.SHAPE]
    assert ways([first, first], [last, last]) == [MatchedBy.ORDER] * 2
    assert ways([first, first], [last]) == [MatchedBy.ORDER, None]


def test_a_layer_that_both_name_is_certain() -> None:
    """Whatever stands between."""
    named = operator("convolution", 900, module="stem")
    assert ways([named], [operator("activation"), named]) == [MatchedBy.LAYER]


def test_padded_products_are_matched_by_their_work() -> None:
    """A runtime that pads channels and knows no depthwise convolutions says the same number of multiplications."""
    ours, theirs = operator("depthwise", 900, (1, 8, 4, 4)), operator("convolution", 900, (1, 16, 4, 4))
    assert ways([ours], [theirs]) == [MatchedBy.ORDER]
    assert ways([ours], [operator("convolution", 901, (1, 16, 4, 4))]) == [None]


def test_additions_are_no_products() -> None:
    """Arithmetic is told by its name, in which runtimes agree in the first letters."""
    add, multiply, mul = (operator("arithmetic", name=name) for name in ("Add (ND)", "Multiply (ND)", "Mul: scale"))
    assert ways([add], [mul]) == [None]
    assert ways([multiply], [mul]) == [MatchedBy.SHAPE]


def test_what_is_not_known_is_not_matched() -> None:
    """Names alone are not enough, and the runtime's own time is never a partner."""
    assert signature_of(operator("activation", shape=None)) is None
    assert signature_of(operator("framework")) is None
    assert ways([operator("activation", shape=None)], [operator("activation", shape=None)]) == [None]


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_pairs_are_equal_in_order_and_as_many_as_can_be(left: list[int], right: list[int]) -> None:
    """Against the plain recursion."""
    found = common_subsequence([(one,) for one in left], [(one,) for one in right])
    assert all(left[one] == right[other] for one, other in found)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(found))
    assert len(found) == longest(left, right)


def longest(left: list[int], right: list[int]) -> int:
    """Length of a longest common subsequence."""
    row = [0] * (len(right) + 1)
    for one in left:
        before = 0
        for number, other in enumerate(right, 1):
            before, row[number] = row[number], before + 1 if one == other else max(row[number], row[number - 1])
    return row[-1]


def test_axes_are_moved_in_the_two_known_orders_only() -> None:
    """Channels to the end, or from there behind the batch."""
    assert axes_between((1, 3, 8, 9), (1, 8, 9, 3)) == (0, 2, 3, 1)
    assert axes_between((1, 8, 9, 3), (1, 3, 8, 9)) == (0, 3, 1, 2)
    assert axes_between((1, 8, 8), (1, 8, 8)) == (0, 1, 2)
    assert axes_between((1, 3, 8, 9), (1, 9, 8, 3)) is None
    assert axes_between((3, 4), (4, 3)) is None
