"""End-to-end latency: how long an inference takes, and what happened before it was settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.hierarchy import median_effect, median_interval
from opscope.core.stats.steady import detect_warmup
from opscope.core.stats.summary import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.core.stats.effect import Effect
    from opscope.core.table import EventTable

    Floats: TypeAlias = NDArray[np.float64]


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
    """Duration of all measured inferences; fields as in ``opscope.core.stats.summary.Summary``.

    ``ci95_median_ns`` is of ``median_ns``, the median of all inferences, and holds it. Of several processes it is that
    of a bootstrap over processes, since inferences of one process say little about the next one, but nowhere narrower
    than that of as many independent inferences.

    ``source`` says of which calls: of ``traced`` runs it is Method::execute, of ``untraced`` ones the call as its
    caller saw it.
    """

    source: str
    n: int
    samples_ns: list[int]
    median_ns: float
    mean_ns: float
    trimmed_mean_5_ns: float
    trimmed_mean_10_ns: float
    min_ns: float
    max_ns: float
    stdev_ns: float | None
    mad_ns: float
    cv: float | None
    p50_ns: float
    p75_ns: float
    p90_ns: float
    p95_ns: float
    p99_ns: float
    ci95_median_ns: tuple[float, float] | None
    outliers: OutlierCount
    warmup_samples_ns: list[list[int]]
    processes: list[ProcessLatency]

    def by_process(self) -> list[Floats]:
        """The measured durations of each process."""
        return np.split(np.asarray(self.samples_ns, np.float64), np.cumsum([own.n for own in self.processes])[:-1])


def latency_effect(first: Latency, second: Latency) -> Effect:
    """How much less the second one takes, on a logarithmic scale, process by process; they need not be paired."""
    return median_effect(first.by_process(), second.by_process(), paired=False)


def auto_warmup(table: EventTable) -> list[int]:
    """Number of warm-up inferences of each process, found in its series of latencies."""
    found = table.inference_times()
    return [detect_warmup(found.duration[found.process == process].tolist()) for process in range(table.processes)]


def latency(table: EventTable) -> Latency | None:
    """End-to-end latency of the measured inferences; None when there is none."""
    found = table.inference_times()
    samples = found.duration[~found.warmup].tolist()
    if not samples:
        return None
    warmup = [found.duration[found.warmup & (found.process == p)].tolist() for p in range(table.processes)]
    return _latency("traced", samples, warmup, _processes(table))


def latency_of(
    source: str, measured: Sequence[Sequence[int]], warmup: Sequence[Sequence[int]], load_ns: Sequence[int | None]
) -> Latency:
    """Latency of calls by process."""
    samples = [duration for own in measured for duration in own]
    processes = [
        ProcessLatency(
            number, len(own), float(np.median(own)), float(np.mean(own)), load, (list(first) or list(own))[0]
        )
        for number, (own, first, load) in enumerate(zip(measured, warmup, load_ns, strict=True))
    ]
    return _latency(source, samples, [list(own) for own in warmup], processes)


def _latency(source: str, samples: list[int], warmup: list[list[int]], processes: list[ProcessLatency]) -> Latency:
    summary = summarise(samples)
    return Latency(
        source=source,
        n=summary.n,
        samples_ns=samples,
        median_ns=summary.median,
        mean_ns=summary.mean,
        trimmed_mean_5_ns=summary.trimmed_mean_5,
        trimmed_mean_10_ns=summary.trimmed_mean_10,
        min_ns=summary.min,
        max_ns=summary.max,
        stdev_ns=summary.stdev,
        mad_ns=summary.mad,
        cv=summary.cv,
        p50_ns=summary.p50,
        p75_ns=summary.p75,
        p90_ns=summary.p90,
        p95_ns=summary.p95,
        p99_ns=summary.p99,
        ci95_median_ns=_median_interval(summary, samples, processes),
        outliers=OutlierCount(summary.outliers.count, summary.outliers.low, summary.outliers.high),
        warmup_samples_ns=warmup,
        processes=processes,
    )


def _median_interval(
    summary: Summary, samples: list[int], processes: Sequence[ProcessLatency]
) -> tuple[float, float] | None:
    """Interval of the median of all samples, of several processes by how much they differ."""
    if len(processes) < 2:  # noqa: PLR2004 - one process says nothing about others
        return summary.ci95_median
    ends = np.cumsum([process.n for process in processes])[:-1]
    return median_interval(np.split(np.asarray(samples, np.float64), ends))


def _processes(table: EventTable) -> list[ProcessLatency]:
    found, loading = table.inference_times(), table.loading()
    rows = []
    for process in range(table.processes):
        own = found.duration[found.process == process]
        counted = own[~found.warmup[found.process == process]]
        if len(counted):
            median, mean = float(np.median(counted)), float(counted.mean())
            rows.append(ProcessLatency(process, len(counted), median, mean, loading[process], int(own[0])))
    return rows
