"""One time for several tiles: each has a timer of its own, which starts when its trace does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analyze.aie_calls import START
from opscope.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.table.tiles import TileTrace

_AT_ONCE = ("BROADCAST", "USER_EVENT")
"""How events begin that reach all tiles at once, but for a few cycles a hop."""


class Shift(msgspec.Struct, frozen=True):
    """What is added to the times of a tile.

    Attributes:
        tile: as ``ROW,COL``.
        cycles: added; 0 for the tile whose common event came first by its own timer, else below 0.
    """

    tile: str
    cycles: int


class Alignment(msgspec.Struct, frozen=True):
    """The common time of several tiles.

    Attributes:
        event: whose first occurrence counts as one moment; null when there is none, and times stay as they are.
        shifts: of the tiles, in their order.
        reason: why this event, and what that assumes.
    """

    event: str | None
    shifts: tuple[Shift, ...]
    reason: str


def align(tiles: Sequence[TileTrace]) -> Alignment:
    """Align tiles on the first occurrence of an event that all of them have.

    An event that reaches all tiles at once is best: a broadcast or a user event. Without one it is the start of the
    first call; that some tile really started later is then lost.

    Args:
        tiles: in any order.
    """
    firsts = [_firsts(tile) for tile in tiles]
    event = _anchor(firsts)
    if event is None:
        shifts = tuple(Shift(tile.tile, 0) for tile in tiles)
        return Alignment(None, shifts, "no broadcast, user event or call is in the traces of all tiles")
    earliest = min(own[event] for own in firsts)
    shifts = tuple(Shift(tile.tile, earliest - own[event]) for tile, own in zip(tiles, firsts, strict=True))
    return Alignment(event, shifts, _reason(event, len(tiles)))


def _firsts(tile: TileTrace) -> dict[str, int]:
    """First cycle of each event that occurs."""
    used = [slot for slot in tile.slots if len(slot.spans.start)]
    return {slot.name: int(slot.spans.start.min()) for slot in reversed(used)}


def _anchor(firsts: Sequence[dict[str, int]]) -> str | None:
    """The event that comes first among those that reach all at once; else the first call; None without either."""
    common = set(firsts[0]).intersection(*firsts[1:]) if firsts else set()
    at_once = [name for name in common if name.startswith(_AT_ONCE)]
    fallback = START if START in common else None
    return min(at_once, key=lambda name: (firsts[0][name], name), default=fallback)


def _reason(event: str, tiles: int) -> str:
    seen = f"{event} is in the traces of {'all ' if tiles > 1 else ''}{counted_text(tiles, 'tile')}"
    if event == START:
        return (
            f"{seen}: the first calls count as simultaneous, since no event was traced that reaches all tiles at once"
        )
    return f"{seen}, and reaches them at once but for a few cycles a hop"
