"""A gate over all models and devices of a store: which series are slower since a date, and what they have in common.

How often it is wrong and what it sees: docs/design/fleet-gate.md.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, decided, overall
from opscope.core.stats.distributions import t_quantile
from opscope.core.stats.effect import ALPHA
from opscope.core.stats.many_series import CONFIRMING, SHORTEST
from opscope.fleet.analysis.common_moves import ChangedFact, CommonMove, MoveKind
from opscope.fleet.analysis.fleet_decision import FALSE_RED_NIGHTS, RATES, SELECTORS, VanishedDevice, chooses
from opscope.fleet.analysis.history import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.core.stats.segments import LevelStep
    from opscope.fleet.analysis.fleet_decision import Families, FleetBudgets, FleetDecision, FleetTerms, StoredSeries

_VARIANCES = (1.0, 0.5, 0.449)
"""Of the median of one, two and three normal values, over that of one."""


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
        first: first run of the new level; the first that certainly is of it.
        before: last run that is certainly before it.
        runs_ago: how many runs ago the new level began, the newest run being one ago: at least, and at most.
        changed: what differs between the two.
        operators: those whose time grew most, the largest growth first; empty where the runs were not traced.
        categories: likewise.
    """

    first: RunPlace
    before: RunPlace | None
    runs_ago: tuple[int, int]
    changed: list[ChangedFact]
    operators: list[PartChange] = []
    categories: list[PartChange] = []


