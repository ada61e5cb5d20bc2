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
    """Evidence that operators of two sides are the same."""

    PLACE = "place"
    """Equal place in one program."""
    LAYER = "layer"
    """Same layer of two programs and same kind, each the only one of its kind in the layer."""
    SHAPE = "shape"
    """Equal computation, work and output size, which nothing else on either side has."""
    ORDER = "order"
    """Equal computation, work and output size, which several operators have; their order decides. Likely, not certain.
    """


class Match(NamedTuple):
    """Operators of two sides that are the same, or an operator without a partner."""

    pair: OperatorPair  # pair of the baseline and of the candidate; a side that has no such operator is None
    by: MatchedBy | None = None  # how it is known that they are the same; None where one stands alone


def match(baseline: list[Operator], candidate: list[Operator]) -> Iterator[Match]:
    """Match operators by their place in one program.

    Within an instruction the two sides are aligned by kind, since another instruction set may insert operators.
    """
    baseline_groups, candidate_groups = (grouped(side, _instruction_key) for side in (baseline, candidate))
    for instruction in dict.fromkeys([*baseline_groups, *candidate_groups]):
        for pair in _align_instruction(baseline_groups.get(instruction, []), candidate_groups.get(instruction, [])):
            yield _match_pair(pair, MatchedBy.PLACE)


def _match_pair(pair: OperatorPair, way: MatchedBy) -> Match:
    return Match(pair, None if None in pair else way)


def _instruction_key(row: Operator) -> tuple[str, int | None, bool]:
    return row.method, row.instruction, row.position is None


