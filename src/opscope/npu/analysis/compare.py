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

from opscope.analysis.gate.decision import Criterion, Outcome, Quantity, decided
from opscope.analysis.gate.gate import Slowdown, judge
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict, adjust_for_many, interval_of, unpaired_effects
from opscope.core.units import counted_text
from opscope.npu.analysis.cycles import EVENTS, STALLS, category_name
from opscope.npu.analysis.tiles_result import mean_known

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
_DIFFERENCES = (PER_ITERATION, PER_CALL)
"""Units that are compared by their difference: such figures can be 0 and have no ratio then."""


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


class ComparedFigure(NamedTuple):
    """A figure before it is compared: a value of each trace of both sides, none where a trace lacks it."""

    name: str
    unit: str
    baseline: list[float]
    candidate: list[float]


def compared_tiles(baseline: TilesTraces, candidate: TilesTraces) -> TilesComparison | None:
    """Compare two sides; None when a side has no period of calls, so that nothing can be compared."""
    sides = baseline.analyses, candidate.analyses
    iteration = _compared_figure(ITERATION, _CYCLES, sides, _iteration_cycles) if _are_iterations_alike(sides) else None
    period = _compared_figure(PERIOD, _CYCLES, sides, _period_cycles)
    main = iteration or period
    if main is None:
        return None
    rate = _compared_figure("MAC/cycle per core", _RATE, sides, lambda one: one.mac_per_cycle)
    figures = {
        "kinds": _kind_figures(sides),
        "period": [period] if period else [],
        "stall_cycles": _stall_figures(sides, PER_CALL if iteration is None else PER_ITERATION),
        "rates": [rate] if rate else [],
    }
    changes = iter(_corrected_changes([figure for group in figures.values() for figure in group]))
    judged = {name: list(islice(changes, len(group))) for name, group in figures.items()}
    return TilesComparison(
        baseline=baseline.side,
        candidate=candidate.side,
        overall=_figure_change(main, _figure_effect(main)),
        kinds=judged["kinds"],
        period=next(iter(judged["period"]), None),
        rates=judged["rates"],
        notes=_list_notes(baseline, candidate, main),
        stall_cycles=judged["stall_cycles"],
    )


def _compared_figure(
    name: str, unit: str, sides: _Sides, of: Callable[[TilesAnalysis], float | None]
) -> ComparedFigure | None:
    """A figure that every trace of both sides has; None otherwise."""
    baseline, candidate = ([of(one) for one in side] for side in sides)
    known = [[value for value in side if value is not None] for side in (baseline, candidate)]
    if len(known[0]) < len(baseline) or len(known[1]) < len(candidate):
        return None
    return ComparedFigure(name, unit, known[0], known[1])


def _iteration_cycles(analysis: TilesAnalysis) -> float | None:
    return analysis.array.median_runtime_cycles if analysis.array else None


def _are_iterations_alike(sides: _Sides) -> bool:
    """Return whether measured iterations of all traces have as many calls, and were found in the same way."""
    rows = [row for side in sides for analysis in side for row in analysis.working]
    return (
        len({(row.iterations_by, one.calls + one.lost_calls) for row in rows for one in _measured_iterations(row)}) == 1
    )


def _period_cycles(analysis: TilesAnalysis) -> float | None:
    known = [row.bound.measured_period_cycles for row in analysis.working if row.bound]
    return median(known) if known else None


def _kind_figures(sides: _Sides) -> list[ComparedFigure]:
    """Median duration of each kind; a trace's is the median over its cores. A kind may be on one side only."""
    each = [[_of_kinds(one) for one in side] for side in sides]
    names = dict.fromkeys(name for side in each for own in side for name in own)
    return [
        ComparedFigure(name, _CYCLES, *([own[name] for own in side if name in own] for side in each)) for name in names
    ]


