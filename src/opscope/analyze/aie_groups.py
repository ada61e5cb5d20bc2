"""Groups among calls: by vector cycles, which a kernel repeats exactly, then by gaps between lengths."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.table.nesting import Ints

    Mask = NDArray[np.bool_]

_REPEATS = 3
"""Calls that must have the same vector cycles for these to be a constant of their kernel."""
_REPEATS_SHARE = 1e-3
_MOST_CONSTANTS = 16
_COVERED = 0.9
"""Share of the calls that have a constant; below, vector cycles depend on the data and are told apart by gaps."""
_VECTOR_GAP = 1.25
_LOST_SHARE = 0.1
"""Share of its vector cycles that the capture of a call may lack anywhere in the trace; at its edges any."""
_LENGTH_SLACK = 1.1
_GAP_BY_LENGTH = 1.5
_GAP_AGAINST_VECTOR = 2.0
_GAP_OF_ONE = 2.0


class Group(NamedTuple):
    """Calls of one kind.

    Attributes:
        calls: their places, ascending.
        vector: the vector cycles of a call; None where they were not traced.
        why: what holds them together, in words.
        partial: places of those that lack vector cycles.
    """

    calls: Ints
    vector: int | None
    why: str
    partial: Ints


def by_vector(vector: Ints, lengths: Ints) -> list[Group]:
    """Groups by vector cycles.

    Args:
        vector: cycles with vector instructions in each call; shape (calls,).
        lengths: of the calls without their stalls; shape (calls,).
    """
    values, place, counts = np.unique(vector, return_inverse=True, return_counts=True)
    constant = (counts >= max(_REPEATS, _REPEATS_SHARE * len(vector))) | (values == 0)
    if constant.sum() <= _MOST_CONSTANTS and counts[constant].sum() >= _COVERED * len(vector):
        return _constants(vector, lengths, values[constant], constant[place])
    return by_vector_gap(vector)


def _constants(vector: Ints, lengths: Ints, values: Ints, has_one: Mask) -> list[Group]:
    """Each constant a group; other calls join the smallest of which they lack cycles, or are groups of their own."""
    home = np.where(has_one, vector, -1)
    strays = np.flatnonzero(~has_one)
    for value in values.tolist():
        lacking = _lacking(strays, vector, lengths, value)
        home[strays[lacking & (home[strays] < 0)]] = value
    groups = [_constant(vector, np.flatnonzero(home == value), value) for value in values.tolist()]
    rest = np.flatnonzero(home < 0)
    others = by_vector_gap(vector[rest]) if len(rest) else []
    return groups + [own._replace(calls=rest[own.calls]) for own in others]


def _lacking(strays: Ints, vector: Ints, lengths: Ints, value: int) -> Mask:
    """Which calls last as long as those of a constant, and have fewer vector cycles."""
    others = lengths[vector == value]
    least, most = others.min() / _LENGTH_SLACK, others.max() * _LENGTH_SLACK
    as_long = (least <= lengths[strays]) & (lengths[strays] <= most)
    at_edge = (strays == 0) | (strays == len(vector) - 1)
    fewer = (vector[strays] < value) & (at_edge | (vector[strays] >= (1 - _LOST_SHARE) * value))
    return np.asarray(as_long & fewer, bool)


def _constant(vector: Ints, calls: Ints, value: int) -> Group:
    partial = calls[vector[calls] != value]
    whole = len(calls) - len(partial)
    why = f"{value:,} vector cycles in each of {whole:,} calls" if value else f"no vector cycles in {whole:,} calls"
    if len(partial):
        why += f"; {len(partial):,} last as long and lack some, which were not captured"
    return Group(calls, value, why, partial)


def by_vector_gap(vector: Ints) -> list[Group]:
    """Groups between which vector cycles differ by more than a quarter."""
    values, place = np.unique(vector, return_inverse=True)
    apart = (values[1:] > _VECTOR_GAP * values[:-1]) | (values[:-1] == 0)
    group = np.concatenate([[0], np.cumsum(apart)])[place]
    return [_range(vector, np.flatnonzero(group == number)) for number in range(int(group.max()) + 1)]


def _range(vector: Ints, calls: Ints) -> Group:
    own = vector[calls]
    least, most = int(own.min()), int(own.max())
    if least == most:
        return _constant(vector, calls, least)
    why = f"{least:,} to {most:,} vector cycles in {len(calls):,} calls, without a gap of a quarter between them"
    return Group(calls, int(np.sort(own)[len(own) // 2]), why, calls[:0])


def by_length(group: Group, lengths: Ints) -> list[Group]:
    """Divide a group where lengths leave a wide gap.

    Equal vector cycles outweigh all but a gap of twice the length with three calls on either side. Without vector
    cycles a gap of half the length is enough, or of twice the length for a single call.

    Args:
        group: calls of the same vector cycles.
        lengths: of all calls of the tile without their stalls; shape (calls,).
    """
    order = np.argsort(lengths[group.calls], kind="stable")
    cuts = _cuts(np.maximum(lengths[group.calls][order], 1), told_by_vector=bool(group.vector))
    if not cuts:
        return [group]
    parts = np.split(order, cuts)
    return [_part(group, np.sort(group.calls[part]), len(parts)) for part in parts]


def _cuts(ordered: Ints, *, told_by_vector: bool) -> list[int]:
    """Places in ordered lengths before which a group begins."""
    ratio = ordered[1:] / ordered[:-1]
    wide = np.flatnonzero(ratio >= (_GAP_AGAINST_VECTOR if told_by_vector else _GAP_BY_LENGTH)) + 1
    bounds, cuts, before = [*wide.tolist(), len(ordered)], [], 0
    for cut, following in pairwise(bounds):
        fewest = min(cut - before, following - cut)
        enough = fewest >= _REPEATS if told_by_vector else fewest > 1 or ratio[cut - 1] >= _GAP_OF_ONE
        if enough:
            cuts.append(cut)
            before = cut
    return cuts


def _part(group: Group, calls: Ints, parts: int) -> Group:
    why = f"{group.why}; one of {parts} groups with wide gaps between their lengths"
    return Group(calls, group.vector, why, group.partial[np.isin(group.partial, calls)])
