"""One scale for every figure of an answer: the split of the traced runs, scaled to the latency that stands above it.

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
"""What the rows are called that join the split to the headline."""
PROCESS_MEDIANS = "process_medians"
"""The statistic of a headline by which two sides are compared: see :func:`opscope.core.stats.hierarchy.typical`."""
_EXACT = 1e-9
_LEAST_FOR_TENTHS = 10
FEW = 3
"""So few processes all count: a half of them would be one or two."""
LEAST_TRACED, MOST_TRACED = 0.7, 1.5
"""How many headlines a traced call may take so that its split has times; docs/design/one-scale.md says why."""
MOST_PREEMPTED = 0.25
"""Share of traced inferences that may have been preempted so that a split has times; they count in none of them."""
NOT_TIMED = "not_timed"
"""Code of the warning that says that a split has shares and no times."""


class TimeShare(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the latency.

    Attributes:
        time_ns: per inference, on the scale of the headline; null where only shares are known.
        share: of the headline; of the traced call where times are not known.
    """

    time_ns: float | None
    share: float


class OutsideTime(TimeShare, frozen=True):
    """Time outside of the operators, a row of every split.

    Attributes:
        name: what it is.
        category: that it counts as; null where it is none of the model's work.
        traced_ns: as the traced calls took it; null for what no trace shows.
        ci95_ns: the 95 % interval of ``traced_ns`` over processes; null with fewer than two.
        basis: how it is known.
    """

    name: str
    category: Category | None
    traced_ns: float | None
    ci95_ns: tuple[float, float] | None
    basis: str


