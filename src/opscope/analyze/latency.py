"""End-to-end latency: how long an inference takes, and what happened before it was settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.stats.summary import Summary, summarise
from opscope.stats.warmup import detect_warmup
from opscope.table import Scope

if TYPE_CHECKING:
    from opscope.table import EventTable


class OutlierCount(msgspec.Struct, frozen=True):
    """Samples outside of Tukey's fences; they are counted, never removed."""

    count: int
    low_ns: float
    high_ns: float


class ProcessLatency(msgspec.Struct, frozen=True):
    """Measured inferences of one process.

    Attributes:
        process: number of the trace file.
        n: measured inferences.
        median_ns: their median; the figure by which processes are compared.
        mean_ns: their mean.
        load_ns: loading the method before the first inference, null where the trace has none.
        first_ns: the first inference, which pays for lazy loading.
    """

    process: int
    n: int
    median_ns: float
    mean_ns: float
    load_ns: int | None
    first_ns: int


class Latency(msgspec.Struct, frozen=True):
    """Duration of Method::execute over all measured inferences; fields as in ``opscope.stats.summary.Summary``."""

    n: int
    samples_ns: list[int]
    median_ns: float
    mean_ns: float
    min_ns: float
    max_ns: float
    stdev_ns: float | None
    mad_ns: float
    cv: float | None
    p50_ns: float
    p90_ns: float
    p95_ns: float
    p99_ns: float
    ci95_median_ns: tuple[float, float] | None
    outliers: OutlierCount
    warmup_samples_ns: list[list[int]]
    processes: list[ProcessLatency]


def auto_warmup(table: EventTable) -> list[int]:
    """Number of warm-up inferences of each process, found in its series of latencies."""
    inferences = table.inferences()
    return [
        detect_warmup(inferences.filter(pl.col("process") == process)["duration"].to_list())
        for process in range(table.processes)
    ]


def latency(table: EventTable) -> Latency | None:
    """End-to-end latency of the measured inferences; None when there is none."""
    inferences = table.inferences()
    measured = inferences.filter(~pl.col("warmup"))
    if measured.is_empty():
        return None
    samples = measured["duration"].to_list()
    summary = summarise(samples)
    return _latency(summary, samples, _warmup_samples(inferences), _processes(table, inferences))


def _latency(summary: Summary, samples: list[int], warmup: list[list[int]], processes: list[ProcessLatency]) -> Latency:
    outliers = OutlierCount(summary.outliers.count, summary.outliers.low, summary.outliers.high)
    return Latency(
        n=summary.n,
        samples_ns=samples,
        median_ns=summary.median,
        mean_ns=summary.mean,
        min_ns=summary.min,
        max_ns=summary.max,
        stdev_ns=summary.stdev,
        mad_ns=summary.mad,
        cv=summary.cv,
        p50_ns=summary.p50,
        p90_ns=summary.p90,
        p95_ns=summary.p95,
        p99_ns=summary.p99,
        ci95_median_ns=summary.ci95_median,
        outliers=outliers,
        warmup_samples_ns=warmup,
        processes=processes,
    )


def _warmup_samples(inferences: pl.DataFrame) -> list[list[int]]:
    grouped = inferences.group_by("process", maintain_order=True).agg(pl.col("duration").filter(pl.col("warmup")))
    return [list(samples) for samples in grouped["duration"]]


def _processes(table: EventTable, inferences: pl.DataFrame) -> list[ProcessLatency]:
    loads = table.frame.filter((pl.col("scope") == Scope.LOAD.value) & pl.col("parent").is_null())
    load = dict(loads.group_by("process").agg(pl.col("duration").sum()).iter_rows())
    counted = pl.col("duration").filter(~pl.col("warmup"))
    rows = inferences.group_by("process", maintain_order=True).agg(
        counted.len().alias("n"),
        counted.median().alias("median"),
        counted.mean().alias("mean"),
        pl.col("duration").first().alias("first"),
    )
    return [
        ProcessLatency(process, n, median, mean, load.get(process), first)
        for process, n, median, mean, first in rows.filter(pl.col("n") > 0).iter_rows()
    ]
