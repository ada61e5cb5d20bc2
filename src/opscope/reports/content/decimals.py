"""Integers as exact decimal text, for a whole column at once."""

from __future__ import annotations

import polars as pl


def decimal(column: pl.Expr, digits: int) -> pl.Expr:
    """A column of integers divided by a power of ten, as text without rounding: 1834 with three digits is ``1.834``."""
    if not digits:
        return column.cast(pl.String)
    unit = 10**digits
    sign = pl.when(column < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    whole, rest = column.abs() // unit, column.abs() % unit
    return pl.concat_str(sign, whole.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(digits))
