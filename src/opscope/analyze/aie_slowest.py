"""Which tile is slowest, and what it spends the difference on."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analyze.aie_cycles import split_spans
from opscope.units import share_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.analyze.aie_calls import Calls
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

ALIKE = 0.01
"""Tiles whose iterations differ by less are equally fast."""
_WORDS = {"vector": "vector work", "other": "other work"}


class Slowest(msgspec.Struct, frozen=True):
    """The tile whose iterations take longest, against the median of the others.

    Attributes:
        tile: as ``ROW,COL``.
        median_cycles: of its iterations.
        others_cycles: median over the other tiles of the same.
        excess_cycles: the difference.
        category: of cycles that grew most, as in the account of cycles.
        category_cycles: by which it grew an iteration, mean against the median of the other tiles.
        why: the same in words.
    """

    tile: str
    median_cycles: float
    others_cycles: float
    excess_cycles: float
    category: str
    category_cycles: float
    why: str


class _Means(NamedTuple):
    """Means over the iterations of a tile.

    Attributes:
        median: of its cycles.
        calls: in one.
        cycles: by category.
    """

    median: float
    calls: float
    cycles: dict[str, float]


Seen = tuple["TileTrace", "Calls", "Ints", "Ints"]
"""A tile, its calls, and starts and ends of the iterations that are compared, in the tile's own time."""


def slowest(tiles: Mapping[str, Seen]) -> Slowest | None:
    """The slowest tile; None with fewer than two, and when it is no slower than the others.

    Args:
        tiles: by name.
    """
    if len(tiles) < 2:  # noqa: PLR2004 - one tile has no others
        return None
    means = {name: _means(*seen) for name, seen in tiles.items()}
    name = max(means, key=lambda own: means[own].median)
    own, others = means[name], [other for key, other in means.items() if key != name]
    usual = median(other.median for other in others)
    if own.median <= usual * (1 + ALIKE):
        return None
    growth = {key: own.cycles[key] - median(other.cycles[key] for other in others) for key in own.cycles}
    category = max(growth, key=lambda key: growth[key])
    excess = own.median - usual
    calls = own.calls - median(other.calls for other in others)
    why = _why(category, growth[category], excess, calls)
    return Slowest(name, own.median, usual, excess, category, growth[category], why)


def _means(tile: TileTrace, calls: Calls, starts: Ints, ends: Ints) -> _Means:
    split = split_spans(tile, starts, ends)
    cycles = {key: float(values.mean()) for key, values in split._asdict().items()}
    inside = np.searchsorted(calls.start, ends) - np.searchsorted(calls.start, starts)
    return _Means(float(np.median(ends - starts)), float(inside.mean()), cycles)


def _why(category: str, growth: float, excess: float, calls: float) -> str:
    more = f"{growth:,.0f} more cycles an iteration in {_WORDS.get(category, category.replace('_', ' '))}"
    share = f", {share_text(min(1.0, growth / excess))} of the difference" if excess > 0 else ""
    work = f"; it makes {calls:g} more calls an iteration" if calls > 0 else ""
    waits = "; it waits for data or buffers, so look at what feeds or empties it" if category in _WAITING else ""
    return f"{more}{share}{work}{waits}"


_WAITING = frozenset({"stream_stall", "cascade_stall", "lock_stall"})
