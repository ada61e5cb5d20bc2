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
from opscope.npu.analysis.advice import TraceAdvice, advise
from opscope.npu.analysis.array import AlignAt, ArrayView, array_view
from opscope.npu.analysis.bound import bound, call_stalls
from opscope.npu.analysis.calls import CallCounts, pair_calls
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
from opscope.npu.analysis.damage import find_damage
from opscope.npu.analysis.findings import tile_finding
from opscope.npu.analysis.iterations import (
    Iterations,
    find_iterations,
    without_damaged,
    without_lossy,
)
from opscope.npu.analysis.kinds import Kinds, MacCalls, find_kinds, multiplying, none_multiplying, unsorted
from opscope.npu.analysis.ports import ports
from opscope.npu.analysis.prediction import Prediction, against, repeated_calls, repeated_iterations
from opscope.npu.analysis.rates import MacRate, TileRate, TileRoofline, iteration_rates, rate, roofline
from opscope.npu.analysis.recommendations import array_recommendations, recommendations
from opscope.npu.analysis.specification import RunSpecification, inconsistencies
from opscope.npu.analysis.tiles_result import SlotRow, TileRow, TilesAnalysis, TilesSource
from opscope.npu.analysis.traced_core import TracedCore
from opscope.npu.analysis.waits import WAITING, core_wait, wait_findings, waiting_core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opscope.core.table.events import TraceWarning
    from opscope.core.table.tiles import TileTrace, TileTraceSet
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.damage import LostPackets
    from opscope.npu.analysis.iterations import Iteration
    from opscope.npu.analysis.ports import Port
    from opscope.npu.cost_model import CostModel

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
    model: CostModel | None = None  # numbers of a cost model; None: there are none
    model_of_calls: bool = False  # whether an iteration of that model is a single call, not a whole product
    align: AlignAt = "auto"  # what counts as one moment on all cores


class Examined(NamedTuple):
    """A result, and the calls that it rests on."""

    analysis: TilesAnalysis
    cores: tuple[TracedCore, ...]
    rows: tuple[TileRow, ...]  # what the result says of each of these


def analyse_tiles(traces: TileTraceSet, source: TilesSource, terms: TilesTerms) -> Examined:
    """Look at every tile of a trace; what a bug of ours leaves unknown is among the findings."""
    with failures_heard() as failures:
        looked = {
            id(tile): explained(
                f"tile {tile.tile}", partial(examine, tile, terms, traces.tiles), lambda failure: failure
            )
            for tile in traces.cores
        }
        cores = _with_each_other({name: core for name, core in looked.items() if isinstance(core, TracedCore)})
        rows = [_row(tile, cores.get(id(tile), looked.get(id(tile))), terms.said) for tile in traces.tiles]
        array = part("all cores together", lambda: _array(tuple(cores.values()), terms), None)
        prediction = part(
            "the comparison with the cost model", lambda: _prediction(tuple(cores.values()), array, terms), None
        )
        found = [
            *_rule_messages("cores that only wait", lambda: _waiting(cores.values(), traces.tiles)),
            *(_warned(warning) for warning in traces.all_warnings),
            *_rule_messages("contradictions in the given values", lambda: inconsistencies(terms.said)),
            *_cores(traces, terms),
            *(array.findings if array and terms.cores_known else ()),
            *(_rule_messages("the advice on all cores", lambda: array_recommendations(array)) if array else ()),
            *(prediction.findings if prediction else ()),
            *_rule_messages(
                "waits of other units", lambda: wait_findings(traces.tiles, cores_wait=any(map(_waits, cores.values())))
            ),
            *(one for core in cores.values() for one in _of_core(core, traces.tiles)),
        ]
    found += [_warned(part_warning(failure)) for failure in failures]
    analysis = TilesAnalysis(
        trace=source,
        given=terms.said,
        tiles=rows,
        array=msgspec.structs.replace(array, findings=()) if array else None,
        prediction=msgspec.structs.replace(prediction, findings=()) if prediction else None,
        findings=ordered(found),
    )
    of_cores = tuple(row for tile, row in zip(traces.tiles, rows, strict=True) if id(tile) in cores)
    return Examined(analysis, tuple(cores.values()), of_cores)


