"""What an operator reads or writes of the keys and values that are kept of earlier tokens.

A kernel that is told the position reads the places before it, however many are allocated: no shape tells its work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.dimensions import NotKnownError

if TYPE_CHECKING:
    from opscope.program.cost.call import OperatorCall

_ATTENDING = frozenset({"custom_sdpa", "custom_quantized_sdpa"})
"""They read keys and values as (batch, places, heads, width), behind the queries."""
_WRITING = frozenset({"update_cache", "update_cache_with_indices"})
_SLICED = "DYNAMIC_UPDATE_SLICE"
"""LiteRT's, of all places and what is written into them."""
_ATTENDED = 4
"""Dimensions of keys and values."""


class CacheUse(msgspec.Struct, frozen=True):
    """An operator's use of a cache; all counts are of one call."""

    reads: bool  # whether it reads the places of the tokens so far; else it writes those of its own tokens
    places: int  # that are allocated
    place_bytes: float  # of one place, keys and values as far as the operator touches both
    place_macs: int  # multiply-accumulates of one token with one place
    tokens: int  # of a call

    def used(self, position: int) -> int:
        """Places that a call touches whose first token is at a position."""
        return min(self.places, position + self.tokens) if self.reads else min(self.places, self.tokens)

    def bytes(self, position: int) -> int:
        """Bytes of these places."""
        return round(self.used(position) * self.place_bytes)

    def macs(self, position: int) -> int:
        """Multiply-accumulates: each token with the places before it and its own."""
        before = self.tokens * position + self.tokens * (self.tokens + 1) // 2
        return self.place_macs * min(before, self.tokens * self.places)


def cache_use(call: OperatorCall) -> CacheUse | None:
    """What a portable operator does with a cache; None for one that has none, or whose sizes are not known."""
    try:
        if call.operator in _ATTENDING:
            return _attending(call)
        if call.name == _SLICED:
            return _writing(call, value=1, kept=0)
        return _writing(call, value=0, kept=1) if call.operator in _WRITING else None
    except NotKnownError:
        return None


def _attending(call: OperatorCall) -> CacheUse | None:
    queries, keys, values = (call.shape(position) for position in range(3))
    if not len(queries) == len(keys) == len(values) == _ATTENDED or not keys[1]:
        return None
    _, tokens, heads, width = queries
    kept = call.bytes_of(call.inputs[1]) + call.bytes_of(call.inputs[2])
    macs = heads * (width + values[3])
    return CacheUse(reads=True, places=keys[1], place_bytes=kept / keys[1], place_macs=macs, tokens=tokens)


def _writing(call: OperatorCall, value: int, kept: int) -> CacheUse | None:
    """The tensor that is written, and that which holds all places, by their positions among the arguments."""
    made, all_places = call.shape(value), call.shape(kept)
    if not len(made) == len(all_places) == _ATTENDED or not math.prod(made):
        return None
    each = call.bytes_of(call.inputs[value]) / made[1]
    return CacheUse(reads=False, places=all_places[1], place_bytes=each, place_macs=0, tokens=made[1])
