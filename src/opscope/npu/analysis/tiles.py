"""A trace of AI Engine tiles as a whole: what its parts tell, tile by tile, in one result.

``TilesAnalysis`` is what is written. ``Examined`` has besides it the calls themselves, which pictures and files of
single calls are made from.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.findings.message import Message, Severity, part_warning
from opscope.core.parts import explained, failures_heard, part
from opscope.core.table.tiles import TraceMode
from opscope.npu.analysis.array import report_slowest, view_array
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.capture import advise, find_damage, find_end, report_cut_trace
from opscope.npu.analysis.cycles import account, activity, cycle_findings
from opscope.npu.analysis.findings import tile_finding
from opscope.npu.analysis.iterations import find_iterations, iteration_findings, judge_iterations
from opscope.npu.analysis.kinds import CoreCalls, find_kinds
from opscope.npu.analysis.pace import call_stalls, find_bound, find_ports
from opscope.npu.analysis.rates import iteration_rates, rate
from opscope.npu.analysis.recommendations import recommendations
from opscope.npu.analysis.specification import RunSpecification, inconsistencies
from opscope.npu.analysis.tiles_result import AlignAt, ArrayView, TileRow, TilesAnalysis, TilesSource, TracedCore
from opscope.npu.analysis.traced_units import (
    count_calls,
    impossible_findings,
    lost_time_findings,
    mode_findings,
    slot_rows,
)
from opscope.npu.analysis.waits import WAITING, core_wait, report_waiting_core, wait_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opscope.core.parts import PartFailure
    from opscope.core.table.events import TraceWarning
    from opscope.core.table.tiles import TileTrace, TileTraceSet
    from opscope.npu.analysis.iterations import Iteration, Iterations

_SEVERE = {"truncated", "no_core_trace", "times_backwards", "times_fractional"}
_HARMLESS = {"padding_as_event"}


class TilesTerms(NamedTuple):
    """Terms of an analysis besides the trace."""

    specification: RunSpecification  # what is known of the run
    cores_known: bool = True  # whether the number of cores that share the product was said; else one is supposed
    warmup: int = 0  # iterations to set aside
    measured: int | None = None  # iterations after them; None: all
    align: AlignAt = "auto"  # what counts as one moment on all cores
    left_out: Sequence[TileTrace] = ()  # units of the file that the device does not have


class Examined(NamedTuple):
    """A result, and the calls that it rests on."""

    analysis: TilesAnalysis
    cores: tuple[TracedCore, ...]


def analyse_tiles(traces: TileTraceSet, source: TilesSource, terms: TilesTerms) -> Examined:
    """Look at every tile of a trace; what a bug of ours leaves unknown is among the findings."""
    with failures_heard() as failures:
        timed = [tile for tile in traces.cores if tile.mode is TraceMode.EVENT_TIME]
        read = [part(f"tile {tile.tile}", partial(_find_calls, tile, terms), None) for tile in timed]
        pairs = [pair for pair in read if pair is not None]
        calls, iterations_by_core = [core for core, _ in pairs], [iterations for _, iterations in pairs]
        iterations_by_core = part(
            "the comparison of iterations", lambda: judge_iterations(calls, iterations_by_core), iterations_by_core
        )
        examined = [
            part(f"tile {core.tile.tile}", partial(_count_core, core, iterations, terms, traces.tiles), None)
            for core, iterations in zip(calls, iterations_by_core, strict=True)
        ]
        cores = [core for core in examined if core is not None]
        traced = [core for core in cores if len(core.calls)]
        nothing: tuple[ArrayView | None, list[Message]] = None, []
        array, doubts = part(
            "all cores together",
            lambda: view_array(traced, terms.specification, terms.align) if traced else nothing,
            nothing,
        )
        findings = [
            *_report_trace(traces, terms, cores),
            *(doubts if terms.cores_known else ()),
            *_findings_of("the advice on all cores", lambda: report_slowest(array) if array else ()),
            *_report_cores(traces, cores),
        ]
    reasons = {failure.part: f"unknown because of {failure.because}" for failure in failures}
    rows = {id(core.tile): core.row for core in cores}
    analysis = TilesAnalysis(
        trace=source,
        given=terms.specification,
        tiles=[rows.get(id(tile)) or _silent_row(tile, reasons.get(f"tile {tile.tile}")) for tile in traces.tiles],
        array=array,
        findings=_sort_findings([*findings, *(_warning_finding(part_warning(failure)) for failure in failures)]),
    )
    return Examined(analysis, tuple(cores))


def _find_calls(tile: TileTrace, terms: TilesTerms) -> tuple[CoreCalls, Iterations]:
    """Find the calls of a core, their kinds, and what groups them into iterations."""
    pairing, active, tiling = pair_calls(tile), activity(tile), terms.specification.tiling
    core = CoreCalls(tile, pairing, active, find_kinds(tile, pairing.calls, active, terms.specification))
    calls_per_core = tiling.calls_per_core if tiling and terms.cores_known else None
    return core, find_iterations(core, calls_per_core, terms.warmup, terms.measured)


def _count_core(core: CoreCalls, iterations: Iterations, terms: TilesTerms, around: Sequence[TileTrace]) -> TracedCore:
    """Examine the trace of a core: what is counted in it, and what that means, which can fail by itself."""
    tile, cycles = core.tile, account(core.active, core.calls)
    row = msgspec.structs.replace(
        _unit_row(tile),
        calls=core.pairing.counts,
        kinds=core.kinds.kinds,
        window_cycles=cycles.window,
        cycles=cycles,
        not_traced=core.active.missing,
        iterations=_add_cycles(core, iterations, terms.specification),
        iterations_by=iterations.by,
        iterations_reason=iterations.reason,
        expected_iterations=iterations.expected,
        only_waits=None if len(core.calls) else core_wait(tile),
    )
    has_lost_calls = bool(core.damage_signs or iterations.missing_calls)
    findings = (
        *(*core.pairing.findings, *iteration_findings(tile, iterations)),
        *cycle_findings(tile, core.calls, core.active, cycles, has_lost_calls=has_lost_calls),
        *core.kinds.findings,
    )
    counted = TracedCore(tile, core.pairing, core.active, core.kinds, (), row, findings)

    def without_meaning(failure: PartFailure) -> TracedCore:
        reason = f"unknown because of {failure.because}"
        return replace(counted, row=msgspec.structs.replace(row, rate_reason=reason, bound_reason=reason))

    name = f"what the cycles of tile {tile.tile} mean"
    return explained(name, lambda: _interpret_core(counted, iterations, terms.specification, around), without_meaning)


def _interpret_core(
    core: TracedCore, iterations: Iterations, specification: RunSpecification, around: Sequence[TileTrace]
) -> TracedCore:
    """Add damage, rates, what sets the pace, and what to trace."""
    lost, damage = find_damage(core, iterations)
    rates, doubts = rate(core, specification)
    ports = find_ports(core, specification)
    bound, bound_reason, bound_doubts = find_bound(core, ports, around)
    advice = advise(core.tile, find_end(core, rates, iterations, has_losses=bool(lost)), rates.coverage)
    row = msgspec.structs.replace(
        core.row,
        **msgspec.structs.asdict(rates),
        bound=bound,
        bound_reason=bound_reason,
        advice=advice,
        lost_packets=lost,
        call_stalls=call_stalls(core, bound, ports),
    )
    findings = (*damage, *core.findings, *doubts, *bound_doubts, *report_cut_trace(core.tile, advice))
    return replace(core, ports=ports, row=row, findings=findings)


def _add_cycles(core: CoreCalls, iterations: Iterations, specification: RunSpecification) -> tuple[Iteration, ...]:
    """Add to iterations what the core did in them and in the gaps behind them, and their rates."""
    rows = iterations.iterations
    starts, ends = [row.start for row in rows], [row.end for row in rows]
    splits = core.active.split_each(starts, ends)
    gaps = [*core.active.split_each(ends[:-1], starts[1:]), None]
    return tuple(
        msgspec.structs.replace(row, macs=macs, mac_per_cycle=mac_per_cycle, split=split, gap=gap)
        for row, (macs, mac_per_cycle), split, gap in zip(
            rows, iteration_rates(rows, core.kinds, specification), splits, gaps, strict=False
        )
    )


def _unit_row(tile: TileTrace) -> TileRow:
    return TileRow(
        tile=tile.tile,
        unit=tile.unit.value,
        last_cycle=tile.last,
        slots=slot_rows(tile),
        mode=tile.mode,
        row=tile.row,
        column=tile.column,
    )


def _silent_row(tile: TileTrace, failure: str | None) -> TileRow:
    """Return the row of a unit without calls: no core, one without times, or one that a bug leaves unknown."""
    reason = failure or "only cores make calls; this is another unit"
    if tile.mode is not TraceMode.EVENT_TIME:
        reason = f"{tile.mode.value.upper()} has no times"
    return msgspec.structs.replace(
        _unit_row(tile),
        calls=count_calls(tile),
        iterations_reason=reason,
        rate_reason=reason,
        bound_reason=reason,
        advice=advise(tile),
    )


def _sort_findings(findings: Iterable[Message]) -> list[Message]:
    """Sort findings by severity; among these the file's come first, then those that could save most cycles."""
    severities = list(Severity)

    def rank(message: Message) -> tuple[int, bool, float]:
        return severities.index(message.severity), message.place != "file", -(message.saving_cycles or 0.0)

    return sorted(dict.fromkeys(findings), key=rank)