def _align_instruction(baseline: list[Operator], candidate: list[Operator]) -> Iterator[OperatorPair]:
    """Pair operators of one instruction: by the nodes they compute if known on both sides, else by kind.

    Kinds then come from names on both sides, since the program would call a convolution so on one side only.
    """
    known = all(operator.attribution is Attribution.EXACT for operator in (*baseline, *candidate))
    kinds = [
        [_node_key(operator) if known else _kind_of_name(operator) for operator in side]
        for side in (baseline, candidate)
    ]
    if kinds[0] == kinds[1]:
        yield from zip(baseline, candidate, strict=True)
        return
    matcher = difflib.SequenceMatcher(None, kinds[0], kinds[1], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(baseline[a:b], candidate[c:d], strict=True)
        else:
            yield from ((operator, None) for operator in baseline[a:b])
            yield from ((None, operator) for operator in candidate[c:d])


def _node_key(operator: Operator) -> tuple[object, ...]:
    return operator.computes, operator.handles, operator.kind, operator.activation


def _kind_of_name(operator: Operator) -> str:
    return operator.name if operator.position is None else classify(operator.name).kind


def match_layers(baseline: list[Operator], candidate: list[Operator]) -> Iterator[Match]:
    """Match operators of different programs that are the same layer and kind; all others have no partner.

    A layer is known where the operator is attributed exactly, and it is the only one of its kind in its layer on both
    sides. Places mean nothing here: one more layer in front moves all that follow. The framework's own time outside of
    instructions is matched by name.
    """
    baseline_layers, candidate_layers = (
        only_once([layer_of(operator) for operator in side]) for side in (baseline, candidate)
    )
    partners = {
        layer: operator for layer, operator in zip(candidate_layers, candidate, strict=True) if layer is not None
    }
    for layer, operator in zip(baseline_layers, baseline, strict=True):
        yield _match_pair((operator, None if layer is None else partners.pop(layer, None)), MatchedBy.LAYER)
    known = set(baseline_layers) - {None}
    yield from (
        Match((None, operator))
        for layer, operator in zip(candidate_layers, candidate, strict=True)
        if layer not in known
    )


def layer_of(operator: Operator) -> Layer | None:
    """Return what an operator is in its model, whatever the program; None if that is uncertain."""
    if operator.position is None:
        return None if operator.instruction is not None else (operator.method, operator.name)
    layer = operator.module or operator.source
    if operator.attribution is not Attribution.EXACT or layer is None:
        return None
    return operator.method, layer, operator.aten, operator.kind, operator.activation


def only_once(layers: list[Layer | None]) -> list[Layer | None]:
    """Replace layers that occur more than once by None."""
    counts = Counter(layers)
    return [layer if counts[layer] == 1 else None for layer in layers]


def process_times(scale: HeadlineScale, operators: Sequence[Operator | None]) -> Floats:
    """Return the time of each operator in each process on the headline's scale; shape (processes, operators).

    These are times of typical inferences, at the level of the operators' own times, which rest on the processes nearest
    to the headline: a process that was slowed down must not move a time away from its interval.
    """
    columns = {_row_key(operator): column for column, operator in enumerate(operators) if operator is not None}
    rows = []
    for times in filter(None, scale.by_process):
        row = np.zeros(len(operators))
        for place, time_ns in times.items():
            row[columns[(place.method or UNKNOWN_METHOD, place.instruction, place.position, place.framework)]] += (
                time_ns
            )
        rows.append(row)
    return _scale_to_level(np.stack(rows), np.array([operator.shown_ns if operator else 0.0 for operator in operators]))


def process_copies(scale: HeadlineScale) -> Floats:
    """Return the time of copying inputs and outputs in each process; shape (processes, 1), 0 if unknown.

    Shape (processes, 1); 0 where it is not known.
    """
    copied = [[copies] for copies, times in zip(scale.copies, scale.by_process, strict=True) if times]
    return _scale_to_level(np.array(copied, np.float64), np.array([scale.split.copies_ns]))


def _scale_to_level(times: Floats, level: Floats) -> Floats:
    """Scale times of processes so that the mean of each column is the time in the split."""
    mean = times.mean(axis=0)
    ratio = np.divide(level, mean, out=np.zeros_like(level), where=mean > 0)
    return np.where(mean > 0, times * ratio, level)


def _row_key(operator: Operator) -> RowKey:
    framework = operator.name if operator.position is None else None
    return operator.method, operator.instruction, operator.position, framework


_ARITHMETIC = "arithmetic"
_LETTERS = 3
_MOST_PAIRS = 1 << 26
"""Largest product of the numbers of operators that is aligned: 8,000 on each side."""
_BEFORE_NAME = re.compile(r"native_call_|aten\.")


def match_runtimes(baseline: Sequence[Operator], candidate: Sequence[Operator]) -> Iterator[Match]:
    """Match operators of two runtimes; those without a partner stay alone.

    A pair whose layer both sides name is certain. A pair of equal kind, work and output size is certain if nothing else
    on either side is like it, and likely if only the order tells which of several it is.
    """
    partners = _pair_by_layer(baseline, candidate)
    taken = set(partners.values())
    free = [number for number in range(len(baseline)) if number not in partners]
    free_candidates = [number for number in range(len(candidate)) if number not in taken]
    ways = dict.fromkeys(partners, MatchedBy.LAYER)
    baseline_signatures, candidate_signatures = (
        [signature_of(side[number]) for number in numbers]
        for side, numbers in ((baseline, free), (candidate, free_candidates))
    )
    counts = Counter(baseline_signatures), Counter(candidate_signatures)
    for row, column in common_subsequence(baseline_signatures, candidate_signatures):
        partners[free[row]] = free_candidates[column]
        sure = all(count[baseline_signatures[row]] == 1 for count in counts) and _is_exact(
            baseline[free[row]], candidate[free_candidates[column]]
        )
        ways[free[row]] = MatchedBy.SHAPE if sure else MatchedBy.ORDER
    for row, column in _pair_by_work(
        [baseline[number] for number in free],
        [candidate[number] for number in free_candidates],
        baseline_signatures,
        candidate_signatures,
    ):
        partners[free[row]], ways[free[row]] = free_candidates[column], MatchedBy.ORDER
    for number, operator in enumerate(baseline):
        partner = partners.get(number)
        yield Match((operator, None if partner is None else candidate[partner]), ways.get(number))
    taken = set(partners.values())
    yield from (Match((None, operator)) for number, operator in enumerate(candidate) if number not in taken)


def _pair_by_layer(baseline: Sequence[Operator], candidate: Sequence[Operator]) -> dict[int, int]:
    """Return pairs of numbers of operators whose layer and kind both sides name, and only once."""
    baseline_layers, candidate_layers = (
        only_once([_layer_key(operator) for operator in side]) for side in (baseline, candidate)
    )
    numbers = {layer: number for number, layer in enumerate(candidate_layers) if layer is not None}
    return {
        number: numbers[layer] for number, layer in enumerate(baseline_layers) if layer is not None and layer in numbers
    }


def _pair_by_work(
    baseline: Sequence[Operator],
    candidate: Sequence[Operator],
    baseline_signatures: Sequence[Signature | None],
    candidate_signatures: Sequence[Signature | None],
) -> Iterator[tuple[int, int]]:
    """Pair products between matched ones by category and number of multiply-accumulates.

    A runtime may pad what it computes, or know no depthwise convolutions: the sizes and the kind then say nothing.
    """
    matched = [
        (-1, -1),
        *common_subsequence(baseline_signatures, candidate_signatures),
        (len(baseline_signatures), len(candidate_signatures)),
    ]
    for (row, column), (next_row, next_column) in pairwise(matched):
        work = [_work_key(operator) for operator in baseline[row + 1 : next_row]]
        other_work = [_work_key(operator) for operator in candidate[column + 1 : next_column]]
        yield from ((row + 1 + a, column + 1 + b) for a, b in common_subsequence(work, other_work))


def _work_key(operator: Operator) -> Signature | None:
    """Return the category and multiply-accumulates of a product; None for other operators."""
    return (operator.category, operator.macs) if operator.macs else None


def _layer_key(operator: Operator) -> Signature | None:
    """Return the layer and kind of an operator; None without a layer.

    What its method and its operator of ATen are called, and whether an activation is part of it, differs by runtime.
    """
    layer = operator.module or operator.source
    is_known = layer is not None and operator.kind != FRAMEWORK.kind and layer_of(operator) is not None
    return (layer, operator.kind) if is_known else None


def signature_of(operator: Operator) -> Signature | None:
    """Return what an operator computes, in terms that runtimes share; None if unknown.

    Sizes of the output stand in no order, and without those of 1: runtimes keep axes in orders of their own.
    """
    if operator.kind == FRAMEWORK.kind or operator.shape is None:
        return None
    sizes = tuple(sorted(size for size in operator.shape if size != 1))
    arithmetic = _arithmetic_name(operator) if operator.kind == _ARITHMETIC else ""
    return operator.kind, arithmetic, operator.macs or 0, sizes


def _arithmetic_name(operator: Operator) -> str:
    """Return the first letters of an arithmetic operator's name, in which runtimes agree (Mul and Multiply)."""
    name = operator.computes[-1] if operator.computes else operator.aten or operator.name
    return _BEFORE_NAME.sub("", name)[:_LETTERS].lower()


def _is_exact(*operators: Operator) -> bool:
    return all(operator.attribution is Attribution.EXACT for operator in operators)


def common_subsequence(
    baseline: Sequence[Signature | None], candidate: Sequence[Signature | None]
) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence; among equally long ones, the earliest pairs.

    None equals nothing. Empty if the sequences are too long to align.
    """
    if len(baseline) * len(candidate) > _MOST_PAIRS:
        return []
    numbers = {signature: number for number, signature in enumerate(dict.fromkeys([*baseline, *candidate]))}
    rows, columns = (np.array([numbers[signature] for signature in side], np.int64) for side in (baseline, candidate))
    equal = rows[:, None] == columns[None, :]
    equal[[signature is None for signature in baseline], :] = False
    best = np.zeros((len(baseline) + 1, len(candidate) + 1), np.int32)
    for row in range(len(baseline) - 1, -1, -1):
        # The longest from here on: with this pair, or without one of the two.
        lengths = np.maximum(best[row + 1, :-1], np.where(equal[row], best[row + 1, 1:] + 1, 0))
        best[row, :-1] = np.maximum.accumulate(lengths[::-1])[::-1]
    pairs, row, column = [], 0, 0
    while row < len(baseline) and column < len(candidate):
        if equal[row, column] and best[row, column] == best[row + 1, column + 1] + 1:
            pairs.append((row, column))
            row, column = row + 1, column + 1
        elif best[row + 1, column] >= best[row, column + 1]:
            row += 1
        else:
            column += 1
    return pairs


_FEWEST = 3
"""Fewest convolutions and products per side for a verdict; below, one changed layer looks like another network."""
_ALIKE = 0.1
"""Share of the multiply-accumulates of either side from which on the sides may be one network."""


def different_networks(
    baseline: Mapping[OperatorKey, OperatorFacts], candidate: Mapping[OperatorKey, OperatorFacts]
) -> str | None:
    """Return why two sides look like different networks, as a sentence; None if they do not or work is unknown.

    Versions of a network share most operators, whatever their number type or runtime: these multiply as often. At
    another resolution all do other work, but there are as many.
    """
    sides = [_count_products(facts) for facts in (baseline, candidate)]
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


def _count_products(facts: Mapping[OperatorKey, OperatorFacts]) -> Counter[int]:
    """Count operators by their number of multiply-accumulates."""
    known = (fact.cost.macs for fact in facts.values() if fact.cost is not None)
    return Counter(macs for macs in known if macs)
