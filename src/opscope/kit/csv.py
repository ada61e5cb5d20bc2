"""The CSV files of Arm's ExecuTorch profiling kit, so that scripts made for them run on any trace.

The columns are the kit's, name by name, in its order and with its meaning, so that its own tools find the same figures
in these files as in its own:

- ``type`` is the name without its number; ``delegate_backend`` is ``portable`` for all that no delegate ran, the
  framework's own events too; ``node_id`` is the place of an event in its inference, in the order of the trace.
- ``run_index`` counts the inferences of all processes, from 0; what lies outside of any inference, such as loading,
  has the index of its process's first.
- A line of the statistics is all events of one type and backend: ``count`` of them in an inference, ``total_ms`` per
  inference, ``avg_ms`` of one. Warm-up is left out; loading is per process.
- Times of events are exact decimals of the trace's nanoseconds, times per inference are cut off behind the picosecond.

Two columns say more than the kit's. Where that writes ``delegated`` for lack of a record, the name of the delegate
stands; and ``pct_total`` is a share of self time, so that it adds up to 100: the kit counts nested time again.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from opscope.core.errors import UsageError
from opscope.core.table import Clock, Scope
from opscope.readers.lifecycle import PORTABLE
from opscope.reports.document.text import csv_cell, decimal
from opscope.reports.formats.event_files import guarded

if TYPE_CHECKING:
    from opscope.core.table import EventTable

FILES = ("exec_all_runs_timeline.csv", "exec_run0_timeline.csv", "exec_ops_stats.csv")
_TO_US, _TO_MS, _PICO = 3, 6, 9
_PART = 1 << 15
_INFERENCE = ["process", "inference"]


def kit_csv(table: EventTable, model: str) -> list[bytes]:
    """The timeline of all runs, that of the first, and the statistics by name, as in ``FILES``."""
    if table.clock is not Clock.NS:
        problem = f"the kit's files are in microseconds, but this trace counts {table.clock.value}"
        raise UsageError(problem, where="--to", hint="csv and parquet keep the clock of the trace")
    rows = _with_places(_with_run_index(table.frame))
    first = rows.filter(pl.col("run_index") == 0)
    counted = table.measured().select(_INFERENCE).unique().with_columns(counts=pl.lit(value=True))
    known = rows.join(counted, on=_INFERENCE, how="left", maintain_order="left")
    return [_timeline(rows, model), _timeline(first, model), _statistics(known, model)]


def _with_places(frame: pl.DataFrame) -> pl.DataFrame:
    """Every event with its place in its inference, in the order of the trace, behind those of loading."""
    loads = pl.col("inference").is_null()
    first = pl.when(loads).then(0).otherwise(loads.sum().over("process"))
    return frame.with_columns(place=pl.int_range(pl.len()).over(_INFERENCE) + first)


def _with_run_index(frame: pl.DataFrame) -> pl.DataFrame:
    numbers = frame.select(_INFERENCE).drop_nulls().unique().sort(_INFERENCE).with_row_index("run_index")
    joined = frame.join(numbers, on=_INFERENCE, how="left", maintain_order="left")
    first = pl.col("run_index").min().over("process")
    return joined.with_columns(pl.col("run_index").fill_null(first).fill_null(0))


def _timeline(rows: pl.DataFrame, model: str) -> bytes:
    start, duration = pl.col("start"), pl.col("duration")
    columns = [
        *_identity(model, "name"),
        decimal(start, _TO_US).alias("start_us"),
        decimal(start + duration, _TO_US).alias("end_us"),
        decimal(duration, _TO_MS).alias("duration_ms"),
        _percent(rows),
        pl.col("place").alias("node_id"),
        pl.col("run_index"),
        guarded(pl.col("block").cast(pl.String)).alias("block"),
    ]
    text = io.BytesIO()
    rows.clear().select(columns).write_csv(text)
    for part in rows.iter_slices(_PART):
        part.select(columns).write_csv(text, include_header=False)
    return text.getvalue()


def _statistics(rows: pl.DataFrame, model: str) -> bytes:
    """Of the inferences that count, and of loading, which each process does once."""
    loads = pl.col("scope").is_in([Scope.LOAD.value, Scope.INIT.value])
    kept = rows.filter(loads | pl.col("counts"))
    inferences = max(kept.filter(~loads).select(_INFERENCE).n_unique(), 1)
    processes = max(kept.filter(loads)["process"].n_unique(), 1)
    of = pl.when(loads).then(processes).otherwise(inferences)
    nodes = kept.with_columns(type=_type(), backend=_backend()).group_by(
        "type", "backend", "place", loads.alias("loads"), maintain_order=True
    )
    each = nodes.agg(*(((pl.col(name) * 1000).sum() // of.first()).alias(name) for name in ("duration", "self_time")))
    times = pl.col("duration").sum(), pl.col("self_time").sum(), pl.len().cast(pl.Int64).alias("count")
    found = each.group_by("type", "backend", maintain_order=True).agg(*times)
    columns = [
        *_identity(model, "type"),
        pl.col("count"),
        decimal(pl.col("duration"), _PICO).alias("total_ms"),
        decimal(pl.col("duration") // pl.col("count"), _PICO).alias("avg_ms"),
        _percent(found),
    ]
    return found.sort("duration", descending=True, maintain_order=True).select(columns).write_csv().encode()


def _type() -> pl.Expr:
    """The name of an event without its number: ``Convolution (NHWC, F32) IGEMM`` of that with `` #1``."""
    return pl.col("name").cast(pl.String).str.replace(r"(?s)^(.*) #.*$", "${1}")


def _backend() -> pl.Expr:
    return pl.col("backend").cast(pl.String).fill_null(PORTABLE)


def _identity(model: str, name: str) -> list[pl.Expr]:
    """The columns that both kinds of file begin with."""
    own = pl.col(name).cast(pl.String)
    return [
        pl.lit(csv_cell(model)).alias("model_id"),
        guarded(own).alias("name"),
        guarded(_type() if name == "name" else own).alias("type"),
        guarded(_backend()).alias("delegate_backend"),
    ]


def _percent(rows: pl.DataFrame) -> pl.Expr:
    """Share of the file's self time; empty when there is none at all, since nothing is not a share of nothing."""
    total = int(rows["self_time"].sum())
    share = pl.col("self_time") / total * 100 if total else pl.lit(None, pl.Float64)
    return share.alias("pct_total")
