"""Budgets: limits of end-to-end latency and of chosen operators, judged by how processes differ.

An absolute limit is a constant, so the processes of the candidate alone are compared with it; for a limit relative to
the baseline both sides are. Operators are chosen on each side by the same words.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.compare.matching import process_times
from opscope.analysis.gate.decision import Criterion, Outcome, Quantity
from opscope.analysis.gate.gate import Slowdown, judge
from opscope.analysis.operators.headline import headline_scale
from opscope.analysis.operators.operators import operators
from opscope.core.stats.effect import ALPHA, Verdict, adjust_for_many, interval_of, paired_effects, unpaired_effects
from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.operators.operators import Operator, OperatorFacts
    from opscope.core.stats.effect import Effect
    from opscope.core.table import EventTable
    from opscope.core.table.places import OperatorKey

    Floats: TypeAlias = NDArray[np.float64]

Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]
Fraction: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
SELECTORS = ("module", "operator", "instruction", "position", "category", "kind", "backend", "method")
LIMITS = ("max_ms", "max_share", "max_slower")


class EndToEndBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of end-to-end latency.

    Attributes:
        max_ms: the longest it may be, in milliseconds.
        max_slower: the largest slowdown against the baseline, as a fraction; the threshold of the gate.
    """

    max_ms: Milliseconds | None = None
    max_slower: Fraction | None = None


class MethodBudget(EndToEndBudget, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of the latency of one method; ``name`` is the method's, such as ``prefill_128``."""

    name: Word


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the operators that all given words choose, taken together.

    Attributes:
        module: path of a module; those below it are chosen with it.
        operator: name of an operator, as recorded or as ATen calls it.
        instruction: instruction of the program.
        position: order of the operator within its instruction's call, from 0.
        category: upper level of the taxonomy.
        kind: lower level.
        backend: a delegate's name, ``portable`` or ``framework``.
        method: method of the program.
        max_ms: the longest they may take per inference, in milliseconds.
        max_share: their largest share of an inference, as a fraction.
        max_slower: the largest slowdown against the baseline, as a fraction.
    """

    module: Word | None = None
    operator: Word | None = None
    instruction: Number | None = None
    position: Number | None = None
    category: Category | None = None
    kind: Word | None = None
    backend: Word | None = None
    method: Word | None = None
    max_ms: Milliseconds | None = None
    max_share: Share | None = None
    max_slower: Fraction | None = None


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a budget file: limits of latency, of all calls or of single methods, and entries for operators."""

    end_to_end: EndToEndBudget = EndToEndBudget()
    method: Annotated[list[MethodBudget], msgspec.Meta(max_length=100)] = []
    budget: Annotated[list[Budget], msgspec.Meta(max_length=1000)] = []


class SplitTimes(NamedTuple):
    """Time of one side by operator and process."""

    operators: Sequence[Operator]  # operators in program order
    times: Floats  # mean self time per inference; shape (processes, operators)
    unresolved: Floats  # how much longer each operator may have taken, where durations are cut off; shape (operators)


class Sides(NamedTuple):
    """Both sides of a gate."""

    baseline: SplitTimes  # its split
    candidate: SplitTimes  # its split
    paired: bool  # whether process i of one side was measured in the same round as process i of the other
    # logarithm of the median latency of each process of the candidate, shape (processes, 1); by method where it calls
    # several, else of all calls under an empty name
    latency: Mapping[str, Floats]


class _PendingLimit(NamedTuple):
    """Limit before correction: its effect, and how to decide by a corrected p-value."""

    effect: Effect | None
    decide: Callable[[Verdict], Criterion]


def split_times(table: EventTable, facts: Mapping[OperatorKey, OperatorFacts] | None) -> SplitTimes:
    """Return the time of every operator in each process that measured any inference."""
    scale = headline_scale(table)
    rows = operators(table, facts, scale)
    return SplitTimes(rows, process_times(scale, rows), np.array([row.uncertainty_ns for row in rows]))


def chosen_operators(budget: Budget, rows: Iterable[Operator]) -> list[int]:
    """Return the numbers of the operators that an entry chooses."""
    return [number for number, row in enumerate(rows) if _matches_operator(budget, row)]


def _matches_operator(budget: Budget, row: Operator) -> bool:
    exact = (
        (budget.instruction, row.instruction),
        (budget.position, row.position),
        (budget.category, row.category),
        (budget.kind, row.kind),
        (budget.backend, row.backend),
        (budget.method, row.method),
    )
    if any(required is not None and required != actual for required, actual in exact):
        return False
    if budget.operator is not None and budget.operator not in {row.name, row.aten}:
        return False
    return budget.module is None or _is_within_module(row.module, budget.module)


def _is_within_module(path: str | None, module: str) -> bool:
    return path is not None and (path == module or path.startswith(f"{module}."))


def known_words(selector: str, rows: Iterable[Operator]) -> list[str]:
    """Return the words that would have chosen one of these operators, for one selector; sorted."""
    words: set[str] = set()
    for row in rows:
        if selector == "operator":
            words |= {name for name in (row.name, row.aten) if name}
        elif selector == "module":
            parts = (row.module or "").split(".")
            words |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)} - {""}
        else:
            value = getattr(row, selector)
            words |= set() if value is None else {str(getattr(value, "value", value))}
    return sorted(words)