def _findings_of(name: str, tell: Callable[[], Iterable[Message]]) -> list[Message]:
    return part(name, lambda: list(tell()), [])


def _report_trace(traces: TileTraceSet, terms: TilesTerms, cores: Sequence[TracedCore]) -> Iterator[Message]:
    """Report what concerns the file, its units and what was said of the run; cores that only wait come first."""
    for core in cores:
        if core.row.only_waits:
            yield report_waiting_core(core.tile, core.row.only_waits, traces.tiles)
    yield from map(_warning_finding, traces.all_warnings)
    for tile in traces.tiles:
        yield from mode_findings(tile)
    yield from _findings_of("time that the writer lost", lambda: lost_time_findings(traces))
    yield from impossible_findings(terms.left_out, terms.specification.device)
    yield from _findings_of("contradictions in the given values", lambda: inconsistencies(terms.specification))
    tiling = terms.specification.tiling
    if tiling is not None and tiling.macs is not None and traces.cores and not terms.cores_known:
        yield tile_finding(
            "cores_not_given",
            Severity.INFO,
            title="the number of cores that share the product is not given",
            evidence="coverage assumes one core",
            where="all tiles",
            step="give --row and --col",
        )


def _report_cores(traces: TileTraceSet, cores: Sequence[TracedCore]) -> Iterator[Message]:
    """Report what other units wait for, what the cores show one by one, and what to do about it."""
    waits = [core.row.cycles.of("lock_stall") + core.row.cycles.of("stream_stall") for core in cores]
    cores_wait = any(
        core.row.only_waits is not None or cycles > WAITING * core.row.window_cycles
        for core, cycles in zip(cores, waits, strict=True)
    )
    yield from _findings_of("waits of other units", lambda: wait_findings(traces.tiles, cores_wait=cores_wait))
    for core in cores:
        yield from core.findings
        yield from _findings_of(f"the advice on tile {core.tile.tile}", partial(recommendations, core, traces.tiles))


def _warning_finding(warning: TraceWarning) -> Message:
    severity = Severity.HIGH if warning.code in _SEVERE else Severity.MEDIUM
    return tile_finding(
        warning.code,
        Severity.INFO if warning.code in _HARMLESS else severity,
        title=warning.message,
        evidence="noticed while reading the file",
        where="file",
        step=warning.hint,
    )
