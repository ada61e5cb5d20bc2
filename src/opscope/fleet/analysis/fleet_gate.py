"""A gate over all models and devices of a store: which series are slower since a date, and what they have in common.

How often it is wrong and what it sees: docs/design/fleet-gate.md.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, decided, overall
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.stats.distributions import t_quantile
from opscope.core.stats.effect import ALPHA
from opscope.core.stats.many_series import CONFIRMING, SHORTEST
from opscope.core.stats.segments import SMALLEST_CHANGE
from opscope.fleet.analysis.common_moves import (
    MOST,
    ChangedFact,
    CommonMove,
    MoveKind,
    SeriesMove,
    common_moves,
    owner,
    whole_group,
)
from opscope.fleet.analysis.families import FALSE_RED_NIGHTS, RATES, Families, judged_families
from opscope.fleet.analysis.history import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.gate.decision import Decision
    from opscope.core.stats.many_series import JudgedSeries
    from opscope.fleet.analysis.common_moves import RunFacts

    Floats: TypeAlias = NDArray[np.float64]
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
SELECTORS = ("model", "device", "variant", "dtype", "target", "threads")
_VARIANCES = (1.0, 0.5, 0.449)
"""Of the median of one, two and three normal values, over that of one."""


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
        max_slower: the largest slowdown that is let through, as a fraction, in place of the threshold.
        max_ms: the longest that an inference may take, in milliseconds.
    """

    model: Word | None = None
    device: Word | None = None
    variant: Word | None = None
    dtype: Word | None = None
    target: Word | None = None
    threads: Threads | None = None
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


