"""A trace of AI Engine tiles as a whole: what its parts tell, tile by tile, in one result.

``TilesAnalysis`` is what is written. ``Examined`` has besides it the calls themselves, which pictures and files of
single calls are made from.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.analysis.findings.message import Message, Severity, part_warning
from opscope.core.parts import PartFailure, explained, failures_heard, part
from opscope.core.table.tiles import TraceMode
from opscope.npu.analysis.advice import Damage, TraceAdvice, advise, report_cut_trace
from opscope.npu.analysis.array import array_view
from opscope.npu.analysis.bound import CallStall, bound, call_stalls
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.cycles import Activity, account, activity, cycle_findings, split_each
from opscope.npu.analysis.damage import damage_signs, find_damage
from opscope.npu.analysis.findings import tile_finding
from opscope.npu.analysis.iterations import (
    CoreCalls,
    Iterations,
    find_iterations,
    iteration_findings,
    judge_iterations,
)
from opscope.npu.analysis.kinds import Kinds, MacCalls, find_kinds, multiplying, none_multiplying, unsorted
from opscope.npu.analysis.ports import Port, ports
from opscope.npu.analysis.rates import TileRate, iteration_rates, rate
from opscope.npu.analysis.recommendations import array_recommendations, recommendations
from opscope.npu.analysis.specification import RunSpecification, inconsistencies
from opscope.npu.analysis.tiles_result import AlignAt, ArrayView, TileRow, TilesAnalysis, TilesSource, TracedCore
from opscope.npu.analysis.traced_units import (
    counted_calls,
    impossible_findings,
    lost_time_findings,
    mode_findings,
    slot_rows,
)
from opscope.npu.analysis.waits import WAITING, core_wait, wait_findings, waiting_core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opscope.core.table.events import TraceWarning
    from opscope.core.table.tiles import TileTrace, TileTraceSet
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.damage import LostPackets
    from opscope.npu.analysis.iterations import Iteration

    Known = TypeVar("Known")

_SEVERE = {"truncated", "no_core_trace", "times_backwards", "times_fractional"}
_HARMLESS = {"padding_as_event"}
_NO_DAMAGE: tuple[tuple[LostPackets, ...], tuple[Message, ...]] = (), ()


class TilesTerms(NamedTuple):
    """What is asked besides the trace."""

    said: RunSpecification  # what is known of the run
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
        found = [_of_tile(tile, partial(find_calls, tile, terms)) for tile in timed]
        calls = [core for core in found if isinstance(core, CoreCalls)]
        judged = part(
            "the comparison of iterations", lambda: judge_iterations(calls), [core.iterations for core in calls]
        )
        results = {id(tile): core for tile, core in zip(timed, found, strict=True) if isinstance(core, PartFailure)} | {
            id(core.tile): _of_tile(
                core.tile, partial(examine, core._replace(iterations=iterations), terms, traces.tiles)
            )
            for core, iterations in zip(calls, judged, strict=True)
        }
        cores = [core for core in results.values() if isinstance(core, TracedCore)]
        rows = [_tile_row(tile, results.get(id(tile))) for tile in traces.tiles]
        array = part("all cores together", lambda: _view_array(cores, terms), None)
        findings = [*_report_trace(traces, terms, cores), *_report_cores(traces, terms, cores, array)]
    findings += [_warning_finding(part_warning(failure)) for failure in failures]
    analysis = TilesAnalysis(
        trace=source,
        given=terms.said,
        tiles=rows,
        array=msgspec.structs.replace(array, findings=()) if array else None,
        findings=ordered(findings),
    )
    return Examined(analysis, tuple(cores))


def _of_tile(tile: TileTrace, compute: Callable[[], Known]) -> Known | PartFailure:
    return explained(f"tile {tile.tile}", compute, lambda failure: failure)


def _known_or(name: str, compute: Callable[[], Known], otherwise: Callable[[str], Known]) -> Known:
    """Return what a part computes, or what stands for it with the reason why a bug leaves it unknown."""
    return explained(name, compute, lambda failure: otherwise(f"unknown because of {failure.because}"))


def _rule_messages(name: str, tell: Callable[[], Iterable[Message]]) -> list[Message]:
    return part(name, lambda: list(tell()), [])


def _view_array(cores: Iterable[TracedCore], terms: TilesTerms) -> ArrayView | None:
    traced_cores = [core for core in cores if len(core.pairing.calls)]
    return array_view(traced_cores, terms.said, terms.align) if traced_cores else None


def find_calls(tile: TileTrace, terms: TilesTerms) -> CoreCalls:
    """Find the calls of a core, their kinds, and what groups them into iterations."""
    pairing, known, said = pair_calls(tile), activity(tile), terms.said
    calls = pairing.calls
    kinds, work = _known_or(
        f"the kinds of calls of tile {tile.tile}",
        lambda: _kinds_and_work(tile, calls, known, said),
        lambda why: (unsorted(calls, why), none_multiplying(tile, calls, why)),
    )
    each = said.tiling.calls_per_core if said.tiling and terms.cores_known else None
    iterations = _known_or(
        f"the iterations of tile {tile.tile}",
        lambda: find_iterations(tile, calls, kinds.counting(work.kinds), each, terms.warmup, terms.measured),
        lambda why: Iterations((), None, why, None),
    )
    damaged = [sign.cycle for sign in damage_signs(tile, pairing, kinds)]
    return CoreCalls(tile, pairing, known, kinds, work, damaged, iterations)


def _kinds_and_work(
    tile: TileTrace, calls: CallSpans, known: Activity, said: RunSpecification
) -> tuple[Kinds, MacCalls]:
    kinds = find_kinds(tile, calls, known)
    return kinds, multiplying(tile, calls, kinds, said)


def examine(core: CoreCalls, terms: TilesTerms, around: Sequence[TileTrace] = ()) -> TracedCore:
    """Examine the trace of a core. All of it rests on its calls and their cycles; the rest can fail by itself."""
    tile, pairing, known, kinds, work, _, iterations = core
    said, of, calls = terms.said, f"of tile {tile.tile}", pairing.calls
    cycles = account(tile, calls, known)
    lost, damage = part(f"the damage {of}", lambda: find_damage(tile, pairing, kinds, iterations), _NO_DAMAGE)
    rated, doubts = _known_or(
        f"the rate {of}", lambda: rate(tile, calls, work, said), lambda why: (TileRate(rate_reason=why), [])
    )
    moved = part(
        f"the streams {of}", lambda: ports(tile, work, said.tiling, said.stream_bytes, said.dtype), tuple[Port, ...]()
    )
    paced, pace_reason, pace_doubts = _known_or(
        f"what limits the call rate {of}",
        lambda: bound(tile, calls, work, moved, known, around),
        lambda why: (None, why, ()),
    )
    losses = Damage(iterations.missing_calls, bool(lost), len(pairing.unpaired))
    advice = _advice_or_reason(tile, lambda: advise(tile, work, rated, losses))
    row = msgspec.structs.replace(
        _unit_row(tile),
        **msgspec.structs.asdict(rated),
        calls=pairing.counts,
        kinds=tuple(msgspec.structs.replace(kind, multiplies=kind.kind in work.kinds) for kind in kinds.kinds),
        window_cycles=cycles.window,
        cycles=cycles,
        not_traced=known.missing,
        bound=paced,
        bound_reason=pace_reason,
        iterations=part(f"the cycles of iterations {of}", lambda: _with_cycles(core, said), iterations.iterations),
        iterations_by=iterations.by,
        iterations_reason=iterations.reason,
        expected_iterations=iterations.expected,
        advice=advice,
        lost_packets=lost,
        call_stalls=part(
            f"the stalls of calls {of}", lambda: call_stalls(calls, work, known, paced, moved), tuple[CallStall, ...]()
        ),
        only_waits=part(f"the waits {of}", lambda: core_wait(tile, len(calls)), None),
    )
    findings = (
        *(*damage, *pairing.findings, *kinds.findings),
        *_rule_messages(f"the report on iterations {of}", lambda: iteration_findings(tile, iterations)),
        *(*cycle_findings(tile, calls, known, cycles), *doubts, *pace_doubts, *report_cut_trace(tile, advice)),
    )
    return TracedCore(tile, pairing, kinds, work, known, moved, row, findings)


def _advice_or_reason(tile: TileTrace, advised: Callable[[], TraceAdvice]) -> TraceAdvice:
    return _known_or(f"the advice on tracing tile {tile.tile}", advised, lambda why: TraceAdvice(cut=None, why=why))


def _with_cycles(core: CoreCalls, said: RunSpecification) -> tuple[Iteration, ...]:
    rows = core.iterations.iterations
    rates = iteration_rates(rows, core.work, said)
    starts, ends = [row.start for row in rows], [row.end for row in rows]
    splits = split_each(core.known, starts, ends)
    gaps = [*split_each(core.known, ends[:-1], starts[1:]), None][: len(rows)]
    return tuple(
        msgspec.structs.replace(row, macs=macs, mac_per_cycle=rate, split=split, gap=gap)
        for row, (macs, rate), split, gap in zip(rows, rates, splits, gaps, strict=True)
    )


def _tile_row(tile: TileTrace, core: TracedCore | PartFailure | None) -> TileRow:
    if isinstance(core, TracedCore):
        return core.row
    reason = "only cores make calls; this is another unit"
    if tile.mode is not TraceMode.EVENT_TIME:
        reason = f"{tile.mode.value.upper()} has no times"
    elif core is not None:
        reason = f"unknown because of {core.because}"
    return msgspec.structs.replace(
        _unit_row(tile),
        calls=counted_calls(tile),
        iterations_reason=reason,
        rate_reason=reason,
        bound_reason=reason,
        advice=_advice_or_reason(tile, lambda: advise(tile)),
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


def ordered(findings: Iterable[Message]) -> list[Message]:
    """Sort findings by severity; among these the file's come first, then those that could save most cycles."""
    severities = list(Severity)

    def rank(message: Message) -> tuple[int, bool, float]:
        return severities.index(message.severity), message.place != "file", -(message.saving_cycles or 0.0)

    return sorted(dict.fromkeys(findings), key=rank)


