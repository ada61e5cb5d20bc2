"""Operators of two sides in pairs, by their place in one program or their layers in two, and each process's time.

Programs of two runtimes share no places and mostly no names of layers. What both tell is what an operator computes, how
many multiply-accumulates it takes, and how large its output is. Two sequences of such operators are aligned so that as
many as possible have a partner and no two pairs cross: a longest common subsequence (Wagner and Fischer, "The
String-to-String Correction Problem", J. ACM 21(1), 1974). All others are not matched.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from opscope.analysis.operators.operators import UNKNOWN_METHOD, Operator
from opscope.core.grouping import grouped
from opscope.core.units import count_text
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import FRAMEWORK, classify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.operators.headline import HeadlineScale

    Floats: TypeAlias = NDArray[np.float64]
    OperatorPair: TypeAlias = tuple[Operator | None, Operator | None]
    Layer: TypeAlias = tuple[object, ...]
    RowKey: TypeAlias = tuple[str, int | None, int | None, str | None]
    from collections.abc import Mapping

    from opscope.analysis.operators.operators import Operator, OperatorFacts
    from opscope.core.table.places import OperatorKey

    Signature: TypeAlias = tuple[object, ...]


class MatchedBy(str, enum.Enum):
    """How it is known that operators of two sides are the same."""

    PLACE = "place"
    """They have the same place in one program."""
    LAYER = "layer"
    """They are the same layer of two programs, and of the same kind; the only ones of it on both sides."""
    SHAPE = "shape"
    """They compute the same, with as much work and as large an output, and nothing else on either side does."""
    ORDER = "order"
    """Likewise, and others do, too: the order in which they run tells which of these they are. Likely, not certain."""


class Match(NamedTuple):
    """Operators of two sides."""

    pair: OperatorPair  # of the baseline and of the candidate; a side that has no such operator is None
    by: MatchedBy | None = None  # how it is known that they are the same; None where one stands alone


def match(baseline: list[Operator], candidate: list[Operator]) -> Iterator[Match]:
    """Operators of the same place in the program.

    Within an instruction the two sides are aligned by kind, since another instruction set may insert operators.
    """
    left, right = (grouped(side, _instruction) for side in (baseline, candidate))
    for place in dict.fromkeys([*left, *right]):
        for pair in _align(left.get(place, []), right.get(place, [])):
            yield _by(pair, MatchedBy.PLACE)


def _by(pair: OperatorPair, way: MatchedBy) -> Match:
    return Match(pair, None if None in pair else way)


def _instruction(row: Operator) -> tuple[str, int | None, bool]:
    return row.method, row.instruction, row.position is None


def _align(left: list[Operator], right: list[Operator]) -> Iterator[OperatorPair]:
    """Operators of one instruction in pairs: by the nodes they compute where both sides are known, else by kind.

    Kinds then come from names on both sides, since the program would call a convolution so on one side only.
    """
    known = all(operator.attribution is Attribution.EXACT for operator in (*left, *right))
    kinds = [[_nodes(operator) if known else _sort(operator) for operator in side] for side in (left, right)]
    if kinds[0] == kinds[1]:
        yield from zip(left, right, strict=True)
        return
    matcher = difflib.SequenceMatcher(None, kinds[0], kinds[1], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(left[a:b], right[c:d], strict=True)
        else:
            yield from ((operator, None) for operator in left[a:b])
            yield from ((None, operator) for operator in right[c:d])


def _nodes(operator: Operator) -> tuple[object, ...]:
    return operator.computes, operator.handles, operator.kind, operator.activation


def _sort(operator: Operator) -> str:
    return operator.name if operator.position is None else classify(operator.name).kind


def match_layers(baseline: list[Operator], candidate: list[Operator]) -> Iterator[Match]:
    """Operators of different programs that are the same layer and of the same kind; all others stand alone.

    A layer is known where the operator is attributed exactly, and it is the only one of its kind in its layer on both
    sides. Places mean nothing here: one more layer in front moves all that follow. The framework's own time outside of
    instructions is matched by name.
    """
    left, right = (only_once([layer_of(operator) for operator in side]) for side in (baseline, candidate))
    partners = {layer: operator for layer, operator in zip(right, candidate, strict=True) if layer is not None}
    for layer, operator in zip(left, baseline, strict=True):
        yield _by((operator, None if layer is None else partners.pop(layer, None)), MatchedBy.LAYER)
    known = set(left) - {None}
    yield from (Match((None, operator)) for layer, operator in zip(right, candidate, strict=True) if layer not in known)


def layer_of(operator: Operator) -> Layer | None:
    """What an operator is in its model, whatever the program; None where that is not known for sure."""
    if operator.position is None:
        return None if operator.instruction is not None else (operator.method, operator.name)
    layer = operator.module or operator.source
    if operator.attribution is not Attribution.EXACT or layer is None:
        return None
    return operator.method, layer, operator.aten, operator.kind, operator.activation


def only_once(layers: list[Layer | None]) -> list[Layer | None]:
    """Without those that are there more than once."""
    counts = Counter(layers)
    return [layer if counts[layer] == 1 else None for layer in layers]


def process_times(scale: HeadlineScale, wanted: Sequence[Operator | None]) -> Floats:
    """Time of each operator in each process on the scale of the headline; shape (processes, operators).

    They are those of typical inferences, at the level of the operators' own times: these rest on the processes nearest
    to the headline, and a process that was slowed down must not move what stands beside its interval.
    """
    columns = {_key(operator): column for column, operator in enumerate(wanted) if operator is not None}
    rows = []
    for own in filter(None, scale.by_process):
        row = np.zeros(len(wanted))
        for place, time_ns in own.items():
            row[columns[(place.method or UNKNOWN_METHOD, place.instruction, place.position, place.framework)]] += (
                time_ns
            )
        rows.append(row)
    return _levelled(np.stack(rows), np.array([operator.shown_ns if operator else 0.0 for operator in wanted]))


def process_copies(scale: HeadlineScale) -> Floats:
    """Time of copying inputs and outputs in each process, as :func:`process_times` has that of operators.

    Shape (processes, 1); 0 where it is not known.
    """
    copied = [[copies] for copies, own in zip(scale.copies, scale.by_process, strict=True) if own]
    return _levelled(np.array(copied, np.float64), np.array([scale.split.copies_ns]))


def _levelled(found: Floats, level: Floats) -> Floats:
    """Times of processes, multiplied so that the mean of each column is what stands in the split."""
    mean = found.mean(axis=0)
    ratio = np.divide(level, mean, out=np.zeros_like(level), where=mean > 0)
    return np.where(mean > 0, found * ratio, level)


def _key(operator: Operator) -> RowKey:
    framework = operator.name if operator.position is None else None
    return operator.method, operator.instruction, operator.position, framework


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
    texts = [
        f"of {count_text(macs)} MACs on the {side}" for macs, side in zip(work, ("baseline", "candidate"), strict=True)
    ]
    return (
        f"These look like different networks: {counts[0]} convolutions and matrix products {texts[0]}, {counts[1]} "
        f"{texts[1]}, hardly one alike. Their latency ratio says nothing about either."
    )


def _products(facts: Mapping[OperatorKey, OperatorFacts]) -> Counter[int]:
    """How many operators multiply so often."""
    known = (fact.cost.macs for fact in facts.values() if fact.cost is not None)
    return Counter(macs for macs in known if macs)
