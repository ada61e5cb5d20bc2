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
from opscope.npu.analysis.advice import TraceAdvice, advise
from opscope.npu.analysis.array import AlignAt, ArrayView, array_view
from opscope.npu.analysis.bound import bound, call_stalls
from opscope.npu.analysis.calls import pair_calls
from opscope.npu.analysis.cycles import (
    Activity,
    Cycles,
    CycleSplit,
    account,
    activity,
    claimed_twice,
    cycle_findings,
    split_each,
)
from opscope.npu.analysis.damage import damage_signs, find_damage
from opscope.npu.analysis.findings import tile_finding
from opscope.npu.analysis.iterations import (
    CoreIterations,
    Iterations,
    find_iterations,
    iteration_findings,
    judge_iterations,
)
from opscope.npu.analysis.kinds import Kinds, MacCalls, find_kinds, multiplying, none_multiplying, unsorted
from opscope.npu.analysis.ports import ports
from opscope.npu.analysis.rates import MacRate, TileRate, TileRoofline, iteration_rates, rate, roofline
from opscope.npu.analysis.recommendations import array_recommendations, recommendations
from opscope.npu.analysis.specification import RunSpecification, inconsistencies
from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis, TilesSource
from opscope.npu.analysis.traced_core import TracedCore
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
    from opscope.npu.analysis.calls import CallSpans, Pairing
    from opscope.npu.analysis.damage import LostPackets
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.ports import Port

    Known = TypeVar("Known")

_SEVERE = {"truncated", "no_core_trace", "times_backwards", "times_fractional"}
_HARMLESS = {"padding_as_event"}
_NO_DAMAGE: tuple[tuple[LostPackets, ...], tuple[Message, ...]] = (), ()
_NO_PORTS: tuple[Port, ...] = ()


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
    rows: tuple[TileRow, ...]  # what the result says of each of these


class CoreCalls(NamedTuple):
    """What the calls of a core are, before iterations are judged beside those of other cores."""

    tile: TileTrace
    pairing: Pairing
    known: Activity
    kinds: Kinds
    work: MacCalls
    iterations: Iterations


def analyse_tiles(traces: TileTraceSet, source: TilesSource, terms: TilesTerms) -> Examined:
    """Look at every tile of a trace; what a bug of ours leaves unknown is among the findings."""
    with failures_heard() as failures:
        outcomes = {
            id(tile): explained(f"tile {tile.tile}", partial(find_calls, tile, terms), lambda failure: failure)
            for tile in traces.cores
            if tile.mode is TraceMode.EVENT_TIME
        }
        core_calls = {name: core for name, core in outcomes.items() if isinstance(core, CoreCalls)}
        judged = part(
            "the comparison of iterations",
            lambda: judge_iterations([_to_judge(core) for core in core_calls.values()]),
            [core.iterations for core in core_calls.values()],
        )
        results = {
            name: explained(
                f"tile {core.tile.tile}",
                partial(examine, core._replace(iterations=iterations), terms, traces.tiles),
                lambda failure: failure,
            )
            for (name, core), iterations in zip(core_calls.items(), judged, strict=True)
        }
        cores = {name: core for name, core in results.items() if isinstance(core, TracedCore)}
        rows = [_tile_row(tile, results.get(id(tile), outcomes.get(id(tile))), terms.said) for tile in traces.tiles]
        array = part("all cores together", lambda: _view_array(tuple(cores.values()), terms), None)
        found = [
            *_rule_messages("cores that only wait", lambda: _waiting_findings(cores.values(), traces.tiles)),
            *(_warning_finding(warning) for warning in traces.all_warnings),
            *(one for tile in traces.tiles for one in mode_findings(tile)),
            *_rule_messages("time that the writer lost", lambda: lost_time_findings(traces)),
            *impossible_findings(terms.left_out, terms.said.device),
            *_rule_messages("contradictions in the given values", lambda: inconsistencies(terms.said)),
            *_report_unknown_cores(traces, terms),
            *(array.findings if array and terms.cores_known else ()),
            *(_rule_messages("the advice on all cores", lambda: array_recommendations(array)) if array else ()),
            *_rule_messages(
                "waits of other units",
                lambda: wait_findings(traces.tiles, cores_wait=any(map(_is_waiting, cores.values()))),
            ),
            *(one for core in cores.values() for one in _of_core(core, traces.tiles)),
        ]
    found += [_warning_finding(part_warning(failure)) for failure in failures]
    analysis = TilesAnalysis(
        trace=source,
        given=terms.said,
        tiles=rows,
        array=msgspec.structs.replace(array, findings=()) if array else None,
        findings=ordered(found),
    )
    of_cores = tuple(row for tile, row in zip(traces.tiles, rows, strict=True) if id(tile) in cores)
    return Examined(analysis, tuple(cores.values()), of_cores)