def _report_trace(traces: TileTraceSet, terms: TilesTerms, cores: Sequence[TracedCore]) -> Iterator[Message]:
    """Report what concerns the file, its units and what was said of the run; cores that only wait come first."""
    waiting = ((core.tile, core.row.only_waits) for core in cores if core.row.only_waits)
    yield from _rule_messages("cores that only wait", lambda: (waiting_core(*own, traces.tiles) for own in waiting))
    yield from map(_warning_finding, traces.all_warnings)
    for tile in traces.tiles:
        yield from mode_findings(tile)
    yield from _rule_messages("time that the writer lost", lambda: lost_time_findings(traces))
    yield from impossible_findings(terms.left_out, terms.said.device)
    yield from _rule_messages("contradictions in the given values", lambda: inconsistencies(terms.said))
    tiling = terms.said.tiling
    if tiling is not None and tiling.macs is not None and traces.cores and not terms.cores_known:
        yield tile_finding(
            "cores_not_given",
            Severity.INFO,
            title="the number of cores that share the product is not given",
            evidence="coverage assumes one core",
            where="all tiles",
            step="give --row and --col",
        )


def _report_cores(
    traces: TileTraceSet, terms: TilesTerms, cores: Sequence[TracedCore], array: ArrayView | None
) -> Iterator[Message]:
    """Report what the cores show together and one by one, and what to do about it."""
    if array:
        yield from array.findings if terms.cores_known else ()
        yield from _rule_messages("the advice on all cores", lambda: array_recommendations(array))
    do_wait = any(map(_is_waiting, cores))
    yield from _rule_messages("waits of other units", lambda: wait_findings(traces.tiles, cores_wait=do_wait))
    for core in cores:
        yield from core.findings
        advised = partial(recommendations, core, traces.tiles)
        yield from _rule_messages(f"the advice on tile {core.tile.tile}", advised)


def _is_waiting(core: TracedCore) -> bool:
    waits = core.row.cycles.of("lock_stall") + core.row.cycles.of("stream_stall")
    return core.row.only_waits is not None or waits > WAITING * core.row.window_cycles


def _warning_finding(warning: TraceWarning) -> Message:
    severity = Severity.HIGH if warning.code in _SEVERE else Severity.MEDIUM
    if warning.code in _HARMLESS:
        severity = Severity.INFO
    evidence = "noticed while reading the file"
    return tile_finding(
        warning.code, severity, title=warning.message, evidence=evidence, where="file", step=warning.hint
    )
