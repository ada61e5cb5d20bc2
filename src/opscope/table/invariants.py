"""What must hold in every EventTable. A reader's table is checked once, when it is built."""

from __future__ import annotations

import polars as pl

from opscope.errors import InvariantError


def check(frame: pl.DataFrame) -> None:
    """Raise when durations are negative, children do not fit into their parent, or self times do not add up.

    Children whose starts were not measured are exempt from lying inside their parent's interval, not from fitting in.

    Raises:
        InvariantError: naming the first row that breaks a rule.
    """
    _refuse(frame, pl.col("duration") < 0, "ends before it starts")
    _refuse(frame, pl.col("self_time") < 0, "is shorter than the events inside it together")
    _check_containment(frame)
    _check_sums(frame)


def _check_containment(frame: pl.DataFrame) -> None:
    parents = frame.select(
        pl.int_range(pl.len()).alias("parent"),
        pl.col("start").alias("outer_start"),
        (pl.col("start") + pl.col("duration")).alias("outer_end"),
    )
    nested = frame.with_row_index("row").filter(pl.col("parent").is_not_null() & ~pl.col("synthetic_start"))
    joined = nested.join(parents, on="parent", how="left", maintain_order="left")
    end = pl.col("start") + pl.col("duration")
    _refuse(joined, (pl.col("start") < pl.col("outer_start")) | (end > pl.col("outer_end")), "lies outside its parent")


def _check_sums(frame: pl.DataFrame) -> None:
    inside = frame.filter(pl.col("inference").is_not_null())
    whole = pl.col("duration").filter(pl.col("parent").is_null()).sum()
    sums = inside.group_by("process", "inference").agg(pl.col("self_time").sum().alias("parts"), whole.alias("whole"))
    wrong = sums.filter(pl.col("parts") != pl.col("whole"))
    if not wrong.is_empty():
        raise InvariantError(f"self times of inference {wrong['inference'][0]} do not add up to its duration")


def _refuse(frame: pl.DataFrame, broken: pl.Expr, problem: str) -> None:
    rows = frame if "row" in frame.columns else frame.with_row_index("row")
    bad = rows.filter(broken)
    if not bad.is_empty():
        first = bad.row(0, named=True)
        raise InvariantError(f"event {first['row']} ({first['name']}, block {first['run']}) {problem}")
