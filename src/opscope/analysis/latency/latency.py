"""End-to-end latency: how long an inference takes, and what happened before it was settled.

Tracing makes an inference longer, on ordinary models by 1 to 4 %, on many tiny operators by far more. So the latency of
a product is that of untraced runs, and the traced ones are for the split.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.operators.headline import TracedCallers, representative_durations
from opscope.core.stats.distributions import median_bounds, trimmed_mean
from opscope.core.stats.effect import interval_of
from opscope.core.stats.hierarchy import median_effect, median_interval
from opscope.core.stats.steady import detect_warmup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.stats.effect import Effect
    from opscope.core.table import EventTable

    Floats: TypeAlias = NDArray[np.float64]


_FENCE = 1.5
_FEWEST_CALLS = 4


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
        """Return the measured durations of each process."""
        return np.split(
            np.asarray(self.samples_ns, np.float64),
            np.cumsum([process_latency.n for process_latency in self.processes])[:-1],
        )


def latency_effect(first: Latency, second: Latency) -> Effect:
    """Return how much less time the second takes, on a logarithmic scale, by process; sides are not paired."""
    return median_effect(first.by_process(), second.by_process(), paired=False)


def auto_warmup(table: EventTable) -> list[int]:
    """Return the number of warm-up inferences of each process: slow ones, and a first that prepares the model."""
    inferences = table.inference_times()
    warmup = []
    for process, events in enumerate(table.count_events()):
        chosen = inferences.process == process
        methods = inferences.method.codes[chosen]
        prepares = len(set(methods.tolist())) == 1 and _prepares_model(events)
        warmup.append(max(prepares, _slow_calls(inferences.duration[chosen], methods)))
    return warmup


def _slow_calls(durations: NDArray[np.int64], methods: NDArray[np.int64]) -> int:
    """Return the number of leading inferences of a process that are warm-up among the calls of their own method.

    Of several methods, one that is called fewer than four times shows no warm-up.
    """
    every_method = dict.fromkeys(methods.tolist())
    if len(every_method) == 1:
        return detect_warmup(durations.tolist())
    slow = {}
    for method in every_method:
        series = durations[methods == method].tolist()
        slow[method] = detect_warmup(series) if len(series) >= _FEWEST_CALLS else 0
    seen: Counter[int] = Counter()
    for number, method in enumerate(methods.tolist()):
        if seen[method] >= slow[method]:
            return number
        seen[method] += 1
    return len(methods)


def _prepares_model(events: NDArray[np.int64]) -> bool:
    """Return whether the first inference ran operators that no later inference ran, as where a model sets variables.

    Args:
        events: the number of events of each inference of a process; the later inferences must have the same number.
    """
    return len(events) > 1 and events[0] > events[1] and bool((events[1:] == events[1]).all())


def latency(table: EventTable) -> Latency | None:
    """Return the end-to-end latency of the measured inferences; None if there are none."""
    inferences = table.inference_times()
    samples = inferences.duration[~inferences.warmup].tolist()
    if not samples:
        return None
    warmup = [
        inferences.duration[inferences.warmup & (inferences.process == process)].tolist()
        for process in range(table.processes)
    ]
    return _summarise_latency("traced", samples, warmup, _process_latencies(table))


def latency_of(
    source: str, measured: Sequence[Sequence[int]], warmup: Sequence[Sequence[int]], load_ns: Sequence[int | None]
) -> Latency:
    """Return the latency of calls, given their durations by process."""
    samples = [duration for durations in measured for duration in durations]
    processes = [
        ProcessLatency(
            number,
            len(durations),
            float(np.median(durations)),
            float(np.mean(durations)),
            load,
            (list(first) or list(durations))[0],
        )
        for number, (durations, first, load) in enumerate(zip(measured, warmup, load_ns, strict=True))
    ]
    return _summarise_latency(source, samples, [list(durations) for durations in warmup], processes)


def _summarise_latency(
    source: str, samples: list[int], warmup: list[list[int]], processes: list[ProcessLatency]
) -> Latency:
    ordered = np.sort(np.asarray(samples, np.float64))
    p25, median, p75, p90, p95, p99 = (float(quantile) for quantile in np.percentile(ordered, (25, 50, 75, 90, 95, 99)))
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
    """Return the interval of the median of all samples; of several processes, by how much they differ."""
    if len(processes) < 2:  # noqa: PLR2004 - one process says nothing about others
        return median_bounds(ordered)
    ends = np.cumsum([process.n for process in processes])[:-1]
    return median_interval(np.split(np.asarray(samples, np.float64), ends))


def _process_latencies(table: EventTable) -> list[ProcessLatency]:
    inferences, loading = table.inference_times(), table.loading()
    rows = []
    for process in range(table.processes):
        durations = inferences.duration[inferences.process == process]
        counted = durations[~inferences.warmup[inferences.process == process]]
        if len(counted):
            median, mean = float(np.median(counted)), float(counted.mean())
            rows.append(ProcessLatency(process, len(counted), median, mean, loading[process], int(durations[0])))
    return rows


# Where it comes from: docs/design/quality.md.
OFF_CPU = 0.05
"""Share of a call's duration off the CPU from which the call counts as preempted."""
FEWEST_QUIET = 5
"""Fewest undisturbed calls, if they are also less than half, for a process to have a figure of its own."""


