"""The result of a trace of AI Engine tiles (schema ``opscope.tiles/1``) as rows of the tables.

Only the fields that the tables hold are read; others may be there.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from opscope.fleet.store.rows import BundleLabels, moment
from opscope.fleet.store.schema import TABLES

if TYPE_CHECKING:
    from opscope.fleet.store.schema import Row

TILES_SCHEMA = "opscope.tiles/1"
_SPLIT = ("vector", "memory_stall", "stream_stall", "cascade_stall", "lock_stall", "other")


class SplitFields(msgspec.Struct, frozen=True):
    """Cycles by what a core did."""

    vector: int
    memory_stall: int
    stream_stall: int
    cascade_stall: int
    lock_stall: int
    other: int


class CycleFields(msgspec.Struct, frozen=True):
    """Cycles in calls and between them."""

    in_call: SplitFields
    between_calls: SplitFields


class CallFields(msgspec.Struct, frozen=True):
    """How many calls were found."""

    paired: int


class BoundFields(msgspec.Struct, frozen=True):
    """What sets the pace."""

    by: str


class TileFields(msgspec.Struct, frozen=True):
    """One trace unit of one tile."""

    tile: str
    unit: str
    calls: CallFields
    window_cycles: int
    cycles: CycleFields
    mac_per_cycle: float | None
    utilisation: float | None
    coverage: float | None
    bound: BoundFields | None
    iterations: list[msgspec.Raw]


class Trace(msgspec.Struct, frozen=True):
    """The file that was read."""

    path: str
    sha256: str


class DeviceFields(msgspec.Struct, frozen=True):
    """The device, where it was named."""

    name: str


class TileSpecificationFields(msgspec.Struct, frozen=True):
    """What was said about the trace."""

    device: DeviceFields | None = None
    dtype: str | None = None


class TileResult(msgspec.Struct, frozen=True, tag_field="schema", tag=TILES_SCHEMA):
    """As much of the result as the tables hold."""

    trace: Trace
    given: TileSpecificationFields
    tiles: list[TileFields]


def tile_rows(found: TileResult, bundle: str, source: str, given: BundleLabels, created: str) -> dict[str, list[Row]]:
    """Rows of ``runs`` and ``tiles``."""
    device = given.device or (found.given.device.name if found.given.device else "unknown AI Engine")
    model = PurePath(found.trace.path).name.partition(".")[0] or "trace"
    key = bundle, model, device, found.given.dtype or "tiles"
    said = {
        **dict(zip(("bundle", "model", "device", "variant"), key, strict=True)),
        "kind": "tiles",
        "created": moment(created),
        "commit": given.commit,
        "versions": "{}",
        "dtype": found.given.dtype,
        "source": source,
        "status": "complete",
    }
    return {
        "runs": [tuple(map(said.get, TABLES["runs"].names))],
        "tiles": [key + _tile(tile) for tile in found.tiles],
    }


def _tile(tile: TileFields) -> Row:
    both = tile.cycles.in_call, tile.cycles.between_calls
    return (
        tile.tile,
        tile.unit,
        tile.calls.paired,
        tile.window_cycles,
        *(sum(int(getattr(part, name)) for part in both) for name in _SPLIT),
        tile.mac_per_cycle,
        tile.utilisation,
        tile.coverage,
        tile.bound.by if tile.bound else None,
        len(tile.iterations),
    )
