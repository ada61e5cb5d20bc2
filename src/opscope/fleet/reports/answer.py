"""Answers of a store: of a query on a terminal, as CSV, JSON and Parquet, and lists of bundles for a notebook.

Cells may hold whatever a trace holds.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, TypeAlias

from opscope.core.json import array_parts
from opscope.core.units import counted_text
from opscope.fleet.reports.frames import answer_frame
from opscope.reports.document.blocks import NOTEBOOK_ROWS, Bullets, Document, rest_sentence, words_table
from opscope.reports.document.console import Text, TextConsole, TextTable
from opscope.reports.document.text import csv_cell, distinct, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.fleet.store.entries import StoreEntry

    Rows: TypeAlias = Sequence[tuple[Any, ...]]

_LARGE = 1e5
"""Numbers from here on are shown whole."""
_HASH_LENGTH, _MINUTE_LENGTH = 12, 16
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL")


def answer_table(columns: Sequence[str], types: Sequence[str], rows: Rows) -> TextTable:
    """Return the answer for a terminal; numbers are to the right, what is not known is empty."""
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    for name, kind in zip(columns, types, strict=True):
        table.add_column(Text(plain(name)), justify="right" if _is_number(kind) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in cell_texts(row)))
    return table


def cell_texts(row: Sequence[Any]) -> list[str]:
    """Return the cells of a row as text; what is not known is empty."""
    return [_cell_text(value) for value in row]


def answer_parts(columns: Sequence[str], types: Sequence[str], parts: Iterable[Rows], form: str) -> Iterator[bytes]:
    """Yield the answer as the content of a file, piece by piece: CSV and JSON hold no more than one part at a time."""
    if form == "json":
        names = distinct(columns)
        yield from array_parts(dict(zip(names, row, strict=True)) for part in parts for row in part)
    elif form == "csv":
        yield from _csv_parts(columns, parts)
    else:
        rows = [row for part in parts for row in part]
        yield _parquet_file(columns, types, rows) if form == "parquet" else _table_lines(columns, types, rows)


def _table_lines(columns: Sequence[str], types: Sequence[str], rows: Rows) -> bytes:
    console = TextConsole(io.StringIO(), width=10_000)
    console.print(answer_table(columns, types, rows))
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines()).encode()  # type: ignore[attr-defined] # it is the StringIO above


def _csv_parts(columns: Sequence[str], parts: Iterable[Rows]) -> Iterator[bytes]:
    yield _csv_lines([[csv_cell(name) for name in columns]])
    for part in parts:
        yield _csv_lines([csv_cell(value) if isinstance(value, str) else value for value in row] for row in part)


def _csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode(errors="replace")


def _parquet_file(columns: Sequence[str], types: Sequence[str], rows: Rows) -> bytes:
    buffer = io.BytesIO()
    answer_frame(columns, types, rows).write_parquet(buffer)
    return buffer.getvalue()


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:.6g}"
    return str(value)


def _is_number(kind: str) -> bool:
    return "[" not in kind and any(word in kind for word in _NUMBERS)


def entries_document(entries: Sequence[StoreEntry], store: str, answer: str, problems: Sequence[str] = ()) -> Document:
    """Return the newest bundles of a store, or those that were added or removed, in a line each."""
    rows = [
        [
            *(entry.bundle[:_HASH_LENGTH], entry.created[:_MINUTE_LENGTH].replace("T", " ")),
            *(entry.model, entry.device, ", ".join(entry.variants)),
        ]
        for entry in entries[-NOTEBOOK_ROWS:]
    ]
    shown = words_table(("bundle", "created", "model", "device", "variants"), rows, texts=5)
    return Document(store, answer, [shown, rest_sentence(len(rows), len(entries)), Bullets(problems)], [])


def query_document(columns: Sequence[str], rows: Rows, store: str) -> Document:
    """Return the first rows of the answer to a query."""
    cells = [cell_texts(row) for row in rows[:NOTEBOOK_ROWS]]
    answer = f"{counted_text(len(rows), 'row')} of {counted_text(len(columns), 'column')}"
    shown = words_table(columns, cells, len(columns))
    return Document(store, answer, [shown, rest_sentence(len(cells), len(rows))], [])
