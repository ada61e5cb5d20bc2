"""A gate that measures a run by its predecessors: is it slower than their own scatter explains.

What is a process in the evidence of a comparison is a run here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.compare.compare import ComparedSide, EndToEnd, MethodChange, OperatorChange, excluded_beyond
from opscope.analysis.gate.decision import QUIETER, Criterion, Outcome, Quantity, make_decision, worst_outcome
from opscope.analysis.gate.gate import (
    DESIGN,
    ComparisonEvidence,
    doubt,
    end_to_end_slowdown,
    slowdown_criterion,
    slower_operators,
)
from opscope.core.stats.effect import FEWEST, Verdict, adjust_for_many, interval_of, predict
from opscope.core.stats.segments import firm_segments
from opscope.core.units import counted_text, share_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.operators.operators import Operator
    from opscope.core.stats.effect import PredictionInterval

    OperatorPlace: TypeAlias = tuple[str, int | None, int | None, str]
    """An operator: method, instruction, position and name."""


class Predecessors(NamedTuple):
    """The runs that it, or one of several methods, is measured by."""

    latencies_ns: Sequence[float]  # one a run, in order of time
    bundles: Sequence[str]  # their hashes, in the same order
    operators: Mapping[OperatorPlace, Mapping[str, float]]  # times in ns by bundle, in runs of the same program only
    of_others: int  # how many of them ran another program


class _MethodVerdict(NamedTuple):
    """The decision on a run, or on one of several methods."""

    criterion: Criterion
    end_to_end: EndToEnd
    operators: list[OperatorChange]
    notes: list[str]


def history_gate(
    candidate: Analysis,
    processes: int,
    sides: tuple[ComparedSide, ComparedSide],
    predecessors: Mapping[str, Predecessors],
    *,
    threshold: float,
    model: str,
) -> Decision[ComparisonEvidence]:
    """Decide whether a run is slower than its predecessors.

    Args:
        candidate: its analysis.
        processes: that its latency rests on.
        sides: where its predecessors and itself are.
        predecessors: the runs that it is measured by, by method as in ``Analysis.by_method``; at least one.
        threshold: the largest slowdown that is let through, as a fraction.
        model: name of its model.
    """
    verdicts = {
        method: _judge_method(candidate, method, runs, processes=processes, threshold=threshold)
        for method, runs in predecessors.items()
    }
    slower = slower_operators([change for verdict in verdicts.values() for change in verdict.operators])
    outcome = worst_outcome([verdict.criterion for verdict in verdicts.values()])
    deciding = next(verdict for verdict in verdicts.values() if verdict.criterion.outcome is outcome)
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
    ends = {method: verdict.end_to_end for method, verdict in verdicts.items()}
    methods = [MethodChange(method, end) for method, end in ends.items() if method]
    return make_decision(
        [*(verdict.criterion for verdict in verdicts.values()), *lacking],
        ComparisonEvidence(model, *sides, next(iter(ends.values())), slower, methods=methods),
        advice=_give_advice(outcome, deciding.end_to_end, is_method_missing=bool(lacking), has_slower=bool(slower)),
        notes=dict.fromkeys(note for verdict in verdicts.values() for note in verdict.notes),
    )


def _judge_method(
    candidate: Analysis, method: str, predecessors: Predecessors, *, processes: int, threshold: float
) -> _MethodVerdict:
    latency, _ = candidate.by_method[method]
    first = current_level(predecessors.latencies_ns)
    latencies, headline_ns = predecessors.latencies_ns[first:], candidate.headline_of(method)
    end = _make_end_to_end(latency.source, headline_ns, processes, predict(np.log(latencies), math.log(headline_ns)))
    criterion = slowdown_criterion(method, end, end_to_end_slowdown(end), threshold, "the stored history")
    if end.verdict is Verdict.UNDECIDABLE:
        reason = f"{counted_text(len(latencies), 'run')} in the history; a verdict needs at least {FEWEST}"
        criterion = msgspec.structs.replace(criterion, reason=reason)
    elif doubt(candidate.quality) and criterion.outcome is not Outcome.INCONCLUSIVE:
        criterion = msgspec.structs.replace(criterion, outcome=Outcome.UNTRUSTED, reason=doubt(candidate.quality))
    changes = _compare_operators(candidate, method, predecessors, predecessors.bundles[first:])
    runs, interval = counted_text(len(latencies), "run"), "the interval is for one more run at the same level"
    notes = [f"the baseline is the stored history: {runs}, one value each; {interval}"]
    if first:
        notes.append(f"{counted_text(first, 'earlier run')} excluded: the level changed since")
    if predecessors.of_others:
        notes.append(f"{predecessors.of_others} of the runs used a different program")
    return _MethodVerdict(criterion, end, changes, notes)


def current_level(latencies_ns: Sequence[float]) -> int:
    """Return the first run since the level changed for the last time; 0 if it never did, or that cannot be told."""
    values = np.asarray(latencies_ns, np.float64)
    return firm_segments(values)[-1].first if len(values) and bool((values > 0).all()) else 0


def _make_end_to_end(arm: str, headline_ns: float, processes: int, prediction: PredictionInterval) -> EndToEnd:
    interval, verdict = interval_of(prediction, lambda excess: math.exp(-excess)), prediction.verdict()
    smallest = prediction.minimum_detectable
    return EndToEnd(
        baseline_ns=math.exp(prediction.level),
        candidate_ns=headline_ns,
        speedup=math.exp(-prediction.excess),
        ci95=interval,
        verdict=verdict,
        minimum_detectable=None if smallest is None else math.expm1(smallest),
        p_value=prediction.p_value,
        design=DESIGN,
        baseline_processes=prediction.predecessors,
        candidate_processes=processes,
        arm=arm,
        excluded_beyond=excluded_beyond(verdict, interval),
    )


def _compare_operators(
    candidate: Analysis, method: str, predecessors: Predecessors, bundles: Sequence[str]
) -> list[OperatorChange]:
    """Compare the operators that take time in all these runs, judged together (false discovery rate of 5 %)."""
    pairs = []
    for operator in candidate.operators:
        if operator.shown_ns <= 0 or (method and operator.method != method):
            continue
        operator_place = (operator.method, operator.instruction, operator.position, operator.name)
        by_bundle = predecessors.operators.get(operator_place, {})
        times = [by_bundle[bundle] for bundle in bundles if by_bundle.get(bundle, 0) > 0]
        if len(times) >= FEWEST:
            time_ns = operator.shown_ns / candidate.calls_share(method)  # of a call of its method, not of any
            pairs.append((operator, time_ns, predict(np.log(times), math.log(time_ns))))
    corrected = adjust_for_many([interval.p_value or 0.0 for *_, interval in pairs]) if pairs else []
    return [_make_change(*pair, p_value) for pair, p_value in zip(pairs, corrected, strict=True)]


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


def _give_advice(outcome: Outcome, end: EndToEnd, *, is_method_missing: bool, has_slower: bool) -> str | None:
    if outcome is Outcome.PASSED:
        return "add runs that call the same methods to the store" if is_method_missing else None
    if outcome is Outcome.UNTRUSTED:
        return QUIETER
    if outcome is Outcome.REGRESSION and has_slower:
        return "see which operators became slower; `opscope compare` with a stored bundle lists all of them"
    if outcome is Outcome.REGRESSION:
        return (
            "no single operator is slower beyond noise; `opscope compare` with a stored bundle shows where time moved"
        )
    if end.verdict is Verdict.UNDECIDABLE:
        return "add more known good runs to the store"
    smallest = "no change" if end.minimum_detectable is None else f"a change of {share_text(end.minimum_detectable)}"
    return (
        f"this history is so noisy that only {smallest} would be detected: measure more rounds per run, or reduce noise"
    )
