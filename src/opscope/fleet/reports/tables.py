"""Answers and results of a store as tables: on a terminal, in a notebook, as CSV, JSON and Parquet, as data frames.

Cells may hold whatever a trace holds; times are in UTC, without a zone.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
from msgspec.structs import astuple

from opscope.core.json import array_parts
from opscope.core.units import counted_text
from opscope.fleet.analysis.changes import Subject
from opscope.fleet.analysis.history import fit_levels
from opscope.fleet.reports.words import fact_text
from opscope.fleet.store.schema import entries_frame, parse_moment
from opscope.reports.document.blocks import NOTEBOOK_ROWS, Bullets, Document, rest_sentence, words_table
from opscope.reports.document.console import WIDE, Text, TextConsole, TextTable
from opscope.reports.document.text import csv_cell, distinct, plain
from opscope.reports.formats.frames import typed_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.gate import FleetEvidence
    from opscope.fleet.analysis.history import History, Series
    from opscope.fleet.store.schema import StoreEntry
    from opscope.reports.formats.frames import Schema

    Rows: TypeAlias = Sequence[tuple[Any, ...]]

ENTRY_COLUMNS = ("bundle", "created", "model", "device", "variants")
_LARGE = 1e5
"""Numbers from here on are shown whole."""
_HASH_LENGTH, _MINUTE_LENGTH = 12, 16
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL")
_MOMENT = pl.Datetime("us")
_SUBJECT: Schema = dict.fromkeys(Subject.__struct_fields__, pl.String) | {"threads": pl.Int64}
_ENTRIES = "bundle kind model device variants repetitions created added placed source origin checked".split()
_POINTS: Schema = {
    **_SUBJECT,
    "run": pl.Int64,
    **dict.fromkeys(("bundle", "label"), pl.String),
    **dict.fromkeys(("created", "placed"), _MOMENT),
    **dict.fromkeys(("value", "level", "change"), pl.Float64),
    "outlier": pl.Boolean,
}
_RUNS: Schema = {
    **dict.fromkeys(("bundle", "model", "device", "variant", "role"), pl.String),
    "created": _MOMENT,
    "runs": pl.Int64,
    "latency_ns": pl.Float64,
    "arm": pl.String,
    **dict.fromkeys(("speedup", "ci95_low", "ci95_high"), pl.Float64),
    **dict.fromkeys(("verdict", "grade"), pl.String),
}
_SLOWER: Schema = {
    **_SUBJECT,
    **dict.fromkeys(("before_ns", "after_ns", "slowdown", "ci95_low", "ci95_high", "limit"), pl.Float64),
    "runs": pl.Int64,
    "p_value": pl.Float64,
    **dict.fromkeys(("cause", "first"), pl.String),
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


def answer_table(columns: Sequence[str], types: Sequence[str], rows: Rows) -> TextTable:
    """Return the answer for a terminal; numbers are to the right, what is not known is empty."""
    answer = TextTable(box=None, pad_edge=False, header_style="bold")
    for name, kind in zip(columns, types, strict=True):
        is_number = "[" not in kind and any(word in kind for word in _NUMBERS)
        answer.add_column(Text(plain(name)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        answer.add_row(*(Text(plain(_cell_text(cell))) for cell in row))
    return answer


def _cell_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:.6g}"
    return "" if value is None else str(value)


def answer_parts(columns: Sequence[str], types: Sequence[str], parts: Iterable[Rows], form: str) -> Iterator[bytes]:
    """Yield the answer as the content of a file, piece by piece: CSV and JSON hold no more than one part at a time."""
    if form == "json":
        names = distinct(columns)
        yield from array_parts(dict(zip(names, row, strict=True)) for rows in parts for row in rows)
    elif form == "csv":
        yield _csv_lines([columns])
        yield from map(_csv_lines, parts)
    else:
        rows = [row for part in parts for row in part]
        yield _parquet_file(columns, types, rows) if form == "parquet" else _table_lines(columns, types, rows)


def _csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    safe = ([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    csv.writer(out, lineterminator="\n").writerows(safe)
    return out.getvalue().encode(errors="replace")


def _parquet_file(columns: Sequence[str], types: Sequence[str], rows: Rows) -> bytes:
    buffer = io.BytesIO()
    answer_frame(columns, types, rows).write_parquet(buffer)
    return buffer.getvalue()


def _table_lines(columns: Sequence[str], types: Sequence[str], rows: Rows) -> bytes:
    out = io.StringIO()
    TextConsole(out, width=WIDE).print(answer_table(columns, types, rows))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()).encode()


def answer_frame(columns: Sequence[str], types: Sequence[str], rows: Rows) -> pl.DataFrame:
    """Return the answer to a query; repeated names get a number, and what no column can hold is its text."""
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    named = zip(distinct(columns), types, cells, strict=True)
    series = [pl.Series(name, list(column), _SQL.get(kind), strict=False) for name, kind, column in named]
    return pl.DataFrame([_text_of_objects(column) if column.dtype == pl.Object else column for column in series])


def _text_of_objects(column: pl.Series) -> pl.Series:
    """Return cells that are no type of Polars, such as UUIDs, as text."""
    return pl.Series(column.name, [None if cell is None else str(cell) for cell in column.to_list()], pl.String)


def query_document(columns: Sequence[str], rows: Rows, store: str) -> Document:
    """Return the first rows of the answer to a query."""
    cells = [[_cell_text(cell) for cell in row] for row in rows[:NOTEBOOK_ROWS]]
    answer = f"{counted_text(len(rows), 'row')} of {counted_text(len(columns), 'column')}"
    shown = words_table(columns, cells, len(columns))
    return Document(store, answer, [shown, rest_sentence(len(cells), len(rows))], [])


def entry_cells(entry: StoreEntry) -> tuple[str, ...]:
    """Return what a list of bundles says of one of them."""
    created = entry.created[:_MINUTE_LENGTH].replace("T", " ")
    return entry.bundle[:_HASH_LENGTH], created, entry.model, entry.device, ", ".join(entry.variants)


def entries_document(entries: Sequence[StoreEntry], store: str, answer: str, problems: Sequence[str] = ()) -> Document:
    """Return the newest bundles of a store, or those that were added or removed, in a line each."""
    rows = [entry_cells(entry) for entry in entries[-NOTEBOOK_ROWS:]]
    shown = words_table(ENTRY_COLUMNS, rows, texts=len(ENTRY_COLUMNS))
    return Document(store, answer, [shown, rest_sentence(len(rows), len(entries)), Bullets(problems)], [])


def listed_entries_frame(entries: Sequence[StoreEntry]) -> pl.DataFrame:
    """Return every bundle in a row; variants are joined by commas."""
    variants = pl.Series("variants", [", ".join(entry.variants) for entry in entries], pl.String)
    return entries_frame(entries).with_columns(variants).select(_ENTRIES)


def history_frame(history: History) -> pl.DataFrame:
    """Return every run in a row, series by series in their order; ``run`` is its number in the series, from 0."""
    return typed_frame(_POINTS, (row for series in history.series for row in _point_rows(series)))


def _point_rows(series: Series) -> Iterator[Sequence[object]]:
    changes = {change.first: change.ratio for change in series.changes if change.kind == "step"}
    apart = {outlier.index for outlier in series.outliers}
    levels = fit_levels(series.segments).tolist()
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
    rows = (
        (
            *(*astuple(row.subject), row.before_ns, row.after_ns, row.slowdown, *row.ci95, row.limit, row.runs),
            *(row.p_value, row.cause and row.cause.value, row.first.bundle, parse_moment(row.first.placed)),
            "; ".join(map(fact_text, row.changed)) or None,
        )
        for row in evidence.slower
    )
    return typed_frame(_SLOWER, rows)
