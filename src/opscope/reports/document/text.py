"""Names as text in Markdown and CSV, whatever a trace holds, and integers as exact decimals."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from opscope.core.printable import CSV_ESCAPED, escaped, hides, printable

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST, LONG = 120, 600
"""Longest name and longest sentence, in characters."""
_FEWEST_BACKTICKS = 3
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~#])")
GUARDED = "=+-@'"
"""First characters of a text that gets an apostrophe in a CSV cell: formulas, and the apostrophe itself."""


def plain(name: str, longest: int = LONGEST) -> str:
    """Return a name on one line, control and direction characters escaped, cut in the middle if it is too long."""
    visible = printable(name)
    if len(visible) <= longest:
        return visible
    half = (longest - 1) // 2
    return f"{visible[:half]}…{visible[-half:]}"


def markdown(name: str, longest: int = LONGEST) -> str:
    """Return a name for a Markdown cell or paragraph, free of markup, table breaks and HTML."""
    return _MARKDOWN.sub(r"\\\1", plain(name, longest))


def fenced(text: str) -> str:
    """Return a Markdown code block for a shell, whatever backticks the text has."""
    fence = "`" * max(_FEWEST_BACKTICKS, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}sh\n{text}\n{fence}\n"


def csv_cell(value: str) -> str:
    """Return a text for a CSV cell that no spreadsheet takes for a formula and that a terminal can show.

    Removing a leading apostrophe gives the text back. If an apostrophe and a backslash lead, the text is escaped and
    :func:`opscope.core.printable.unescaped` gives it back.
    """
    if hides(value):
        return CSV_ESCAPED + escaped(value)
    return f"'{value}" if value.startswith(tuple(GUARDED)) else value


def distinct(names: Iterable[str]) -> list[str]:
    """Return names in their order; a repeated name gets a number, for formats that identify things by name."""
    unique: dict[str, None] = {}
    for name in names:
        number, candidate = 2, name
        while candidate in unique:
            number, candidate = number + 1, f"{name} ({number})"
        unique[candidate] = None
    return list(unique)


def decimal(column: pl.Expr, digits: int) -> pl.Expr:
    """Return a column of integers divided by a power of ten, as exact text: 1834 with three digits is ``1.834``."""
    if not digits:
        return column.cast(pl.String)
    unit = 10**digits
    sign = pl.when(column < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    integer, rest = column.abs() // unit, column.abs() % unit
    return pl.concat_str(sign, integer.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(digits))