def judge_budgets(budgets: Budgets, sides: Sides) -> list[Criterion]:
    """Judge every limit of a file except the gate's threshold of end-to-end slowdown, in the file's order.

    Verdicts are corrected together for their number (false discovery rate of 5 %).
    """
    limits = {"": budgets.end_to_end, **{method_budget.name: method_budget for method_budget in budgets.method}}
    judged = [
        pending
        for name, latency in sides.latency.items()
        for pending in _latency_limits(name, limits.get(name), latency)
    ]
    for number, budget in enumerate(budgets.budget):
        judged += _entry_limits(number, budget, sides)
    p_values = [pending.effect.p_value for pending in judged if pending.effect and pending.effect.p_value is not None]
    corrected = iter(adjust_for_many(p_values))
    return [pending.decide(_corrected_verdict(pending.effect, corrected)) for pending in judged]


def _corrected_verdict(effect: Effect | None, corrected: Iterator[float]) -> Verdict:
    if effect is None or effect.p_value is None:
        return Verdict.UNDECIDABLE
    return effect.verdict(next(corrected))


def describe(budget: Budget) -> str:
    """Return the words of an entry, such as ``module features.3, backend portable``."""
    words = [(name, getattr(budget, name)) for name in SELECTORS]
    return ", ".join(f"{name} {getattr(value, 'value', value)}" for name, value in words if value is not None)


def _latency_limits(method: str, budget: EndToEndBudget | None, latency: Floats) -> Iterable[_PendingLimit]:
    if budget is None or budget.max_ms is None:
        return
    limit = budget.max_ms * 1e6
    effect = paired_effects(np.full_like(latency, math.log(limit)), latency)[0]
    measured = math.exp(float(latency.mean()))
    criterion = Criterion(
        name=f"latency of {method}" if method else "end-to-end latency",
        quantity=Quantity.TIME,
        limit=limit,
        measured=measured,
        ci95=interval_of(effect, lambda saved: limit * math.exp(-saved)),
        outcome=Outcome.INCONCLUSIVE,
        reason="",
        candidate_ns=measured,
        method=method or None,
    )
    yield _PendingLimit(effect, lambda verdict: _decide_absolute(criterion, effect, verdict, 0.0))


def _entry_limits(number: int, budget: Budget, sides: Sides) -> Iterable[_PendingLimit]:
    picked = chosen_operators(budget, sides.candidate.operators)
    times = sides.candidate.times[:, picked].sum(axis=1, keepdims=True)
    unresolved = float(sides.candidate.unresolved[picked].sum())
    base = Criterion(
        name=describe(budget),
        quantity=Quantity.TIME,
        limit=0.0,
        measured=None,
        ci95=None,
        outcome=Outcome.INCONCLUSIVE,
        reason="",
        candidate_ns=float(times.mean()),
        entry=number,
        operators=len(picked),
    )
    if budget.max_ms is not None:
        yield _constant_limit(base, Quantity.TIME, budget.max_ms * 1e6, times, unresolved)
    if budget.max_share is not None:
        total = sides.candidate.times.sum(axis=1, keepdims=True)
        yield _constant_limit(base, Quantity.SHARE, budget.max_share, times / total, unresolved / float(total.mean()))
    if budget.max_slower is not None:
        yield _relative_limit(base, budget, sides, times)


def _constant_limit(
    base: Criterion, quantity: Quantity, limit: float, values: Floats, unresolved: float
) -> _PendingLimit:
    """Return a limit that does not depend on the baseline."""
    effect = paired_effects(np.full_like(values, limit), values)[0]
    criterion = msgspec.structs.replace(
        base,
        name=f"{base.name}: {'time' if quantity is Quantity.TIME else 'share'}",
        quantity=quantity,
        limit=limit,
        measured=float(values.mean()),
        ci95=interval_of(effect, lambda saved: limit - saved),
    )
    return _PendingLimit(effect, lambda verdict: _decide_absolute(criterion, effect, verdict, unresolved))


