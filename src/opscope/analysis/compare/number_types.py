"""Reasons why a program of lower precision is not faster than a float program of one network.

Four kinds are told apart, each by the operators themselves: conversions that stayed, weights that are converted in
every call, operators that left the delegate, and convolutions and products whose kernels still compute in float. Where
none of them is it, the kernels of the lower precision take as long as those of floats.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.operators.delegates import is_delegated
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.operators.operators import Operator

LEAST_SHARE = 0.05
"""Smallest share of the candidate's calls from which a cause is named."""
SAME_TIME = 0.95
"""Ratio of times from which kernels of the lower precision count as no faster than those of floats."""
_WEIGHT_SHARE = 0.1
"""Share of a conversion's bytes from which it converts stored weights; of data it reads only a stored scale."""
_HEAVY = (Category.CONVOLUTION, Category.GEMM)
_CONVERSION = "quantisation"
_NAMED = 3
_NARROW = re.compile(r"(?<![a-z])(?:q?[us]?int[248]|q[cdp]?s?int[48]|qs8|qu8|qc8|qd8|b?float16|b?fp?16)(?![0-9])")
_WIDE = frozenset({"float", "float32", "fp32", "f32"})


class LostGain(str, enum.Enum):
    """Obstacle that keeps a lower precision from being faster."""

    CONVERSIONS = "conversions"
    """Number types are converted between operators."""
    COMPUTED_WEIGHTS = "computed_weights"
    """Stored weights are converted in every call, so that the kernels get weights that are not constant."""
    LEFT_DELEGATE = "left_delegate"
    """Operators that the delegate ran in float run outside of it."""
    WIDE_KERNELS = "wide_kernels"
    """Convolutions and products still compute in float: there is no kernel, or their data are not quantised."""
    SLOW_KERNELS = "slow_kernels"
    """Convolutions and products in the lower precision take as long as in float."""


class NumberTypeCause(msgspec.Struct, frozen=True):
    """Reason why a candidate of lower precision is not faster.

    Attributes:
        kind: what it is.
        operators: how many do it.
        share: share of the candidate's calls that they take.
        names: names of the longest of them.
        ratio: time of the candidate's convolutions and products by that of the baseline's; null for other kinds.
    """

    kind: LostGain
    operators: int
    share: float
    names: list[str]
    ratio: float | None = None


def find_number_type_causes(baseline: Sequence[Operator], candidate: Sequence[Operator]) -> list[NumberTypeCause]:
    """Return why the candidate gains nothing from its precision, the largest share first.

    Empty where the candidate has no lower precision than the baseline, and where nothing of this kind is seen.
    """
    before, after = _select_work(baseline), _select_work(candidate)
    if not _is_reduced(before, after):
        return []
    conversions = [row for row in after if row.kind == _CONVERSION]
    weights = [row for row in conversions if converts_weights(row)]
    data_conversions = [row for row in conversions if row not in weights]
    already = sum(row.share for row in before if row.kind == _CONVERSION)
    delegated_kinds = {row.kind for row in before if is_delegated(row)} - {_CONVERSION}
    outside = [row for row in after if not is_delegated(row) and row.kind in delegated_kinds]
    stayed_outside = sum(row.share for row in before if not is_delegated(row))
    wide = [row for row in after if row.category in _HEAVY and row.dtype in _WIDE and not _is_narrow(row)]
    causes = [
        _name_cause(LostGain.CONVERSIONS, data_conversions, already),
        _name_cause(LostGain.COMPUTED_WEIGHTS, weights),
        _name_cause(LostGain.LEFT_DELEGATE, outside, stayed_outside),
        _name_cause(LostGain.WIDE_KERNELS, wide),
        _find_slow_kernels(before, after),
    ]
    return sorted((cause for cause in causes if cause), key=lambda cause: -cause.share)


def _select_work(rows: Iterable[Operator]) -> list[Operator]:
    return [row for row in rows if row.kind != FRAMEWORK.kind]


def _is_narrow(row: Operator) -> bool:
    return any(_NARROW.search(dtype) is not None for dtype in (row.dtype, row.weights) if dtype)


def _is_reduced(before: Sequence[Operator], after: Sequence[Operator]) -> bool:
    """Return whether the candidate has a lower precision: it converts more, or multiplies narrower numbers."""
    heavy_before, heavy_after = (
        any(row.category in _HEAVY and _is_narrow(row) for row in rows) for rows in (before, after)
    )
    counts = [sum(row.kind == _CONVERSION for row in rows) for rows in (before, after)]
    return not heavy_before and (heavy_after or counts[1] > counts[0])


def converts_weights(row: Operator) -> bool:
    """Return whether a conversion is of stored weights, by the bytes that it reads from storage."""
    return bool(row.bytes and row.weight_bytes and row.weight_bytes > _WEIGHT_SHARE * row.bytes)


def _name_cause(kind: LostGain, rows: Sequence[Operator], already: float = 0.0) -> NumberTypeCause | None:
    """Return a cause; None if its operators take less than is named, or than the baseline's did."""
    share = sum(row.share for row in rows)
    if share - already < LEAST_SHARE:
        return None
    names = dict.fromkeys(row.name for row in sorted(rows, key=lambda row: -row.share))
    return NumberTypeCause(kind, len(rows), share, list(names)[:_NAMED])


def _find_slow_kernels(before: Sequence[Operator], after: Sequence[Operator]) -> NumberTypeCause | None:
    narrow = [row for row in after if row.category in _HEAVY and _is_narrow(row)]
    float_ns = sum(row.traced_ns for row in before if row.category in _HEAVY)
    narrow_ns = sum(row.traced_ns for row in narrow)
    if not narrow or not float_ns or narrow_ns < SAME_TIME * float_ns:
        return None
    cause = _name_cause(LostGain.SLOW_KERNELS, narrow)
    return msgspec.structs.replace(cause, ratio=narrow_ns / float_ns) if cause else None
