"""The analysis of a trace of AI Engine tiles on a terminal: within 80 columns, the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from opscope.core.grouping import grouped
from opscope.core.parts import part
from opscope.core.units import rate_text, share_text
from opscope.npu.analysis.activity import EVENTS
from opscope.npu.reports.answer import (
    CATEGORY_NAMES,
    answer,
    category_cells,
    iteration_lines,
    measured_text,
    range_text,
    shown_core,
    told,
    units_text,
    verdict_text,
)
from opscope.reports.document.console import NameCell, Text
from opscope.reports.document.terminal import message_lines, plain_table
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from opscope.npu.analysis.prediction import Prediction
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis

_MOST_TILES = 16
_FEW = 4
_MOST_FINDINGS = 6
_LONG = 400


def tiles_summary(analysis: TilesAnalysis) -> RenderableType:
    """What a person reads after `opscope aie`."""
    found, rows = answer(analysis), analysis.working
    trace = analysis.trace
    parts: list[RenderableType] = [
        Text(f"{plain(trace.path)} ({trace.format}), {units_text(analysis)}", style="dim"),
        Text(found.headline, style="bold"),
        *(Text(line) for line in found.lines),
        Text(),
    ]
    parts += message_lines(told(analysis.findings), _MOST_FINDINGS)
    if rows:
        nothing: list[RenderableType] = []
        parts += part("the table of cycles", lambda: [Text(), _cycles(rows)], nothing)
        parts += part("the table of rates", lambda: [Text(), _rates(rows), *_seconds(analysis)], nothing)
        parts += part("the table of calls", lambda: [Text(), *_kinds(analysis), Text()], nothing)
        lines = part("the sentences on iterations", lambda: iteration_lines(rows), list[str]())
        parts += [Text(plain(line, _LONG)) for line in lines[:_FEW]]
    if analysis.prediction:
        parts += [Text(), *_prediction(analysis.prediction)]
    return Group(*parts)


def _cycles(rows: Sequence[TileRow]) -> Table:
    """Where the cycles went; of one core in calls and between them, of several with a dash for what was not traced."""
    if len(rows) > 1:
        return _cycles_of_all(rows)
    table = plain_table("cycles", "in calls", "between", "all", "share")
    for cells in category_cells(rows[0]):
        table.add_row(*cells)
    return table


def _cycles_of_all(rows: Sequence[TileRow]) -> Table:
    heads = ("tile", "cycles", "in calls", *(name.removesuffix("_stall") for name in CATEGORY_NAMES))
    table = plain_table(*heads)
    for row in rows[:_MOST_TILES]:
        shares = [
            "-" if EVENTS.get(name) in row.not_traced else share_text(row.cycles.of(name) / row.window_cycles)
            for name in CATEGORY_NAMES
        ]
        inside = share_text(row.cycles.in_call.total / row.window_cycles)
        table.add_row(row.tile, f"{row.window_cycles:,}", inside, *shares)
    return _more(table, rows)


def _rates(rows: Sequence[TileRow]) -> Table:
    table = plain_table(
        "tile", "MAC/cycle", "of peak", "in calls", "period", "predicted", "bound by", text={"tile", "bound by"}
    )
    for row in rows[:_MOST_TILES]:
        found = row.bound
        table.add_row(
            row.tile,
            _rate(row.mac_per_cycle),
            "not known" if row.utilisation is None else share_text(row.utilisation),
            _rate(row.in_call_mac_per_cycle),
            "" if found is None else f"{found.measured_period_cycles:,.0f}",
            "" if found is None else f"{found.predicted_period_cycles:,.0f}",
            "not known" if found is None else NameCell(verdict_text(found)),
        )
    return _more(table, rows)


def _seconds(analysis: TilesAnalysis) -> list[RenderableType]:
    """The rate in seconds with its clock, of several cores the mean; empty where no clock is known."""
    found = analysis.gmac_per_s
    if found is None:
        return []
    return [Text(f"{'' if len(analysis.working) == 1 else 'a core: '}{range_text(found)}")]


def _rate(value: float | None) -> str:
    return "not known" if value is None else rate_text(value)


def _kinds(analysis: TilesAnalysis) -> list[RenderableType]:
    """Kinds of calls; of many cores those of one."""
    rows = analysis.working
    shown = rows if len(rows) <= _FEW else [shown_core(analysis)]
    heads = ("tile", "kind", "calls", "vector", "median", "p10", "p90", "min", "max")
    table = plain_table(*heads, text={"tile", "kind"})
    for row in shown:
        for kind in row.kinds:
            vector = "" if kind.vector_cycles is None else f"{kind.vector_cycles:,}"
            figures = kind.median_cycles, kind.p10_cycles, kind.p90_cycles, kind.min_cycles, kind.max_cycles
            name = NameCell(kind.kind)
            table.add_row(row.tile, name, f"{kind.n:,}", vector, *(f"{value:,.0f}" for value in figures))
    rest = len(rows) - len(shown)
    return [table, *([Text(f"kinds of {rest} more tiles are in the report: --out DIR", style="dim")] if rest else [])]


def _prediction(found: Prediction) -> list[RenderableType]:
    """Numbers of a cost model; what nothing is compared with says why below."""
    table = plain_table("figure", "predicted", "measured", "error")
    for row in found.rows:
        error = "" if row.error is None else f"{row.error * 100:+.2f} %"
        table.add_row(row.quantity.replace("_", " "), f"{row.predicted:,.0f}", measured_text(row), error)
    told = grouped([row for row in found.rows if row.measured is None], lambda row: row.note)
    names = {note: ", ".join(row.quantity.replace("_", " ") for row in rows) for note, rows in told.items()}
    return [
        Text(f"cost model, per {found.of}", style="dim"),
        table,
        *(Text(f"{name}: {note}") for note, name in names.items()),
    ]


def _more(table: Table, rows: Sequence[TileRow]) -> Table:
    if len(rows) > _MOST_TILES:
        table.add_row(f"{len(rows) - _MOST_TILES} more")
    return table
