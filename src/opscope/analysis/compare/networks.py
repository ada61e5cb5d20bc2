"""Whether two programs are of one network, and its operators in two runtimes: matched by what they compute, in order.

Programs of two runtimes share no places and mostly no names of layers. What both tell is what an operator computes, how
many multiply-accumulates it takes, and how large its output is. Two sequences of such operators are aligned so that as
many as possible have a partner and no two pairs cross: a longest common subsequence (Wagner and Fischer, "The
String-to-String Correction Problem", J. ACM 21(1), 1974). All others are not matched.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.analysis.compare.matching import Match, MatchedBy, layer_of, only_once
from opscope.core.units import count_text
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.analysis.operators.operators import Operator, OperatorFacts
    from opscope.core.table.places import OperatorKey

    Signature: TypeAlias = tuple[object, ...]


_ARITHMETIC = "arithmetic"
_LETTERS = 3
_MOST_PAIRS = 1 << 26
"""Largest product of the numbers of operators that is aligned: 8,000 on each side."""
_BEFORE_NAME = re.compile(r"native_call_|aten\.")


def match_runtimes(baseline: Sequence[Operator], candidate: Sequence[Operator]) -> Iterator[Match]:
    """Operators of two runtimes in pairs, each with how it is known; those without a partner stand alone.

    A pair whose layer both sides name is sure. One of the same kind, work and size of output is sure where nothing
    else on either side is like it, and likely where only the order tells which of several it is.
    """
    partners = _by_layer(baseline, candidate)
    taken = set(partners.values())
    free = [number for number in range(len(baseline)) if number not in partners]
    others = [number for number in range(len(candidate)) if number not in taken]
    ways = dict.fromkeys(partners, MatchedBy.LAYER)
    left, right = ([signature_of(side[n]) for n in own] for side, own in ((baseline, free), (candidate, others)))
    counts = Counter(left), Counter(right)
    for one, other in common_subsequence(left, right):
        partners[free[one]] = others[other]
        sure = all(count[left[one]] == 1 for count in counts) and _is_exact(
            baseline[free[one]], candidate[others[other]]
        )
        ways[free[one]] = MatchedBy.SHAPE if sure else MatchedBy.ORDER
    for one, other in _by_work([baseline[n] for n in free], [candidate[n] for n in others], left, right):
        partners[free[one]], ways[free[one]] = others[other], MatchedBy.ORDER
    for number, operator in enumerate(baseline):
        partner = partners.get(number)
        yield Match((operator, None if partner is None else candidate[partner]), ways.get(number))
    taken = set(partners.values())
    yield from (Match((None, operator)) for number, operator in enumerate(candidate) if number not in taken)


def _by_layer(baseline: Sequence[Operator], candidate: Sequence[Operator]) -> dict[int, int]:
    """Numbers of operators of the same layer and kind, where the layer is named on both sides, and once."""
    left, right = (only_once([_named(operator) for operator in side]) for side in (baseline, candidate))
    places = {layer: number for number, layer in enumerate(right) if layer is not None}
    return {number: places[layer] for number, layer in enumerate(left) if layer is not None and layer in places}


def _by_work(
    baseline: Sequence[Operator],
    candidate: Sequence[Operator],
    left: Sequence[Signature | None],
    right: Sequence[Signature | None],
) -> Iterator[tuple[int, int]]:
    """Products between those that are matched, of one category and with as many multiply-accumulates.

    A runtime may pad what it computes, or know no depthwise convolutions: the sizes and the kind then say nothing.
    """
    found = [(-1, -1), *common_subsequence(left, right), (len(left), len(right))]
    for (row, column), (next_row, next_column) in pairwise(found):
        work = [_work(operator) for operator in baseline[row + 1 : next_row]]
        other_work = [_work(operator) for operator in candidate[column + 1 : next_column]]
        yield from ((row + 1 + a, column + 1 + b) for a, b in common_subsequence(work, other_work))


def _work(operator: Operator) -> Signature | None:
    """Category and multiply-accumulates of a product; None for all else."""
    return (operator.category, operator.macs) if operator.macs else None


def _named(operator: Operator) -> Signature | None:
    """The layer and the kind of an operator; None without a layer.

    What its method and its operator of ATen are called, and whether an activation is part of it, differs by runtime.
    """
    layer = operator.module or operator.source
    named = layer is not None and operator.kind != FRAMEWORK.kind and layer_of(operator) is not None
    return (layer, operator.kind) if named else None


def signature_of(operator: Operator) -> Signature | None:
    """What an operator computes, in terms that runtimes share; None where that is not known.

    Sizes of the output stand in no order, and without those of 1: runtimes keep axes in orders of their own.
    """
    if operator.kind == FRAMEWORK.kind or operator.shape is None:
        return None
    sizes = tuple(sorted(size for size in operator.shape if size != 1))
    what = _arithmetic(operator) if operator.kind == _ARITHMETIC else ""
    return operator.kind, what, operator.macs or 0, sizes


def _arithmetic(operator: Operator) -> str:
    """Which arithmetic it is: the first letters of its name, in which runtimes agree (Mul and Multiply)."""
    name = operator.computes[-1] if operator.computes else operator.aten or operator.name
    return _BEFORE_NAME.sub("", name)[:_LETTERS].lower()


def _is_exact(*operators: Operator) -> bool:
    return all(operator.attribution is Attribution.EXACT for operator in operators)


def common_subsequence(left: Sequence[Signature | None], right: Sequence[Signature | None]) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence on both sides; of equally long ones the one with the earliest pairs.

    What is None equals nothing. Nothing is found in sequences that are too long to align.
    """
    if len(left) * len(right) > _MOST_PAIRS:
        return []
    numbers = {one: number for number, one in enumerate(dict.fromkeys([*left, *right]))}
    rows, columns = (np.array([numbers[one] for one in side], np.int64) for side in (left, right))
    equal = rows[:, None] == columns[None, :]
    equal[[one is None for one in left], :] = False
    best = np.zeros((len(left) + 1, len(right) + 1), np.int32)
    for row in range(len(left) - 1, -1, -1):
        # The longest from here on: with this pair, or without one of the two.
        own = np.maximum(best[row + 1, :-1], np.where(equal[row], best[row + 1, 1:] + 1, 0))
        best[row, :-1] = np.maximum.accumulate(own[::-1])[::-1]
    found, row, column = [], 0, 0
    while row < len(left) and column < len(right):
        if equal[row, column] and best[row, column] == best[row + 1, column + 1] + 1:
            found.append((row, column))
            row, column = row + 1, column + 1
        elif best[row + 1, column] >= best[row, column + 1]:
            row += 1
        else:
            column += 1
    return found


