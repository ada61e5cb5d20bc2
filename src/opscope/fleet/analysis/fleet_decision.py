"""The decision on the newest runs of a fleet: which series are slower, and what they have in common.

They are judged in three families: each series, what a device's series share, what a model's series share. Each family
has its part of the rate at which nights may be red without a reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.stats.many_series import (
    SHORTEST,
    JudgedSeries,
    common_courses,
    judge_newest,
    levels,
    newest_runs,
)
from opscope.core.stats.segments import SMALLEST_CHANGE
from opscope.fleet.analysis.common_moves import MOST, MoveKind, SeriesMove, common_moves, owner, whole_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.fleet.analysis.common_moves import CommonMove, RunFacts
    from opscope.fleet.analysis.history import Subject

    Floats: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.int64]

Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Fraction: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Threads: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65536)]

MOST_PREDECESSORS = 60
"""Runs before the newest ones that a series is judged by."""
SUSPECT = 0.001
"""P-value, not corrected, up to which a series that is no regression may be one."""
MOVED = 0.01
"""P-value, not corrected, up to which a series counts as moved where its device or its model is asked for."""
SELECTORS = ("model", "device", "variant", "dtype", "target", "threads", "method")
FALSE_RED_NIGHTS = 1 / 30
"""Nights in which the gate may be red though nothing changed: one of thirty."""
RATES = (FALSE_RED_NIGHTS / 2, FALSE_RED_NIGHTS / 4, FALSE_RED_NIGHTS / 4)
"""Parts of it: of series, devices and models. Each is a false discovery rate, too."""


class FleetLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of all series.

    Attributes:
        max_slower: the largest slowdown that is allowed, as a fraction; the threshold of the gate.
        device_changes: whether a slowdown that is most of one device's series' fails the gate, or is only told.
    """

    max_slower: Fraction | None = None
    device_changes: Annotated[str, msgspec.Meta(pattern="^(fail|tell)$")] = "fail"


class SeriesBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the series that all given words choose.

    Attributes:
        model: name of the model.
        device: name of the device, as the store has it.
        variant: name of the variant.
        dtype: number type.
        target: kind of target.
        threads: size of the thread pool.
        method: one of several that a run calls.
        max_slower: the largest slowdown that is let through, as a fraction, in place of the threshold.
        max_ms: the longest that an inference may take, in milliseconds.
    """

    model: Word | None = None
    device: Word | None = None
    variant: Word | None = None
    dtype: Word | None = None
    target: Word | None = None
    threads: Threads | None = None
    method: Word | None = None
    max_slower: Fraction | None = None
    max_ms: Milliseconds | None = None


class FleetBudgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a budget file of a fleet holds. Of several entries that choose a series, the last one with a limit holds."""

    fleet: FleetLimits = FleetLimits()
    budget: Annotated[list[SeriesBudget], msgspec.Meta(max_length=1000)] = []


class StoredSeries(NamedTuple):
    """The runs of one thing on one machine."""

    subject: Subject  # what they are runs of
    latencies: Sequence[float]  # ns, oldest first: `MOST_PREDECESSORS` at most, then the newest, `CONFIRMING` at most
    nights: Sequence[int]  # numbers of their nights
    bundle: str  # of the newest run
    facts_before: RunFacts  # what is known of the last run before the newest ones
    facts: RunFacts  # of the newest run


class VanishedDevice(msgspec.Struct, frozen=True):
    """A device that ran not long ago and has no new run, and others that have their first ones: perhaps the same.

    Attributes:
        device: its name.
        cpu: of it, and of the others.
        appeared: names of the others.
    """

    device: str
    cpu: str
    appeared: list[str]


class FleetTerms(NamedTuple):
    """What a gate over a fleet is asked."""

    store: str  # where the runs are
    since: str  # ISO 8601, UTC
    threshold: float | None = None  # as a fraction; None: that of the budgets, else 3 %
    budgets: FleetBudgets = FleetBudgets()  # limits of chosen series
    file: str = "budget"  # of the budgets, for errors
    without: int = 0  # series without a new run
    untrusted: int = 0  # series whose new runs are all graded `do_not_trust`
    vanished: Sequence[VanishedDevice] = ()  # devices whose series may go on under another name

    @property
    def usual(self) -> float:
        """The threshold of series that no entry chooses."""
        given = self.budgets.fleet.max_slower if self.threshold is None else self.threshold
        return DEFAULT_THRESHOLD if given is None else given


