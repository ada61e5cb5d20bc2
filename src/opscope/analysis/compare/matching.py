"""Operators of two sides in pairs, by their place in one program or their layers in two, and each process's time."""

from __future__ import annotations

import difflib
import enum
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from opscope.analysis.operators.operators import UNKNOWN_METHOD, Operator
from opscope.core.grouping import grouped
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import classify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.operators.headline import HeadlineScale

    Floats: TypeAlias = NDArray[np.float64]
    OperatorPair: TypeAlias = tuple[Operator | None, Operator | None]
    Layer: TypeAlias = tuple[object, ...]
    RowKey: TypeAlias = tuple[str, int | None, int | None, str | None]


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
    return operator.computes, tuple(operator.handles), operator.kind, operator.activation


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
