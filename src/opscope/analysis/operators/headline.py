"""Scale of every figure of an answer: the split of the traced runs, scaled to the latency.

The headline is what an inference takes as its caller sees it, without event tracing. The split is that of traced runs:
``Method::execute``, and copying inputs and outputs, which the caller's clock and the trace's tell together. What
tracing costs is taken from the framework's own time first, where it is spent; what remains is spread in proportion.
Estimator and reasons: ``docs/design/one-scale.md``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.effect import interval_of, paired_effects
from opscope.core.stats.hierarchy import process_median, typical
from opscope.core.table import Clock, TraceWarning
from opscope.core.table.places import ChosenSelfTimes
from opscope.core.units import ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.places import SelfTimeKey

    Floats: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

COPIES, OUTSIDE = "input and output copies", "outside of Method::execute"
"""Names of the rows that lead from the operators to the headline."""
PROCESS_MEDIANS = "process_medians"
"""Statistic of a headline by which two sides are compared: see :func:`opscope.core.stats.hierarchy.typical`."""
_EXACT = 1e-9
_LEAST_FOR_TENTHS = 10
FEW = 3
"""Number of processes up to which all of them count."""
LEAST_TRACED, MOST_TRACED = 0.7, 1.5
"""Range of traced call over headline in which a split has times; docs/design/one-scale.md says why."""
MOST_PREEMPTED = 0.25
"""Largest share of preempted traced inferences with which a split has times; they count in none of them."""
NOT_TIMED = "not_timed"
"""Code of the warning that a split has shares and no times."""


class TimeShare(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the latency.

    Attributes:
        time_ns: per inference, on the scale of the headline; null where only shares are known.
        share: share of the headline; of the traced call where times are not known.
    """

    time_ns: float | None
    share: float


class OutsideTime(TimeShare, frozen=True):
    """Time outside of the operators, a row of every split.

    Attributes:
        name: what it is.
        category: category that it counts as; null where it is none of the model's work.
        traced_ns: time as the traced calls took it; null for what no trace shows.
        ci95_ns: the 95 % interval of ``traced_ns`` over processes; null with fewer than two.
        basis: how it is known.
    """

    name: str
    category: Category | None
    traced_ns: float | None
    ci95_ns: tuple[float, float] | None
    basis: str


class HeadlineSplit(msgspec.Struct, frozen=True):
    """Scale of a split: the sum of its rows, and the factors that scaled them.

    Attributes:
        headline_ns: latency of an inference; operators and ``outside`` add up to it.
        statistic: ``process_medians``, by which two sides are compared: what is typical of the medians of processes;
            or ``mean``, of a trace alone.
        factor: how many headlines a traced call takes.
        timed: whether times are known; else rows have shares of the traced call, and no times.
        preempted_share: preempted share of the measured traced inferences, from 0 to 1; null if off-CPU time was not
            recorded.
        framework_scale: what times of the framework were multiplied by: tracing spends its time there.
        scale: what all other times were multiplied by.
        outside: rows beside the operators.
        estimate: which traced inferences operator times are of, in words.
        split_inferences: how many these are.
        split_processes: numbers of the traced processes that they are of.
    """

    headline_ns: float
    statistic: str = PROCESS_MEDIANS
    factor: float = 1.0
    timed: bool = True
    preempted_share: float | None = None
    framework_scale: float = 1.0
    scale: float = 1.0
    outside: list[OutsideTime] = []
    estimate: str = ""
    split_inferences: int = 0
    split_processes: list[int] = []

    @property
    def copies(self) -> OutsideTime | None:
        """Row of copying inputs and outputs; None if unknown."""
        return next((row for row in self.outside if row.category is Category.DATA_MOVEMENT), None)

    @property
    def copies_ns(self) -> float:
        """Time of copying inputs and outputs; 0 if unknown."""
        return (self.copies.time_ns or 0.0) if self.copies else 0.0

    @property
    def whole_ns(self) -> float:
        """Time that shares refer to: the headline, or the traced call if times are unknown."""
        return self.headline_ns if self.timed else self.headline_ns * self.factor

    @property
    def traced_text(self) -> str:
        """Sentence on how the times of the trace were scaled; empty if they were not."""
        return f"traced runs {self.took_text}" if self.took_text else ""

    @property
    def took_text(self) -> str:
        """Words on how much longer the inferences of the split took and how times were scaled; empty if equal."""
        if not self.timed:
            return ""
        text = f"took {ratio_text(self.factor)} as long"
        if self.framework_scale != self.scale and self.scale == 1.0:
            return f"{text}: tracing overhead is subtracted from framework time"
        if abs(self.scale - 1) < _EXACT:
            return ""
        before = "; tracing overhead is first subtracted from framework time" if self.factor > 1 else ""
        return f"{text}; times are scaled to the latency{before}"