class CallTimes(NamedTuple):
    """Durations of a method's calls as the caller saw them, by round."""

    untraced: Mapping[int, Sequence[int]]  # without event tracing, warm-up included
    traced: Mapping[int, Sequence[int]]  # with event tracing, warm-up included
    warmup: int  # calls of each process to set aside
    load_ns: Mapping[int, int]  # loading the program in the untraced processes
    # the methods that a process called, over and over in this order; empty for a single one
    order: tuple[str, ...] = ()
    # of the traced processes that are analysed, in their order; empty where that is not known
    rounds: tuple[int, ...] = ()
    # of each untraced call how much of it was off the CPU; without the rounds where that was not recorded
    off_cpu: Mapping[int, Sequence[int]] = {}
    traced_off_cpu: Mapping[int, Sequence[int]] = {}  # time off the CPU of each traced call

    def traced_callers(self) -> TracedCallers | None:
        """Return what is known of the calls of the traced processes; None unless durations are known of all of them."""
        if not self.rounds or any(number not in self.traced for number in self.rounds):
            return None
        walls = [self.traced[number] for number in self.rounds]
        off_cpu = [self.traced_off_cpu.get(number, ()) for number in self.rounds]
        if [len(shares) for shares in off_cpu] != [len(durations) for durations in walls]:
            return TracedCallers(walls)
        return TracedCallers(walls, [preempted_calls(*call_times) for call_times in zip(walls, off_cpu, strict=True)])

    def settled(self, method: str | None = None) -> dict[int, list[int]]:
        """Return the untraced calls after warm-up that were not preempted, of every process that has any."""
        calls_by_round = {}
        for number, durations in self.untraced.items():
            rows = zip(
                durations[self.warmup :],
                self._undisturbed_calls(number),
                self._methods_of_calls(durations),
                strict=True,
            )
            calls_by_round[number] = [call for call, is_kept, name in rows if is_kept and method in {None, name}]
        return {number: calls for number, calls in calls_by_round.items() if calls}

    def durations(self, rounds: Sequence[int], method: str | None = None) -> list[Floats]:
        """Return the durations by which each of these rounds counts, of one method or of all."""
        if method is not None:
            settled = self.settled(method)
            return [
                np.asarray(settled.get(number) or self._calls_after_warmup(number, method), np.float64)
                for number in rounds
            ]
        return [self._countable_durations(self.untraced[number], self._undisturbed_calls(number)) for number in rounds]

    def _calls_after_warmup(self, number: int, method: str) -> list[int]:
        """Return the calls of a method after warm-up, preempted or not: used if all of them were preempted."""
        durations = self.untraced[number]
        return [
            call
            for call, name in zip(durations[self.warmup :], self._methods_of_calls(durations), strict=True)
            if name == method
        ]

    def traced_durations(self, rounds: Sequence[int]) -> list[Floats]:
        """Return the durations by which each of these rounds counts, with event tracing."""
        return [self._countable_durations(self.traced[number]) for number in rounds]

    def _countable_durations(self, calls: Sequence[int], is_kept: Sequence[bool] = ()) -> Floats:
        names = self._methods_of_calls(calls)
        return representative_durations(calls[self.warmup :], [names.index(name) for name in names], is_kept)

    def _methods_of_calls(self, calls: Sequence[int]) -> list[str | None]:
        """Return the method of every call after warm-up."""
        order = self.order or (None,)
        return [order[number % len(order)] for number in range(self.warmup, len(calls))]

    def _undisturbed_calls(self, number: int) -> list[bool]:
        calls, off_cpu = self.untraced[number][self.warmup :], self.off_cpu.get(number, ())[self.warmup :]
        return undisturbed_calls(calls, off_cpu) if len(off_cpu) == len(calls) else [True] * len(calls)


