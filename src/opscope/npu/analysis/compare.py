"""Two sides of AI Engine traces: is the candidate faster, or too slow for a gate, and what makes the difference.

A trace is one repetition: the calls in it share one run, so it contributes one number to each figure. A single trace a
side can never be more than undecidable.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.gate.decision import Criterion, Outcome, Quantity, make_decision
from opscope.analysis.gate.gate import Slowdown, judge
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict, adjust_for_many, interval_of, unpaired_effects
from opscope.core.units import counted_text
from opscope.npu.analysis.cycles import EVENTS, STALLS, category_name
from opscope.npu.analysis.tiles_result import all_known, mean_known

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.core.stats.effect import Effect
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis

    _Sides = tuple[Sequence[TilesAnalysis], Sequence[TilesAnalysis]]


FEWEST = 4
"""Traces a side from which a difference can be shown at all: with fewer, no exchange of labels is rare enough."""
ITERATION = "cycles of an iteration"
PERIOD = "period of calls"
_CYCLES, _RATE = "cycles", "MAC/cycle"
PER_ITERATION, PER_CALL = "cycles/iteration", "cycles/call"
"""Units of stalls: what a core waits in an iteration, or for each multiplying call where iterations do not compare."""


class TilesSide(msgspec.Struct, frozen=True):
    """One side of a comparison.

    Attributes:
        label: its name, which differs from that of the other side.
        path: where it came from.
        traces: how many it has, copies not counted.
        copies: files that hold a trace which another file of the side holds as well.
    """

    label: str
    path: str
    traces: int
    copies: int = 0


class TilesTraces(NamedTuple):
    """One side before it is compared: what it is called, and the analyses of its traces."""

    side: TilesSide
    analyses: list[TilesAnalysis]


class FigureChange(msgspec.Struct, frozen=True):
    """One figure on both sides; a side that does not have it is null.

    Attributes:
        name: of the figure.
        unit: ``cycles``, ``MAC/cycle``, ``cycles/iteration`` or ``cycles/call``.
        baseline: mean over the traces of the side; geometric for cycles and rates.
        candidate: likewise.
        ratio: baseline / candidate of cycles, candidate / baseline of rates: above 1 the candidate is better; null for
            stalls, which can be 0.
        change: candidate less baseline.
        ci95: 95 % interval of the ratio, of stalls that of the change; null with fewer than two traces a side.
        verdict: whether the candidate is better; corrected for the number of figures but for the first.
        minimum_detectable: smallest relative change, of stalls the smallest change, that such data would show in 80 of
            100 experiments; null likewise.
    """

    name: str
    unit: str
    baseline: float | None
    candidate: float | None
    ratio: float | None
    change: float | None
    ci95: tuple[float, float] | None
    verdict: Verdict
    minimum_detectable: float | None


class TilesComparison(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.tiles-comparison/1"):
    """Verdict on two sides of AI Engine traces, and what it is made of.

    Attributes:
        baseline: what stands on the one side.
        candidate: what stands on the other.
        overall: what the verdict rests on: an iteration of all cores, or the period of the calls where a side has none.
        kinds: median duration of each kind of calls.
        period: from one multiplying call to the next; null where a side has none.
        rates: multiply-accumulates a cycle and core; empty where the sizes are not known.
        notes: what limits the meaning of the figures.
        stall_cycles: cycles that a core waited from the start of an iteration to the next, or for each multiplying call
            where the sides have no iterations in common. Empty where a side does not tell. Only within iterations where
            a trace has a single one.
    """

    baseline: TilesSide
    candidate: TilesSide
    overall: FigureChange
    kinds: list[FigureChange]
    period: FigureChange | None
    rates: list[FigureChange]
    notes: list[str]
    stall_cycles: list[FigureChange] = []


class _Figure(NamedTuple):
    """A figure before it is compared: a value of each trace of both sides, none where a trace lacks it."""

    name: str
    unit: str
    baseline: list[float]
    candidate: list[float]

    @property
    def is_difference(self) -> bool:
        """Return whether it is compared by its difference, since it can be 0 and have no ratio then."""
        return self.unit in {PER_ITERATION, PER_CALL}


def compare_sides(baseline: TilesTraces, candidate: TilesTraces) -> TilesComparison | None:
    """Compare two sides. None if a side has no period of calls, so that nothing can be compared."""
    sides = baseline.analyses, candidate.analyses
    iteration = _list_values(ITERATION, _CYCLES, sides, _iteration_cycles) if _are_iterations_alike(sides) else None
    period = _list_values(PERIOD, _CYCLES, sides, _period_cycles)
    main = iteration or period
    if main is None:
        return None
    rate = _list_values("MAC/cycle per core", _RATE, sides, lambda analysis: analysis.mac_per_cycle)
    groups = {
        "kinds": _kind_figures(sides),
        "period": [period] if period else [],
        "stall_cycles": _stall_figures(sides, PER_CALL if iteration is None else PER_ITERATION),
        "rates": [rate] if rate else [],
    }
    effects = [(figure, _figure_effect(figure)) for figures in groups.values() for figure in figures]
    tested = [effect.p_value for _, effect in effects if effect and effect.p_value is not None]
    corrected = iter(adjust_for_many(tested))
    changes = iter(
        [
            _judge_change(figure, effect, next(corrected) if effect and effect.p_value is not None else None)
            for figure, effect in effects
        ]
    )
    judged = {name: list(islice(changes, len(figures))) for name, figures in groups.items()}
    return TilesComparison(
        baseline=baseline.side,
        candidate=candidate.side,
        overall=_judge_change(main, _figure_effect(main)),
        kinds=judged["kinds"],
        period=next(iter(judged["period"]), None),
        rates=judged["rates"],
        notes=_list_notes(baseline, candidate, main),
        stall_cycles=judged["stall_cycles"],
    )


def _list_values(name: str, unit: str, sides: _Sides, of: Callable[[TilesAnalysis], float | None]) -> _Figure | None:
    """Return a figure that every trace of both sides has. None otherwise."""
    baseline, candidate = (all_known(map(of, side)) for side in sides)
    return _Figure(name, unit, baseline, candidate) if baseline and candidate else None


def _iteration_cycles(analysis: TilesAnalysis) -> float | None:
    return analysis.array.median_runtime_cycles if analysis.array else None


def _are_iterations_alike(sides: _Sides) -> bool:
    """Return whether measured iterations of all traces have as many calls, and were found in the same way."""
    rows = [row for side in sides for analysis in side for row in analysis.working]
    calls = {
        (row.iterations_by, iteration.calls + iteration.lost_calls)
        for row in rows
        for iteration in _measured_iterations(row)
    }
    return len(calls) == 1


def _period_cycles(analysis: TilesAnalysis) -> float | None:
    known = [row.bound.measured_period_cycles for row in analysis.working if row.bound]
    return median(known) if known else None


def _kind_figures(sides: _Sides) -> list[_Figure]:
    """Return the median duration of each kind, of a trace over its cores. A kind may be on one side only."""
    medians_by_side = [[_median_by_kind(analysis) for analysis in side] for side in sides]
    names = dict.fromkeys(name for side in medians_by_side for medians in side for name in medians)
    return [
        _Figure(name, _CYCLES, *([medians[name] for medians in side if name in medians] for side in medians_by_side))
        for name in names
    ]


def _median_by_kind(analysis: TilesAnalysis) -> dict[str, float]:
    groups = grouped([kind for row in analysis.working for kind in row.kinds], lambda kind: kind.kind)
    return {name: median(kind.median_cycles for kind in rows) for name, rows in groups.items()}


def _stall_figures(sides: _Sides, unit: str) -> list[_Figure]:
    """Return the cycles of each stall that all traces tell, a mean over the cores; empty where they do not."""
    rows = [row for side in sides for analysis in side for row in analysis.working]
    has_gaps = all(any(iteration.gap is not None for iteration in _measured_iterations(row)) for row in rows)
    figures = []
    for category in STALLS:
        cycles = partial(_cycles_per_call, category=category)
        if unit == PER_ITERATION:
            cycles = partial(_cycles_per_iteration, category=category, has_gaps=has_gaps)
        figures.append(_list_values(category_name(category), unit, sides, partial(_mean_over_cores, cycles)))
    return [figure for figure in figures if figure is not None]


def _mean_over_cores(cycles: Callable[[TileRow], float | None], analysis: TilesAnalysis) -> float | None:
    return mean_known(map(cycles, analysis.working))


def _cycles_per_iteration(row: TileRow, category: str, *, has_gaps: bool) -> float | None:
    """Return the cycles of a stall in a measured iteration of a core, and to the next where all cores have such gaps.

    None where it was not traced, and without such an iteration.
    """
    measured = _measured_iterations(row)
    if EVENTS[category] in row.not_traced or not measured:
        return None
    waits = [
        float(getattr(iteration.gap, category)) for iteration in measured if has_gaps and iteration.gap is not None
    ]
    within = float(sum(getattr(iteration.split, category) for iteration in measured)) / len(measured)
    return within + (sum(waits) / len(waits) if waits else 0.0)


def _measured_iterations(row: TileRow) -> list[Iteration]:
    return [iteration for iteration in row.iterations if iteration.phase == "measured"]


def _cycles_per_call(row: TileRow, category: str) -> float | None:
    """Return the cycles of a stall for each multiplying call of a core: within it, and from its end to the next.

    None where it was not traced, or with fewer than two such calls.
    """
    calls = sum(kind.n for kind in row.kinds if kind.multiplies)
    if EVENTS[category] in row.not_traced or calls < 2:  # noqa: PLR2004 - one call has no gap to the next
        return None
    in_call, between = (int(getattr(split, category)) for split in (row.cycles.in_call, row.cycles.between_calls))
    return in_call / calls + between / (calls - 1)


def _figure_effect(figure: _Figure) -> Effect | None:
    """Return an effect that is positive when the candidate is better; of logarithms but for differences.

    None when a side lacks the figure.
    """
    if not figure.baseline or not figure.candidate:
        return None
    sides = [np.array(values, np.float64)[:, None] for values in (figure.baseline, figure.candidate)]
    if figure.is_difference:
        return unpaired_effects(*sides)[0]
    sign = 1 if figure.unit == _CYCLES else -1
    return unpaired_effects(*(sign * np.log(np.maximum(side, 1e-9)) for side in sides))[0]


def _judge_change(figure: _Figure, effect: Effect | None, corrected: float | None = None) -> FigureChange:
    """Judge a figure by its effect, whose p-value may be corrected for the number of figures."""
    before, after = (_mean_value(values, figure) for values in (figure.baseline, figure.candidate))
    change = None if before is None or after is None else after - before
    if effect is None:
        return FigureChange(figure.name, figure.unit, before, after, None, change, None, Verdict.UNDECIDABLE, None)
    interval, smallest, ratio = interval_of(effect), effect.minimum_detectable, None
    if figure.is_difference:
        interval = None if interval is None else (-interval[1], -interval[0])
    else:
        ratio = math.exp(effect.estimate)
        interval = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
        smallest = None if smallest is None else math.expm1(smallest)
    return FigureChange(
        name=figure.name,
        unit=figure.unit,
        baseline=before,
        candidate=after,
        ratio=ratio,
        change=change,
        ci95=interval,
        verdict=effect.verdict(corrected),
        minimum_detectable=smallest,
    )


def _mean_value(values: Sequence[float], figure: _Figure) -> float | None:
    if not values:
        return None
    if figure.is_difference:
        return sum(values) / len(values)
    return math.exp(sum(math.log(max(value, 1e-9)) for value in values) / len(values))


def _list_notes(baseline: TilesTraces, candidate: TilesTraces, main: _Figure) -> list[str]:
    sides = baseline.analyses, candidate.analyses
    notes = [
        f"{counted_text(side.copies, 'file')} of {side.label} {'is a copy' if side.copies == 1 else 'are copies'} of "
        "another: each trace counts once"
        for side in dict.fromkeys((baseline.side, candidate.side))
        if side.copies
    ]
    fewest = min(map(len, sides))
    if fewest < FEWEST:
        notes.append(f"{counted_text(fewest, 'trace')} on a side: a verdict needs at least {FEWEST} traces per side")
    hashes = [{analysis.trace.sha256 for analysis in side} for side in sides]
    both = len(hashes[0] & hashes[1])
    if hashes[0] == hashes[1]:
        notes.append("both sides are the same traces: there is nothing to compare")
    elif both:
        notes.append(f"{counted_text(both, 'trace')} on both sides: verdicts assume that the sides are independent")
    if main.name == PERIOD:
        notes.append("no matching iterations are complete on both sides, so call periods are compared")
    kinds = [
        {(kind.kind, kind.vector_cycles) for analysis in side for row in analysis.working for kind in row.kinds}
        for side in sides
    ]
    names = ", ".join(sorted({name for name, _ in kinds[0] ^ kinds[1]}))
    if names:
        notes.append(f"kinds differ in name or vector cycles: {names}; the work per call may differ")
    cores = [{len(analysis.working) for analysis in side} for side in sides]
    if cores[0] != cores[1]:
        notes.append("the number of traced cores differs")
    if any(not analysis.trace.complete for side in sides for analysis in side):
        notes.append("part of a trace is missing; the rest is compared")
    return notes


class TilesEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="tiles"):
    """Evidence that a decision over AI Engine traces rests on.

    Attributes:
        baseline: the side that the candidate is measured by.
        candidate: the side that is judged.
        figure: what was judged, in cycles.
        slower: figures that are shown to be worse.
    """

    baseline: TilesSide
    candidate: TilesSide
    figure: FigureChange
    slower: list[FigureChange]


def gate_tiles(
    comparison: TilesComparison, threshold: float, mismatches: Sequence[str] = ()
) -> Decision[TilesEvidence]:
    """Decide on a comparison."""
    change, ratio = comparison.overall, comparison.overall.ratio or 1.0
    slowdown = Slowdown(
        1 / ratio - 1,
        None if change.ci95 is None else (1 / change.ci95[1] - 1, 1 / change.ci95[0] - 1),
        change.verdict,
        change.minimum_detectable,
        bool(change.ratio) and change.verdict is not Verdict.UNDECIDABLE,
    )
    outcome, reason = judge(slowdown, threshold)
    criterion = Criterion(
        name=change.name,
        quantity=Quantity.SLOWDOWN,
        limit=threshold,
        measured=slowdown.estimate if change.ratio else None,
        ci95=slowdown.interval,
        outcome=outcome,
        reason=reason.replace("processes", "traces"),
        verdict=slowdown.verdict,
        minimum_detectable=slowdown.minimum_detectable,
    )
    figures = [*comparison.kinds, *comparison.stall_cycles, *comparison.rates]
    slower = [figure for figure in figures if figure.verdict is Verdict.SLOWER]
    fewest, advice = min(comparison.baseline.traces, comparison.candidate.traces), None
    if outcome is Outcome.REGRESSION:
        advice = "see which kinds and stalls regressed; `opscope aie` shows the candidate's cores"
    elif outcome is not Outcome.PASSED and fewest < FEWEST:
        advice = f"capture at least {FEWEST} traces per side, and give a directory of them for each side"
    elif outcome is not Outcome.PASSED:
        advice = f"capture more than {fewest} traces per side"
    return make_decision(
        [criterion],
        TilesEvidence(comparison.baseline, comparison.candidate, change, slower),
        advice=advice,
        mismatches=mismatches,
        notes=comparison.notes,
    )
