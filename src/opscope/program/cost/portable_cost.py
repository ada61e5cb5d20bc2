"""Arithmetic of portable ATen operators, one rule for each.

Positions of arguments are those of ATen's schemas. Images are N, C, H, W; the filter of a convolution is
[OC, IC / groups, KH, KW], of a transposed one [IC, OC / groups, KH, KW].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.cost.dimensions import NotKnownError, at_least, elements, replaced
from opscope.program.operators.arithmetic import (
    BILINEAR,
    NORMALISATION,
    NOTHING,
    SOFTMAX,
    VARIANCE,
    Arithmetic,
    operations,
)
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.cost.call import OperatorCall

_MATRIX = 2
_IMAGE = 3  # channels, and at least one dimension of an image
_TRANSPOSED = 6

# Operators that gather rows, and where their indices stand.
EMBEDDINGS = {"embedding": 1, "embedding_byte": 5, "embedding_4bit": 5, "embedding_2bit": 5}
COLLECT = "et_copy_index"  # lays the result of one trip of a loop into a tensor
_MOVEMENTS = frozenset({*EMBEDDINGS, COLLECT})  # those that the taxonomy does not know, too


def call_arithmetic(call: OperatorCall) -> Arithmetic:
    """What a call computes."""
    if touches_no_data(call) or call.operator in _MOVEMENTS:
        return NOTHING
    rule = _RULES.get(call.operator)
    if rule is not None:
        return rule(call)
    category = classify(call.name).category
    if category is Category.ELEMENTWISE:
        return _each(operations(call.operator))(call)
    if category is Category.DATA_MOVEMENT:
        return NOTHING
    raise NotKnownError


def touches_no_data(call: OperatorCall) -> bool:
    """It computes with sizes, or gives a tensor another shape where it stands."""
    return call.name.startswith(("executorch_prim::", "aten::sym_")) and call.operator != COLLECT


def window_elements(call: OperatorCall) -> int | None:
    """So many elements of its first argument a call looks at, at most; None when it looks at all of them."""
    rule = _SEEN.get(call.operator)
    return None if rule is None else rule(call)


def _product_of(first: int) -> Callable[[OperatorCall], Arithmetic]:
    """A matrix product whose first factor is argument ``first``; it sums over that factor's last dimension."""
    return lambda call: Arithmetic(elements(call.output()) * at_least(call.shape(first), 1)[-1])


def _convolution(call: OperatorCall) -> Arithmetic:
    data, weight = at_least(call.shape(0), _IMAGE), at_least(call.shape(1), _IMAGE)
    if call.is_set(_TRANSPOSED):
        return Arithmetic(elements(data) * elements(weight[1:]))
    return Arithmetic(elements(call.output()) * elements(weight[1:]))


def _attention(call: OperatorCall) -> Arithmetic:
    """Scores, then their softmax with a scale and perhaps a mask, then the mean of values that they weigh."""
    query, key = (at_least(call.shape(position), _MATRIX) for position in (0, 1))
    scores = elements(query[:-1]) * key[-2]
    extra = 2 if call.tensors_at(3) else 1
    return Arithmetic(scores * query[-1] + elements(call.output()) * key[-2], (SOFTMAX + extra) * scores)


def _normalisation(call: OperatorCall) -> Arithmetic:
    """Each tensor that the data are scaled or shifted by costs one more operation an element."""
    return Arithmetic(others=(NORMALISATION + len(call.inputs) - 1) * elements(call.shape(0)))


def _batch_norm(call: OperatorCall) -> Arithmetic:
    """Mean and deviation are given: one operation an element for each of them, for scale and for shift."""
    return Arithmetic(others=(len(call.inputs) - 1) * elements(call.shape(0)))


def _pooled(call: OperatorCall) -> int:
    """Elements in all windows; a size that is not in the file stands as 0."""
    kernel = call.numbers(1)
    if not 1 <= len(kernel) <= _IMAGE or min(kernel) < 1:
        raise NotKnownError
    square = kernel * _MATRIX if len(kernel) == 1 else kernel
    return elements(call.output()) * elements(square)


def _reduction(count: int) -> Callable[[OperatorCall], Arithmetic]:
    """So many operations for each element of the first argument."""
    return lambda call: Arithmetic(others=count * elements(call.shape(0)))


def _each(count: int) -> Callable[[OperatorCall], Arithmetic]:
    """So many operations for each element of the output."""
    return lambda call: Arithmetic(others=count * elements(call.output()))


def _seen_by_convolution(call: OperatorCall) -> int:
    data, weight = at_least(call.shape(0), _IMAGE), at_least(call.shape(1), _IMAGE)
    if call.is_set(_TRANSPOSED):
        return elements(data)
    return elements(replaced(call.output(), 1, data[1])) * elements(weight[2:])


def _seen(count: int) -> Callable[[OperatorCall], int]:
    return lambda call: count * sum(elements(call.shape_of(number)) for number in call.outputs)


_RULES: dict[str, Callable[[OperatorCall], Arithmetic]] = {
    **dict.fromkeys("mm bmm matmul linear mixed_mm mixed_linear".split(), _product_of(0)),
    **dict.fromkeys("addmm addmv baddbmm".split(), _product_of(1)),
    "convolution": _convolution,
    "scaled_dot_product_attention": _attention,
    "native_layer_norm": _normalisation,
    "native_group_norm": _normalisation,
    "native_batch_norm_legit_no_training": _batch_norm,
    "softmax": _each(SOFTMAX),
    "log_softmax": _each(SOFTMAX),
    **dict.fromkeys(("avg_pool2d", "max_pool2d_with_indices"), lambda call: Arithmetic(others=_pooled(call))),
    "adaptive_avg_pool2d": _reduction(1),
    "upsample_nearest2d": _each(0),
    "upsample_bilinear2d": _each(BILINEAR),
    "clamp": lambda call: Arithmetic(others=(call.has(1) + call.has(2)) * elements(call.output())),
    **dict.fromkeys("mean sum amax amin max min argmax argmin prod any all cumsum".split(), _reduction(1)),
    **dict.fromkeys("var var_mean".split(), _reduction(VARIANCE)),
}

_PARTS = "slice select narrow split split_with_sizes unbind diagonal index index_select gather masked_select"

_SEEN: dict[str, Callable[[OperatorCall], int]] = {
    **dict.fromkeys("full_like zeros_like ones_like empty_like fill copy".split(), _seen(0)),
    **dict.fromkeys(_PARTS.split(), _seen(1)),
    "upsample_nearest2d": _seen(1),
    "upsample_bilinear2d": _seen(4),
    "avg_pool2d": _pooled,
    "max_pool2d_with_indices": _pooled,
    "convolution": _seen_by_convolution,
}
