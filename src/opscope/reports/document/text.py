"""Names as text in Markdown and CSV, whatever a trace holds, and integers as exact decimals."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from opscope.core.printable import CSV_ESCAPED, escaped, hides, printable

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST, LONG = 120, 600
"""Longest name, and longest sentence."""
_FEWEST_BACKTICKS = 3
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~#])")
GUARDED = "=+-@'"
"""First characters of a text that gets an apostrophe in a CSV cell: formulas, and the apostrophe itself."""


def plain(name: str, longest: int = LONGEST) -> str:
    """A name on one line, control and direction characters escaped, cut in the middle when it is too long."""
    visible = printable(name)
    if len(visible) <= longest:
        return visible
    half = (longest - 1) // 2
    return f"{visible[:half]}…{visible[-half:]}"


def markdown(name: str, longest: int = LONGEST) -> str:
    """A name for a Markdown cell or paragraph: no markup, no table break, no HTML."""
    return _MARKDOWN.sub(r"\\\1", plain(name, longest))


def fenced(text: str) -> str:
    """A block of code for a shell, whatever backticks are in it."""
    fence = "`" * max(_FEWEST_BACKTICKS, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}sh\n{text}\n{fence}\n"


def csv_cell(value: str) -> str:
    """A text for a CSV cell that spreadsheets must not take for a formula, and that a terminal can show.

    It is back without a leading apostrophe; behind an apostrophe and a backslash it is escaped, with
    :func:`opscope.core.printable.unescaped` to get it back.
    """
    if hides(value):
        return CSV_ESCAPED + escaped(value)
    return f"'{value}" if value.startswith(tuple(GUARDED)) else value


def distinct(names: Iterable[str]) -> list[str]:
    """The names in their order; one that was there before gets a number, for formats that tell things by name."""
    found: dict[str, None] = {}
    for name in names:
        number, shown = 2, name
        while shown in found:
            number, shown = number + 1, f"{name} ({number})"
        found[shown] = None
    return list(found)


def decimal(column: pl.Expr, digits: int) -> pl.Expr:
    """A column of integers divided by a power of ten, as text without rounding: 1834 with three digits is ``1.834``."""
    if not digits:
        return column.cast(pl.String)
    unit = 10**digits
    sign = pl.when(column < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    whole, rest = column.abs() // unit, column.abs() % unit
    return pl.concat_str(sign, whole.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(digits))
