"""One scale for every figure of an answer: the split of the traced runs, joined to the latency that stands above it.

The headline is what an inference takes as its caller sees it, without event tracing. The split is that of
``Method::execute`` in traced runs. What lies between the two are separate rows: copying inputs and outputs, which
the caller's clock and the trace's tell together, and what tracing costs. Estimator and reasons:
``docs/design/one-scale.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.effect import interval_of, paired_effects
from opscope.core.table import Clock, TraceWarning
from opscope.core.units import ratio_text, time_text
from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.table import EventTable
    from opscope.core.table.places import SelfTimeKey

    Floats: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

COPIES, TRACING = "input and output copies", "cost of event tracing"
DIFFERENCE, OUTSIDE = "traced runs took less", "outside of Method::execute, and tracing"
"""What the rows are called that join the split to the headline."""
FEW = 3
"""So few processes all count: a half of them would be one or two."""
MOST_TRACED = 2.0
"""A traced call longer than so many untraced ones is not split; where it comes from: docs/design/one-scale.md."""
TRACING_DOMINATES = "tracing_dominates"
"""Code of the warning that says so."""


class OutsideTime(msgspec.Struct, frozen=True):
    """Time between the split and the headline.

    Attributes:
        name: what it is.
        category: that it counts as; null where it is none of the model's work.
        headline_ns: per inference; below 0 for time that the split holds and the headline does not.
        share_of_headline: of the headline.
        ci95_ns: its 95 % interval over processes; null where it is a difference, or with fewer than two processes.
        inferences: traced ones that it rests on.
        processes: likewise.
        basis: how it is known.
    """

    name: str
    category: Category | None
    headline_ns: float
    share_of_headline: float
    ci95_ns: tuple[float, float] | None
    inferences: int
    processes: int
    basis: str


class HeadlineSplit(msgspec.Struct, frozen=True):
    """What joins the split into operators to the headline: ``execute_ns`` and ``rows`` add up to ``headline_ns``.

    Attributes:
        arm: ``untraced`` when the headline is of calls without event tracing, ``traced`` when of Method::execute.
        statistic: ``median``, or ``mean`` where several methods are called.
        headline_ns: latency of an inference.
        execute_ns: what operators and the framework add up to on this scale: ``headline_ns`` of all of them.
        rows: the rest.
        saving_scale: savings are multiplied by it, so that all of them together cannot exceed the headline: the
            headline over the traced call where that takes longer, else 1.
        inferences: traced ones that operator times are estimated from.
        processes: numbers of the traced processes that they are of.
        estimate: how, in words.
    """

    arm: str
    statistic: str
    headline_ns: float
    execute_ns: float
    rows: list[OutsideTime]
    saving_scale: float
    inferences: int
    processes: list[int]
    estimate: str

    @property
    def copies_ns(self) -> float:
        """Copying inputs and outputs; 0 where that is not known."""
        return sum(row.headline_ns for row in self.rows if row.category is Category.DATA_MOVEMENT)

    @property
    def call_ns(self) -> float:
        """The traced call: the split with the copies."""
        return self.execute_ns + self.copies_ns

    @property
    def tracing_ratio(self) -> float:
        """How many headlines the traced call takes; 1 where the headline is of traced inferences."""
        return 1.0 if self.arm == "traced" else self.call_ns / self.headline_ns


class HeadlineScale(NamedTuple):
    """The scale of the headline, and the times on it."""

    split: HeadlineSplit  # what joins them
    times: Mapping[SelfTimeKey, float]  # of every place; they add up to the split's `execute_ns`
    # mean of the typical inferences of each process, in the order of the table; empty for a process without a
    # measured inference
    by_process: Sequence[Mapping[SelfTimeKey, float]]


class _Chosen(NamedTuple):
    """Weights of all inferences in the mean of their process, and what the processes' calls take by them."""

    weights: list[Floats]
    execute: Floats
    calls: Floats
    processes: list[int]
    inferences: int


def headline_scale(
    table: EventTable, untraced: Sequence[Floats] | None = None, walls: Sequence[Sequence[int]] | None = None
) -> HeadlineScale | None:
    """The scale of the headline; None without a measured inference, or when inferences take no time."""
    if table.clock is not Clock.NS:
        untraced = None  # what the caller saw is in another unit
    found = table.inference_times()
    several = len(np.unique(found.method.codes[~found.warmup])) > 1
    durations = np.concatenate(untraced) if untraced else found.duration[~found.warmup].astype(np.float64)
    headline = float(np.mean(durations) if several else np.median(durations)) if len(durations) else 0.0
    called = _called(table, walls) if untraced else None
    chosen = _chosen(table, called, headline)
    if headline <= 0 or not chosen.processes:
        return None
    by_process = table.weighted_self_times(chosen.weights)
    times: dict[SelfTimeKey, float] = {}
    for number in chosen.processes:
        for place, spent in by_process[number].items():
            times[place] = times.get(place, 0.0) + spent / len(chosen.processes)
    execute = float(chosen.execute[chosen.processes].mean())
    if execute <= 0:
        return None
    factor = 1.0 if untraced else headline / execute
    rows = _outside(chosen, headline, copies=called is not None) if untraced else []
    whole = execute + sum(row.headline_ns for row in rows if row.category is not None)
    split = HeadlineSplit(
        arm="untraced" if untraced else "traced",
        statistic="mean" if several else "median",
        headline_ns=headline,
        execute_ns=execute * factor,
        rows=rows,
        saving_scale=min(1.0, headline / whole) if untraced else 1.0,
        inferences=chosen.inferences,
        processes=chosen.processes,
        estimate=_estimate(chosen, factor),
    )
    scaled = {place: spent * factor for place, spent in times.items()}
    return HeadlineScale(split, scaled, [{k: spent * factor for k, spent in own.items()} for own in by_process])


