"""End-to-end latency: how long an inference takes, and what happened before it was settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import median_bounds, trimmed_mean
from opscope.core.stats.hierarchy import median_effect, median_interval
from opscope.core.stats.steady import detect_warmup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.core.stats.effect import Effect
    from opscope.core.table import EventTable

    Floats: TypeAlias = NDArray[np.float64]


_FENCE = 1.5


class OutlierCount(msgspec.Struct, frozen=True):
    """Samples beyond Tukey's fences (Exploratory Data Analysis, 1977, section 2D): counted, never removed."""

    count: int
    low_ns: float  # first quartile minus 1.5 interquartile ranges
    high_ns: float  # third quartile plus 1.5 interquartile ranges


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
    """Duration of all measured inferences.

    Quantiles interpolate linearly (Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American
    Statistician 50 (1996), type 7). Trimmed means leave out that share of the samples at either end. The standard
    deviation has n - 1 in its denominator and is null for one sample. The median absolute deviation is not scaled.

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
    ordered = np.sort(np.asarray(samples, np.float64))
    p25, median, p75, p90, p95, p99 = (float(q) for q in np.percentile(ordered, (25, 50, 75, 90, 95, 99)))
    low, high = p25 - _FENCE * (p75 - p25), p75 + _FENCE * (p75 - p25)
    mean, stdev = float(ordered.mean()), float(ordered.std(ddof=1)) if len(samples) > 1 else None
    return Latency(
        source=source,
        n=len(samples),
        samples_ns=samples,
        median_ns=median,
        mean_ns=mean,
        trimmed_mean_5_ns=trimmed_mean(ordered, 0.05),
        trimmed_mean_10_ns=trimmed_mean(ordered, 0.10),
        min_ns=float(ordered[0]),
        max_ns=float(ordered[-1]),
        stdev_ns=stdev,
        mad_ns=float(np.median(np.abs(ordered - median))),
        cv=stdev / mean if stdev is not None and mean > 0 else None,
        p50_ns=median,
        p75_ns=p75,
        p90_ns=p90,
        p95_ns=p95,
        p99_ns=p99,
        ci95_median_ns=_median_interval(ordered, samples, processes),
        outliers=OutlierCount(int(((ordered < low) | (ordered > high)).sum()), low, high),
        warmup_samples_ns=warmup,
        processes=processes,
    )


def _median_interval(
    ordered: Floats, samples: list[int], processes: Sequence[ProcessLatency]
) -> tuple[float, float] | None:
    """Interval of the median of all samples, of several processes by how much they differ."""
    if len(processes) < 2:  # noqa: PLR2004 - one process says nothing about others
        return median_bounds(ordered)
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