def _with_each_other(cores: dict[int, TracedCore]) -> dict[int, TracedCore]:
    """The same, with iterations that are whole beside those of all other cores."""
    iterations = without_lossy([(core.iterations, core.pairing.unpaired, core.kinds) for core in cores.values()])
    return {name: core._replace(iterations=own) for (name, core), own in zip(cores.items(), iterations, strict=True)}


def _rule_messages(name: str, tell: Callable[[], Iterable[Message]]) -> list[Message]:
    """What a rule tells; nothing where a bug of ours prevents it."""
    return part(name, lambda: list(tell()), [])


def _waiting(cores: Iterable[TracedCore], around: Sequence[TileTrace]) -> Iterator[Message]:
    return (waiting_core(core.tile, core.only_waits, around) for core in cores if core.only_waits)


def _prediction(cores: tuple[TracedCore, ...], array: ArrayView | None, terms: TilesTerms) -> Prediction | None:
    """The cost model against iterations of all cores, or against the calls of the core with the longest period."""
    working = [core for core in cores if len(core.pairing.calls)]
    if terms.model is None or array is None or not working:
        return None
    if not terms.model_of_calls:
        return against(terms.model, repeated_iterations(array))
    slow = max(working, key=lambda core: core.bound.measured_period_cycles if core.bound else 0.0)
    tiling = terms.said.tiling
    needed = tiling.calls_per_core if tiling and terms.cores_known else None
    return against(terms.model, repeated_calls(slow.work, slow.tile.tile), needed)


def _array(cores: tuple[TracedCore, ...], terms: TilesTerms) -> ArrayView | None:
    """All cores that have calls together."""
    traced_cores = [core for core in cores if len(core.pairing.calls)]
    return array_view(traced_cores, terms.said, terms.align) if traced_cores else None


def _waits(core: TracedCore) -> bool:
    """Whether a core waits for buffers or streams."""
    waits = core.cycles.of("lock_stall") + core.cycles.of("stream_stall")
    return core.only_waits is not None or waits > WAITING * core.cycles.window


def examine(tile: TileTrace, terms: TilesTerms, around: Sequence[TileTrace] = ()) -> TracedCore:
    """What the trace of a core tells. All of it rests on its calls and their cycles; the rest can fail by itself."""
    said, of = terms.said, f"of tile {tile.tile}"
    pairing = pair_calls(tile)
    calls = pairing.calls
    known = activity(tile)
    cycles = account(tile, calls, known)
    sorts = explained(f"the kinds of calls {of}", lambda: _kinds_of(tile, calls, known, said), lambda own: own)
    why = _unknown(sorts) if isinstance(sorts, PartFailure) else ""
    kinds, work = (
        (unsorted(calls, why), none_multiplying(tile, calls, why)) if isinstance(sorts, PartFailure) else sorts
    )
    iterations = Iterations((), None, why, None) if why else _iterations_of(tile, calls, (kinds, work), terms)
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
    advice = _advice(tile, lambda: advise(tile, work, rated, missing_calls=before, lost=bool(lost), alone=alone))
    undamaged = without_damaged(iterations, [own.cycle for own in lost if own.cycle == own.last_cycle])
    (whole,) = without_lossy([(undamaged, pairing.unpaired, kinds)])
    return TracedCore(
        tile=tile,
        pairing=pairing,
        kinds=kinds,
        work=work,
        iterations=whole,
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
            *(*damage, *pairing.findings, *kinds.findings, *iterations.findings),
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


def _advice(tile: TileTrace, advised: Callable[[], TraceAdvice]) -> TraceAdvice:
    return _as_far_as_known(
        f"the advice on tracing tile {tile.tile}",
        advised,
        lambda why: TraceAdvice(
            cut=None, why=why, coverage=None, commands=0, bytes=0, buffer_bytes=None, slots=(), steps=()
        ),
    )


def _as_far_as_known(name: str, compute: Callable[[], Known], otherwise: Callable[[str], Known]) -> Known:
    """What is computed; where a bug of ours prevents it, what says why in its place."""
    return explained(name, compute, lambda failure: otherwise(_unknown(failure)))


def _unknown(failure: PartFailure) -> str:
    return f"unknown because of {failure.because}"


def ordered(findings: Iterable[Message]) -> list[Message]:
    """Most severe first, else as they come; none twice."""
    severities = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda message: severities.index(message.severity))


