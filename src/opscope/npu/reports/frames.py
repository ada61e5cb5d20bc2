"""Results of AI Engine traces as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from opscope.npu.analysis.cycles import EVENTS
from opscope.npu.reports.answer import CATEGORY_NAMES
from opscope.reports.formats.frames import typed_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.npu.analysis.compare import FigureChange, TilesComparison, TilesEvidence
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis
    from opscope.reports.formats.frames import Schema

_TILES: Schema = {
    "tile": pl.String,
    "unit": pl.String,
    "calls": pl.Int64,
    "window_cycles": pl.Int64,
    "in_call_cycles": pl.Int64,
    **dict.fromkeys(CATEGORY_NAMES, pl.Int64),
    "period_cycles": pl.Float64,
    "bound_by": pl.String,
    "mac_per_cycle": pl.Float64,
    "utilisation": pl.Float64,
    "coverage": pl.Float64,
}
_FIGURES: Schema = {
    **dict.fromkeys("part figure unit".split(), pl.String),
    **dict.fromkeys("baseline candidate ratio change ci95_low ci95_high".split(), pl.Float64),
    "verdict": pl.String,
    "minimum_detectable": pl.Float64,
}


def tiles_frame(analysis: TilesAnalysis) -> pl.DataFrame:
    """Make a row of each traced unit; cycles by category are null if the event was not traced."""
    return typed_frame(_TILES, map(_tile_row, analysis.tiles))


def _tile_row(row: TileRow) -> Sequence[object]:
    cycles = (None if EVENTS.get(name) in row.not_traced else row.cycles.of(name) for name in CATEGORY_NAMES)
    period, by = (row.bound.measured_period_cycles, row.bound.by) if row.bound else (None, None)
    calls = row.calls.paired, row.window_cycles, row.cycles.in_call.total
    return (row.tile, row.unit, *calls, *cycles, period, by, row.mac_per_cycle, row.utilisation, row.coverage)


def tiles_comparison_frame(comparison: TilesComparison) -> pl.DataFrame:
    """Make a row of every figure of both sides, the one that the verdict rests on first."""
    parts = {
        "overall": [comparison.overall],
        "kind": comparison.kinds,
        "period": [comparison.period] if comparison.period else [],
        "stall": comparison.stall_cycles,
        "rate": comparison.rates,
    }
    return typed_frame(_FIGURES, (_figure_row(part, row) for part, rows in parts.items() for row in rows))


def tiles_gate_frame(decision: Decision[TilesEvidence]) -> pl.DataFrame:
    """Return the figure that was judged, then those that are shown to be worse."""
    evidence = decision.evidence
    rows = [("overall", evidence.figure), *(("slower", row) for row in evidence.slower)]
    return typed_frame(_FIGURES, (_figure_row(part, row) for part, row in rows))


def _figure_row(part: str, row: FigureChange) -> Sequence[object]:
    sides = row.baseline, row.candidate, row.ratio, row.change, *(row.ci95 or (None, None))
    return (part, row.name, row.unit, *sides, row.verdict, row.minimum_detectable)