class HeadlineScale(NamedTuple):
    """Scale of the headline, and the times on it."""

    split: HeadlineSplit  # what they add up to
    # of every place; they add up to `split.whole_ns` with the rows outside
    times: Mapping[SelfTimeKey, float]
    # times of each process, in the order of the table; empty for a process without a measured inference
    by_process: Sequence[Mapping[SelfTimeKey, float]]
    # 10th and 90th percentile of the inferences that `times` are of, on the same scale; a place is missing that ran in
    # fewer than ten, or whose mean a few of them dominate
    spreads: Mapping[SelfTimeKey, tuple[float, float]]
    copies: Sequence[float]  # copies of inputs and outputs, in the same inferences; 0 if unknown

    def of(self, key: SelfTimeKey) -> float:
        """Return the factor that times of a place were multiplied by."""
        return self.split.scale if key.framework is None else self.split.framework_scale


class TracedCallers(NamedTuple):
    """Calls of the traced processes as the caller saw them, warm-up included, in the order of the table."""

    wall_ns: Sequence[Sequence[int]]  # durations as the caller saw them
    # whether each was preempted; None where off-CPU time was not recorded
    preempted: Sequence[Sequence[bool]] | None = None


class _ChosenInferences(NamedTuple):
    """Weights of all inferences in the mean of their process, and the weighted time of the processes' calls."""

    weights: list[Floats]
    execute: Floats
    calls: Floats
    processes: list[int]
    inferences: int
    estimate: str


def headline_scale(
    table: EventTable,
    untraced: Sequence[Floats] | None = None,
    callers: TracedCallers | None = None,
    *,
    alone: bool = False,
) -> HeadlineScale:
    """Return the scale of the headline: of a trace alone the mean of its inferences, else what sides are compared by.

    ``untraced``: durations by which each untraced process counts; ``callers``: what is known of the traced calls.
    """
    if table.clock is not Clock.NS:
        untraced = None  # what the caller saw is in another unit
    mean = alone and not untraced
    headline = _mean_duration(table) if mean else typical(untraced or measured_durations(table))
    caller_durations = _caller_durations(table, callers.wall_ns) if untraced and callers else None
    preempted = _preempted_flags(table, callers.preempted) if callers else None
    chosen = _choose_all(table) if mean else _choose_typical(table, caller_durations, preempted, headline)
    samples = table.chosen_self_times(chosen.weights)
    by_process = [{key: _place_time(part) for key, part in process.items()} for process in samples]
    pooled = _pool_processes(samples, chosen.processes)
    times = _mean_self_times(table) if mean else {key: _place_time(part) for key, part in pooled.items()}
    process_copies = np.nan_to_num(chosen.calls - chosen.execute)
    copies = max(0.0, float(process_copies[chosen.processes].mean())) if caller_durations is not None else 0.0
    share = None if preempted is None else _preempted_share(table, preempted)
    scaled = _scale_split(
        times, copies, headline, ends=bool(untraced) and caller_durations is None, preempted_share=share
    )
    split = msgspec.structs.replace(
        scaled,
        statistic="mean" if mean else PROCESS_MEDIANS,
        preempted_share=share,
        outside=scaled.outside if caller_durations is None else [_copies_row(chosen, scaled, copies)],
        estimate=chosen.estimate,
        split_inferences=chosen.inferences,
        split_processes=chosen.processes,
    )
    unscaled = HeadlineScale(
        split, times, by_process, _find_spreads(pooled, times), (process_copies * split.scale).tolist()
    )
    return unscaled._replace(
        times={key: spent * unscaled.of(key) for key, spent in times.items()},
        by_process=[{key: spent * unscaled.of(key) for key, spent in process.items()} for process in by_process],
        spreads={
            key: (low * unscaled.of(key), high * unscaled.of(key)) for key, (low, high) in unscaled.spreads.items()
        },
    )


