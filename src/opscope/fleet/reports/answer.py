"""The answer to a query: on a terminal, as CSV, JSON and Parquet. Cells may hold whatever a trace holds."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, TypeAlias

from opscope.core.json import array_parts
from opscope.fleet.reports.frames import answer_frame
from opscope.reports.document.console import Text, TextConsole, TextTable
from opscope.reports.document.text import csv_cell, distinct, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Rows: TypeAlias = Sequence[tuple[Any, ...]]

_LARGE = 1e5
"""Numbers from here on are shown whole."""
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL")


def answer_table(columns: Sequence[str], types: Sequence[str], rows: Rows) -> TextTable:
    """The answer for a terminal; numbers are to the right, what is not known is empty."""
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    for name, kind in zip(columns, types, strict=True):
        table.add_column(Text(plain(name)), justify="right" if _is_number(kind) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in cell_texts(row)))
    return table


def cell_texts(row: Sequence[Any]) -> list[str]:
    """The cells of a row as text; what is not known is empty."""
    return [_cell(value) for value in row]


def number_columns(types: Iterable[str]) -> list[bool]:
    """Whether columns hold numbers, by their types in SQL."""
    return [_is_number(kind) for kind in types]


def answer_parts(columns: Sequence[str], types: Sequence[str], parts: Iterable[Rows], form: str) -> Iterator[bytes]:
    """The answer as the content of a file, piece by piece: CSV and JSON hold no more than one part at a time."""
    if form == "json":
        names = distinct(columns)
        yield from array_parts(dict(zip(names, row, strict=True)) for part in parts for row in part)
    elif form == "csv":
        yield from _csv(columns, parts)
    else:
        rows = [row for part in parts for row in part]
        yield _parquet(columns, types, rows) if form == "parquet" else _table(columns, types, rows)


def _table(columns: Sequence[str], types: Sequence[str], rows: Rows) -> bytes:
    console = TextConsole(io.StringIO(), width=10_000)
    console.print(answer_table(columns, types, rows))
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines()).encode()  # type: ignore[attr-defined] # it is the StringIO above


def _csv(columns: Sequence[str], parts: Iterable[Rows]) -> Iterator[bytes]:
    yield _lines([[csv_cell(name) for name in columns]])
    for part in parts:
        yield _lines([csv_cell(value) if isinstance(value, str) else value for value in row] for row in part)


def _lines(rows: Iterable[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode(errors="replace")


def _parquet(columns: Sequence[str], types: Sequence[str], rows: Rows) -> bytes:
    buffer = io.BytesIO()
    answer_frame(columns, types, rows).write_parquet(buffer)
    return buffer.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:.6g}"
    return str(value)


def _is_number(kind: str) -> bool:
    return "[" not in kind and any(word in kind for word in _NUMBERS)