_FEWEST = 3
"""Convolutions and matrix products of each side, below which a layer that was changed looks like another network."""
_ALIKE = 0.1
"""Share of the multiply-accumulates of either side from which on the sides may be one network."""


def different_networks(
    baseline: Mapping[OperatorKey, OperatorFacts], candidate: Mapping[OperatorKey, OperatorFacts]
) -> str | None:
    """Why two sides look like different networks, as a sentence; None where they do not, or their work is not known.

    Versions of a network share most operators, whatever their number type or runtime: these multiply as often. At
    another resolution all do other work, but there are as many.
    """
    sides = [_products(facts) for facts in (baseline, candidate)]
    counts = [side.total() for side in sides]
    if min(counts) < _FEWEST or counts[0] == counts[1]:
        return None
    work = [sum(macs * number for macs, number in side.items()) for side in sides]
    common = sum(macs * number for macs, number in (sides[0] & sides[1]).items())
    if common >= _ALIKE * min(work):
        return None
    told = [
        f"of {count_text(macs)} MACs on the {side}" for macs, side in zip(work, ("baseline", "candidate"), strict=True)
    ]
    return (
        f"These look like different networks: {counts[0]} convolutions and matrix products {told[0]}, {counts[1]} "
        f"{told[1]}, hardly one alike. Their latency ratio says nothing about either."
    )


def _products(facts: Mapping[OperatorKey, OperatorFacts]) -> Counter[int]:
    """How many operators multiply so often."""
    known = (fact.cost.macs for fact in facts.values() if fact.cost is not None)
    return Counter(macs for macs in known if macs)