def _pool_processes(
    samples: Sequence[Mapping[SelfTimeKey, ChosenSelfTimes]], processes: Sequence[int]
) -> dict[SelfTimeKey, ChosenSelfTimes]:
    """Join the chosen inferences of processes; their weights together stay 1."""
    keys = dict.fromkeys(key for process in processes for key in samples[process])
    pooled = {}
    for key in keys:
        parts = [samples[process][key] for process in processes if key in samples[process]]
        weight = sum(part.weight for part in parts) / len(processes)
        pooled[key] = ChosenSelfTimes(np.concatenate([part.samples for part in parts]), weight)
    return pooled


def _place_time(chosen: ChosenSelfTimes) -> float:
    """Return the self time per inference: the mean without the shortest and longest tenth; of fewer than ten, the mean.

    The trimming leaves out a place that was interrupted although its inference as a whole was typical.
    """
    samples = np.sort(chosen.samples)
    cut = math.ceil((len(samples) - 1) / 10) if len(samples) >= _LEAST_FOR_TENTHS else 0
    return float(samples[cut : len(samples) - cut].mean()) * chosen.weight


def _find_spreads(
    pooled: Mapping[SelfTimeKey, ChosenSelfTimes], times: Mapping[SelfTimeKey, float]
) -> dict[SelfTimeKey, tuple[float, float]]:
    """Return the 10th and 90th percentile by place, in which its time lies; without a place whose time does not."""
    spreads = {}
    for key, chosen in pooled.items():
        if len(chosen.samples) >= _LEAST_FOR_TENTHS:
            low, high = (np.quantile(chosen.samples, (0.1, 0.9)) * chosen.weight).tolist()
            if low * (1 - _EXACT) <= times[key] <= high * (1 + _EXACT):
                spreads[key] = (min(low, times[key]), max(high, times[key]))
    return spreads


def measured_durations(table: EventTable) -> list[Floats]:
    """Return the durations by which each process with a measured inference counts."""
    inferences = table.inference_times()
    is_measured = [(inferences.process == process) & ~inferences.warmup for process in range(table.processes)]
    return [
        representative_durations(inferences.duration[rows], inferences.method.codes[rows])
        for rows in is_measured
        if rows.any()
    ]


def representative_durations(
    durations: Sequence[int] | Ints, methods: Sequence[int] | Ints, is_kept: Sequence[bool] = ()
) -> Floats:
    """Return the durations by which a process counts: its calls, or with several methods their weighted median.

    Calls of several methods have more than one centre, and their median is none of them, so each method's median is
    weighted by how often it is called. Medians are of the calls that ``kept`` marks, or of all calls if it marks none
    of a method; weights are of all calls, so that the marks do not move them.
    """
    calls, method_of_call = np.asarray(durations, np.float64), np.asarray(methods)
    chosen = np.asarray(is_kept, bool) if len(is_kept) else np.ones(len(calls), bool)
    names = np.unique(method_of_call)
    if len(names) < 2:  # noqa: PLR2004 - one method
        chosen_calls: Floats = calls[chosen]
        return chosen_calls
    medians = [
        calls[chosen & (method_of_call == method)]
        if any(chosen & (method_of_call == method))
        else calls[method_of_call == method]
        for method in names
    ]
    shares = [np.mean(method_of_call == method) for method in names]
    return np.array(
        [sum(share * process_median(np.sort(durations)) for share, durations in zip(shares, medians, strict=True))]
    )