def _to_judge(core: CoreCalls) -> CoreIterations:
    signs = damage_signs(core.tile, core.pairing, core.kinds)
    timeless = [lost.cycle for lost in core.tile.lost]
    return CoreIterations(core.iterations, core.pairing, core.kinds, [sign.cycle for sign in signs], timeless)


def _rule_messages(name: str, tell: Callable[[], Iterable[Message]]) -> list[Message]:
    return part(name, lambda: list(tell()), [])


def _waiting_findings(cores: Iterable[TracedCore], around: Sequence[TileTrace]) -> Iterator[Message]:
    return (waiting_core(core.tile, core.only_waits, around) for core in cores if core.only_waits)


def _view_array(cores: tuple[TracedCore, ...], terms: TilesTerms) -> ArrayView | None:
    traced_cores = [core for core in cores if len(core.pairing.calls)]
    return array_view(traced_cores, terms.said, terms.align) if traced_cores else None


def _is_waiting(core: TracedCore) -> bool:
    waits = core.cycles.of("lock_stall") + core.cycles.of("stream_stall")
    return core.only_waits is not None or waits > WAITING * core.cycles.window


def find_calls(tile: TileTrace, terms: TilesTerms) -> CoreCalls:
    """Find the calls of a core, their kinds, and what groups them into iterations."""
    pairing, known = pair_calls(tile), activity(tile)
    of = f"the kinds of calls of tile {tile.tile}"
    sorts = explained(of, lambda: _kinds_of(tile, pairing.calls, known, terms.said), lambda failure: failure)
    if isinstance(sorts, PartFailure):
        why = _unknown_text(sorts)
        kinds, work = unsorted(pairing.calls, why), none_multiplying(tile, pairing.calls, why)
        return CoreCalls(tile, pairing, known, kinds, work, Iterations((), None, why, None))
    return CoreCalls(tile, pairing, known, *sorts, _iterations_of(tile, pairing.calls, sorts, terms))


def examine(core: CoreCalls, terms: TilesTerms, around: Sequence[TileTrace] = ()) -> TracedCore:
    """Examine the trace of a core. All of it rests on its calls and their cycles; the rest can fail by itself."""
    tile, pairing, known, kinds, work, iterations = core
    said, of, calls = terms.said, f"of tile {tile.tile}", pairing.calls
    cycles = account(tile, calls, known)
    lost, damage = part(f"the damage {of}", lambda: find_damage(tile, pairing, kinds, iterations), _NO_DAMAGE)
    rated = _as_far_as_known(
        f"the rate {of}",
        lambda: rate(tile, calls, work, said),
        lambda why: MacRate(calls=work.number, rate_reason=why),
    )
    moved = part(f"the streams {of}", lambda: ports(tile, work, said.tiling, said.stream_bytes, said.dtype), _NO_PORTS)
    paced, pace_reason, doubts = _as_far_as_known(
        f"what limits the call rate {of}",
        lambda: bound(tile, calls, work, moved, known, around),
        lambda why: (None, why, ()),
    )
    before, alone = iterations.missing_calls, len(pairing.unpaired)
    advice = _advice_or_reason(
        tile, lambda: advise(tile, work, rated, missing_calls=before, lost=bool(lost), alone=alone)
    )
    return TracedCore(
        tile=tile,
        pairing=pairing,
        kinds=kinds,
        work=work,
        iterations=iterations,
        cycles=cycles,
        rate=rated,
        ports=moved,
        bound=paced,
        bound_reason=pace_reason,
        roofline=_as_far_as_known(
            f"the roofline {of}", lambda: roofline(rated, paced, moved, said), lambda why: TileRoofline(reason=why)
        ),
        advice=advice,
        lost=lost,
        known=known,
        stalls=part(f"the stalls of calls {of}", lambda: call_stalls(calls, work, known, paced, moved), ()),
        only_waits=part(f"the waits {of}", lambda: core_wait(tile, len(calls)), None),
        findings=(
            *(*damage, *pairing.findings, *kinds.findings),
            *_rule_messages(f"the report on iterations {of}", lambda: iteration_findings(tile, iterations)),
            *(*cycle_findings(tile, calls, known, cycles), *rated.findings, *doubts, *advice.findings),
        ),
    )


def _kinds_of(tile: TileTrace, calls: CallSpans, known: Activity, said: RunSpecification) -> tuple[Kinds, MacCalls]:
    kinds = find_kinds(tile, calls, known)
    return kinds, multiplying(tile, calls, kinds, said)


def _iterations_of(tile: TileTrace, calls: CallSpans, sorts: tuple[Kinds, MacCalls], terms: TilesTerms) -> Iterations:
    said, (kinds, work) = terms.said, sorts
    each = said.tiling.calls_per_core if said.tiling and terms.cores_known else None
    return _as_far_as_known(
        f"the iterations of tile {tile.tile}",
        lambda: find_iterations(tile, calls, kinds.counting(work.kinds), each, terms.warmup, terms.measured),
        lambda why: Iterations((), None, why, None),
    )


