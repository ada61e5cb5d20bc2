"""A gate that measures a run by its predecessors: is it slower than their own scatter explains.

What is a process in the evidence of a comparison is a run here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.compare.compare import ComparedSide, EndToEnd, MethodChange, OperatorChange, excluded_beyond
from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, decided, overall
from opscope.analysis.gate.gate import DESIGN, ComparisonEvidence, Slowdown, doubt, slowdown_criterion, slower_operators
from opscope.core.stats.effect import FEWEST, Verdict, adjust_for_many, interval_of, predict
from opscope.core.stats.segments import firm_segments
from opscope.core.units import counted_text, share_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.operators.operators import Operator
    from opscope.core.stats.effect import PredictionInterval

    Place: TypeAlias = tuple[str, int | None, int | None, str]
    """An operator: method, instruction, position and name."""


class Predecessors(NamedTuple):
    """The runs that it, or one of several methods, is measured by."""

    latencies_ns: Sequence[float]  # one a run, in order of time
    bundles: Sequence[str]  # their hashes, likewise
    # times of operators in ns, by place and bundle; of runs of the same program only
    operators: Mapping[Place, Mapping[str, float]]
    of_others: int  # how many of them ran another program


def current_level(latencies_ns: Sequence[float]) -> int:
    """First of the runs since the level changed for the last time; 0 when it never did, or that cannot be told."""
    values = np.asarray(latencies_ns, np.float64)
    return firm_segments(values)[-1].first if len(values) and bool((values > 0).all()) else 0


def history_gate(
    candidate: Analysis,
    processes: int,
    sides: tuple[ComparedSide, ComparedSide],
    predecessors: Mapping[str, Predecessors],
    *,
    threshold: float,
    model: str,
) -> Decision[ComparisonEvidence]:
    """The decision on a run.

    Args:
        candidate: its analysis.
        processes: that its latency rests on.
        sides: where its predecessors and itself are.
        predecessors: the runs that it is measured by, by method as in ``Analysis.by_method``; at least one.
        threshold: the largest slowdown that is let through, as a fraction.
        model: name of its model.
    """
    judged = {
        method: _judge_method(candidate, method, own, processes=processes, threshold=threshold)
        for method, own in predecessors.items()
    }
    ends = [one.end_to_end for one in judged.values()]
    slower = slower_operators([change for one in judged.values() for change in one.changes])
    methods = [MethodChange(method, one.end_to_end) for method, one in judged.items() if method]
    outcome = overall([one.criterion for one in judged.values()])
    deciding = next(one for one in judged.values() if one.criterion.outcome is outcome)
    lacking = [
        Criterion(
            name=f"latency of {method} against the stored history",
            quantity=Quantity.SLOWDOWN,
            limit=threshold,
            measured=None,
            ci95=None,
            outcome=Outcome.INCONCLUSIVE,
            reason="no stored run calls it",
            candidate_ns=candidate.headline_of(method),
            method=method,
        )
        for method in candidate.by_method
        if method not in predecessors
    ]
    if lacking and outcome is Outcome.PASSED:
        advice: str | None = "add runs that call the same methods to the store"
    else:
        advice = _give_advice(outcome, deciding.slowdown, slower)
    return decided(
        [*(one.criterion for one in judged.values()), *lacking],
        ComparisonEvidence(model, *sides, ends[0], slower, methods=methods),
        advice=advice,
        notes=dict.fromkeys(note for one in judged.values() for note in one.notes),
    )


class _MethodJudgement(NamedTuple):
    """The decision on a run, or on one of several methods."""

    criterion: Criterion
    end_to_end: EndToEnd
    slowdown: Slowdown
    changes: list[OperatorChange]
    notes: list[str]


def _judge_method(
    candidate: Analysis, method: str, predecessors: Predecessors, *, processes: int, threshold: float
) -> _MethodJudgement:
    latency, _ = candidate.by_method[method]
    first = current_level(predecessors.latencies_ns)
    kept = predecessors.latencies_ns[first:]
    headline_ns = candidate.headline_of(method)
    interval = predict(np.log(kept), math.log(headline_ns))
    end, shown = _make_end_to_end(latency.source, headline_ns, processes, interval), _make_slowdown(interval)
    criterion = slowdown_criterion(method, end, shown, threshold, "the stored history")
    if doubt(candidate.quality) and criterion.outcome is not Outcome.INCONCLUSIVE:
        criterion = msgspec.structs.replace(criterion, outcome=Outcome.UNTRUSTED, reason=doubt(candidate.quality))
    if not shown.decidable:
        reason = f"{counted_text(len(kept), 'run')} in the history; a verdict needs at least {FEWEST}"
        criterion = msgspec.structs.replace(criterion, reason=reason)
    rows = [one for one in candidate.operators if not method or one.method == method]
    changes = _compare_operators(rows, predecessors, predecessors.bundles[first:], candidate.calls_share(method))
    return _MethodJudgement(criterion, end, shown, changes, _make_notes(predecessors, first))


def _make_end_to_end(arm: str, headline_ns: float, processes: int, prediction_interval: PredictionInterval) -> EndToEnd:
    interval, verdict = (
        interval_of(prediction_interval, lambda excess: math.exp(-excess)),
        prediction_interval.verdict(),
    )
    return EndToEnd(
        baseline_ns=math.exp(prediction_interval.level),
        candidate_ns=headline_ns,
        speedup=math.exp(-prediction_interval.excess),
        ci95=interval,
        verdict=verdict,
        minimum_detectable=None
        if prediction_interval.minimum_detectable is None
        else math.expm1(prediction_interval.minimum_detectable),
        p_value=prediction_interval.p_value,
        design=DESIGN,
        baseline_processes=prediction_interval.predecessors,
        candidate_processes=processes,
        arm=arm,
        excluded_beyond=excluded_beyond(verdict, interval),
    )


def _make_slowdown(interval: PredictionInterval) -> Slowdown:
    smallest = None if interval.minimum_detectable is None else math.expm1(interval.minimum_detectable)
    verdict = interval.verdict()
    return Slowdown(
        math.expm1(interval.excess),
        interval_of(interval, math.expm1),
        verdict,
        smallest,
        verdict is not Verdict.UNDECIDABLE,
    )


def _compare_operators(
    candidate: Sequence[Operator], predecessors: Predecessors, bundles: Sequence[str], calls_share: float
) -> list[OperatorChange]:
    """Operators that all these runs have and that take time in each, judged together (false discovery rate of 5 %).

    ``calls_share``: of their method's calls, since their times are per call of any.
    """
    pairs = []
    for operator in candidate:
        place = (operator.method, operator.instruction, operator.position, operator.name)
        own = predecessors.operators.get(place, {})
        times = [own[bundle] for bundle in bundles if own.get(bundle, 0) > 0]
        if len(times) >= FEWEST and operator.shown_ns > 0:
            time_ns = operator.shown_ns / calls_share
            pairs.append((operator, time_ns, predict(np.log(times), math.log(time_ns))))
    corrected = adjust_for_many([interval.p_value or 0.0 for _, _, interval in pairs]) if pairs else []
    return [_make_change(*pair, p) for pair, p in zip(pairs, corrected, strict=True)]


def _make_change(operator: Operator, time_ns: float, interval: PredictionInterval, corrected: float) -> OperatorChange:
    level = math.exp(interval.level)
    return OperatorChange(
        method=operator.method,
        instruction=operator.instruction,
        position=operator.position,
        name=operator.name,
        baseline_name=operator.name,
        candidate_name=operator.name,
        category=operator.category,
        kind=operator.kind,
        backend=operator.backend,
        baseline_ns=level,
        candidate_ns=time_ns,
        saved_ns=level - time_ns,
        speedup=math.exp(-interval.excess),
        ci95_saved_ns=interval_of(interval, lambda excess: -level * math.expm1(excess)),
        verdict=interval.verdict(corrected),
        module=operator.module,
        aten=operator.aten,
        source=operator.source,
    )


def _make_notes(predecessors: Predecessors, first: int) -> list[str]:
    kept = len(predecessors.latencies_ns) - first
    runs = counted_text(kept, "run")
    interval = "the interval is for one more run at the same level"
    notes = [f"the baseline is the stored history: {runs}, one value each; {interval}"]
    if first:
        notes.append(f"{counted_text(first, 'earlier run')} excluded: the level changed since")
    if predecessors.of_others:
        notes.append(f"{predecessors.of_others} of the runs used a different program")
    return notes


def _give_advice(outcome: Outcome, shown: Slowdown, slower: Sequence[OperatorChange]) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.UNTRUSTED:
        return QUIETER
    if outcome is Outcome.REGRESSION:
        if slower:
            return "see which operators became slower; `opscope compare` with a stored bundle lists all of them"
        return (
            "no single operator is slower beyond noise; `opscope compare` with a stored bundle shows where time moved"
        )
    if not shown.decidable:
        return "add more known good runs to the store"
    smallest = (
        "no change" if shown.minimum_detectable is None else f"a change of {share_text(shown.minimum_detectable)}"
    )
    return (
        f"this history is so noisy that only {smallest} would be detected: measure more rounds per run, or reduce noise"
    )