def _scale_split(
    times: Mapping[SelfTimeKey, float], copies: float, headline: float, *, ends: bool, preempted_share: float | None
) -> HeadlineSplit:
    """Return the factors that make the times add up to the headline; ``ends``: the callers' times are unknown."""
    framework = sum(spent for key, spent in times.items() if key.framework is not None)
    traced = sum(times.values()) + copies
    if headline <= 0 or traced <= 0:
        return HeadlineSplit(headline, timed=headline > 0 or traced <= 0)
    factor = traced / headline
    if factor > MOST_TRACED or (factor < LEAST_TRACED and not ends) or (preempted_share or 0) > MOST_PREEMPTED:
        return HeadlineSplit(headline, factor=factor, timed=False)
    if factor <= 1 and ends:
        text = "latency minus Method::execute of traced runs; the callers' times are unknown"
        rest_ns = headline - traced
        row = OutsideTime(OUTSIDE, None, None, None, text, time_ns=rest_ns, share=rest_ns / headline)
        rest = [row] if rest_ns > 0 else []
        return HeadlineSplit(headline, factor=factor, outside=rest)
    if abs(factor - 1) < _EXACT:
        return HeadlineSplit(headline)
    if factor < 1:
        return HeadlineSplit(headline, factor=factor, framework_scale=1 / factor, scale=1 / factor)
    framework_left = max(framework - (traced - headline), 0.0)
    other_scale = 1.0 if framework_left > 0 else headline / (traced - framework)
    framework_scale = framework_left / framework * other_scale if framework else other_scale
    return HeadlineSplit(headline, factor=factor, framework_scale=framework_scale, scale=other_scale)


def not_timed_warning(split: HeadlineSplit) -> TraceWarning | None:
    """Return why a split has shares of the traced call and no times; None if it has times."""
    if split.timed or split.headline_ns <= 0:
        return None
    if split.preempted_share is not None and split.preempted_share > MOST_PREEMPTED:
        message = (
            f"{share_text(split.preempted_share)} of the traced inferences were preempted; "
            "the split shows shares of the traced call, not times"
        )
        return TraceWarning(NOT_TIMED, message, "rerun on a quiet machine")
    message = (
        f"traced inferences take {time_text(split.whole_ns)}, {ratio_text(split.factor)} the untraced latency of "
        f"{time_text(split.headline_ns)}; the split shows shares of the traced call, not times: "
        + (
            "tracing overhead or a disturbance may explain it"
            if split.factor > 1
            else "run-to-run noise may explain it"
        )
    )
    hint = "rerun on a quiet machine; a model of a few microseconds can be timed, but not split"
    return TraceWarning(NOT_TIMED, message, hint)


def _caller_durations(table: EventTable, walls: Sequence[Sequence[int]] | None) -> list[Floats] | None:
    """Return the callers' durations of every inference; None unless all are known, in the unit of the trace."""
    inferences = table.inference_times()
    counts = np.bincount(inferences.process, minlength=table.processes).tolist()
    if walls is None or [len(durations) for durations in walls] != counts:
        return None
    caller_durations = [np.asarray(durations, np.float64) for durations in walls]
    trace_durations = np.split(inferences.duration, np.cumsum(counts)[:-1])
    # A call that is shorter than what happens in it was timed by another clock.
    if any(
        np.median(durations) < np.median(within)
        for durations, within in zip(caller_durations, trace_durations, strict=True)
        if len(durations)
    ):
        return None
    return caller_durations


def _preempted_flags(table: EventTable, preempted: Sequence[Sequence[bool]] | None) -> list[Flags] | None:
    """Return for every inference whether it was preempted; None unless that is known of all."""
    inferences = table.inference_times()
    counts = np.bincount(inferences.process, minlength=table.processes).tolist()
    if preempted is None or [len(flags) for flags in preempted] != counts:
        return None
    return [np.asarray(flags, np.bool_) for flags in preempted]


def _preempted_share(table: EventTable, preempted: Sequence[Flags]) -> float:
    """Return the share of the measured inferences that were preempted."""
    return float(np.concatenate(preempted)[~table.inference_times().warmup].mean())


