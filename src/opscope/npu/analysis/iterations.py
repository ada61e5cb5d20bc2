"""Iterations of the calls of a core: which are whole, which lack calls, and which are measured all the same.

An iteration that lost calls is measured where its first start and last end are there: where it lasts as long as other
iterations of this core or of others do, to less than a quarter of a call's period. A lost first or last call would
shorten it by a whole period, and lost time by what was lost.
"""

from __future__ import annotations

from itertools import product
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text
from opscope.npu.analysis.cycles import CycleSplit, event_cover
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.iteration_split import (
    LOCK,
    By,
    IterationSplit,
    by_pattern,
    by_stalls,
    by_tiling,
    find_pattern,
    long_gaps,
    support,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import SlotTrace, TileTrace
    from opscope.npu.analysis.calls import CallSpans, Pairing
    from opscope.npu.analysis.cycles import Activity
    from opscope.npu.analysis.kinds import Kinds, MacCalls

    Mask = NDArray[np.bool_]


_TWICE = 2
"""Iterations that must end alike for the end of the trace to be recognised as one."""
_RARE = 3
"""Iterations with the usual number of calls for each without, from which on that one is damage."""
_FUSED = 1.5
"""So many usual calls and more are two iterations whose border was lost, and a call so long is two or an outlier."""
_AGREES = 0.25
"""Share of a period by which an iteration that lost calls may differ from others and have sound ends."""
_ODD_SHARE = 0.1
"""Calls of unusual length for each usual one, up to which they are outliers and not another kernel."""
_FEW_CALLS = 3
"""Calls of a kind below which they may be several that a loss made one."""
_WITNESSES = 2
"""Damaged iterations that must last as long for one to be measured where none is whole."""


class CallGap(msgspec.Struct, frozen=True):
    """Calls that are missing before the end of a trace, or too many there."""

    missing: int  # working calls that are; below 0 there are too many
    # the earliest that the first of them can be: end of the call before, else start of the iteration that lacks
    # them, of the first that of the trace
    cycle: int
    last_cycle: int  # the latest that they can be: start of the call behind them, else of the next iteration
    at_start: bool  # whether they may be missing since the trace began late
    why: str  # in words


class Iteration(msgspec.Struct, frozen=True):
    """A repetition of the whole product on one core.

    Attributes:
        number: from 1.
        phase: warmup, measured, extra beyond those expected; or partial, when it would be measured but calls of it are
            missing and its ends are not sure.
        complete: whether all its calls are in the trace.
        calls: in the trace.
        first_call: from 0.
        last_call: likewise.
        start: first cycle.
        end: of the last call.
        cycles: from start to end.
        macs: of its calls that multiply, those that were lost included; null without a tiling.
        mac_per_cycle: from start to end; null likewise, and where it would be above the peak.
        split: cycles by what the core did in them; null before these are counted.
        gap: cycles from the end to the start of the next iteration, likewise; null for the last one.
        lost_calls: working calls that the trace lacks, of an iteration whose ends are sure.
        has_sure_ends: whether its first start and last end are known to be there, so that its cycles are right.
    """

    number: int
    phase: str
    complete: bool
    calls: int
    first_call: int
    last_call: int
    start: int
    end: int
    cycles: int
    macs: int | None
    mac_per_cycle: float | None
    split: CycleSplit | None = None
    gap: CycleSplit | None = None
    lost_calls: int = 0
    has_sure_ends: bool = False


class Iterations(msgspec.Struct, frozen=True):
    """All repetitions that a tile's calls form."""

    # in order of time, without what the core did in them; empty where nothing tells them apart
    iterations: tuple[Iteration, ...]
    by: By | None  # what they were found by
    reason: str  # why these, or why none, and whether LOCK_STALL supports it, in words
    expected: int | None  # warm-up and measured ones that were asked for; None where that was not said
    pattern: str | None = None  # sequence of kinds that repeats, such as `zero-fill, 12 x kernel 1`; None without one
    whole: int = 0  # working calls of a complete one
    work: tuple[int, ...] = ()  # working calls of each
    # of those before the last that lack working calls, or have too many
    gaps: tuple[CallGap, ...] = ()
    is_rare: bool = True  # whether such are few, so that they are damage; else the work itself is uneven
    doubts: tuple[Message, ...] = ()  # what contradicts how they were found

    @property
    def missing_calls(self) -> int:
        """Working calls that are missing before the end, at least."""
        return sum(gap.missing for gap in self.gaps if gap.missing > 0)


def find_iterations(
    tile: TileTrace,
    calls: CallSpans,
    kinds: Kinds,
    calls_per_iteration: int | None = None,
    warmup: int = 0,
    measured: int | None = None,
) -> Iterations:
    """Group calls into iterations.

    The tiling decides where it is given. Else waits for a lock do that are of another size than all others and divide
    the calls evenly; else each repetition of the sequence of kinds counts as one.
    """
    expected = None if measured is None else warmup + measured
    if calls_per_iteration is not None:
        kinds = _with_odd_calls(kinds, calls_per_iteration)
    pattern = find_pattern(kinds)
    stalls = event_cover(tile, LOCK)
    gaps = None if stalls is None else stalls.within(calls.end[:-1], calls.start[1:])
    long = long_gaps(gaps, calls)
    if calls_per_iteration is not None and kinds.work.any():
        split: IterationSplit | None = by_tiling(kinds, calls_per_iteration, pattern, long, expected)
    else:
        split = by_stalls(kinds, long, gaps, expected) or (by_pattern(kinds, pattern, long) if pattern else None)
    if split is None:
        return Iterations((), None, _why_no_iterations(calls, kinds, gaps, long), expected)
    iterations = _list_iterations(calls, kinds, split, (warmup, expected))
    gaps_found, is_rare = _find_gaps((tile, calls, kinds), iterations, split, expected)
    return Iterations(
        iterations=iterations,
        by=split.by,
        reason="; ".join(_reason_texts(calls, iterations, split, gaps)),
        expected=expected,
        pattern=pattern.reason if pattern else None,
        whole=split.whole,
        work=tuple(split.work[split.work > 0].tolist()),
        gaps=tuple(gaps_found),
        is_rare=is_rare,
        doubts=tuple(_report_against_tiling(tile, split, pattern, long)),
    )


def _with_odd_calls(kinds: Kinds, each: int) -> Kinds:
    """Let calls of unusual length do the tiling's work too, where they are few and the tiling comes out only so."""
    solid = kinds.counting([kind.kind for kind in kinds.kinds if not kind.fills])
    work, every = int(kinds.work.sum()), int(solid.work.sum())
    return solid if work % each and every % each == 0 and every - work <= _ODD_SHARE * work else kinds


class CoreCalls(NamedTuple):
    """What the calls of a core are, before its iterations are judged beside those of other cores."""

    tile: TileTrace
    pairing: Pairing
    known: Activity
    kinds: Kinds
    work: MacCalls
    damaged: list[int]  # cycles at which something is missing, which no mark of a call need show
    iterations: Iterations


def judge_iterations(cores: Sequence[CoreCalls]) -> list[Iterations]:
    """Tell the iterations of each core that are not whole, and measure those of them whose ends are sure."""
    judged = []
    for core, lacking in zip(cores, _select_lossy(cores), strict=True):
        is_damaged = lacking | (_count_inside(core.iterations, core.damaged) > 0)
        judged.append(core._replace(iterations=_mark_incomplete(core.iterations, is_damaged)))
    return [_measure_partial(core, before.iterations, judged) for core, before in zip(judged, cores, strict=True)]


def _select_lossy(cores: Sequence[CoreCalls]) -> list[Mask]:
    """Select the iterations of each core that lost marks of calls.

    The fewest unpaired marks in an iteration are the kernel's own; one with more lost events. Once any did, no
    iteration is whole that has fewer marks than another of these cores, as a call that lost both leaves no other sign.
    """
    unpaired = [_count_inside(core.iterations, core.pairing.unpaired) for core in cores]
    usual = min((int(marks_in.min()) for marks_in in unpaired if len(marks_in)), default=0)
    marked = [
        marks_in - usual + [row.calls for row in core.iterations.iterations]
        for core, marks_in in zip(cores, unpaired, strict=True)
    ]
    counts = [_counts_calls(core.iterations, core.kinds) for core in cores]
    every = [int(marks_in.max()) for marks_in, counted in zip(marked, counts, strict=True) if counted]
    most = (
        max(every, default=0)
        if any((marks_in > usual).any() for marks_in in unpaired) or _have_equal_counts(every)
        else 0
    )
    return [
        (marks_in > usual) | (marks < (most if counted and most < _FUSED * np.median(marks) else 0))
        for marks_in, marks, counted in zip(unpaired, marked, counts, strict=True)
    ]


def _have_equal_counts(counts: Sequence[int]) -> bool:
    """Return whether several cores make equally many calls, so that fewer are a loss and not other work."""
    return len(counts) > 1 and len(set(counts)) == 1


def _counts_calls(iterations: Iterations, kinds: Kinds) -> bool:
    """Return whether all iterations have equally many calls: beside zero-fills, which run ahead, they have not."""
    return bool(iterations.iterations) and iterations.by != "tiling" and bool(kinds.work.all())


def _measure_partial(core: CoreCalls, before: Iterations, cores: Sequence[CoreCalls]) -> Iterations:
    """Measure the partial iterations of a core whose ends are there.

    One that lacks no working call must have been whole before marks were looked at.
    """
    rows, calls = list(core.iterations.iterations), core.pairing.calls
    usual_calls = [kind.median_cycles for kind in core.kinds.kinds if kind.n >= _FEW_CALLS]
    if not usual_calls or all(row.complete for row in rows):
        return core.iterations
    tolerance = _AGREES * min(usual_calls)
    unsure = _count_inside(core.iterations, (*(lost.cycle for lost in core.tile.lost), *core.pairing.doubtful)) > 0
    is_odd = np.append(0, np.cumsum(_odd_calls(core.kinds, calls.durations)))
    for at, row in enumerate(rows):
        lost = core.iterations.whole - core.iterations.work[at]
        is_candidate = not row.complete and (lost > 0 or (lost == 0 and before.iterations[at].complete))
        if not is_candidate or unsure[at] or is_odd[row.last_call + 1] > is_odd[row.first_call]:
            continue
        usual = _usual_span(at, core, cores, tolerance)
        start, end = min(_possible_ends(at, core), key=lambda ends: abs(ends[1] - ends[0] - (usual or 0)))
        if usual is not None and abs(end - start - usual) <= tolerance:
            rows[at] = msgspec.structs.replace(
                row,
                phase="measured" if row.phase == "partial" else row.phase,
                start=start,
                end=end,
                cycles=end - start,
                lost_calls=lost,
                has_sure_ends=True,
            )
    return msgspec.structs.replace(core.iterations, iterations=tuple(rows))


def _odd_calls(kinds: Kinds, durations: Ints) -> Mask:
    """Select the calls that may be several which a loss made one: of a rare kind, or much longer than their kind."""
    usual = np.array([kind.median_cycles for kind in kinds.kinds])[kinds.labels]
    number = np.array([kind.n for kind in kinds.kinds])[kinds.labels]
    odd: Mask = (durations > _FUSED * usual) | (number < _FEW_CALLS)
    return odd


def _possible_ends(at: int, core: CoreCalls) -> Iterator[tuple[int, int]]:
    """Return what an iteration may start and end at: its calls' marks, or marks outside whose other one is missing."""
    rows = core.iterations.iterations
    row = rows[at]
    before = rows[at - 1].end if at else 0
    after = rows[at + 1].start if at + 1 < len(rows) else np.iinfo(np.int64).max
    starts = [row.start, *(cycle for cycle in core.pairing.lone_starts if before < cycle < row.start)]
    ends = [row.end, *(cycle for cycle in core.pairing.lone_ends if row.end < cycle < after)]
    return product(starts, ends)


def _usual_span(at: int, core: CoreCalls, cores: Sequence[CoreCalls], tolerance: float) -> float | None:
    """Return the cycles of an iteration: of this core's whole ones, of other cores', or on which damaged ones agree.

    None where there is no such clock.
    """
    own_spans = [row.cycles for row in core.iterations.iterations if row.complete]
    every = [row.cycles for peer in cores for row in peer.iterations.iterations if row.complete]
    for spans in (own_spans, every):
        if spans:
            usual = median(spans)
            return usual if max(spans) - min(spans) <= 2 * tolerance else None
    peers = [
        row.cycles
        for peer in cores
        for number, row in enumerate(peer.iterations.iterations)
        if peer is not core or number != at
    ]
    usual = median(peers) if peers else 0.0
    agreeing = sum(abs(span - usual) <= tolerance for span in peers)
    return usual if agreeing >= _WITNESSES and 2 * agreeing > len(peers) else None


def _count_inside(iterations: Iterations, cycles: Sequence[int]) -> Ints:
    at = np.sort(np.array(cycles, np.int64))
    starts, ends = (
        np.array([getattr(row, edge) for row in iterations.iterations], np.int64) for edge in ("start", "end")
    )
    inside: Ints = np.searchsorted(at, ends) - np.searchsorted(at, starts, side="right")
    return inside


def _mark_incomplete(iterations: Iterations, lacking: Mask) -> Iterations:
    """Mark iterations as incomplete, so that they are not measured; ``lacking`` has shape (iterations,)."""
    rows = list(iterations.iterations)
    for number in np.flatnonzero(lacking).tolist():
        phase = "partial" if rows[number].phase == "measured" else rows[number].phase
        rows[number] = msgspec.structs.replace(rows[number], complete=False, phase=phase, has_sure_ends=False)
    return msgspec.structs.replace(iterations, iterations=tuple(rows))


def _find_gaps(
    seen: tuple[TileTrace, CallSpans, Kinds],
    iterations: Sequence[Iteration],
    split: IterationSplit,
    expected: int | None,
) -> tuple[list[CallGap], bool]:
    """Return the iterations that have not the working calls of the others, and whether these are few.

    The last counts only if its end is seen. A gap's place is the one odd step in or behind the iteration, else all of
    it; of the first, from the start on. With a tiling, which says how many calls there must be, they are always few.
    """
    tile, calls, kinds = seen
    whole, work = split.whole, split.work[split.work > 0].tolist()
    alike = work.count(whole)
    uneven = len(work[1:-1]) - work[1:-1].count(whole)
    if not whole or not alike:
        return [], True
    gaps, counted, odd = [], _iterations_in_groups(work, whole, expected), _odd_steps(calls, kinds, iterations)
    ended = len(iterations) if _is_end_seen(tile, calls, iterations) else len(iterations) - 1
    for row, units, worked in zip(iterations[:ended], counted, work, strict=False):
        missing = units * whole - worked
        if missing:
            what = f"{units * whole:,} in {counted_text(units, 'iteration')}" if units > 1 else f"{whole:,}"
            why = f"iteration {row.number} has {counted_text(worked, 'working call', ',')}, {what} are typical"
            last = iterations[row.number].start if row.number < len(iterations) else tile.last
            odd_there = row.first_call + np.flatnonzero(odd[row.first_call : row.last_call + 1])
            at_start = row.number == 1 and units == 1
            if len(odd_there) == 1:
                at = int(odd_there[0])
                gaps.append(CallGap(missing, int(calls.end[at]), int(calls.start[at + 1]), at_start=False, why=why))
            else:
                gaps.append(CallGap(missing, 0 if at_start else row.start, last, at_start, why))
    return gaps, split.by == "tiling" or alike >= _RARE * uneven


def _is_end_seen(tile: TileTrace, calls: CallSpans, iterations: Sequence[Iteration]) -> bool:
    """Return whether the trace ends as its iterations do: with an event that is behind no other call."""
    lasts = [iteration.last_call for iteration in iterations[:-1] if iteration.complete]
    if len(lasts) < _TWICE:
        return False
    others = np.setdiff1d(np.arange(len(calls) - 1), [iteration.last_call for iteration in iterations])
    return any(_ends_iterations(slot, calls, lasts, others) for slot in tile.slots)


def _ends_iterations(slot: SlotTrace, calls: CallSpans, lasts: Sequence[int], others: Ints) -> bool:
    begins = np.sort(slot.spans.start)
    behind = np.searchsorted(begins, calls.start[1:]) - np.searchsorted(begins, calls.end[:-1])
    only_there = behind[lasts].all() and len(others) and not behind[others].any()
    return bool(only_there and (begins >= calls.end[-1]).any())


def _odd_steps(calls: CallSpans, kinds: Kinds, iterations: Sequence[Iteration]) -> Mask:
    """Return which calls are as far from the next as none of these kinds in a whole iteration; shape (calls - 1,)."""
    steps, follows = np.diff(calls.start), kinds.labels[:-1] * len(kinds.kinds) + kinds.labels[1:]
    follows[[iteration.last_call for iteration in iterations[:-1]]] = -1
    whole = np.zeros(len(steps), bool)
    for iteration in iterations:
        whole[iteration.first_call : iteration.last_call + 1] = iteration.complete
    keys, place = np.unique(follows, return_inverse=True)
    least, most = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), -1)
    np.minimum.at(least, place[whole], steps[whole])
    np.maximum.at(most, place[whole], steps[whole])
    odd: Mask = (steps < least[place]) | (steps > most[place])
    return odd