class TracingCost(msgspec.Struct, frozen=True):
    """Time of a call with event tracing relative to one without.

    Attributes:
        ratio: traced over untraced, of geometric means over processes of each one's median.
        ci95: its 95 % interval; null with fewer than two processes a side.
        processes: number of untraced and of traced ones.
    """

    ratio: float
    ci95: tuple[float, float] | None
    processes: tuple[int, int]


class Untraced(msgspec.Struct, frozen=True):
    """Measurements without event tracing, as the caller of the method saw them."""

    latency: Latency  # latency of the calls; ``process`` counts the untraced processes
    tracing: TracingCost | None  # what tracing costs; null when nothing was traced


def untraced_arm(calls: CallTimes) -> Untraced | None:
    """Return the untraced measurements of a variant; None if no call remains."""
    settled = calls.settled()
    if not settled:
        return None
    rounds = sorted(settled)
    latency = latency_of(
        "untraced",
        [settled[number] for number in rounds],
        [list(calls.untraced[number][: calls.warmup]) for number in rounds],
        [calls.load_ns.get(number) for number in rounds],
    )
    return Untraced(latency, _tracing_cost(calls, settled))


def _tracing_cost(calls: CallTimes, settled: Iterable[int]) -> TracingCost | None:
    traced = [number for number, durations in calls.traced.items() if durations[calls.warmup :]]
    if not traced:
        return None
    common = sorted(set(settled) & set(traced))
    sides = calls.traced_durations(common or sorted(traced)), calls.durations(common or sorted(settled))
    effect = median_effect(sides[0], sides[1], paired=bool(common))
    return TracingCost(math.exp(effect.estimate), interval_of(effect, math.exp), (len(sides[1]), len(sides[0])))


def preempted_calls(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Return for every call whether it was preempted."""
    return [off > OFF_CPU * duration for duration, off in zip(wall, off_cpu, strict=True)]


def undisturbed_calls(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Return for every call whether figures rest on it: it was not preempted, or hardly any call was spared.

    Calls are chosen by the time off the CPU and never by their duration, so that the choice does not favour short ones.
    """
    is_preempted, few = preempted_calls(wall, off_cpu), is_crowded(wall, off_cpu)
    return [few or not preempted for preempted in is_preempted]


def is_crowded(wall: Sequence[int], off_cpu: Sequence[int]) -> bool:
    """Return whether almost all calls of a process were preempted; see :func:`undisturbed_calls`."""
    quiet = len(wall) - sum(preempted_calls(wall, off_cpu))
    return quiet < FEWEST_QUIET and 2 * quiet < len(wall)