def _choose_typical(
    table: EventTable, caller_durations: Sequence[Floats] | None, preempted: Sequence[Flags] | None, headline: float
) -> _ChosenInferences:
    """Choose the middle half of each process's inferences, of the half of the processes nearest to the headline."""
    inferences = table.inference_times()
    weights, execute, calls = [], np.full(table.processes, np.nan), np.full(table.processes, np.nan)
    counts = [0] * table.processes
    for process in range(table.processes):
        rows = inferences.process == process
        execute_ns = inferences.duration[rows].astype(np.float64)
        call_ns = caller_durations[process] if caller_durations else execute_ns
        measured = ~inferences.warmup[rows]
        if preempted is not None and np.any(measured & ~preempted[process]):
            measured &= ~preempted[process]
        process_weights = _typical_weights(call_ns, inferences.method.codes[rows], measured)
        weights.append(process_weights)
        counts[process] = int((process_weights > 0).sum())
        if counts[process]:
            execute[process], calls[process] = process_weights @ execute_ns, process_weights @ call_ns
    measured_processes = [process for process in range(table.processes) if counts[process]]
    chosen = measured_processes
    if len(chosen) > FEW:
        by_distance = sorted(chosen, key=lambda process: abs(calls[process] - headline))
        chosen = sorted(by_distance[: (len(chosen) + 1) // 2])
    all_of = "all" if chosen == measured_processes else f"{len(chosen)} of {len(measured_processes)}"
    nearest = "" if chosen == measured_processes else ", those whose calls are nearest to the headline"
    estimate = (
        f"mean of the middle half of each process's inferences, of {all_of} traced processes{nearest}, without the "
        "shortest and longest tenth of each operator"
    )
    return _ChosenInferences(weights, execute, calls, chosen, sum(counts[process] for process in chosen), estimate)


def _mean_duration(table: EventTable) -> float:
    inferences = table.inference_times()
    return float(inferences.duration[~inferences.warmup].mean())


def _choose_all(table: EventTable) -> _ChosenInferences:
    """Choose every measured inference."""
    inferences = table.inference_times()
    weights, measured_processes, execute = [], [], np.full(table.processes, np.nan)
    for process in range(table.processes):
        measured = ~inferences.warmup[inferences.process == process]
        weights.append(measured / max(1, int(measured.sum())))
        if measured.any():
            measured_processes.append(process)
            execute[process] = weights[-1] @ inferences.duration[inferences.process == process]
    return _ChosenInferences(
        weights, execute, execute, measured_processes, int((~inferences.warmup).sum()), "mean of all traced inferences"
    )


def _mean_self_times(table: EventTable) -> dict[SelfTimeKey, float]:
    """Return the mean self time of every measured inference by place."""
    count = int((~table.inference_times().warmup).sum())
    spent: dict[SelfTimeKey, int] = {}
    for process in table.self_times:
        for key, self_times in process.items():
            spent[key] = spent.get(key, 0) + self_times.self_time
    return {key: total / count for key, total in spent.items()}


def _typical_weights(durations: Floats, methods: Ints, measured: Flags) -> Floats:
    """Return weights of a process's inferences that add up to 1: the middle half of each method's calls."""
    weights = np.zeros(len(durations))
    total = int(measured.sum())
    for method in np.unique(methods[measured]):
        rows = np.flatnonzero(measured & (methods == method))
        order = rows[np.argsort(durations[rows], kind="stable")]
        middle = order[len(rows) // 4 : len(rows) - len(rows) // 4]
        weights[middle] = len(rows) / (len(middle) * total)
    return weights


def _copies_row(chosen: _ChosenInferences, split: HeadlineSplit, copies: float) -> OutsideTime:
    """Return the row of copying inputs and outputs as it was measured."""
    copies_by_process = (chosen.calls - chosen.execute)[chosen.processes]
    effect = paired_effects(copies_by_process[:, None], np.zeros((len(copies_by_process), 1)))[0]
    text = "the caller's traced call minus the Method::execute inside it, over the same inferences as the operators"
    time_ns = copies * split.scale if split.timed else None
    share = copies * split.scale / split.whole_ns if split.headline_ns else 0.0
    interval = interval_of(effect)
    return OutsideTime(COPIES, Category.DATA_MOVEMENT, copies, interval, text, time_ns=time_ns, share=share)