def _iterations_in_groups(work: Sequence[int], whole: int, expected: int | None) -> list[int]:
    least = [max(calls // whole, 1) for calls in work]
    order = sorted(range(len(work)), key=lambda at: least[at] * whole - work[at])
    beyond = [at for at in order if work[at] > least[at] * whole]
    if expected is None:
        beyond = [at for at in beyond if 2 * (work[at] - least[at] * whole) > whole]
    more = len(beyond) if expected is None else expected - sum(least)
    for at in beyond[: max(more, 0)]:
        least[at] += 1
    return least


def _list_iterations(
    calls: CallSpans, kinds: Kinds, split: IterationSplit, asked: tuple[int, int | None]
) -> tuple[Iteration, ...]:
    """List all iterations with working calls, without zero-fills at their ends, which have run ahead."""
    kept = np.flatnonzero(split.work)
    solid = np.flatnonzero(~kinds.fills)
    last = solid[np.searchsorted(solid, np.append(split.starts[1:], len(calls))[kept]) - 1]
    first = split.starts[kept]
    columns = (first, last, calls.start[first], calls.end[last], split.complete[kept])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Iteration(
            number=number + 1,
            phase=_phase_of(number, *asked, complete=complete),
            complete=complete,
            calls=b - a + 1,
            first_call=a,
            last_call=b,
            start=start,
            end=end,
            cycles=end - start,
            macs=None,
            mac_per_cycle=None,
            has_sure_ends=complete,
        )
        for number, (a, b, start, end, complete) in enumerate(rows)
    )


def _phase_of(number: int, warmup: int, expected: int | None, *, complete: bool) -> str:
    if number < warmup:
        return "warmup"
    if expected is not None and number >= expected:
        return "extra"
    return "measured" if complete else "partial"


def _why_no_iterations(calls: CallSpans, kinds: Kinds, gaps: Ints | None, long: Ints) -> str:
    if not len(calls):
        return "there are no calls"
    what = "one kind" if len(kinds.kinds) == 1 else f"{len(kinds.kinds):,} kinds without a repeating sequence"
    if gaps is None:
        stalls = f"{LOCK} was not traced"
    elif len(long):
        stalls = f"{LOCK} is long before {len(long):,} of them, but does not divide them evenly"
    else:
        stalls = f"no lock stall between them ({int(gaps.max(initial=0)):,} cycles at most) stands out"
    return f"{counted_text(len(calls), 'call', ',')} of {what}; {stalls}: only the tiling can show iterations"


def _reason_texts(
    calls: CallSpans, iterations: Sequence[Iteration], split: IterationSplit, gaps: Ints | None
) -> Iterator[str]:
    yield split.reason
    if split.by != "lock_stall":
        yield support(gaps, split.starts)
    ahead = len(calls) - sum(iteration.calls for iteration in iterations)
    if ahead:
        yield f"zero-fills that ran ahead of an iteration belong to none: {ahead:,}"


def _report_against_tiling(
    tile: TileTrace, split: IterationSplit, pattern: IterationSplit | None, long: Ints
) -> Iterator[Message]:
    if split.by != "tiling":
        return
    if pattern and split.whole % pattern.whole:
        yield tile_finding(
            "tiling_against_kinds",
            Severity.MEDIUM,
            title="the tiling does not match the repeating sequence of calls",
            evidence=(
                f"{counted_text(split.whole, 'working call', ',')} per iteration, {pattern.whole:,} in {pattern.reason}"
            ),
            where=place(tile),
            step="check the matrix and tile sizes and the numbers of rows and columns",
        )
    astray = np.setdiff1d(long, split.starts)
    if len(astray):
        yield tile_finding(
            "tiling_against_stalls",
            Severity.MEDIUM,
            title="long lock stalls within iterations of the tiling",
            evidence=f"{len(astray):,} of {len(long):,} unusually long lock stalls",
            where=place(tile, f"before call {astray[0] + 1}"),
            step="check the tiling; if it is right, check what feeds the core there",
        )


def iteration_findings(tile: TileTrace, result: Iterations) -> Iterator[Message]:
    """Report iterations that were not expected, that lost calls, and what contradicts how they were found."""
    yield from _report_unexpected_count(tile, result)
    rows = result.iterations
    lost = [row for row in rows if row.has_sure_ends and not row.complete]
    if lost:
        numbers = sorted({row.lost_calls for row in lost})
        counts = ", ".join(
            f"{calls} of {result.whole} calls lost" if calls else "marks of calls lost" for calls in numbers
        )
        yield tile_finding(
            "calls_lost",
            Severity.INFO,
            title=f"{_iteration_names(lost)}: {counts}; measured nevertheless",
            evidence="first start and last end are there: as long as other iterations to a quarter of a call",
            where=place(tile, f"cycle {lost[0].start}"),
            step="nothing to do for the times; capture again with fewer events for what happened in these calls",
        )
    partial = [row for row in rows if row.phase == "partial"]
    inner = [row for row in partial if 1 < row.number < len(rows)]
    edges = [row for row in partial if row not in inner]
    for group, severity, why, step in (
        (inner, Severity.MEDIUM, "calls are missing or in excess inside", "look for lost packets"),
        (edges, Severity.INFO, "the trace does not hold all of it", "to see it whole, use a larger trace buffer"),
    ):
        if group:
            work = counted_text(result.work[group[0].number - 1], "working call", ",")
            yield tile_finding(
                "iteration_partial",
                severity,
                title=f"{_iteration_names(group)} not measured: {why}",
                evidence=f"{work} in iteration {group[0].number}, {result.whole:,} are typical",
                where=place(tile, f"cycle {group[0].start}"),
                step=step,
            )
    yield from result.doubts


def _iteration_names(rows: Sequence[Iteration]) -> str:
    if len(rows) == 1:
        return f"iteration {rows[0].number}"
    more = f" and {len(rows) - _TWICE} more" if len(rows) > _TWICE else ""
    return f"iterations {rows[0].number}, {rows[1].number}{more}"


def _report_unexpected_count(tile: TileTrace, result: Iterations) -> Iterator[Message]:
    iterations, expected = result.iterations, result.expected
    complete = sum(row.has_sure_ends for row in iterations)
    if expected is None or expected == len(iterations) == complete:
        return
    seen = "no call does the tiling's work"
    if iterations:
        seen = f"the trace has {counted_text(iterations[-1].last_call + 1, 'call', ',')} in them"
    step = "those beyond the expected ones are marked as extra; check the numbers of iterations and the tiling"
    if complete < expected:
        step = "trace fewer events or enlarge the trace buffer; check the numbers of iterations and the tiling"
    if result.gaps:
        step = "check where calls are missing or in excess before the end"
    yield tile_finding(
        "iterations_unexpected",
        Severity.MEDIUM,
        title=(
            f"{counted_text(expected, 'iteration', ',')} {'was' if expected == 1 else 'were'} expected, "
            f"{len(iterations):,} detected, {complete:,} of them complete"
        ),
        evidence=seen,
        where=place(tile),
        step=step,
    )
