"""The CSV files of Arm's ExecuTorch profiling kit, so that scripts made for them run on any trace.

The columns are the kit's, name by name and in its order. Where the kit leaves a meaning open or is wrong:

- ``type`` is the event's scope, ``node_id`` its instruction, ``delegate_backend`` empty for framework events.
- ``run_index`` counts the inferences of all processes, from 0; what lies outside of any inference, such as loading,
  has the index of its process's first.
- ``pct_total`` is a share of self time, so that the column of a file adds up to 100. The kit counts nested time again.
- The timelines hold every inference and loading; the statistics hold the inferences that count, warm-up left out.
- Times in µs and ms are exact decimals of the trace's nanoseconds; averages are rounded to the nearest nanosecond.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from opscope.core.errors import UsageError
from opscope.core.table import Clock
from opscope.reports.document.text import csv_cell, decimal
from opscope.reports.formats.event_files import guarded

if TYPE_CHECKING:
    from opscope.core.table import EventTable

FILES = ("exec_all_runs_timeline.csv", "exec_run0_timeline.csv", "exec_ops_stats.csv")
_TO_US, _TO_MS = 3, 6
_PART = 1 << 15


def kit_csv(table: EventTable, model: str) -> list[bytes]:
    """The timeline of all runs, that of the first, and the statistics by name, as in ``FILES``."""
    if table.clock is not Clock.NS:
        problem = f"the kit's files hold microseconds, and this trace counts {table.clock.value}"
        raise UsageError(problem, where="--to", hint="csv and parquet keep the clock of the trace")
    rows = _with_run_index(table.frame)
    first = rows.filter(pl.col("run_index") == 0)
    return [_timeline(rows, model), _timeline(first, model), _statistics(table.measured(), model)]


def _with_run_index(frame: pl.DataFrame) -> pl.DataFrame:
    key = ["process", "inference"]
    numbers = frame.select(key).drop_nulls().unique().sort(key).with_row_index("run_index")
    joined = frame.join(numbers, on=key, how="left", maintain_order="left")
    first = pl.col("run_index").min().over("process")
    return joined.with_columns(pl.col("run_index").fill_null(first).fill_null(0))


def _timeline(rows: pl.DataFrame, model: str) -> bytes:
    start, duration = pl.col("start"), pl.col("duration")
    columns = [
        *_identity(model),
        decimal(start, _TO_US).alias("start_us"),
        decimal(start + duration, _TO_US).alias("end_us"),
        decimal(duration, _TO_MS).alias("duration_ms"),
        _percent(rows),
        pl.col("instruction").alias("node_id"),
        pl.col("run_index"),
        guarded(pl.col("block").cast(pl.String)).alias("block"),
    ]
    text = io.BytesIO()
    rows.clear().select(columns).write_csv(text)
    for part in rows.iter_slices(_PART):
        part.select(columns).write_csv(text, include_header=False)
    return text.getvalue()


def _statistics(measured: pl.DataFrame, model: str) -> bytes:
    key = ["name", "scope", "backend"]
    times = pl.col("duration").sum(), pl.col("self_time").sum(), pl.len().alias("count")
    rows = measured.group_by(key, maintain_order=True).agg(*times)
    total, count = pl.col("duration"), pl.col("count").cast(pl.Int64)
    columns = [
        *_identity(model),
        count,
        decimal(total, _TO_MS).alias("total_ms"),
        decimal((total + count // 2) // count, _TO_MS).alias("avg_ms"),
        _percent(rows),
    ]
    return rows.sort("duration", descending=True, maintain_order=True).select(columns).write_csv().encode()


def _identity(model: str) -> list[pl.Expr]:
    """The columns that both kinds of file begin with."""
    return [
        pl.lit(csv_cell(model)).alias("model_id"),
        guarded(pl.col("name").cast(pl.String)).alias("name"),
        pl.col("scope").cast(pl.String).alias("type"),
        guarded(pl.col("backend").cast(pl.String)).alias("delegate_backend"),
    ]


def _percent(rows: pl.DataFrame) -> pl.Expr:
    """Share of the file's self time; empty when there is none at all, since nothing is not a share of nothing."""
    total = int(rows["self_time"].sum())
    share = pl.col("self_time") / total * 100 if total else pl.lit(None, pl.Float64)
    return share.alias("pct_total")