class SlowerSeries(msgspec.Struct, frozen=True):
    """A series that is slower.

    Attributes:
        subject: what it is about: model, dtype, device, target, variant, threads, affinity, arm.
        before_ns: level before; of a series without an origin, before its newest runs.
        after_ns: the new level; likewise, the median of the newest runs that show it.
        slowdown: after / before - 1.
        ci95: its 95 % interval, by Student's t.
        limit: the largest slowdown that is let through here.
        runs: runs that are certainly of the new level; likewise, newest runs that show it.
        predecessors: runs that it is measured by.
        p_value: corrected for all judged series.
        common: what moved with it: ``device``, ``model`` or ``fleet``; null where it moved by itself.
        origin: since when, and where; null for a suspect, beyond the first thousand, and
            where no step describes it.
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
        vanished: devices without a new run, of whose CPU a new device has appeared.
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
    vanished: list[VanishedDevice] = []


def fleet_gate(
    series: Sequence[StoredSeries],
    terms: FleetTerms,
    decision: FleetDecision,
    origins: Mapping[int, tuple[LevelStep, ChangeOrigin]],
) -> Decision[FleetEvidence]:
    """The decision with everything that it rests on."""
    slower = [_slower(series, decision, number, origins.get(number)) for number in decision.slower]
    judged = decision.families.series.runs.judged
    reasons = Counter(_reason(one) for one, flag in zip(series, judged, strict=True) if not flag)
    if terms.untrusted:
        reasons["new runs that are not to be trusted"] = terms.untrusted
    evidence = FleetEvidence(
        store=terms.store,
        since=terms.since,
        threshold=terms.usual,
        false_red_nights=FALSE_RED_NIGHTS,
        series=len(series) + terms.untrusted,
        without=terms.without,
        judged=int(decision.families.series.runs.judged.sum()),
        not_judged=[NotJudged(reason, count) for reason, count in reasons.most_common()],
        slower=slower,
        suspects=[_slower(series, decision, number, None) for number in decision.suspects],
        moves=sorted(decision.moves, key=lambda move: not move.regression),
        budgets=_budget_limits(series, terms.budgets),
        models=_models(series, decision),
        detectable=_detectable(decision.families),
        vanished=list(terms.vanished),
    )
    criteria = _criteria(evidence, Outcome.UNTRUSTED if terms.untrusted else Outcome.INCONCLUSIVE)
    text = _advice(overall(criteria), slower, decision.moves, evidence.budgets)
    return decided(criteria, evidence, advice=text, notes=_notes(terms, slower, decision))


def move_name(move: CommonMove) -> str:
    """What a common move is of, as a criterion is called."""
    return "all series" if move.kind is MoveKind.FLEET else f"{move.kind.value} {move.name}"


def budget_name(limit: BudgetLimit) -> str:
    """An absolute limit, as its criterion is called."""
    return f"{limit.name}, entry {limit.entry}"


def model_name(count: ModelCount) -> str:
    """The series of a model, as their criterion is called."""
    return f"series of {count.model}"


def _criteria(evidence: FleetEvidence, nothing: Outcome) -> list[Criterion]:
    """What is slower as a whole, absolute limits, models; where no series could be judged, ``nothing`` is the outcome.

    A model without a judged series decides nothing beside others that have some.
    """
    wholes = [_whole_criterion(move, evidence.threshold) for move in evidence.moves if move.regression]
    others = [*wholes, *map(_budget_criterion, evidence.budgets)]
    red = overall(others) is Outcome.REGRESSION
    unjudged = Outcome.SKIPPED if evidence.judged or red else nothing
    return [*others, *(_model_criterion(count, unjudged) for count in evidence.models)]


def _whole_criterion(move: CommonMove, threshold: float) -> Criterion:
    reason = f"slower as a whole, and {move.moved} of {move.series} series individually"
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


def _slower(
    series: Sequence[StoredSeries], decision: FleetDecision, number: int, traced: tuple[LevelStep, ChangeOrigin] | None
) -> SlowerSeries:
    judged_series = decision.families.series
    runs, change = int(judged_series.confirmed[number]), float(judged_series.change[number])
    level, count = math.exp(judged_series.runs.level[number]), int(judged_series.runs.predecessors[number])
    variance = _VARIANCES[runs - 1] + math.pi / 2 / count
    half = (
        t_quantile(1 - ALPHA / 2, max(count - 1, 1)) * float(judged_series.runs.scatter[number]) * math.sqrt(variance)
    )
    slower_series = SlowerSeries(
        subject=series[number].subject,
        before_ns=level,
        after_ns=level * math.exp(change),
        slowdown=math.expm1(change),
        ci95=(math.expm1(change - half), math.expm1(change + half)),
        limit=float(decision.limits[number]),
        runs=runs,
        predecessors=count,
        p_value=float(judged_series.corrected[number]),
        common=decision.common.get(number),
    )
    if traced is None:
        return slower_series
    step, origin = traced
    low, high = step.ci95
    return msgspec.structs.replace(
        slower_series,
        before_ns=step.before,
        after_ns=step.after,
        slowdown=step.ratio - 1,
        ci95=(low - 1, high - 1),
        runs=origin.runs_ago[0],
        origin=origin,
    )


def _budget_limits(series: Sequence[StoredSeries], budgets: FleetBudgets) -> list[BudgetLimit]:
    limits = []
    for number, budget in enumerate(budgets.budget):
        if budget.max_ms is None:
            continue
        stored_series = [one for one in series if chooses(budget, one.subject)]
        chosen = [(float(np.median(one.latencies[-CONFIRMING:])), one.subject) for one in stored_series]
        limit = budget.max_ms * 1e6
        worst = max(chosen, key=lambda pair: pair[0])
        beyond = sum(value > limit for value, _ in chosen)
        words = [f"{name} {getattr(budget, name)}" for name in SELECTORS if getattr(budget, name) is not None]
        limits.append(BudgetLimit(number, ", ".join(words) or "all series", limit, len(chosen), beyond, *worst))
    return limits


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
    detectables = []
    for what, series, rate in zip(("series", "device", "model"), families, RATES, strict=True):
        judged = int(series.runs.judged.sum())
        sizes = series.detectable(rate / judged) if judged else None
        detectables.append(Detectable(what, judged, sizes and [math.expm1(size) for size in sizes]))
    return detectables


def _notes(terms: FleetTerms, slower: Sequence[SlowerSeries], decision: FleetDecision) -> list[str]:
    notes = []
    if terms.without:
        notes.append(f"{terms.without} series of the store without a new run")
    unknown = sum(one.origin is None for one in slower)
    if unknown:
        known = len(slower) - unknown
        notes.append(f"operators and first runs are known for {known} of {len(slower)} slowdowns, the largest first")
    if terms.budgets.fleet.device_changes == "tell" and any(
        move.kind is MoveKind.DEVICE and move.ratio > 1 for move in decision.moves
    ):
        notes.append("slowdowns of whole devices are reported but pass, as the budget allows")
    return notes


def _advice(
    outcome: Outcome, slower: Sequence[SlowerSeries], moves: Sequence[CommonMove], budgets: Sequence[BudgetLimit]
) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.UNTRUSTED:
        return QUIETER
    if outcome is Outcome.INCONCLUSIVE:
        return f"a series needs {SHORTEST} runs; add more to the store"
    kinds = {move.kind for move in moves if move.regression}
    if MoveKind.DEVICE in kinds:
        return "check the device first: its system, power and other load"
    if kinds or slower:
        return "run `opscope compare` on the two bundles named first and before to see every operator"
    return "make it faster, or raise the limit if the new time is intended" if budgets else None
