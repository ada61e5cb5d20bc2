"""Figures of the cores as a map of the array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analyze.aie_array import Core

_WIDEST = 64
_MOST_PLACES = _WIDEST * _WIDEST
Grid = tuple[tuple[float | None, ...], ...]


class HeatMap(msgspec.Struct, frozen=True):
    """Figures by row and column of the array.

    Attributes:
        rows: from the lowest traced to the highest; only those traced where these are further apart than any array.
        columns: likewise.
        figures: for each figure its values, row by row in the order of ``rows``; null where no core was traced, or
            where the figure is not known. ``iteration_cycles``: median of the common iterations; ``calls``: seen;
            ``in_call``, ``vector``, ``memory_stall``, ``lock_stall``: shares of the tile's window;
            ``mac_per_cycle`` and ``utilisation`` in it.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    figures: dict[str, Grid]


def heat_map(cores: Sequence[Core], medians: Mapping[str, float]) -> HeatMap:
    """The map of all cores; one that was traced twice counts once, the last time. Without rows where it is no map.

    Args:
        cores: with their figures.
        medians: cycles of the common iterations, by tile; empty without any.
    """
    at = {(core.tile.row, core.tile.column): _figures(core, medians.get(core.tile.tile)) for core in cores}
    rows, columns = (_all(place[axis] for place in at) for axis in (0, 1))
    names = next(iter(at.values()), {})
    if len(rows) * len(columns) > _MOST_PLACES:
        return HeatMap((), (), {})
    figures = {
        name: tuple(tuple(at.get((row, column), {}).get(name) for column in columns) for row in rows) for name in names
    }
    return HeatMap(rows, columns, figures)


def _all(places: Iterable[int]) -> tuple[int, ...]:
    listed = sorted(set(places))
    wide = bool(listed) and listed[-1] - listed[0] >= _WIDEST
    return tuple(listed if wide or not listed else range(listed[0], listed[-1] + 1))


def _figures(core: Core, iteration: float | None) -> dict[str, float | None]:
    inside, between = core.account.in_call, core.account.between_calls
    window = core.account.window_cycles

    def share(cycles: int) -> float | None:
        return cycles / window if window else None

    return {
        "iteration_cycles": iteration,
        "calls": float(len(core.calls)),
        "in_call": share(inside.total),
        "vector": share(inside.vector + between.vector),
        "memory_stall": share(inside.memory_stall + between.memory_stall),
        "lock_stall": share(inside.lock_stall + between.lock_stall),
        "mac_per_cycle": core.rate.mac_per_cycle,
        "utilisation": core.rate.utilisation,
    }