class Families(NamedTuple):
    """A night of a fleet."""

    series: JudgedSeries  # each by itself
    devices: JudgedSeries  # medians over the series of each device; not judged where these are fewer than three
    models: JudgedSeries

    def slower(self, limits: Floats | float) -> tuple[Flags, Flags, Flags]:
        """Which series, devices and models are slower than noise explains, and by more than a limit."""
        least = float(np.min(limits)) if np.size(limits) else 0.0
        series = (self.series.corrected <= RATES[0]) & (self.series.change > np.log1p(limits))
        devices = (self.devices.corrected <= RATES[1]) & (self.devices.change > math.log1p(least))
        models = (self.models.corrected <= RATES[2]) & (self.models.change > math.log1p(least))
        return series, devices, models


class FleetDecision(NamedTuple):
    """What was decided on each series, by its number, before anything is asked of where and since when."""

    families: Families  # the figures
    limits: Floats  # threshold of each series
    slower: list[int]  # numbers of the series that are slower, the largest slowdown first
    suspects: list[int]  # likewise of those that may be
    moves: list[CommonMove]  # what series have in common that moved
    common: Mapping[int, MoveKind]  # what moved with a series, by its number


def decide(series: Sequence[StoredSeries], terms: FleetTerms) -> FleetDecision:
    """Which series are slower, and what they have in common."""
    limits = _limits(series, terms)
    logs, nights = _matrix(series)
    device, devices = _numbered([one.subject.device for one in series])
    model, models = _numbered([one.subject.model for one in series])
    families = judged_families(logs, nights, device, model)
    slower, device_flags, model_flags = families.slower(limits)
    judged_series = families.series
    moved = _moved(series, judged_series)
    judged = [moved[number] for number in np.flatnonzero(judged_series.runs.judged)]
    groups = {MoveKind.DEVICE: _named(devices, device_flags), MoveKind.MODEL: _named(models, model_flags)}
    found = common_moves(judged)
    found += _reds_without_a_majority(found, judged, groups)
    moves, common = _with_reds(found, moved, slower, groups)
    if terms.budgets.fleet.device_changes == "tell":
        told = {number for number, kind in common.items() if kind is MoveKind.DEVICE}
        slower = slower & ~np.isin(np.arange(len(series)), list(told))
        moves = [replace(one, regression=False) if one.kind is MoveKind.DEVICE else one for one in moves]
    larger = judged_series.change > np.log1p(limits)
    suspects = larger & (judged_series.p_values <= SUSPECT) & ~slower & judged_series.runs.judged
    by_size = np.argsort(-judged_series.change, kind="stable")
    red, may_be = ([int(n) for n in by_size if flags[n]] for flags in (slower, suspects))
    return FleetDecision(families, limits, red, may_be, moves, common)


def judged_families(logs: Floats, nights: Integers, devices: Integers, models: Integers) -> Families:
    """Judge the newest runs of a fleet."""
    series_levels = levels(logs)
    runs = newest_runs(logs, series_levels)
    of_devices, of_models = (common_courses(series_levels, runs, nights, groups) for groups in (devices, models))
    by_device, by_model = judge_newest(of_devices.logs), judge_newest(of_models.logs)
    # What changed on a whole device or in a whole model is no noise of its series, however small it is in each.
    changed = of_devices.runs_in(by_device.lasting, nights, devices) | of_models.runs_in(
        by_model.lasting, nights, models
    )
    return Families(judge_newest(logs, changed), by_device, by_model)


def _limits(series: Sequence[StoredSeries], terms: FleetTerms) -> Floats:
    """The threshold of each series, by the last entry that chooses it."""
    limits = np.full(len(series), terms.usual)
    for number, budget in enumerate(terms.budgets.budget):
        chosen = [place for place, one in enumerate(series) if chooses(budget, one.subject)]
        if not chosen:
            raise _chooses_nothing(terms.file, number, budget, series)
        if budget.max_slower is not None:
            limits[chosen] = budget.max_slower
    return limits