def _cores(traces: TileTraceSet, terms: TilesTerms) -> Iterator[Message]:
    """That nothing says how many cores share the product."""
    tiling = terms.said.tiling
    if tiling is not None and tiling.macs is not None and traces.cores and not terms.cores_known:
        title, evidence = "the number of cores that share the product is not given", "coverage assumes one core"
        yield tile_finding("cores_not_given", Severity.INFO, title, evidence, "all tiles", "give --row and --col")


def _of_core(core: TracedCore, around: Sequence[TileTrace]) -> Iterator[Message]:
    yield from core.findings
    yield from _rule_messages(f"the advice on tile {core.tile.tile}", lambda: recommendations(core, around))


def _warned(warning: TraceWarning) -> Message:
    """A reader's warning as a finding."""
    severity = Severity.HIGH if warning.code in _SEVERE else Severity.MEDIUM
    if warning.code in _HARMLESS:
        severity = Severity.INFO
    return tile_finding(warning.code, severity, warning.message, "noticed while reading the file", "file", warning.hint)


def _row(tile: TileTrace, core: TracedCore | PartFailure | None, said: RunSpecification) -> TileRow:
    slots = [
        SlotRow(slot.number, slot.name, len(slot.spans.start), int((slot.spans.end - slot.spans.start).sum()))
        for slot in tile.slots
    ]
    if not isinstance(core, TracedCore):
        return _silent(tile, slots, "only cores make calls; this is another unit" if core is None else _unknown(core))
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
        iterations=part(f"the cycles of iterations of tile {tile.tile}", lambda: _iterations(core, said), []),
        iterations_by=iterations.by,
        iterations_reason=iterations.reason,
        expected_iterations=iterations.expected,
        bound_reason=core.bound_reason,
        roofline=core.roofline,
        last_cycle=tile.last,
        slots=slots,
        advice=msgspec.structs.replace(core.advice, findings=()),
        lost_packets=core.lost,
        call_stalls=core.stalls,
        only_waits=core.only_waits,
        **{name: getattr(core.rate, name) for name in TileRate.__struct_fields__},
    )


def _silent(tile: TileTrace, slots: list[SlotRow], reason: str) -> TileRow:
    """A unit of which no calls are known: its window is empty, and what it lacks is null."""
    none = CycleSplit(0, 0, 0, 0, 0, 0)
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
        advice=msgspec.structs.replace(_advice(tile, lambda: advise(tile)), findings=()),
    )


def _iterations(core: TracedCore, said: RunSpecification) -> list[Iteration]:
    """The iterations of a core with what it did in them."""
    rows = core.iterations.iterations
    rates = iteration_rates(rows, core.work, said)
    starts, ends = [row.start for row in rows], [row.end for row in rows]
    splits = split_each(core.tile, starts, ends)
    gaps = [*split_each(core.tile, ends[:-1], starts[1:]), None][: len(rows)]
    return [
        msgspec.structs.replace(row, macs=macs, mac_per_cycle=rate, split=split, gap=gap)
        for row, (macs, rate), split, gap in zip(rows, rates, splits, gaps, strict=True)
    ]
