"""Results of AI Engine traces as a notebook shows them: cards and data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from opscope.core.units import rate_text, share_text
from opscope.npu.analysis.cycles import EVENTS
from opscope.npu.reports.answer import CATEGORY_NAMES, answer, told, units_text, verdict_text
from opscope.npu.reports.comparison import HEAD, comparison_sentence, figure_cells, shown_figures, tiles_text
from opscope.npu.reports.sweep import sweep_sentence
from opscope.reports.document.blocks import words_table
from opscope.reports.document.messages import sentence
from opscope.reports.formats.frames import typed_frame
from opscope.reports.gate import gate_notes, gate_sentence
from opscope.reports.notebook.card import MOST_ROWS, Card, more_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.npu.analysis.compare import FigureChange, TilesComparison, TilesEvidence
    from opscope.npu.analysis.sweep import Sweep, SweepRow
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis
    from opscope.reports.document.blocks import TableBlock
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
_GMAC = {"gmac_per_s_low": "low", "gmac_per_s_high": "high"}
_SIZES = ("M", "K", "N", "m", "k", "n")
_SWEEP: Schema = {
    **dict.fromkeys("label path".split(), pl.String),
    **dict.fromkeys([*_SIZES, "macs", "cores"], pl.Int64),
    **dict.fromkeys("in_calls mac_per_cycle utilisation coverage".split(), pl.Float64),
    **dict.fromkeys([*_GMAC, *"iteration_cycles period_cycles call_cycles".split()], pl.Float64),
    **dict.fromkeys("bound_by stall".split(), pl.String),
    "stall_share": pl.Float64,
    "problem": pl.String,
    "complete": pl.Boolean,
}


def tiles_card(analysis: TilesAnalysis) -> Card:
    """Whether the cores are busy and how far from their peak; the cycles of the first cores."""
    headline, told_of = answer(analysis)
    rows = [
        [
            row.tile,
            f"{row.window_cycles:,}",
            share_text(row.cycles.in_call.total / row.window_cycles),
            "not known" if row.mac_per_cycle is None else rate_text(row.mac_per_cycle),
            "not known" if row.utilisation is None else share_text(row.utilisation),
            "not known" if row.bound is None else verdict_text(row.bound),
        ]
        for row in analysis.working[:MOST_ROWS]
    ]
    grid = words_table(["tile", "cycles", "in calls", "MAC/cycle", "of peak", "bound by"], rows)
    lines = [
        *more_rows(len(rows), len(analysis.working)),
        *told_of,
        *(sentence(message) for message in told(analysis.findings)),
    ]
    trace = analysis.trace
    return Card(trace.path, headline, f"{trace.path} ({trace.format}), {units_text(analysis)}", [grid], lines)


def tiles_frame(analysis: TilesAnalysis) -> pl.DataFrame:
    """Every traced unit in a row; cycles by category are null where the event was not traced."""
    return typed_frame(_TILES, map(_tile, analysis.tiles))


def _tile(row: TileRow) -> Sequence[object]:
    cycles = (None if EVENTS.get(name) in row.not_traced else row.cycles.of(name) for name in CATEGORY_NAMES)
    period, by = (row.bound.measured_period_cycles, row.bound.by) if row.bound else (None, None)
    calls = row.calls.paired, row.window_cycles, row.cycles.in_call.total
    return (row.tile, row.unit, *calls, *cycles, period, by, row.mac_per_cycle, row.utilisation, row.coverage)


def tiles_comparison_card(comparison: TilesComparison) -> Card:
    """The verdict, and the figures of both sides."""
    figures = [comparison.overall, *(row for row in shown_figures(comparison) if row is not comparison.overall)]
    where = f"{comparison.candidate.path} against {comparison.baseline.path}"
    return Card(where, comparison_sentence(comparison), None, [_figures(figures)], comparison.notes)


def tiles_comparison_frame(comparison: TilesComparison) -> pl.DataFrame:
    """Every figure of both sides in a row, the one that the verdict rests on first."""
    parts = {
        "overall": [comparison.overall],
        "kind": comparison.kinds,
        "period": [comparison.period] if comparison.period else [],
        "stall": comparison.stalls,
        "stall cycles": comparison.stall_cycles,
        "rate": comparison.rates,
    }
    return typed_frame(_FIGURES, (_figure(part, row) for part, rows in parts.items() for row in rows))


def tiles_gate_card(decision: Decision[TilesEvidence]) -> Card:
    """The decision, the figure that was judged, and what became worse."""
    evidence, text = decision.evidence, tiles_text(decision)
    advice = [f"next: {decision.advice}"] if decision.advice else []
    where = f"{evidence.candidate.path} against {evidence.baseline.path}"
    lines = [decision.criteria[0].reason, *advice, *gate_notes(decision, text)]
    return Card(where, gate_sentence(decision, text), None, [_figures([evidence.figure, *evidence.slower])], lines)


def tiles_gate_frame(decision: Decision[TilesEvidence]) -> pl.DataFrame:
    """The figure that was judged, then those that are shown to be worse."""
    evidence = decision.evidence
    rows = [("overall", evidence.figure), *(("slower", row) for row in evidence.slower)]
    return typed_frame(_FIGURES, (_figure(part, row) for part, row in rows))


def sweep_card(sweep: Sweep) -> Card:
    """What the traces reach, and what bounds the first of them."""
    rows = [
        [
            row.label,
            row.problem or row.bound_by or "not known",
            "not known" if row.mac_per_cycle is None else rate_text(row.mac_per_cycle),
            "not known" if row.utilisation is None else share_text(row.utilisation),
        ]
        for row in sweep.rows[:MOST_ROWS]
    ]
    grid = words_table(["trace", "bound by", "MAC/cycle", "of peak"], rows, texts=2)
    where = ", ".join(row.path for row in sweep.rows)
    return Card(where, sweep_sentence(sweep), "", [grid], [*more_rows(len(rows), len(sweep.rows)), *sweep.notes])


def sweep_frame(sweep: Sweep) -> pl.DataFrame:
    """The traces in the order of their work; GMAC/s at the lowest and the highest clock that is possible."""
    return typed_frame(_SWEEP, ([_swept(row, name) for name in _SWEEP] for row in sweep.rows))


def _swept(row: SweepRow, name: str) -> object:
    if name in _GMAC:
        return None if row.gmac_per_s is None else getattr(row.gmac_per_s, _GMAC[name])
    return getattr(row.tiling, name, None) if name in _SIZES else getattr(row, name)


def _figures(rows: Sequence[FigureChange]) -> TableBlock:
    return words_table(HEAD, [figure_cells(row) for row in rows])


def _figure(part: str, row: FigureChange) -> Sequence[object]:
    sides = row.baseline, row.candidate, row.ratio, row.change, *(row.ci95 or (None, None))
    return (part, row.name, row.unit, *sides, row.verdict, row.minimum_detectable)