def chooses(budget: SeriesBudget, subject: Subject) -> bool:
    """Whether a series is meant by an entry."""
    given = ((getattr(budget, name), getattr(subject, name)) for name in SELECTORS)
    return all(word is None or word == own for word, own in given)


def _chooses_nothing(file: str, number: int, budget: SeriesBudget, series: Sequence[StoredSeries]) -> UsageError:
    place = f"{file}: budget[{number}]"
    for name in SELECTORS:
        word = getattr(budget, name)
        known = {getattr(one.subject, name) for one in series}
        if word is not None and word not in known:
            hint = did_you_mean(str(word), sorted(str(one) for one in known if one is not None))
            return UsageError(f"no series with a new run has the {name} {word!r}", where=f"{place}.{name}", hint=hint)
    hint = "remove the entry, or one of its keys"
    return UsageError("no series with a new run matches all of this", where=place, hint=hint)


def _matrix(series: Sequence[StoredSeries]) -> tuple[Floats, Integers]:
    """Logarithms and nights of the runs, the newest in the last column; nan where a figure is none, or zero."""
    width = max(SHORTEST, *(len(one.latencies) for one in series))
    logs = np.full((len(series), width), math.nan)
    nights = np.zeros(logs.shape, np.int64)
    for row, one in enumerate(series):
        values = np.asarray(one.latencies, np.float64)
        # A series with fewer new runs than may confirm one another takes the ones before them.
        logs[row, -len(values) :] = np.log(values, out=np.full(len(values), math.nan), where=values > 0)
        nights[row, -len(values) :] = one.nights
    return logs, nights


def _numbered(names: Sequence[str]) -> tuple[Integers, list[str]]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64), list(numbers)


def _named(names: Sequence[str], flags: Flags) -> set[str]:
    return {name for name, flag in zip(names, flags, strict=True) if flag}


def _moved(series: Sequence[StoredSeries], judged_series: JudgedSeries) -> list[SeriesMove]:
    """Which way each series moved; falls are judged by the same distances as rises."""
    moves = []
    fell = judged_series.fall_p_values
    for number, one in enumerate(series):
        change = float(judged_series.change[number])
        if fell[number] < judged_series.p_values[number]:
            change = float(judged_series.fall[number])
        shown = min(fell[number], judged_series.p_values[number]) <= MOVED and abs(change) >= math.log1p(
            SMALLEST_CHANGE
        )
        direction = int(math.copysign(1, change)) if shown else 0
        moves.append(
            SeriesMove(one.subject.model, one.subject.device, math.exp(change), direction, one.facts_before, one.facts)
        )
    return moves


def _with_reds(
    moves: Sequence[CommonMove],
    moved: Sequence[SeriesMove],
    slower: Flags,
    red: Mapping[MoveKind, set[str]],
) -> tuple[list[CommonMove], dict[int, MoveKind]]:
    """Moves with those marked that are regressions, and what moved with each series that rose."""
    marked: list[CommonMove] = []
    common: dict[int, MoveKind] = {}
    for move in moves:
        rises = move.ratio > 1
        own = [n for n, one in enumerate(moved) if rises and one.direction == 1 and owner(one, move.kind) == move.name]
        regression = rises and (move.name in red.get(move.kind, ()) or bool(slower[own].any()))
        marked.append(replace(move, regression=regression))
        common |= dict.fromkeys(own, move.kind)
    return marked, common


def _reds_without_a_majority(
    moves: Sequence[CommonMove], judged: Sequence[SeriesMove], red: Mapping[MoveKind, set[str]]
) -> list[CommonMove]:
    """Devices and models whose median is slower though fewer than half of their series show it by themselves.

    Where that is so of most devices, devices and programs cannot be distinguished.
    """
    known = {(move.kind, move.name) for move in moves if move.ratio > 1}
    if (MoveKind.FLEET, "") in known:
        return []
    devices = {one.device for one in judged}
    if len(devices) > 1 and len(red[MoveKind.DEVICE]) > MOST * len(devices):
        return [whole_group(judged, MoveKind.FLEET)]
    missing = [(kind, name) for kind, names in red.items() for name in sorted(names) if (kind, name) not in known]
    return [whole_group(judged, kind, name) for kind, name in missing]