def _advice_or_reason(tile: TileTrace, advised: Callable[[], TraceAdvice]) -> TraceAdvice:
    return _as_far_as_known(
        f"the advice on tracing tile {tile.tile}",
        advised,
        lambda why: TraceAdvice(
            cut=None, why=why, coverage=None, commands=0, bytes=0, buffer_bytes=None, slots=(), steps=()
        ),
    )


def _as_far_as_known(name: str, compute: Callable[[], Known], otherwise: Callable[[str], Known]) -> Known:
    return explained(name, compute, lambda failure: otherwise(_unknown_text(failure)))


def _unknown_text(failure: PartFailure) -> str:
    return f"unknown because of {failure.because}"


def ordered(findings: Iterable[Message]) -> list[Message]:
    """Sort findings by severity; among these the file's come first, then those that could save most cycles."""
    severities = list(Severity)

    def rank(message: Message) -> tuple[int, bool, float]:
        return severities.index(message.severity), message.place != "file", -(message.saving_cycles or 0.0)

    return sorted(dict.fromkeys(findings), key=rank)


def _report_unknown_cores(traces: TileTraceSet, terms: TilesTerms) -> Iterator[Message]:
    tiling = terms.said.tiling
    if tiling is not None and tiling.macs is not None and traces.cores and not terms.cores_known:
        title, evidence = "the number of cores that share the product is not given", "coverage assumes one core"
        yield tile_finding(
            "cores_not_given",
            Severity.INFO,
            title=title,
            evidence=evidence,
            where="all tiles",
            step="give --row and --col",
        )


def _of_core(core: TracedCore, around: Sequence[TileTrace]) -> Iterator[Message]:
    yield from core.findings
    yield from _rule_messages(f"the advice on tile {core.tile.tile}", lambda: recommendations(core, around))


def _warning_finding(warning: TraceWarning) -> Message:
    severity = Severity.HIGH if warning.code in _SEVERE else Severity.MEDIUM
    if warning.code in _HARMLESS:
        severity = Severity.INFO
    return tile_finding(
        warning.code,
        severity,
        title=warning.message,
        evidence="noticed while reading the file",
        where="file",
        step=warning.hint,
    )


def _tile_row(tile: TileTrace, core: TracedCore | CoreCalls | PartFailure | None, said: RunSpecification) -> TileRow:
    if not isinstance(core, TracedCore):
        why = _unknown_text(core) if isinstance(core, PartFailure) else "only cores make calls; this is another unit"
        return _row_without_calls(
            tile, why if tile.mode is TraceMode.EVENT_TIME else f"{tile.mode.value.upper()} has no times"
        )
    pairing, iterations = core.pairing, core.iterations
    return TileRow(
        tile=tile.tile,
        unit=tile.unit.value,
        calls=pairing.counts,
        kinds=[msgspec.structs.replace(kind, multiplies=kind.kind in core.work.kinds) for kind in core.kinds.kinds],
        window_cycles=core.cycles.window,
        cycles=core.cycles,
        not_traced=core.known.missing,
        overlapping_cycles=sum(claimed_twice(pairing.calls, core.known).values()),
        bound=core.bound,
        iterations=part(
            f"the cycles of iterations of tile {tile.tile}", lambda: _iterations_with_cycles(core, said), []
        ),
        iterations_by=iterations.by,
        iterations_reason=iterations.reason,
        expected_iterations=iterations.expected,
        bound_reason=core.bound_reason,
        roofline=core.roofline,
        last_cycle=tile.last,
        slots=slot_rows(tile),
        advice=msgspec.structs.replace(core.advice, findings=()),
        lost_packets=core.lost,
        call_stalls=core.stalls,
        only_waits=core.only_waits,
        row=tile.row,
        column=tile.column,
        **{name: getattr(core.rate, name) for name in TileRate.__struct_fields__},
    )


def _row_without_calls(tile: TileTrace, reason: str) -> TileRow:
    """A unit of which no calls are known: its window is empty, and what it lacks is null."""
    none = CycleSplit(0, 0, 0, 0, 0, 0)
    return TileRow(
        tile=tile.tile,
        unit=tile.unit.value,
        calls=counted_calls(tile),
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
        slots=slot_rows(tile),
        advice=msgspec.structs.replace(_advice_or_reason(tile, lambda: advise(tile)), findings=()),
        mode=tile.mode,
        row=tile.row,
        column=tile.column,
    )


def _iterations_with_cycles(core: TracedCore, said: RunSpecification) -> list[Iteration]:
    rows = core.iterations.iterations
    rates = iteration_rates(rows, core.work, said)
    starts, ends = [row.start for row in rows], [row.end for row in rows]
    splits = split_each(core.known, starts, ends)
    gaps = [*split_each(core.known, ends[:-1], starts[1:]), None][: len(rows)]
    return [
        msgspec.structs.replace(row, macs=macs, mac_per_cycle=rate, split=split, gap=gap)
        for row, (macs, rate), split, gap in zip(rows, rates, splits, gaps, strict=True)
    ]