def no_split_warning(split: HeadlineSplit) -> TraceWarning | None:
    """Why traced calls do not tell where the time of untraced ones goes; None when they do."""
    if split.tracing_ratio <= MOST_TRACED:
        return None
    message = (
        f"traced inferences take {time_text(split.call_ns)}, {ratio_text(split.tracing_ratio)} the untraced latency of "
        f"{time_text(split.headline_ns)}: most of it is the cost of tracing or a disturbance"
    )
    hint = "run again on a quiet machine; a model of a few microseconds can be timed, but not split"
    return TraceWarning(TRACING_DOMINATES, message, hint)


def _called(table: EventTable, walls: Sequence[Sequence[int]] | None) -> list[Floats] | None:
    """What the caller saw of every inference; None unless that is known of all, in the unit of the trace."""
    found = table.inference_times()
    counts = np.bincount(found.process, minlength=table.processes).tolist()
    if walls is None or [len(own) for own in walls] != counts:
        return None
    called = [np.asarray(own, np.float64) for own in walls]
    inside = np.split(found.duration, np.cumsum(counts)[:-1])
    # A call that is shorter than what happens in it was timed by another clock.
    if any(np.median(own) < np.median(within) for own, within in zip(called, inside, strict=True) if len(own)):
        return None
    return called


def _chosen(table: EventTable, called: Sequence[Floats] | None, headline: float) -> _Chosen:
    """What was not disturbed: the middle half of each process's inferences, the processes nearest to the headline."""
    found = table.inference_times()
    weights, execute, calls = [], np.full(table.processes, np.nan), np.full(table.processes, np.nan)
    counts = [0] * table.processes
    for process in range(table.processes):
        own = found.process == process
        inside = found.duration[own].astype(np.float64)
        whole = called[process] if called else inside
        each = _typical(whole, found.method.codes[own], ~found.warmup[own])
        weights.append(each)
        counts[process] = int((each > 0).sum())
        if counts[process]:
            execute[process], calls[process] = each @ inside, each @ whole
    measured = [process for process in range(table.processes) if counts[process]]
    kept = measured
    if len(measured) > FEW:
        nearest = sorted(measured, key=lambda process: abs(calls[process] - headline))
        kept = sorted(nearest[: (len(measured) + 1) // 2])
    return _Chosen(weights, execute, calls, kept, sum(counts[process] for process in kept))


def _typical(durations: Floats, methods: Ints, measured: NDArray[np.bool_]) -> Floats:
    """Weights of a process's inferences that add up to 1: the middle half of each method's, a method by its calls."""
    weights = np.zeros(len(durations))
    total = int(measured.sum())
    for method in np.unique(methods[measured]):
        own = np.flatnonzero(measured & (methods == method))
        order = own[np.argsort(durations[own], kind="stable")]
        middle = order[len(own) // 4 : len(own) - len(own) // 4]
        weights[middle] = len(own) / (len(middle) * total)
    return weights


def _outside(chosen: _Chosen, headline: float, *, copies: bool) -> list[OutsideTime]:
    """The rows between the split and the headline."""
    processes = chosen.processes
    execute, call = float(chosen.execute[processes].mean()), float(chosen.calls[processes].mean())
    seen = chosen.inferences, len(processes)
    if not copies:
        told = "the headline minus Method::execute of traced runs; their callers' clocks are not known"
        rest = headline - execute
        return [OutsideTime(OUTSIDE, None, rest, rest / headline, None, *seen, told)]
    each = (chosen.calls - chosen.execute)[processes]
    effect = paired_effects(each[:, None], np.zeros((len(each), 1)))[0]
    told = "the caller's traced call minus Method::execute inside of it, in the same inferences as the operators"
    moved, rest = call - execute, headline - call
    first = OutsideTime(COPIES, Category.DATA_MOVEMENT, moved, moved / headline, interval_of(effect), *seen, told)
    name = TRACING if rest <= 0 else DIFFERENCE
    return [first, OutsideTime(name, None, rest, rest / headline, None, *seen, _rest_text(rest))]


def _rest_text(rest: float) -> str:
    if rest <= 0:
        return "the headline minus the traced call: time that is in the other rows and not in the headline"
    return "the headline minus the traced call, which was the shorter one: that is not tracing, other runs differ so"


def _estimate(chosen: _Chosen, factor: float) -> str:
    measured = sum(1 for own in chosen.weights if own.any())
    all_of = "all" if len(chosen.processes) == measured else f"{len(chosen.processes)} of {measured}"
    nearest = "" if all_of == "all" else ", those whose calls are nearest to the headline"
    scaled = "" if factor == 1.0 else "; scaled so that they add up to the headline"
    return f"mean of the middle half of each process's inferences, of {all_of} traced processes{nearest}{scaled}"
