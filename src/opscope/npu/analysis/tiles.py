"""A trace of AI Engine tiles as a whole: what its parts tell, tile by tile, in one result.

``TilesAnalysis`` is what is written. ``Examined`` has besides it the calls themselves, which pictures and files of
single calls are made from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.findings.message import Message, Severity
from opscope.npu.analysis.activity import Activity, activity
from opscope.npu.analysis.advice import TraceAdvice, advise
from opscope.npu.analysis.array import AlignAt, ArrayCore, ArrayView, array_view
from opscope.npu.analysis.bound import CallStall, TileBound, bound, call_stalls
from opscope.npu.analysis.calls import Pairing, pair_calls
from opscope.npu.analysis.cycles import CycleAccount, CycleSplit, account, split_each
from opscope.npu.analysis.damage import TraceDamage, find_damage
from opscope.npu.analysis.findings import message_of, published, tile_finding
from opscope.npu.analysis.iterations import Iterations, find_iterations, without_damaged
from opscope.npu.analysis.kinds import Kinds, MacCalls, find_kinds, multiplying
from opscope.npu.analysis.prediction import CostModel, Prediction, against, repeated_calls, repeated_iterations
from opscope.npu.analysis.rates import MacRate, iteration_rates, rate
from opscope.npu.analysis.recommendations import Seen, array_recommendations, recommendations
from opscope.npu.analysis.roofline import TileRoofline, roofline
from opscope.npu.analysis.specification import RunSpecification, inconsistencies
from opscope.npu.analysis.tiles_result import (
    BoundRow,
    CallCounts,
    Cycles,
    IterationRow,
    KindRow,
    SlotRow,
    TileRow,
    TilesAnalysis,
    TilesSource,
)
from opscope.npu.analysis.waits import WAITING, CoreWait, core_wait, wait_findings, waiting_core

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.core.table.events import TraceWarning
    from opscope.core.table.tiles import SlotTrace, TileTrace, TileTraceSet
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.kinds import CallKind

_SEVERE = {"truncated", "no_core_trace", "times_backwards", "times_fractional"}
_HARMLESS = {"padding_as_event"}
_OF_CALLS = (
    *("mac_per_cycle", "utilisation", "coverage", "bound", "iterations_by", "expected_iterations", "roofline"),
    *("in_call_mac_per_cycle", "peak_mac_per_cycle", "gmac_per_s", "macs", "calls_needed"),
)
"""Figures of a row that only a core has."""


class TilesTerms(NamedTuple):
    """What is asked besides the trace.

    Attributes:
        said: what is known of the run.
        cores_known: whether the number of cores that share the product was said; else one is supposed.
        warmup: iterations to set aside.
        measured: iterations after them; None: all.
        model: numbers of a cost model; None: there are none.
        model_of_calls: whether an iteration of that model is a single call, not a whole product.
        align: what counts as one moment on all cores.
    """

    said: RunSpecification
    cores_known: bool = True
    warmup: int = 0
    measured: int | None = None
    model: CostModel | None = None
    model_of_calls: bool = False
    align: AlignAt = "auto"


class TracedCore(NamedTuple):
    """A core's trace, and what was found in it."""

    tile: TileTrace
    pairing: Pairing
    kinds: Kinds
    work: MacCalls
    iterations: Iterations
    account: CycleAccount
    rate: MacRate
    bound: TileBound
    roofline: TileRoofline
    advice: TraceAdvice
    damage: TraceDamage
    known: Activity
    stalls: tuple[CallStall, ...]
    only_waits: CoreWait | None


class Examined(NamedTuple):
    """A result, and the calls that it rests on."""

    analysis: TilesAnalysis
    traces: TileTraceSet
    cores: tuple[TracedCore, ...]

    def row_of(self, core: TracedCore) -> TileRow:
        """What the result says of a core."""
        place = next(number for number, tile in enumerate(self.traces.tiles) if tile is core.tile)
        return self.analysis.tiles[place]


def analyse_tiles(traces: TileTraceSet, source: TilesSource, terms: TilesTerms) -> Examined:
    """Look at every tile of a trace.

    Args:
        traces: what was read.
        source: where it came from.
        terms: what is asked.
    """
    cores = {id(tile): examine(tile, terms, traces.tiles) for tile in traces.cores}
    rows = [_row(tile, cores.get(id(tile)), terms.said) for tile in traces.tiles]
    array = _array(tuple(cores.values()), terms)
    prediction = _prediction(tuple(cores.values()), array, terms)
    found = [
        *(waiting_core(core.tile, core.only_waits, traces.tiles) for core in cores.values() if core.only_waits),
        *(_warned(warning) for warning in traces.all_warnings),
        *inconsistencies(terms.said),
        *_cores(traces, terms),
        *(map(message_of, array.findings) if array and terms.cores_known else ()),
        *(array_recommendations(array) if array else ()),
        *(map(message_of, prediction.findings) if prediction else ()),
        *wait_findings(traces.tiles, cores_wait=any(map(_waits, cores.values()))),
        *(one for core in cores.values() for one in _of_core(core, traces.tiles)),
    ]
    analysis = TilesAnalysis(
        trace=source,
        given=terms.said,
        tiles=rows,
        array=msgspec.structs.replace(array, findings=()) if array else None,
        prediction=msgspec.structs.replace(prediction, findings=()) if prediction else None,
        findings=list(published(ordered(found))),
    )
    return Examined(analysis, traces, tuple(cores.values()))


