"""Determine what an operator reads or writes of the stored keys and values of earlier tokens.

A kernel that is given the position reads only the places before it, however many are allocated: no shape tells
its work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.dimensions import NotKnownError

if TYPE_CHECKING:
    from opscope.program.cost.call import OperatorCall

_ATTENDING = frozenset({"custom_sdpa", "custom_quantized_sdpa"})
"""Operators that read keys and values as (batch, places, heads, width), which follow the queries."""
_WRITING = frozenset({"update_cache", "update_cache_with_indices"})
_SLICED = "DYNAMIC_UPDATE_SLICE"
"""LiteRT's operator that takes all places and what is written into them."""
_ATTENDED = 4
"""Number of dimensions of keys and values."""


class CacheUse(msgspec.Struct, frozen=True):
    """An operator's use of a cache; all counts are of one call."""

    reads: bool  # whether it reads the places of the tokens so far; else it writes those of its own tokens
    places: int  # that are allocated
    place_bytes: float  # of one place, keys and values as far as the operator touches both
    place_macs: int  # multiply-accumulates of one token with one place
    tokens: int  # of a call

    def used(self, position: int) -> int:
        """Return the number of places that a call touches whose first token is at a position."""
        return min(self.places, position + self.tokens) if self.reads else min(self.places, self.tokens)

    def bytes(self, position: int) -> int:
        """Return the bytes of the places that a call touches whose first token is at a position."""
        return round(self.used(position) * self.place_bytes)

    def macs(self, position: int) -> int:
        """Return the multiply-accumulates of a call: each token with the places before it and its own."""
        before = self.tokens * position + self.tokens * (self.tokens + 1) // 2
        return self.place_macs * min(before, self.tokens * self.places)


def cache_use(call: OperatorCall) -> CacheUse | None:
    """Return how a portable operator uses a cache; None if it has none, or if its sizes are unknown."""
    try:
        if call.operator in _ATTENDING:
            return _read_use(call)
        if call.name == _SLICED:
            return _write_use(call, value=1, cache_argument=0)
        return _write_use(call, value=0, cache_argument=1) if call.operator in _WRITING else None
    except NotKnownError:
        return None


def _read_use(call: OperatorCall) -> CacheUse | None:
    queries, keys, values = (call.shape(position) for position in range(3))
    if not len(queries) == len(keys) == len(values) == _ATTENDED or not keys[1]:
        return None
    _, tokens, heads, width = queries
    cache_bytes = call.bytes_of(call.inputs[1]) + call.bytes_of(call.inputs[2])
    macs = heads * (width + values[3])
    return CacheUse(reads=True, places=keys[1], place_bytes=cache_bytes / keys[1], place_macs=macs, tokens=tokens)


def _write_use(call: OperatorCall, value: int, cache_argument: int) -> CacheUse | None:
    """Return the use of a cache by an operator that writes into it.

    ``value`` and ``cache_argument`` are the argument positions of the written tensor and of the cache.
    """
    written, all_places = call.shape(value), call.shape(cache_argument)
    if not len(written) == len(all_places) == _ATTENDED or not math.prod(written):
        return None
    bytes_per_token = call.bytes_of(call.inputs[value]) / written[1]
    return CacheUse(reads=False, places=all_places[1], place_bytes=bytes_per_token, place_macs=0, tokens=written[1])