class HeadlineSplit(msgspec.Struct, frozen=True):
    """The scale of a split: what its rows add up to, and what was done to them for that.

    Attributes:
        headline_ns: latency of an inference; operators and ``outside`` add up to it.
        statistic: ``process_medians``, by which two sides are compared: what is typical of the medians of processes;
            or ``mean``, of a trace alone.
        factor: how many headlines a traced call takes.
        timed: whether times are known; else rows have shares of the traced call, and no times.
        preempted_share: of the measured traced inferences, from 0 to 1; null if off-CPU time was not recorded.
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
        """Copying inputs and outputs; None where that is not known."""
        return next((row for row in self.outside if row.category is Category.DATA_MOVEMENT), None)

    @property
    def copies_ns(self) -> float:
        """Their time; 0 where it is not known."""
        return (self.copies.time_ns or 0.0) if self.copies else 0.0

    @property
    def whole_ns(self) -> float:
        """What shares are of: the headline, or the traced call where times are not known."""
        return self.headline_ns if self.timed else self.headline_ns * self.factor

    @property
    def traced_text(self) -> str:
        """What was done to the times of the trace, as one sentence; empty where nothing was."""
        return f"traced runs {self.took_text}" if self.took_text else ""

    @property
    def took_text(self) -> str:
        """What is said there of the traced inferences that the split is of, which may be others than all."""
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
    """The scale of the headline, and the times on it."""

    split: HeadlineSplit  # what they add up to
    # of every place; they add up to `split.whole_ns` with the rows outside
    times: Mapping[SelfTimeKey, float]
    # times of each process, in the order of the table; empty for a process without a measured inference
    by_process: Sequence[Mapping[SelfTimeKey, float]]
    # 10th and 90th percentile of the inferences that `times` are of, on the same scale; a place is missing that ran in
    # fewer than ten, or whose mean a few of them dominate
    spreads: Mapping[SelfTimeKey, tuple[float, float]]
    copies: Sequence[float]  # of inputs and outputs, in the same inferences; 0 where that is not known

    def of(self, key: SelfTimeKey) -> float:
        """Return what times of a place were multiplied by."""
        return self.split.scale if key.framework is None else self.split.framework_scale


class TracedCallers(NamedTuple):
    """What is known of the calls of the traced processes, warm-up included, in the order of the table."""

    wall_ns: Sequence[Sequence[int]]  # durations as the caller saw them
    # whether each was preempted; None where off-CPU time was not recorded
    preempted: Sequence[Sequence[bool]] | None = None


class _ChosenInferences(NamedTuple):
    """Weights of all inferences in the mean of their process, and what the processes' calls take by them."""

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
    called = _caller_durations(table, callers.wall_ns) if untraced and callers else None
    preempted = _preempted_flags(table, callers.preempted) if callers else None
    chosen = _choose_all(table) if mean else _choose_typical(table, called, preempted, headline)
    samples = table.chosen_self_times(chosen.weights)
    by_process = [{key: _place_time(part) for key, part in process.items()} for process in samples]
    pooled = _pool_processes(samples, chosen.processes)
    times = _mean_self_times(table) if mean else {key: _place_time(part) for key, part in pooled.items()}
    process_copies = np.nan_to_num(chosen.calls - chosen.execute)
    copies = max(0.0, float(process_copies[chosen.processes].mean())) if called is not None else 0.0
    share = None if preempted is None else _preempted_share(table, preempted)
    scaled = _scale_split(times, copies, headline, ends=bool(untraced) and called is None, preempted_share=share)
    split = msgspec.structs.replace(
        scaled,
        statistic="mean" if mean else PROCESS_MEDIANS,
        preempted_share=share,
        outside=scaled.outside if called is None else [_copies_row(chosen, scaled, copies)],
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
    places = dict.fromkeys(key for process in processes for key in samples[process])
    pooled = {}
    for key in places:
        parts = [samples[process][key] for process in processes if key in samples[process]]
        weight = sum(part.weight for part in parts) / len(processes)
        pooled[key] = ChosenSelfTimes(np.concatenate([part.samples for part in parts]), weight)
    return pooled


def _place_time(chosen: ChosenSelfTimes) -> float:
    """Return the self time per inference: the mean without the shortest and longest tenth; the mean of fewer than ten.

    What is left out is a place that was interrupted though its inference as a whole was typical.
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
    """What each process counts by that has a measured inference: see :func:`counted`."""
    inferences = table.inference_times()
    each = [(inferences.process == process) & ~inferences.warmup for process in range(table.processes)]
    return [counted(inferences.duration[own], inferences.method.codes[own]) for own in each if own.any()]


def counted(durations: Sequence[int] | Ints, methods: Sequence[int] | Ints, kept: Sequence[bool] = ()) -> Floats:
    """What a process counts by: its calls; of several methods the median of each, weighted by how often it is called.

    Calls of several methods have more than one centre, and their median is none of them. ``kept`` are those to take
    medians of, all where none of a method is: weights are of all calls, so that it does not move them.
    """
    calls, each = np.asarray(durations, np.float64), np.asarray(methods)
    chosen = np.asarray(kept, bool) if len(kept) else np.ones(len(calls), bool)
    names = np.unique(each)
    if len(names) < 2:  # noqa: PLR2004 - one method
        alone: Floats = calls[chosen]
        return alone
    medians = [calls[chosen & (each == one)] if any(chosen & (each == one)) else calls[each == one] for one in names]
    shares = [np.mean(each == one) for one in names]
    return np.array([sum(share * process_median(np.sort(own)) for share, own in zip(shares, medians, strict=True))])


def _scale_split(
    times: Mapping[SelfTimeKey, float], copies: float, headline: float, *, ends: bool, preempted_share: float | None
) -> HeadlineSplit:
    """What makes the times add up to the headline; ``ends``: the caller's view of traced calls is not known."""
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
    left = max(framework - (traced - headline), 0.0)
    others = 1.0 if left > 0 else headline / (traced - framework)
    framework_scale = left / framework * others if framework else others
    return HeadlineSplit(headline, factor=factor, framework_scale=framework_scale, scale=others)


def not_timed_warning(split: HeadlineSplit) -> TraceWarning | None:
    """Why a split has shares of the traced call and no times; None when it has times."""
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
    """What the caller saw of every inference; None unless that is known of all, in the unit of the trace."""
    inferences = table.inference_times()
    counts = np.bincount(inferences.process, minlength=table.processes).tolist()
    if walls is None or [len(own) for own in walls] != counts:
        return None
    called = [np.asarray(own, np.float64) for own in walls]
    inside = np.split(inferences.duration, np.cumsum(counts)[:-1])
    # A call that is shorter than what happens in it was timed by another clock.
    if any(np.median(own) < np.median(within) for own, within in zip(called, inside, strict=True) if len(own)):
        return None
    return called


def _preempted_flags(table: EventTable, preempted: Sequence[Sequence[bool]] | None) -> list[Flags] | None:
    """Return of every inference whether it was preempted; None unless that is known of all."""
    inferences = table.inference_times()
    counts = np.bincount(inferences.process, minlength=table.processes).tolist()
    if preempted is None or [len(own) for own in preempted] != counts:
        return None
    return [np.asarray(own, np.bool_) for own in preempted]


def _preempted_share(table: EventTable, preempted: Sequence[Flags]) -> float:
    """Return the share of the measured inferences that were preempted."""
    return float(np.concatenate(preempted)[~table.inference_times().warmup].mean())


def _choose_typical(
    table: EventTable, called: Sequence[Floats] | None, preempted: Sequence[Flags] | None, headline: float
) -> _ChosenInferences:
    """Choose the middle half of each process's inferences, of the half of the processes nearest to the headline."""
    inferences = table.inference_times()
    weights, execute, calls = [], np.full(table.processes, np.nan), np.full(table.processes, np.nan)
    counts = [0] * table.processes
    for process in range(table.processes):
        rows = inferences.process == process
        execute_ns = inferences.duration[rows].astype(np.float64)
        call_ns = called[process] if called else execute_ns
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
    """Every measured inference."""
    inferences = table.inference_times()
    weights, kept, execute = [], [], np.full(table.processes, np.nan)
    for process in range(table.processes):
        measured = ~inferences.warmup[inferences.process == process]
        weights.append(measured / max(1, int(measured.sum())))
        if measured.any():
            kept.append(process)
            execute[process] = weights[-1] @ inferences.duration[inferences.process == process]
    return _ChosenInferences(
        weights, execute, execute, kept, int((~inferences.warmup).sum()), "mean of all traced inferences"
    )


def _mean_self_times(table: EventTable) -> dict[SelfTimeKey, float]:
    """Mean self time of every measured inference by place."""
    count = int((~table.inference_times().warmup).sum())
    spent: dict[SelfTimeKey, int] = {}
    for process in table.self_times:
        for key, self_times in process.items():
            spent[key] = spent.get(key, 0) + self_times.self_time
    return {key: total / count for key, total in spent.items()}


def _typical_weights(durations: Floats, methods: Ints, measured: Flags) -> Floats:
    """Weights of a process's inferences that add up to 1: the middle half of each method's, a method by its calls."""
    weights = np.zeros(len(durations))
    total = int(measured.sum())
    for method in np.unique(methods[measured]):
        own = np.flatnonzero(measured & (methods == method))
        order = own[np.argsort(durations[own], kind="stable")]
        middle = order[len(own) // 4 : len(own) - len(own) // 4]
        weights[middle] = len(own) / (len(middle) * total)
    return weights


def _copies_row(chosen: _ChosenInferences, split: HeadlineSplit, copies: float) -> OutsideTime:
    """Copies of inputs and outputs as they were measured."""
    each = (chosen.calls - chosen.execute)[chosen.processes]
    effect = paired_effects(each[:, None], np.zeros((len(each), 1)))[0]
    text = "the caller's traced call minus the Method::execute inside it, over the same inferences as the operators"
    time_ns = copies * split.scale if split.timed else None
    share = copies * split.scale / split.whole_ns if split.headline_ns else 0.0
    interval = interval_of(effect)
    return OutsideTime(COPIES, Category.DATA_MOVEMENT, copies, interval, text, time_ns=time_ns, share=share)
