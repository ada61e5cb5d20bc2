"""The result of a trace of AI Engine tiles as rows of the tables."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from opscope.fleet.store.rows import BundleLabels, moment
from opscope.fleet.store.schema import TABLES

if TYPE_CHECKING:
    from opscope.fleet.store.schema import Row
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis

_SPLIT = ("vector", "memory_stall", "stream_stall", "cascade_stall", "lock_stall", "other")


def tile_rows(
    found: TilesAnalysis, bundle: str, source: str, given: BundleLabels, created: str
) -> dict[str, list[Row]]:
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


def _tile(tile: TileRow) -> Row:
    return (
        tile.tile,
        tile.unit,
        tile.calls.paired,
        tile.window_cycles,
        *map(tile.cycles.of, _SPLIT),
        tile.mac_per_cycle,
        tile.utilisation,
        tile.coverage,
        tile.bound.by if tile.bound else None,
        len(tile.iterations),
    )
