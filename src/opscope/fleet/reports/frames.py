"""What a store and its history give as data frames; times are in UTC, without a zone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
from msgspec.structs import astuple

from opscope.fleet.analysis.history import Subject
from opscope.fleet.reports.common_moves import fact_text
from opscope.fleet.store.entries import entry_rows
from opscope.fleet.store.rows import moment
from opscope.reports.document.text import distinct
from opscope.reports.formats.frames import typed_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from polars._typing import PolarsDataType

    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.fleet_gate import FleetEvidence, SlowerSeries
    from opscope.fleet.analysis.history import History, Series
    from opscope.fleet.store.checking import StoreCheck
    from opscope.fleet.store.entries import StoreEntry
    from opscope.reports.formats.frames import Schema

_MOMENT = pl.Datetime("us")
_ENTRIES = "bundle kind model device variants repetitions created added placed source origin".split()
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
    "confirmed": pl.Boolean,
    **dict.fromkeys(Subject.__struct_fields__, pl.String),
    "threads": pl.Int64,
    **dict.fromkeys("before_ns after_ns slowdown ci95_low ci95_high limit".split(), pl.Float64),
    **dict.fromkeys("runs predecessors".split(), pl.Int64),
    "p_value": pl.Float64,
    "common": pl.String,
    "first": pl.String,
    "first_placed": _MOMENT,
    "changed": pl.String,
}
_FAULTS: Schema = {"path": pl.String, "problem": pl.String, "bundles": pl.Int64}
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
    """The answer to a query; a name that is there before gets a number, and what no column can hold is its text."""
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    named = zip(distinct(columns), types, cells, strict=True)
    return pl.DataFrame([_column(name, _SQL.get(kind), own) for name, kind, own in named])


def _column(name: str, kind: PolarsDataType | None, cells: Sequence[Any]) -> pl.Series:
    found = pl.Series(name, list(cells), kind, strict=False)
    if found.dtype == pl.Object:  # such as a UUID
        return pl.Series(name, [None if cell is None else str(cell) for cell in cells], pl.String)
    return found


def entries_frame(entries: Sequence[StoreEntry]) -> pl.DataFrame:
    """Every bundle in a row; variants are joined by commas."""
    variants = pl.Series("variants", [", ".join(one.variants) for one in entries], pl.String)
    return entry_rows(entries).with_columns(variants).select(_ENTRIES)


def history_frame(history: History) -> pl.DataFrame:
    """Every run in a row, series by series in their order; ``run`` is its number in the series, from 0."""
    return typed_frame(_POINTS, (row for series in history.series for row in _points(series)))


def _points(series: Series) -> Iterator[Sequence[object]]:
    levels = [level for segment in series.segments for level in segment.fitted().tolist()]
    changes = {change.index: change.ratio for change in series.changes}
    apart = {outlier.index for outlier in series.outliers}
    for number, (point, level) in enumerate(zip(series.points, levels, strict=True)):
        times = moment(point.created), moment(point.placed)
        figures = point.value, level, changes.get(number), number in apart
        yield (*astuple(series.subject), number, point.bundle, point.label, *times, *figures)


def fleet_frame(fleet: Fleet) -> pl.DataFrame:
    """The newest run of every configuration in a row."""
    rows = (
        (
            *(run.bundle, run.model, run.device, run.variant, run.role, moment(run.created), run.runs),
            *(run.latency_ns, run.arm, run.speedup, *(run.ci95 or (None, None)), run.verdict, run.grade),
        )
        for run in fleet.runs
    )
    return typed_frame(_RUNS, rows)


def slower_frame(evidence: FleetEvidence) -> pl.DataFrame:
    """Every series that is slower or may be in a row."""
    confirmed = [(True, row) for row in evidence.slower]
    return typed_frame(_SLOWER, (_slower(*one) for one in (*confirmed, *((False, row) for row in evidence.suspects))))


def _slower(confirmed: bool, row: SlowerSeries) -> Sequence[object]:
    figures = row.before_ns, row.after_ns, row.slowdown, *row.ci95, row.limit, row.runs, row.predecessors, row.p_value
    common, origin = row.common.value if row.common else None, row.origin
    if origin is None:
        return (confirmed, *astuple(row.subject), *figures, common, None, None, None)
    changed = "; ".join(map(fact_text, origin.changed)) or None
    first = origin.first.bundle, moment(origin.first.placed), changed
    return (confirmed, *astuple(row.subject), *figures, common, *first)


def faults_frame(check: StoreCheck) -> pl.DataFrame:
    """Every file of a store that is missing or damaged in a row, with how many bundles may have rows in it."""
    rows = ((*msgspec.structs.astuple(fault)[:2], len(fault.bundles)) for fault in check.faults)
    return typed_frame(_FAULTS, rows)