def _of_kinds(analysis: TilesAnalysis) -> dict[str, float]:
    found = grouped([kind for row in analysis.working for kind in row.kinds], lambda kind: kind.kind)
    return {name: median(kind.median_cycles for kind in rows) for name, rows in found.items()}


def _stall_figures(sides: _Sides, unit: str) -> list[ComparedFigure]:
    """Cycles of each stall that all traces tell, a mean over the cores; empty where they do not."""
    rows = [row for side in sides for one in side for row in one.working]
    gaps = all(any(one.gap is not None for one in _measured_iterations(row)) for row in rows)

    def asked(category: str) -> ComparedFigure | None:
        per_iteration = partial(_cycles_per_iteration, category=category, gaps=gaps)
        cycles = per_iteration if unit == PER_ITERATION else partial(_cycles_per_call, category=category)
        return _compared_figure(category_name(category), unit, sides, lambda one: mean_known(map(cycles, one.working)))

    return [figure for own in STALLS if (figure := asked(own)) is not None]


def _cycles_per_iteration(row: TileRow, category: str, *, gaps: bool) -> float | None:
    """Cycles of a stall in a measured, complete iteration of a core, and to the next where these are wanted.

    None where it was not traced, and without such an iteration.
    """
    measured = _measured_iterations(row)
    if EVENTS[category] in row.not_traced or not measured:
        return None
    waits = [float(getattr(one.gap, category)) for one in measured if gaps and one.gap is not None]
    within = float(sum(getattr(one.split, category) for one in measured)) / len(measured)
    return within + (sum(waits) / len(waits) if waits else 0.0)


def _measured_iterations(row: TileRow) -> list[Iteration]:
    return [one for one in row.iterations if one.phase == "measured"]


def _cycles_per_call(row: TileRow, category: str) -> float | None:
    """Cycles of a stall for each multiplying call of a core: within it, and from its end to the next.

    None where it was not traced, or with fewer than two such calls.
    """
    calls = sum(kind.n for kind in row.kinds if kind.multiplies)
    if EVENTS[category] in row.not_traced or calls < 2:  # noqa: PLR2004 - one call has no gap to the next
        return None
    inside, between = (int(getattr(split, category)) for split in (row.cycles.in_call, row.cycles.between_calls))
    return inside / calls + between / (calls - 1)


def _corrected_changes(figures: Sequence[ComparedFigure]) -> list[FigureChange]:
    effects = [_figure_effect(one) for one in figures]
    tested = [effect.p_value for effect in effects if effect and effect.p_value is not None]
    corrected = iter(adjust_for_many(tested))
    return [
        _figure_change(one, effect, next(corrected) if effect and effect.p_value is not None else None)
        for one, effect in zip(figures, effects, strict=True)
    ]


def _figure_effect(figure: ComparedFigure) -> Effect | None:
    """Positive when the candidate is better; of logarithms but for stalls. None when a side lacks the figure."""
    if not figure.baseline or not figure.candidate:
        return None
    sides = [np.array(values, np.float64)[:, None] for values in (figure.baseline, figure.candidate)]
    if figure.unit in _DIFFERENCES:
        return unpaired_effects(*sides)[0]
    logs = [np.log(np.maximum(side, 1e-9)) for side in sides]
    return unpaired_effects(*(logs if figure.unit == _CYCLES else [-side for side in logs]))[0]


def _figure_change(figure: ComparedFigure, effect: Effect | None, corrected: float | None = None) -> FigureChange:
    before, after = (_mean_value(values, figure.unit) for values in (figure.baseline, figure.candidate))
    change = None if before is None or after is None else after - before
    if effect is None:
        return FigureChange(figure.name, figure.unit, before, after, None, change, None, Verdict.UNDECIDABLE, None)
    differences = figure.unit in _DIFFERENCES
    interval = interval_of(effect)
    if interval is not None:
        low, high = interval
        interval = (-high, -low) if differences else (math.exp(low), math.exp(high))
    smallest = effect.minimum_detectable
    return FigureChange(
        name=figure.name,
        unit=figure.unit,
        baseline=before,
        candidate=after,
        ratio=None if differences else math.exp(effect.estimate),
        change=change,
        ci95=interval,
        verdict=effect.verdict(corrected),
        minimum_detectable=smallest if smallest is None or differences else math.expm1(smallest),
    )