def _prediction(cores: tuple[TracedCore, ...], array: ArrayView | None, terms: TilesTerms) -> Prediction | None:
    """The cost model against iterations of all cores, or against the calls of the core with the longest period."""
    working = [core for core in cores if core.pairing.paired]
    if terms.model is None or array is None or not working:
        return None
    if not terms.model_of_calls:
        return against(terms.model, repeated_iterations(array))
    slow = max(working, key=lambda core: core.bound.measured_period_cycles or 0.0)
    tiling = terms.said.tiling
    needed = tiling.calls_per_core if tiling and terms.cores_known else None
    return against(terms.model, repeated_calls(slow.work, slow.tile.tile), needed)


def _array(cores: tuple[TracedCore, ...], terms: TilesTerms) -> ArrayView | None:
    """All cores that have calls together."""
    own = [
        ArrayCore(core.tile, core.pairing.calls, core.work, core.account, core.iterations, core.rate, core.damage.lost)
        for core in cores
        if core.pairing.paired
    ]
    return array_view(own, terms.said, terms.align) if own else None


def _waits(core: TracedCore) -> bool:
    """Whether a core waits for buffers or streams."""
    cycles, window = Cycles(core.account.in_call, core.account.between_calls), core.account.window_cycles
    return core.only_waits is not None or cycles.of("lock_stall") + cycles.of("stream_stall") > WAITING * window


def examine(tile: TileTrace, terms: TilesTerms, around: Sequence[TileTrace] = ()) -> TracedCore:
    """What the trace of a core tells.

    Args:
        tile: the core's trace.
        terms: what is asked.
        around: all units of the trace.
    """
    said = terms.said
    pairing = pair_calls(tile)
    calls = pairing.calls
    known = activity(tile)
    kinds = find_kinds(tile, calls, known)
    work = multiplying(tile, calls, kinds, said)
    each = said.tiling.calls_per_core if said.tiling and terms.cores_known else None
    iterations = find_iterations(tile, calls, kinds.counting(work.kinds), each, terms.warmup, terms.measured)
    damage = find_damage(tile, pairing, kinds, iterations)
    iterations = without_damaged(iterations, [own.cycle for own in damage.lost if own.cycle == own.last_cycle])
    rated, paced = rate(tile, calls, work, said), bound(tile, calls, work, said, known, around)
    return TracedCore(
        tile=tile,
        pairing=pairing,
        kinds=kinds,
        work=work,
        iterations=iterations,
        account=account(tile, calls, known),
        rate=rated,
        bound=paced,
        roofline=roofline(rated, paced, said),
        advice=advise(tile, work, rated, damage),
        damage=damage,
        known=known,
        stalls=call_stalls(calls, work, known, paced),
        only_waits=core_wait(tile, pairing.paired),
    )


def ordered(findings: Iterable[Message]) -> list[Message]:
    """Most severe first, else as they come; none twice."""
    severities = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda found: severities.index(found.severity))


def _cores(traces: TileTraceSet, terms: TilesTerms) -> Iterator[Message]:
    """That nothing says how many cores share the product."""
    tiling = terms.said.tiling
    if tiling is not None and tiling.macs is not None and traces.cores and not terms.cores_known:
        title, evidence = "how many cores share the product is not said", "coverage is of one core that does all of it"
        yield tile_finding("cores_not_given", Severity.INFO, title, evidence, "all tiles", "give --row and --col")


def _of_core(core: TracedCore, around: Sequence[TileTrace]) -> Iterator[Message]:
    yield from core.damage.findings
    yield from core.pairing.findings
    for part in (core.kinds, core.iterations, core.account, core.rate, core.bound):
        yield from part.findings
    yield from map(message_of, core.advice.findings)
    own = core.tile, core.pairing.calls, core.work, core.account, core.rate, core.bound, core.known, core.stalls
    yield from recommendations(Seen(*own, around))


def _warned(warning: TraceWarning) -> Message:
    """A reader's warning as a finding."""
    severity = Severity.HIGH if warning.code in _SEVERE else Severity.MEDIUM
    if warning.code in _HARMLESS:
        severity = Severity.INFO
    return tile_finding(warning.code, severity, warning.message, "seen while the file was read", "file", warning.hint)