def _decide_absolute(criterion: Criterion, effect: Effect, verdict: Verdict, unresolved: float) -> Criterion:
    """Return the criterion with its outcome: beyond the limit, within it, or too close to tell."""
    if criterion.ci95 is None or effect.smallest_p > ALPHA:
        outcome, reason = Outcome.INCONCLUSIVE, "too few processes for a verdict"
    elif verdict is Verdict.SLOWER:
        outcome, reason = Outcome.REGRESSION, "the whole 95 % interval exceeds the limit"
    elif criterion.ci95[1] + unresolved <= criterion.limit:
        outcome, reason = Outcome.PASSED, "the whole 95 % interval is within the limit"
    elif criterion.ci95[1] <= criterion.limit:
        outcome, reason = Outcome.INCONCLUSIVE, "too close to the limit for the clock's resolution"
    elif criterion.ci95[0] > criterion.limit:
        outcome, reason = Outcome.INCONCLUSIVE, "exceeds the limit, but with this many limits it may be chance"
    else:
        outcome, reason = Outcome.INCONCLUSIVE, "the limit is within process-to-process noise"
    return msgspec.structs.replace(criterion, outcome=outcome, reason=reason)


def _relative_limit(base: Criterion, budget: Budget, sides: Sides, times: Floats) -> _PendingLimit:
    """Return a limit of the slowdown of the chosen operators against those chosen in the baseline."""
    picked = chosen_operators(budget, sides.baseline.operators)
    before = sides.baseline.times[:, picked].sum(axis=1, keepdims=True)
    criterion = msgspec.structs.replace(
        base,
        name=f"{base.name}: slowdown",
        quantity=Quantity.SLOWDOWN,
        limit=budget.max_slower or 0.0,
        baseline_ns=float(before.mean()) if picked else None,
        verdict=Verdict.UNDECIDABLE,
    )
    if before.min() <= 0 or times.min() <= 0:
        problem = "too short to time" if picked else "the baseline has no such operators"
        return _PendingLimit(None, lambda _: msgspec.structs.replace(criterion, reason=problem))
    effects = paired_effects if sides.paired else unpaired_effects
    effect = effects(np.log(before), np.log(times))[0]
    cut = _cut_off_uncertainty(sides.baseline.unresolved[picked], float(before.mean()))
    cut = math.hypot(
        cut,
        _cut_off_uncertainty(
            sides.candidate.unresolved[chosen_operators(budget, sides.candidate.operators)], times.mean()
        ),
    )
    return _PendingLimit(effect, lambda verdict: _decide_relative(criterion, effect, verdict, cut))


def _cut_off_uncertainty(unresolved: Floats, time: float) -> float:
    """Return how far a sum of cut-off durations may be from its middle, relative to it, in 95 of 100 cases.

    What was cut off from a duration is uniform between nothing and ``unresolved``, whose standard deviation is
    unresolved / sqrt(12), and independent of that of other operators (JCGM 100:2008, 4.3.7 and 5.1.2).
    """
    return 2 * float(np.linalg.norm(unresolved)) / math.sqrt(12) / time


def _decide_relative(criterion: Criterion, effect: Effect, verdict: Verdict, cut: float) -> Criterion:
    """Return the criterion with its outcome, which must hold wherever within ``cut`` the true slowdown lies."""
    smallest = None if effect.minimum_detectable is None else math.expm1(effect.minimum_detectable)
    slowdown = Slowdown(
        estimate=math.expm1(-effect.estimate),
        interval=interval_of(effect, lambda saved: math.expm1(-saved)),
        verdict=verdict,
        minimum_detectable=smallest,
        decidable=effect.verdict() is not Verdict.UNDECIDABLE,
    )
    outcome, reason = judge(slowdown, criterion.limit)
    if {judge(_shift_slowdown(slowdown, by), criterion.limit)[0] for by in (-cut, cut)} != {outcome}:
        outcome, reason = Outcome.INCONCLUSIVE, "too close to the limit for the clock's resolution"
    return msgspec.structs.replace(
        criterion,
        measured=slowdown.estimate,
        ci95=slowdown.interval,
        outcome=outcome,
        reason=reason,
        verdict=verdict,
        minimum_detectable=smallest,
    )


def _shift_slowdown(slowdown: Slowdown, by: float) -> Slowdown:
    interval = slowdown.interval and (slowdown.interval[0] + by, slowdown.interval[1] + by)
    return slowdown._replace(estimate=slowdown.estimate + by, interval=interval)