def _mean_value(values: Sequence[float], unit: str) -> float | None:
    if not values:
        return None
    if unit in _DIFFERENCES:
        return sum(values) / len(values)
    return math.exp(sum(math.log(max(value, 1e-9)) for value in values) / len(values))


def _list_notes(baseline: TilesTraces, candidate: TilesTraces, main: ComparedFigure) -> list[str]:
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
    notes += _note_shared_traces(sides)
    if main.name == PERIOD:
        notes.append("no matching iterations are complete on both sides, so call periods are compared")
    notes += _note_other_work(sides)
    if any(not one.trace.complete for side in sides for one in side):
        notes.append("part of a trace is missing; the rest is compared")
    return notes


def _note_shared_traces(sides: _Sides) -> list[str]:
    baseline, candidate = ({one.trace.sha256 for one in side} for side in sides)
    if baseline == candidate:
        return ["both sides are the same traces: there is nothing to compare"]
    both = len(baseline & candidate)
    text = f"{counted_text(both, 'trace')} on both sides: verdicts assume that the sides are independent"
    return [text] if both else []


def _note_other_work(sides: _Sides) -> list[str]:
    kinds = [
        {(kind.kind, kind.vector_cycles) for one in side for row in one.working for kind in row.kinds} for side in sides
    ]
    names = sorted({name for name, _ in kinds[0] ^ kinds[1]})
    found = (
        [f"kinds differ in name or vector cycles: {', '.join(names)}; the work per call may differ"] if names else []
    )
    cores = [{len(one.working) for one in side} for side in sides]
    return [*found, "the number of traced cores differs"] if cores[0] != cores[1] else found


class TilesEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="tiles"):
    """What a decision over AI Engine traces rests on.

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
    """The decision on a comparison."""
    change, shown = comparison.overall, _slowdown_of(comparison.overall)
    outcome, reason = judge(shown, threshold)
    criterion = Criterion(
        name=change.name,
        quantity=Quantity.SLOWDOWN,
        limit=threshold,
        measured=shown.estimate if change.ratio else None,
        ci95=shown.interval,
        outcome=outcome,
        reason=reason.replace("processes", "traces"),
        verdict=shown.verdict,
        minimum_detectable=shown.minimum_detectable,
    )
    figures = [*comparison.kinds, *comparison.stall_cycles, *comparison.rates]
    slower = [figure for figure in figures if figure.verdict is Verdict.SLOWER]
    return decided(
        [criterion],
        TilesEvidence(comparison.baseline, comparison.candidate, change, slower),
        advice=_advice_text(outcome, comparison),
        mismatches=mismatches,
        notes=comparison.notes,
    )


def _slowdown_of(change: FigureChange) -> Slowdown:
    ratio = change.ratio or 1.0
    interval = None if change.ci95 is None else (1 / change.ci95[1] - 1, 1 / change.ci95[0] - 1)
    decidable = bool(change.ratio) and change.verdict is not Verdict.UNDECIDABLE
    return Slowdown(1 / ratio - 1, interval, change.verdict, change.minimum_detectable, decidable)


def _advice_text(outcome: Outcome, comparison: TilesComparison) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.REGRESSION:
        return "see which kinds and stalls regressed; `opscope aie` shows the candidate's cores"
    fewest = min(comparison.baseline.traces, comparison.candidate.traces)
    if fewest < FEWEST:
        return f"capture at least {FEWEST} traces per side, and give a directory of them for each side"
    return f"capture more than {fewest} traces per side"