class RunPlace(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        bundle: its hash.
        created: when it began, ISO 8601, UTC.
        placed: when it was added, likewise.
        commit: as it was added with; null where it was not said.
        opscope: version that measured.
        executorch: version; null where it is not known.
    """

    bundle: str
    created: str
    placed: str
    commit: str | None
    opscope: str | None
    executorch: str | None


class PartChange(msgspec.Struct, frozen=True):
    """An operator, or a category of operators, before and after; of traced runs.

    Attributes:
        name: of the operators, or of the category.
        category: that they belong to.
        before_ns: median over the last runs before of the time per inference.
        after_ns: likewise over the first runs of the new level.
    """

    name: str
    category: str
    before_ns: float
    after_ns: float


class ChangeOrigin(msgspec.Struct, frozen=True):
    """Since when a series is slower, and where.

    Attributes:
        first: first run of the new level.
        before: last run before it.
        changed: what differs between the two.
        operators: those whose time grew most, the largest growth first; empty where the runs were not traced.
        categories: likewise.
    """

    first: RunPlace
    before: RunPlace | None
    changed: list[ChangedFact]
    operators: list[PartChange] = []
    categories: list[PartChange] = []


class SlowerSeries(msgspec.Struct, frozen=True):
    """A series that is slower.

    Attributes:
        subject: what it is about: model, dtype, device, target, variant, threads, affinity, arm.
        before_ns: level before the newest runs.
        after_ns: median of the newest runs that show it.
        slowdown: after / before - 1.
        ci95: its 95 % interval, of normal noise.
        limit: the largest slowdown that is let through here.
        runs: newest runs that show it.
        predecessors: runs that it is measured by.
        p_value: corrected for all judged series.
        common: what moved with it: ``device``, ``model`` or ``fleet``; null where it moved by itself.
        origin: since when, and where; null for a suspect, and beyond the first thousand.
    """

    subject: Subject
    before_ns: float
    after_ns: float
    slowdown: float
    ci95: tuple[float, float]
    limit: float
    runs: int
    predecessors: int
    p_value: float
    common: MoveKind | None = None
    origin: ChangeOrigin | None = None


class BudgetLimit(msgspec.Struct, frozen=True):
    """An absolute limit of a budget file.

    Attributes:
        entry: number of the entry, from 0.
        name: what it chooses, in words.
        limit_ns: the longest that an inference may take.
        series: that it chooses and that have a new run.
        beyond: those whose median of the newest runs, three at most, is longer.
        worst_ns: the longest of these medians.
        worst: the series that it is of.
    """

    entry: int
    name: str
    limit_ns: float
    series: int
    beyond: int
    worst_ns: float
    worst: Subject


class ModelCount(msgspec.Struct, frozen=True):
    """The series of a model with a new run: how many were judged, and how many are slower."""

    model: str
    series: int
    judged: int
    slower: int


class NotJudged(msgspec.Struct, frozen=True):
    """Series with a new run that were not judged, and why."""

    reason: str
    series: int


class Detectable(msgspec.Struct, frozen=True):
    """Slowdowns that show in half of the cases, where nothing else changes; null where that cannot be said.

    Attributes:
        what: ``series``, ``device`` or ``model``; the one whose scatter is the median of all.
        judged: how many of them.
        slowdowns: after one, two and three runs or nights.
    """

    what: str
    judged: int
    slowdowns: list[float] | None


class FleetEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="fleet"):
    """What the decision on all series of a store rests on.

    Attributes:
        store: where the runs are.
        since: runs that were added then or later are new, ISO 8601, UTC.
        threshold: the largest slowdown that is let through where no entry of the budget says another.
        false_red_nights: nights in which the gate may be red though nothing changed, as a fraction of all.
        series: with a new run.
        without: series without one.
        judged: series that were judged.
        not_judged: the others.
        slower: series that are slower, the largest slowdown first.
        suspects: series that may be slower, which the next runs will show, likewise.
        moves: what series have in common that moved; the regressions first.
        budgets: absolute limits, in the order of the file.
        models: counts of each model.
        detectable: what would have shown.
    """

    store: str
    since: str
    threshold: float
    false_red_nights: float
    series: int
    without: int
    judged: int
    not_judged: list[NotJudged]
    slower: list[SlowerSeries]
    suspects: list[SlowerSeries]
    moves: list[CommonMove]
    budgets: list[BudgetLimit]
    models: list[ModelCount]
    detectable: list[Detectable]


class FleetTerms(NamedTuple):
    """What a gate over a fleet is asked."""

    store: str  # where the runs are
    since: str  # ISO 8601, UTC
    threshold: float | None = None  # as a fraction; None: that of the budgets, else 3 %
    budgets: FleetBudgets = FleetBudgets()  # limits of chosen series
    file: str = "budget"  # of the budgets, for errors
    without: int = 0  # series without a new run
    untrusted: int = 0  # series whose new runs are all graded `do_not_trust`

    @property
    def usual(self) -> float:
        """The threshold of series that no entry chooses."""
        given = self.budgets.fleet.max_slower if self.threshold is None else self.threshold
        return DEFAULT_THRESHOLD if given is None else given


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
    own = families.series
    moved = _moved(series, own)
    judged = [moved[number] for number in np.flatnonzero(own.runs.judged)]
    groups = {MoveKind.DEVICE: _named(devices, device_flags), MoveKind.MODEL: _named(models, model_flags)}
    found = common_moves(judged)
    found += _reds_without_a_majority(found, judged, groups)
    moves, common = _with_reds(found, moved, slower, groups)
    if terms.budgets.fleet.device_changes == "tell":
        told = {number for number, kind in common.items() if kind is MoveKind.DEVICE}
        slower = slower & ~np.isin(np.arange(len(series)), list(told))
        moves = [replace(one, regression=False) if one.kind is MoveKind.DEVICE else one for one in moves]
    larger = own.change > np.log1p(limits)
    suspects = larger & (own.p_values <= SUSPECT) & ~slower & own.runs.judged
    by_size = np.argsort(-own.change, kind="stable")
    red, may_be = ([int(n) for n in by_size if flags[n]] for flags in (slower, suspects))
    return FleetDecision(families, limits, red, may_be, moves, common)


def fleet_gate(
    series: Sequence[StoredSeries], terms: FleetTerms, decision: FleetDecision, origins: Mapping[int, ChangeOrigin]
) -> Decision[FleetEvidence]:
    """The decision with everything that it rests on."""
    slower = [_slower(series, decision, number, origins.get(number)) for number in decision.slower]
    evidence = FleetEvidence(
        store=terms.store,
        since=terms.since,
        threshold=terms.usual,
        false_red_nights=FALSE_RED_NIGHTS,
        series=len(series) + terms.untrusted,
        without=terms.without,
        judged=int(decision.families.series.runs.judged.sum()),
        not_judged=_not_judged(series, terms, decision),
        slower=slower,
        suspects=[_slower(series, decision, number, None) for number in decision.suspects],
        moves=sorted(decision.moves, key=lambda move: not move.regression),
        budgets=_budget_limits(series, terms.budgets),
        models=_models(series, decision),
        detectable=_detectable(decision.families),
    )
    criteria = _criteria(evidence, Outcome.UNTRUSTED if terms.untrusted else Outcome.INCONCLUSIVE)
    told = _advice(overall(criteria), slower, decision.moves, evidence.budgets)
    return decided(criteria, evidence, advice=told, notes=_notes(terms, slower, decision))


def move_name(move: CommonMove) -> str:
    """What a common move is of, as a criterion is called."""
    return "all series" if move.kind is MoveKind.FLEET else f"{move.kind.value} {move.name}"


def budget_name(limit: BudgetLimit) -> str:
    """An absolute limit, as its criterion is called."""
    return f"{limit.name}, entry {limit.entry}"


def model_name(count: ModelCount) -> str:
    """The series of a model, as their criterion is called."""
    return f"series of {count.model}"


def _criteria(found: FleetEvidence, nothing: Outcome) -> list[Criterion]:
    """What is slower as a whole, absolute limits, models; where no series could be judged, ``nothing`` is the outcome.

    A model without a judged series decides nothing beside others that have some.
    """
    wholes = [_whole_criterion(move, found.threshold) for move in found.moves if move.regression]
    others = [*wholes, *map(_budget_criterion, found.budgets)]
    red = overall(others) is Outcome.REGRESSION
    unjudged = Outcome.SKIPPED if found.judged or red else nothing
    return [*others, *(_model_criterion(count, unjudged) for count in found.models)]


def _whole_criterion(move: CommonMove, threshold: float) -> Criterion:
    reason = f"slower as a whole, and {move.moved} of {move.series} series by themselves"
    return Criterion(move_name(move), Quantity.SLOWDOWN, threshold, move.ratio - 1, None, Outcome.REGRESSION, reason)


def _budget_criterion(limit: BudgetLimit) -> Criterion:
    outcome = Outcome.REGRESSION if limit.beyond else Outcome.PASSED
    reason = f"{limit.beyond or 'none'} of {limit.series} series beyond the limit"
    name = budget_name(limit)
    return Criterion(
        name, Quantity.TIME, limit.limit_ns, limit.worst_ns, None, outcome, reason, limit.worst_ns, entry=limit.entry
    )


def _model_criterion(count: ModelCount, unjudged: Outcome) -> Criterion:
    name = model_name(count)
    if not count.judged:
        return Criterion(name, Quantity.COUNT, 0.0, None, None, unjudged, "no series could be judged")
    outcome = Outcome.REGRESSION if count.slower else Outcome.PASSED
    reason = f"{count.slower or 'none'} of {count.judged} judged series slower"
    return Criterion(name, Quantity.COUNT, 0.0, float(count.slower), None, outcome, reason)


def first_of_level(latencies: Sequence[float], level_ns: float, after_ns: float) -> int:
    """Number of the first run from which on all are nearer to the new level than to the one before."""
    middle, first = math.sqrt(level_ns * after_ns), len(latencies) - 1
    while first > 0 and (latencies[first - 1] > middle) is (after_ns > level_ns):
        first -= 1
    return first


def _limits(series: Sequence[StoredSeries], terms: FleetTerms) -> Floats:
    """The threshold of each series, by the last entry that chooses it."""
    limits = np.full(len(series), terms.usual)
    for number, budget in enumerate(terms.budgets.budget):
        chosen = [place for place, one in enumerate(series) if _chooses(budget, one.subject)]
        if not chosen:
            raise _chooses_nothing(terms.file, number, budget, series)
        if budget.max_slower is not None:
            limits[chosen] = budget.max_slower
    return limits


def _chooses(budget: SeriesBudget, subject: Subject) -> bool:
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
    hint = "leave the entry out, or a word of it"
    return UsageError("no series with a new run is all of this", where=place, hint=hint)


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


def _named(names: Sequence[str], flags: NDArray[np.bool_]) -> set[str]:
    return {name for name, flag in zip(names, flags, strict=True) if flag}


def _moved(series: Sequence[StoredSeries], own: JudgedSeries) -> list[SeriesMove]:
    """Which way each series moved; falls are judged by the same distances as rises."""
    found = []
    fell = own.fall_p_values
    for number, one in enumerate(series):
        change = float(own.change[number])
        if fell[number] < own.p_values[number]:
            change = float(own.fall[number])
        shown = min(fell[number], own.p_values[number]) <= MOVED and abs(change) >= math.log1p(SMALLEST_CHANGE)
        direction = int(math.copysign(1, change)) if shown else 0
        found.append(
            SeriesMove(one.subject.model, one.subject.device, math.exp(change), direction, one.facts_before, one.facts)
        )
    return found


def _with_reds(
    found: Sequence[CommonMove],
    moved: Sequence[SeriesMove],
    slower: NDArray[np.bool_],
    red: Mapping[MoveKind, set[str]],
) -> tuple[list[CommonMove], dict[int, MoveKind]]:
    """Moves with those marked that are regressions, and what moved with each series that rose."""
    marked: list[CommonMove] = []
    common: dict[int, MoveKind] = {}
    for move in found:
        rises = move.ratio > 1
        own = [n for n, one in enumerate(moved) if rises and one.direction == 1 and owner(one, move.kind) == move.name]
        regression = rises and (move.name in red.get(move.kind, ()) or bool(slower[own].any()))
        marked.append(replace(move, regression=regression))
        common |= dict.fromkeys(own, move.kind)
    return marked, common


def _reds_without_a_majority(
    found: Sequence[CommonMove], judged: Sequence[SeriesMove], red: Mapping[MoveKind, set[str]]
) -> list[CommonMove]:
    """Devices and models whose median is slower though fewer than half of their series show it by themselves.

    Where that is so of most devices, devices and programs cannot be distinguished.
    """
    known = {(move.kind, move.name) for move in found if move.ratio > 1}
    if (MoveKind.FLEET, "") in known:
        return []
    devices = {one.device for one in judged}
    if len(devices) > 1 and len(red[MoveKind.DEVICE]) > MOST * len(devices):
        return [whole_group(judged, MoveKind.FLEET)]
    missing = [(kind, name) for kind, names in red.items() for name in sorted(names) if (kind, name) not in known]
    return [whole_group(judged, kind, name) for kind, name in missing]


def _slower(
    series: Sequence[StoredSeries], decision: FleetDecision, number: int, where: ChangeOrigin | None
) -> SlowerSeries:
    own = decision.families.series
    runs, change = int(own.confirmed[number]), float(own.change[number])
    level, count = math.exp(own.runs.level[number]), int(own.runs.predecessors[number])
    variance = _VARIANCES[runs - 1] + math.pi / 2 / count
    half = t_quantile(1 - ALPHA / 2, max(count - 1, 1)) * float(own.runs.scatter[number]) * math.sqrt(variance)
    return SlowerSeries(
        subject=series[number].subject,
        before_ns=level,
        after_ns=level * math.exp(change),
        slowdown=math.expm1(change),
        ci95=(math.expm1(change - half), math.expm1(change + half)),
        limit=float(decision.limits[number]),
        runs=runs,
        predecessors=count,
        p_value=float(own.corrected[number]),
        common=decision.common.get(number),
        origin=where,
    )


def _budget_limits(series: Sequence[StoredSeries], budgets: FleetBudgets) -> list[BudgetLimit]:
    found = []
    for number, budget in enumerate(budgets.budget):
        if budget.max_ms is None:
            continue
        own = [one for one in series if _chooses(budget, one.subject)]
        chosen = [(float(np.median(one.latencies[-CONFIRMING:])), one.subject) for one in own]
        limit = budget.max_ms * 1e6
        worst = max(chosen, key=lambda pair: pair[0])
        beyond = sum(value > limit for value, _ in chosen)
        words = [f"{name} {getattr(budget, name)}" for name in SELECTORS if getattr(budget, name) is not None]
        found.append(BudgetLimit(number, ", ".join(words) or "all series", limit, len(chosen), beyond, *worst))
    return found


def _not_judged(series: Sequence[StoredSeries], terms: FleetTerms, decision: FleetDecision) -> list[NotJudged]:
    judged = decision.families.series.runs.judged
    reasons = Counter(_reason(one) for one, flag in zip(series, judged, strict=True) if not flag)
    if terms.untrusted:
        reasons["new runs that are not to be trusted"] = terms.untrusted
    return [NotJudged(reason, count) for reason, count in reasons.most_common()]


def _reason(one: StoredSeries) -> str:
    if len(one.latencies) < SHORTEST:
        return f"fewer than {SHORTEST} runs"
    return "a latency of zero" if min(one.latencies) <= 0 else "too few runs since the level changed"


def _models(series: Sequence[StoredSeries], decision: FleetDecision) -> list[ModelCount]:
    counts: dict[str, list[int]] = {}
    slower = set(decision.slower)
    for number, one in enumerate(series):
        own = counts.setdefault(one.subject.model, [0, 0, 0])
        own[0] += 1
        own[1] += int(decision.families.series.runs.judged[number])
        own[2] += number in slower
    return [ModelCount(name, *own) for name, own in sorted(counts.items())]


def _detectable(families: Families) -> list[Detectable]:
    found = []
    for what, own, rate in zip(("series", "device", "model"), families, RATES, strict=True):
        judged = int(own.runs.judged.sum())
        sizes = own.detectable(rate / judged) if judged else None
        found.append(Detectable(what, judged, sizes and [math.expm1(size) for size in sizes]))
    return found


def _notes(terms: FleetTerms, slower: Sequence[SlowerSeries], decision: FleetDecision) -> list[str]:
    found = []
    if terms.without:
        found.append(f"{terms.without} series of the store without a new run")
    unknown = sum(one.origin is None for one in slower)
    if unknown:
        found.append(f"operators and first runs were looked up for the {len(slower) - unknown} largest slowdowns alone")
    if terms.budgets.fleet.device_changes == "tell" and any(
        move.kind is MoveKind.DEVICE and move.ratio > 1 for move in decision.moves
    ):
        found.append("slowdowns of whole devices are reported but pass, as the budget says")
    return found


def _advice(
    outcome: Outcome, slower: Sequence[SlowerSeries], moves: Sequence[CommonMove], budgets: Sequence[BudgetLimit]
) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.UNTRUSTED:
        return QUIETER
    if outcome is Outcome.INCONCLUSIVE:
        return f"a series needs {SHORTEST} runs; add more of them to the store"
    kinds = {move.kind for move in moves if move.regression}
    if MoveKind.DEVICE in kinds:
        return "look at the device first: its system, its power and what else runs on it"
    if kinds or slower:
        return "`opscope compare` of the two bundles named as first and before shows every operator"
    return "make it faster, or raise the limit where the new time is meant" if budgets else None
