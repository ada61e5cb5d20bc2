"""What a store and its history give as data frames; times are in UTC, without a zone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import astuple

from opscope.fleet.analysis.changes import Subject
from opscope.fleet.analysis.history import fit_levels
from opscope.fleet.reports.causes import fact_text
from opscope.fleet.store.entries import entries_frame
from opscope.fleet.store.rows import parse_moment
from opscope.reports.document.text import distinct
from opscope.reports.formats.frames import typed_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from polars._typing import PolarsDataType

    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.gate import FleetEvidence, SlowerSeries
    from opscope.fleet.analysis.history import History, Series
    from opscope.fleet.store.entries import StoreEntry
    from opscope.reports.formats.frames import Schema

_MOMENT = pl.Datetime("us")
_ENTRIES = "bundle kind model device variants repetitions created added placed source origin checked".split()
_POINTS: Schema = {
    **dict.fromkeys(Subject.__struct_fields__, pl.String),
    "threads": pl.Int64,
    "run": pl.Int64,
    **dict.fromkeys("bundle label".split(), pl.String),
    **dict.fromkeys("created placed".split(), _MOMENT),
    **dict.fromkeys("value level change".split(), pl.Float64),
    "outlier": pl.Boolean,
}
_RUNS: Schema = {
    **dict.fromkeys("bundle model device variant role".split(), pl.String),
    "created": _MOMENT,
    "runs": pl.Int64,
    "latency_ns": pl.Float64,
    "arm": pl.String,
    **dict.fromkeys("speedup ci95_low ci95_high".split(), pl.Float64),
    **dict.fromkeys("verdict grade".split(), pl.String),
}
_SLOWER: Schema = {
    **dict.fromkeys(Subject.__struct_fields__, pl.String),
    "threads": pl.Int64,
    **dict.fromkeys("before_ns after_ns slowdown ci95_low ci95_high limit".split(), pl.Float64),
    **dict.fromkeys(("runs",), pl.Int64),
    "p_value": pl.Float64,
    "cause": pl.String,
    "first": pl.String,
    "first_placed": _MOMENT,
    "changed": pl.String,
}
_SQL: Schema = {
    "BIGINT": pl.Int64,
    "INTEGER": pl.Int32,
    "UBIGINT": pl.UInt64,
    "DOUBLE": pl.Float64,
    "FLOAT": pl.Float32,
    "VARCHAR": pl.String,
    "BOOLEAN": pl.Boolean,
    "TIMESTAMP": _MOMENT,
}
"""Types of columns by what SQL calls them; others follow from the cells."""


def answer_frame(columns: Sequence[str], types: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    """Return the answer to a query; repeated names get a number, and what no column can hold is its text."""
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    named = zip(distinct(columns), types, cells, strict=True)
    return pl.DataFrame([_make_column(name, _SQL.get(kind), own) for name, kind, own in named])


def _make_column(name: str, kind: PolarsDataType | None, cells: Sequence[Any]) -> pl.Series:
    found = pl.Series(name, list(cells), kind, strict=False)
    if found.dtype == pl.Object:  # such as a UUID
        return pl.Series(name, [None if cell is None else str(cell) for cell in cells], pl.String)
    return found


def listed_entries_frame(entries: Sequence[StoreEntry]) -> pl.DataFrame:
    """Return every bundle in a row; variants are joined by commas."""
    variants = pl.Series("variants", [", ".join(one.variants) for one in entries], pl.String)
    return entries_frame(entries).with_columns(variants).select(_ENTRIES)


def history_frame(history: History) -> pl.DataFrame:
    """Return every run in a row, series by series in their order; ``run`` is its number in the series, from 0."""
    return typed_frame(_POINTS, (row for series in history.series for row in _point_rows(series)))


def _point_rows(series: Series) -> Iterator[Sequence[object]]:
    levels = fit_levels(series.segments).tolist()
    changes = {change.first: change.ratio for change in series.changes if change.kind == "step"}
    apart = {outlier.index for outlier in series.outliers}
    for number, (point, level) in enumerate(zip(series.points, levels, strict=True)):
        times = parse_moment(point.created), parse_moment(point.placed)
        figures = point.value, level, changes.get(number), number in apart
        yield (*astuple(series.subject), number, point.bundle, point.label, *times, *figures)


def fleet_frame(fleet: Fleet) -> pl.DataFrame:
    """Return the newest run of every configuration in a row."""
    rows = (
        (
            *(run.bundle, run.model, run.device, run.variant, run.role, parse_moment(run.created), run.runs),
            *(run.latency_ns, run.arm, run.speedup, *(run.ci95 or (None, None)), run.verdict, run.grade),
        )
        for run in fleet.runs
    )
    return typed_frame(_RUNS, rows)


def slower_frame(evidence: FleetEvidence) -> pl.DataFrame:
    """Return every series that is slower in a row."""
    return typed_frame(_SLOWER, map(_slower_row, evidence.slower))


def _slower_row(row: SlowerSeries) -> Sequence[object]:
    figures = row.before_ns, row.after_ns, row.slowdown, *row.ci95, row.limit, row.runs, row.p_value
    changed = "; ".join(map(fact_text, row.changed)) or None
    first = row.first.bundle, parse_moment(row.first.placed)
    return (*astuple(row.subject), *figures, row.cause.value if row.cause else None, *first, changed)
