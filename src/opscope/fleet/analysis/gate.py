"""A gate over all models and devices of a store: which series are slower since a date, and what they have in common.

How often it is wrong and what it sees: docs/design/fleet-gate.md.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, decided, overall
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.stats.many_series import CONFIRMING, SHORTEST
from opscope.fleet.analysis.causes import CauseKind, ChangedFact, SharedCause
from opscope.fleet.analysis.detector import FALSE_RED_NIGHTS
from opscope.fleet.analysis.series import Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.analysis.gate.decision import Decision
    from opscope.fleet.analysis.detector import DetectedChange

Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Fraction: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Threads: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65536)]

SELECTORS = ("model", "device", "variant", "dtype", "target", "threads", "method")


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

    def selects(self, subject: Subject) -> bool:
        """Return whether a series is meant."""
        pairs = ((getattr(self, name), getattr(subject, name)) for name in SELECTORS)
        return all(word is None or word == own for word, own in pairs)


class FleetBudgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a budget file of a fleet holds. Of several entries that choose a series, the last one with a limit holds."""

    fleet: FleetLimits = FleetLimits()
    budget: Annotated[list[SeriesBudget], msgspec.Meta(max_length=1000)] = []


class RunPlace(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        bundle: its hash.
        placed: when it began, ISO 8601, UTC.
    """

    bundle: str
    placed: str


class PartChange(msgspec.Struct, frozen=True):
    """Operators of one name, before and after; of traced runs.

    Attributes:
        name: of the operators.
        category: that they belong to.
        before_ns: median over the last runs before of the time per inference.
        after_ns: median over the first runs of the new level.
    """

    name: str
    category: str
    before_ns: float
    after_ns: float


class SlowerSeries(msgspec.Struct, frozen=True):
    """A series that is slower.

    Attributes:
        subject: what it is about: model, dtype, device, target, variant, threads, affinity, arm.
        before_ns: level before.
        after_ns: the new level.
        slowdown: after / before - 1.
        ci95: its 95 % interval, by Student's t.
        limit: the largest slowdown that is let through here.
        runs: runs that are certainly of the new level.
        p_value: corrected for all judged series.
        first: first run that certainly is of the new level.
        before: last run that is certainly before it.
        cause: what slowed with it: ``device``, ``model``, ``software`` or ``fleet``; null where it slowed by itself.
        changed: what differs between the manifests of the two runs.
        operators: those whose time grew most, the largest growth first; empty where the runs were not traced.
    """

    subject: Subject
    before_ns: float
    after_ns: float
    slowdown: float
    ci95: tuple[float, float]
    limit: float
    runs: int
    p_value: float
    first: RunPlace
    before: RunPlace
    cause: CauseKind | None = None
    changed: list[ChangedFact] = []
    operators: list[PartChange] = []


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


class FleetEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="fleet"):
    """What the decision on all series of a store rests on.

    Attributes:
        store: where the runs are.
        since: runs that began then or later are new, ISO 8601, UTC.
        threshold: the largest slowdown that is let through where no entry of the budget says another.
        false_red_nights: nights in which the gate may be red though nothing changed, as a fraction of all.
        series: with a new run.
        without: series without one.
        judged: series that were judged.
        not_judged: the others.
        slower: series that are slower, the largest slowdown first.
        causes: what series have in common that changed since.
        budgets: absolute limits, in the order of the file.
        models: counts of each model.
        detectable: slowdowns that show in half of the series of median scatter, after one, two and three runs; null
            where none was judged.
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
    causes: list[SharedCause]
    budgets: list[BudgetLimit]
    models: list[ModelCount]
    detectable: list[float] | None
    vanished: list[VanishedDevice] = []


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
    def usual_limit(self) -> float:
        """The threshold of series that no entry chooses."""
        given = self.budgets.fleet.max_slower if self.threshold is None else self.threshold
        return DEFAULT_THRESHOLD if given is None else given


class GateSeries(NamedTuple):
    """A series with a new run, as the gate judges it."""

    subject: Subject
    latencies: NDArray[np.float64]  # ns, oldest first
    is_judged: bool
    rise: DetectedChange | None  # the newest confirmed rise since the date; None without one


def series_limits(series: Sequence[GateSeries], terms: FleetTerms) -> list[float]:
    """Return the threshold of each series, by the last entry of the budgets that chooses it.

    Raises UsageError where an entry chooses none.
    """
    limits = [terms.usual_limit] * len(series)
    for number, budget in enumerate(terms.budgets.budget):
        chosen = [at for at, one in enumerate(series) if budget.selects(one.subject)]
        if not chosen:
            raise _selects_nothing(terms.file, number, budget, series)
        for at in chosen:
            limits[at] = limits[at] if budget.max_slower is None else budget.max_slower
    return limits


def decide_fleet(
    series: Sequence[GateSeries],
    slower: Sequence[SlowerSeries],
    causes: Sequence[SharedCause],
    terms: FleetTerms,
    detectable: list[float] | None,
) -> Decision[FleetEvidence]:
    """Return the decision on the series with a new run, of which some are slower, with everything it rests on."""
    is_told = terms.budgets.fleet.device_changes == "tell"
    failing = [one for one in slower if not (is_told and one.cause is CauseKind.DEVICE)]
    judged = [one for one in series if one.is_judged]
    reasons = Counter(_why_not_judged(one) for one in series if not one.is_judged)
    if terms.untrusted:
        reasons["new runs that are not to be trusted"] = terms.untrusted
    evidence = FleetEvidence(
        store=terms.store,
        since=terms.since,
        threshold=terms.usual_limit,
        false_red_nights=FALSE_RED_NIGHTS,
        series=len(series) + terms.untrusted,
        without=terms.without,
        judged=len(judged),
        not_judged=[NotJudged(reason, count) for reason, count in reasons.most_common()],
        slower=failing,
        causes=list(causes),
        budgets=_budget_limits(series, terms.budgets),
        models=_count_models(series, failing),
        detectable=detectable,
        vanished=list(terms.vanished),
    )
    others = [_budget_criterion(limit) for limit in evidence.budgets]
    nothing = Outcome.UNTRUSTED if terms.untrusted else Outcome.INCONCLUSIVE
    unjudged = Outcome.SKIPPED if judged or overall(others) is Outcome.REGRESSION else nothing
    criteria = [*others, *(_model_criterion(count, unjudged) for count in evidence.models)]
    notes = [f"{terms.without} series of the store without a new run"] * bool(terms.without)
    if len(failing) < len(slower):
        notes.append("slowdowns of whole devices are reported but pass, as the budget allows")
    return decided(criteria, evidence, advice=_advice(overall(criteria), failing), notes=notes)


def budget_name(limit: BudgetLimit) -> str:
    """Return the name of the criterion of an absolute limit."""
    return f"{limit.name}, entry {limit.entry}"


def model_name(count: ModelCount) -> str:
    """Return the name of the criterion of a model's series."""
    return f"series of {count.model}"


def _selects_nothing(file: str, number: int, budget: SeriesBudget, series: Sequence[GateSeries]) -> UsageError:
    place = f"{file}: budget[{number}]"
    for name in SELECTORS:
        word, known = getattr(budget, name), {getattr(one.subject, name) for one in series}
        if word is not None and word not in known:
            hint = did_you_mean(str(word), sorted(str(one) for one in known if one is not None))
            return UsageError(f"no series with a new run has the {name} {word!r}", where=f"{place}.{name}", hint=hint)
    hint = "remove the entry, or one of its keys"
    return UsageError("no series with a new run matches all of this", where=place, hint=hint)


def _why_not_judged(series: GateSeries) -> str:
    return f"fewer than {SHORTEST} runs" if len(series.latencies) < SHORTEST else "a latency of zero"


def _budget_limits(series: Sequence[GateSeries], budgets: FleetBudgets) -> list[BudgetLimit]:
    limits = []
    for number, budget in enumerate(budgets.budget):
        if budget.max_ms is None:
            continue
        medians = [
            (float(np.median(one.latencies[-CONFIRMING:])), one.subject)
            for one in series
            if budget.selects(one.subject)
        ]
        limit_ns, worst = budget.max_ms * 1e6, max(medians, key=lambda pair: pair[0])
        beyond = sum(median > limit_ns for median, _ in medians)
        words = [f"{name} {getattr(budget, name)}" for name in SELECTORS if getattr(budget, name) is not None]
        limits.append(BudgetLimit(number, ", ".join(words) or "all series", limit_ns, len(medians), beyond, *worst))
    return limits


def _count_models(series: Sequence[GateSeries], slower: Sequence[SlowerSeries]) -> list[ModelCount]:
    every, judged = (Counter(one.subject.model for one in series if keep(one)) for keep in (lambda _: True, _is_judged))
    slow = Counter(one.subject.model for one in slower)
    return [ModelCount(model, every[model], judged[model], slow[model]) for model in sorted(every)]


def _is_judged(series: GateSeries) -> bool:
    return series.is_judged


def _budget_criterion(limit: BudgetLimit) -> Criterion:
    outcome = Outcome.REGRESSION if limit.beyond else Outcome.PASSED
    reason = f"{limit.beyond or 'none'} of {limit.series} series beyond the limit"
    figures = (limit.limit_ns, limit.worst_ns, None, outcome, reason, limit.worst_ns)
    return Criterion(budget_name(limit), Quantity.TIME, *figures, entry=limit.entry)


def _model_criterion(count: ModelCount, unjudged: Outcome) -> Criterion:
    name = model_name(count)
    if not count.judged:
        return Criterion(name, Quantity.COUNT, 0.0, None, None, unjudged, "no series could be judged")
    outcome = Outcome.REGRESSION if count.slower else Outcome.PASSED
    reason = f"{count.slower or 'none'} of {count.judged} judged series slower"
    return Criterion(name, Quantity.COUNT, 0.0, float(count.slower), None, outcome, reason)


def _advice(outcome: Outcome, slower: Sequence[SlowerSeries]) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.UNTRUSTED:
        return QUIETER
    if outcome is Outcome.INCONCLUSIVE:
        return f"a series needs {SHORTEST} runs; add more to the store"
    if any(one.cause is CauseKind.DEVICE for one in slower):
        return "check the device first: its system, power and other load"
    if slower:
        return "run `opscope compare` on the two bundles named first and before to see every operator"
    return "make it faster, or raise the limit if the new time is intended"
