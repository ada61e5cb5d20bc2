"""A gate over all models and devices of a store: which series are slower since a date, and what they have in common.

How often it is wrong and what it sees: docs/design/fleet-gate.md.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, make_decision, worst_outcome
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.stats.many_series import CONFIRMING, SHORTEST
from opscope.fleet.analysis.causes import CauseKind, ChangedFact, SharedCause
from opscope.fleet.analysis.changes import Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.fleet.analysis.changes import LevelChange, SeriesCourse, SeriesRuns

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
        return all(word is None or word == value for word, value in pairs)


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
        subject: what it is about.
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


class GateSeries(NamedTuple):
    """A series with a new run, as the gate judges it."""

    runs: SeriesRuns
    is_judged: bool
    changes: list[LevelChange]  # confirmed steps since the date
    limit: float  # the largest slowdown that is let through

    @property
    def rise(self) -> LevelChange | None:
        """The newest rise above the limit; None without one, and if the level fell again since."""
        newest = max(self.changes, key=lambda change: change.seen, default=None)
        return newest if newest is not None and newest.ratio > 1 + self.limit else None


def select_changes(
    new: Sequence[SeriesRuns],
    courses: Sequence[SeriesCourse],
    since: str,
    budgets: FleetBudgets,
    usual: float,
    file: str,
) -> list[GateSeries]:
    """Return series with their confirmed steps since a date and with their limits.

    A limit is that of the last entry of the budgets that chooses the series. Raises UsageError where an entry chooses
    none; ``file`` is where it stands.
    """
    limits = [usual] * len(new)
    for entry, budget in enumerate(budgets.budget):
        numbers = [number for number, runs in enumerate(new) if budget.selects(runs.subject)]
        if not numbers:
            raise _selects_nothing(f"{file}: budget[{entry}]", budget, [runs.subject for runs in new])
        for number in numbers if budget.max_slower is not None else ():
            limits[number] = budget.max_slower or 0.0
    return [
        GateSeries(
            runs,
            course.is_judged,
            [
                change
                for change in course.changes
                if change.kind == "step" and change.confirmed and runs.placed[change.settled] >= since
            ],
            limit,
        )
        for runs, course, limit in zip(new, courses, limits, strict=True)
    ]


def _selects_nothing(entry: str, budget: SeriesBudget, subjects: Sequence[Subject]) -> UsageError:
    for name in SELECTORS:
        word, known = getattr(budget, name), {getattr(subject, name) for subject in subjects}
        if word is not None and word not in known:
            hint = did_you_mean(str(word), sorted(str(value) for value in known if value is not None))
            return UsageError(f"no series with a new run has the {name} {word!r}", where=f"{entry}.{name}", hint=hint)
    hint = "remove the entry, or one of its keys"
    return UsageError("no series with a new run matches all of this", where=entry, hint=hint)


def count_unjudged(series: Sequence[GateSeries], untrusted: int) -> list[NotJudged]:
    """Return why series were not judged, the most frequent reason first; some have only runs that are not trusted."""
    reasons = Counter(
        f"fewer than {SHORTEST} runs" if len(gated.runs.values) < SHORTEST else "a latency of zero"
        for gated in series
        if not gated.is_judged
    )
    reasons["new runs that are not to be trusted"] = untrusted
    return [NotJudged(reason, count) for reason, count in reasons.most_common() if count]


def measure_budgets(series: Sequence[GateSeries], budgets: FleetBudgets) -> list[BudgetLimit]:
    """Return the absolute limits of a budget file beside the medians of the newest runs."""
    limits = []
    for entry, budget in enumerate(budgets.budget):
        if budget.max_ms is None:
            continue
        medians = [
            (float(np.median(gated.runs.values[-CONFIRMING:])), gated.runs.subject)
            for gated in series
            if budget.selects(gated.runs.subject)
        ]
        limit_ns, worst = budget.max_ms * 1e6, max(medians, key=lambda pair: pair[0])
        beyond = sum(median > limit_ns for median, _ in medians)
        words = [f"{name} {getattr(budget, name)}" for name in SELECTORS if getattr(budget, name) is not None]
        limits.append(BudgetLimit(entry, ", ".join(words), limit_ns, len(medians), beyond, *worst))
    return limits


def count_models(series: Sequence[GateSeries], slower: Sequence[SlowerSeries]) -> list[ModelCount]:
    """Return how many series of each model there are, were judged, and are slower."""
    every = Counter(gated.runs.subject.model for gated in series)
    judged = Counter(gated.runs.subject.model for gated in series if gated.is_judged)
    slow = Counter(gated.subject.model for gated in slower)
    return [ModelCount(model, every[model], judged[model], slow[model]) for model in sorted(every)]


def decide_fleet(evidence: FleetEvidence, *, untrusted: int, let_through: int) -> Decision[FleetEvidence]:
    """Return the decision on the series with a new run.

    Args:
        evidence: what it rests on.
        untrusted: series whose new runs are all graded ``do_not_trust``.
        let_through: series that are slower with their whole device, which the budget lets through.
    """
    limits = [_limit_criterion(limit) for limit in evidence.budgets]
    unjudged = Outcome.UNTRUSTED if untrusted else Outcome.INCONCLUSIVE
    if evidence.judged or worst_outcome(limits) is Outcome.REGRESSION:
        unjudged = Outcome.SKIPPED
    criteria = [*limits, *(_model_criterion(count, unjudged) for count in evidence.models)]
    notes = [f"{evidence.without} series of the store without a new run"] * bool(evidence.without)
    notes += ["slowdowns of whole devices are reported but pass, as the budget allows"] * bool(let_through)
    return make_decision(criteria, evidence, advice=_give_advice(worst_outcome(criteria), evidence.slower), notes=notes)


def budget_name(limit: BudgetLimit) -> str:
    """Return the name of the criterion of an absolute limit."""
    return f"{limit.name}, entry {limit.entry}"


def model_name(count: ModelCount) -> str:
    """Return the name of the criterion of a model's series."""
    return f"series of {count.model}"


def _limit_criterion(limit: BudgetLimit) -> Criterion:
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


def _give_advice(outcome: Outcome, slower: Sequence[SlowerSeries]) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.UNTRUSTED:
        return QUIETER
    if outcome is Outcome.INCONCLUSIVE:
        return f"a series needs {SHORTEST} runs; add more to the store"
    if any(row.cause is CauseKind.DEVICE for row in slower):
        return "check the device first: its system, power and other load"
    if slower:
        return "run `opscope compare` on the two bundles named first and before to see every operator"
    return "make it faster, or raise the limit if the new time is intended"