def _row(tile: TileTrace, core: TracedCore | None, said: RunSpecification) -> TileRow:
    slots = [_slot(slot) for slot in tile.slots]
    if core is None:
        return _silent(tile, slots)
    found, pairing, iterations = core.rate, core.pairing, core.iterations
    return TileRow(
        tile=tile.tile,
        unit=tile.unit.value,
        calls=CallCounts(pairing.paired, pairing.dropped, pairing.ambiguous),
        kinds=[_kind(kind, core.work) for kind in core.kinds.kinds],
        window_cycles=core.account.window_cycles,
        cycles=Cycles(core.account.in_call, core.account.between_calls),
        not_traced=core.account.missing,
        overlapping_cycles=core.account.overlapping,
        mac_per_cycle=found.mac_per_cycle,
        utilisation=found.utilisation,
        coverage=found.coverage,
        bound=_bound(core.bound),
        iterations=_iterations(core, said),
        iterations_by=iterations.by,
        iterations_reason=iterations.reason,
        expected_iterations=iterations.expected,
        in_call_mac_per_cycle=found.in_call_mac_per_cycle,
        peak_mac_per_cycle=found.peak,
        gmac_per_s=found.gmac_per_s,
        macs=found.macs,
        rate_reason=found.reason,
        bound_reason=core.bound.reason,
        calls_needed=found.calls_needed,
        roofline=core.roofline,
        last_cycle=tile.last,
        slots=slots,
        advice=msgspec.structs.replace(core.advice, findings=()),
        lost_packets=core.damage.lost,
        call_stalls=core.stalls,
        only_waits=core.only_waits,
    )


def _silent(tile: TileTrace, slots: list[SlotRow]) -> TileRow:
    """A unit that has no calls: its window is empty, and what it lacks is null."""
    none = CycleSplit(0, 0, 0, 0, 0, 0)
    reason = "calls are of cores; this is another unit"
    unknown = dict.fromkeys(_OF_CALLS)
    return TileRow(
        tile=tile.tile,
        unit=tile.unit.value,
        calls=CallCounts(0, 0, 0),
        kinds=[],
        window_cycles=0,
        cycles=Cycles(none, none),
        not_traced=(),
        overlapping_cycles=0,
        iterations=[],
        iterations_reason=reason,
        rate_reason=reason,
        bound_reason=reason,
        last_cycle=tile.last,
        slots=slots,
        advice=msgspec.structs.replace(advise(tile), findings=()),
        lost_packets=(),
        call_stalls=(),
        only_waits=None,
        **unknown,
    )


def _slot(slot: SlotTrace) -> SlotRow:
    spans = slot.spans
    return SlotRow(slot.number, slot.name, len(spans.start), int((spans.end - spans.start).sum()))


def _kind(kind: CallKind, work: MacCalls) -> KindRow:
    return KindRow(
        kind=kind.name,
        n=kind.n,
        vector_cycles=kind.vector_cycles,
        median_cycles=kind.median_cycles,
        p10_cycles=kind.p10_cycles,
        p90_cycles=kind.p90_cycles,
        min_cycles=kind.min_cycles,
        max_cycles=kind.max_cycles,
        first_cycles=kind.first_cycles,
        evidence=kind.evidence,
        multiplies=kind.name in work.kinds,
    )


def _bound(found: TileBound) -> BoundRow | None:
    """The verdict; None when there is none."""
    by, predicted, measured = found.by, found.predicted_period_cycles, found.measured_period_cycles
    residual, call, period = found.residual_cycles, found.call_cycles, found.measured
    if by is None or predicted is None or measured is None or residual is None or call is None or period is None:
        return None
    return BoundRow(by, predicted, measured, residual, call, found.port, period, found.ports, found.reason, found.gain)


def _iterations(core: TracedCore, said: RunSpecification) -> list[IterationRow]:
    rows = core.iterations.iterations
    rates = iteration_rates(rows, core.work, said)
    starts, ends = [row.start for row in rows], [row.end for row in rows]
    splits = split_each(core.tile, starts, ends)
    gaps = [*split_each(core.tile, ends[:-1], starts[1:]), None][: len(rows)]
    found = [_iteration(row, rate, core, said) for row, rate in zip(rows, rates, strict=True)]
    return [
        msgspec.structs.replace(row, split=split, gap=gap) for row, split, gap in zip(found, splits, gaps, strict=True)
    ]


def _iteration(row: Iteration, found: float | None, core: TracedCore, said: RunSpecification) -> IterationRow:
    worked = int(core.work.multiplies[row.first_call : row.last_call + 1].sum())
    return IterationRow(
        number=row.number,
        phase=row.phase,
        complete=row.complete,
        calls=row.last_call - row.first_call + 1,
        first_call=row.first_call,
        last_call=row.last_call,
        start=row.start,
        end=row.end,
        cycles=row.end - row.start,
        macs=worked * said.tiling.macs_per_call if said.tiling and found is not None else None,
        mac_per_cycle=found,
    )
