"""Iterations of the calls of a core: which are whole, which lack calls, and which are measured all the same.

An iteration that lost calls is measured where its first start and last end are there: where it lasts as long as other
iterations of this core or of others do, to less than a quarter of a call's period. A lost first or last call would
shorten it by a whole period, and lost time by what was lost.
"""

from __future__ import annotations

from itertools import chain, product
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text
from opscope.npu.analysis.cycles import CycleSplit
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.iteration_split import (
    LOCK,
    By,
    IterationSplit,
    find_long_waits,
    find_pattern,
    move_behind_waits,
    split_by_stalls,
    split_by_tiling,
    support_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.kinds import CoreCalls, Kinds

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
    calls_needed: int = 0  # working calls of a complete one
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
    core: CoreCalls, calls_per_iteration: int | None = None, warmup: int = 0, measured: int | None = None
) -> Iterations:
    """Group calls into iterations.

    The tiling decides where it is given. Else waits for a lock do that are of another size than all others and divide
    the calls evenly; else each repetition of the sequence of kinds counts as one.
    """
    calls, kinds, expected = core.calls, core.kinds, None if measured is None else warmup + measured
    if calls_per_iteration is not None:
        kinds = _count_odd_calls(kinds, calls_per_iteration)
    pattern, locks = find_pattern(kinds), core.active.covers.get("lock_stall")
    waits = None if locks is None else locks.within(calls.end[:-1], calls.start[1:])
    long = find_long_waits(waits, calls)
    if calls_per_iteration is not None and kinds.work.any():
        split: IterationSplit | None = split_by_tiling(kinds, calls_per_iteration, pattern, long, expected)
    else:
        split = split_by_stalls(kinds, long, waits, expected)
        if split is None and pattern is not None:
            reason = (
                f"calls repeat the sequence {pattern.reason}; an iteration of the whole run may contain several of "
                "these, as its tiling would show"
            )
            split = pattern._replace(starts=move_behind_waits(pattern.starts, kinds, long), reason=reason)
    if split is None:
        return Iterations((), None, _why_no_iterations(core, waits, long), expected)
    rows = _list_iterations(core, kinds, split, warmup, expected)
    reasons = [split.reason, *([support_text(waits, split.starts)] if split.by != "lock_stall" else [])]
    ahead = len(calls) - sum(row.calls for row in rows)
    if ahead:
        reasons.append(f"zero-fills that ran ahead of an iteration belong to none: {ahead:,}")
    gaps, is_rare = _find_gaps(core, kinds, rows, split, expected)
    return Iterations(
        iterations=rows,
        by=split.by,
        reason="; ".join(reasons),
        expected=expected,
        calls_needed=split.calls_needed,
        work=tuple(split.work[split.work > 0].tolist()),
        gaps=tuple(gaps),
        is_rare=is_rare,
        doubts=tuple(_report_against_tiling(core.tile, split, pattern, long)),
    )


def _count_odd_calls(kinds: Kinds, per_core: int) -> Kinds:
    """Let calls of unusual length do the tiling's work too, where they are few and the tiling comes out only so."""
    solid = kinds.with_work([index for index, kind in enumerate(kinds.kinds) if not kind.fills])
    work, every = int(kinds.work.sum()), int(solid.work.sum())
    return solid if work % per_core and every % per_core == 0 and every - work <= _ODD_SHARE * work else kinds


def judge_iterations(cores: Sequence[CoreCalls], by_core: Sequence[Iterations]) -> list[Iterations]:
    """Tell the iterations of each core that are not whole, and measure those of them whose ends are sure."""
    judged = []
    for core, iterations, is_lossy in zip(cores, by_core, _select_lossy(cores, by_core), strict=True):
        is_damaged = _count_inside(iterations, [cycle for cycle, *_ in core.damage_signs]) > 0
        rows = tuple(
            msgspec.structs.replace(
                row, complete=False, phase="partial" if row.phase == "measured" else row.phase, has_sure_ends=False
            )
            if is_incomplete
            else row
            for row, is_incomplete in zip(iterations.iterations, is_lossy | is_damaged, strict=True)
        )
        judged.append(msgspec.structs.replace(iterations, iterations=rows))
    return [_measure_partial(number, core, by_core[number], judged) for number, core in enumerate(cores)]


def _select_lossy(cores: Sequence[CoreCalls], by_core: Sequence[Iterations]) -> list[Mask]:
    """Select the iterations of each core that lost marks of calls.

    The fewest unpaired marks in an iteration are the kernel's own; one with more lost events. Once any did, no
    iteration is whole that has fewer marks than another of these cores, as a call that lost both leaves no other sign.
    But for iterations by the tiling, and beside zero-fills, which run ahead: those need not have equally many calls.
    """
    unpaired = [
        _count_inside(iterations, core.pairing.unpaired) for core, iterations in zip(cores, by_core, strict=True)
    ]
    usual = min((int(counts.min()) for counts in unpaired if len(counts)), default=0)
    marks = [
        counts - usual + [row.calls for row in iterations.iterations]
        for counts, iterations in zip(unpaired, by_core, strict=True)
    ]
    are_alike = [
        bool(iterations.iterations) and iterations.by != "tiling" and not core.kinds.fills.any()
        for core, iterations in zip(cores, by_core, strict=True)
    ]
    most = [int(counts.max()) for counts, is_alike in zip(marks, are_alike, strict=True) if is_alike]
    has_losses = any((counts > usual).any() for counts in unpaired)
    # where several cores make equally many calls, fewer are a loss and not other work
    most_marks = max(most, default=0) if has_losses or (len(most) > 1 and len(set(most)) == 1) else 0
    return [
        (lost > usual) | (counts < (most_marks if is_alike and most_marks < _FUSED * np.median(counts) else 0))
        for lost, counts, is_alike in zip(unpaired, marks, are_alike, strict=True)
    ]


def _measure_partial(number: int, core: CoreCalls, before: Iterations, judged: Sequence[Iterations]) -> Iterations:
    """Measure the partial iterations of a core whose ends are there.

    One that lacks no working call must have been whole before marks were looked at.
    """
    iterations, kinds = judged[number], core.kinds
    rows = list(iterations.iterations)
    usual_calls = [kind.median_cycles for kind in kinds.kinds if kind.n >= _FEW_CALLS]
    if not usual_calls or all(row.complete for row in rows):
        return iterations
    tolerance = _AGREES * min(usual_calls)
    unsure = _count_inside(iterations, (*(lost.cycle for lost in core.tile.lost), *core.pairing.doubtful)) > 0
    usual, counts = (
        np.array([getattr(kind, name) for kind in kinds.kinds])[kinds.labels] for name in ("median_cycles", "n")
    )
    # calls that may be several which a loss made one: of a rare kind, or much longer than their kind
    odd = np.append(0, np.cumsum((core.calls.durations > _FUSED * usual) | (counts < _FEW_CALLS)))
    for at, row in enumerate(rows):
        lost = iterations.calls_needed - iterations.work[at]
        is_candidate = not row.complete and (lost > 0 or (lost == 0 and before.iterations[at].complete))
        if not is_candidate or unsure[at] or odd[row.last_call + 1] > odd[row.first_call]:
            continue
        span = _usual_span(at, number, judged, tolerance)
        if span is None:
            continue
        start, end = min(_possible_ends(at, rows, core), key=lambda ends: abs(ends[1] - ends[0] - span))
        if abs(end - start - span) <= tolerance:
            rows[at] = msgspec.structs.replace(
                row,
                phase="measured" if row.phase == "partial" else row.phase,
                start=start,
                end=end,
                cycles=end - start,
                lost_calls=lost,
                has_sure_ends=True,
            )
    return msgspec.structs.replace(iterations, iterations=tuple(rows))


def _possible_ends(at: int, rows: Sequence[Iteration], core: CoreCalls) -> Iterator[tuple[int, int]]:
    """Return what an iteration may start and end at: its calls' marks, or marks outside whose other one is missing."""
    row = rows[at]
    before = rows[at - 1].end if at else 0
    after = rows[at + 1].start if at + 1 < len(rows) else np.iinfo(np.int64).max
    starts = [row.start, *(cycle for cycle in core.pairing.lone_starts if before < cycle < row.start)]
    ends = [row.end, *(cycle for cycle in core.pairing.lone_ends if row.end < cycle < after)]
    return product(starts, ends)


def _usual_span(at: int, number: int, judged: Sequence[Iterations], tolerance: float) -> float | None:
    """Return the cycles of an iteration: of this core's whole ones, of other cores', or on which damaged ones agree.

    None where there is no such clock.
    """
    complete = [[row.cycles for row in iterations.iterations if row.complete] for iterations in judged]
    for spans in (complete[number], list(chain(*complete))):
        if spans:
            return median(spans) if max(spans) - min(spans) <= 2 * tolerance else None
    peers = [
        row.cycles
        for peer, iterations in enumerate(judged)
        for position, row in enumerate(iterations.iterations)
        if (peer, position) != (number, at)
    ]
    usual = median(peers) if peers else 0.0
    agreeing = sum(abs(span - usual) <= tolerance for span in peers)
    return usual if agreeing >= _WITNESSES and 2 * agreeing > len(peers) else None


def _count_inside(iterations: Iterations, cycles: Sequence[int]) -> Ints:
    """Count the cycles inside each iteration, without its first and its last."""
    at = np.sort(np.array(cycles, np.int64))
    starts, ends = (
        np.array([getattr(row, edge) for row in iterations.iterations], np.int64) for edge in ("start", "end")
    )
    counts: Ints = np.searchsorted(at, ends) - np.searchsorted(at, starts, side="right")
    return counts


def _find_gaps(
    core: CoreCalls, kinds: Kinds, rows: Sequence[Iteration], split: IterationSplit, expected: int | None
) -> tuple[list[CallGap], bool]:
    """Find the iterations that have not the working calls of the others, and tell whether these are few.

    The last counts only if its end is seen. A gap's place is the one odd step in or behind the iteration, else all of
    it; of the first, from the start on. With a tiling, which says how many calls there must be, they are always few.
    """
    calls, needed, work = core.calls, split.calls_needed, split.work[split.work > 0].tolist()
    alike = work.count(needed)
    if not needed or not alike:
        return [], True
    gaps, odd = [], _odd_steps(core, kinds, rows)
    ended = len(rows) if _is_end_seen(core, rows) else len(rows) - 1
    for row, units, worked in zip(rows[:ended], _count_units(work, needed, expected), work, strict=False):
        missing = units * needed - worked
        if missing:
            usual_calls = f"{units * needed:,} in {counted_text(units, 'iteration')}" if units > 1 else f"{needed:,}"
            why = f"iteration {row.number} has {counted_text(worked, 'working call', ',')}, {usual_calls} are typical"
            at_start = row.number == 1 and units == 1
            last = rows[row.number].start if row.number < len(rows) else core.tile.last
            extent = 0 if at_start else row.start, last
            steps = row.first_call + np.flatnonzero(odd[row.first_call : row.last_call + 1])
            if len(steps) == 1:
                extent, at_start = (int(calls.end[steps[0]]), int(calls.start[steps[0] + 1])), False
            gaps.append(CallGap(missing, *extent, at_start, why))
    return gaps, split.by == "tiling" or alike >= _RARE * (len(work[1:-1]) - work[1:-1].count(needed))


def _is_end_seen(core: CoreCalls, rows: Sequence[Iteration]) -> bool:
    """Return whether the trace ends as its iterations do: with an event that is behind no other call."""
    calls = core.calls
    lasts = [row.last_call for row in rows[:-1] if row.complete]
    other_calls = np.setdiff1d(np.arange(len(calls) - 1), [row.last_call for row in rows])
    if len(lasts) < _TWICE or not len(other_calls):
        return False
    for slot in core.tile.slots:
        begins = np.sort(slot.spans.start)
        behind = np.searchsorted(begins, calls.start[1:]) - np.searchsorted(begins, calls.end[:-1])
        if behind[lasts].all() and not behind[other_calls].any() and (begins >= calls.end[-1]).any():
            return True
    return False


def _odd_steps(core: CoreCalls, kinds: Kinds, rows: Sequence[Iteration]) -> Mask:
    """Return which calls are as far from the next as none of these kinds in a whole iteration; shape (calls - 1,)."""
    steps, follows = np.diff(core.calls.start), kinds.labels[:-1] * len(kinds.kinds) + kinds.labels[1:]
    follows[[row.last_call for row in rows[:-1]]] = -1
    is_whole = np.zeros(len(steps), bool)
    for row in rows:
        is_whole[row.first_call : row.last_call + 1] = row.complete
    keys, positions = np.unique(follows, return_inverse=True)
    least, most = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), -1)
    np.minimum.at(least, positions[is_whole], steps[is_whole])
    np.maximum.at(most, positions[is_whole], steps[is_whole])
    odd: Mask = (steps < least[positions]) | (steps > most[positions])
    return odd


def _count_units(work: Sequence[int], needed: int, expected: int | None) -> list[int]:
    """Count the iterations that each stands for: a lost border makes two one."""
    least = [max(calls // needed, 1) for calls in work]
    order = sorted(range(len(work)), key=lambda at: least[at] * needed - work[at])
    beyond = [at for at in order if work[at] > least[at] * needed]
    if expected is None:
        beyond = [at for at in beyond if 2 * (work[at] - least[at] * needed) > needed]
    more = len(beyond) if expected is None else expected - sum(least)
    for at in beyond[: max(more, 0)]:
        least[at] += 1
    return least


def _list_iterations(
    core: CoreCalls, kinds: Kinds, split: IterationSplit, warmup: int, expected: int | None
) -> tuple[Iteration, ...]:
    """List all iterations with working calls, without zero-fills at their ends, which have run ahead."""
    calls, selected, solid = core.calls, np.flatnonzero(split.work), np.flatnonzero(~kinds.fills)
    last = solid[np.searchsorted(solid, np.append(split.starts[1:], len(calls))[selected]) - 1]
    first = split.starts[selected]
    columns = (first, last, calls.start[first], calls.end[last], split.complete[selected])
    rows = []
    for number, (a, b, start, end, complete) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        phase = "measured" if complete else "partial"
        if number < warmup:
            phase = "warmup"
        elif expected is not None and number >= expected:
            phase = "extra"
        rows.append(
            Iteration(
                number=number + 1,
                phase=phase,
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
        )
    return tuple(rows)


def _why_no_iterations(core: CoreCalls, waits: Ints | None, long: Ints) -> str:
    if not len(core.calls):
        return "there are no calls"
    kinds = len(core.kinds.kinds)
    sequence = "one kind" if kinds == 1 else f"{kinds:,} kinds without a repeating sequence"
    if waits is None:
        stalls = f"{LOCK} was not traced"
    elif len(long):
        stalls = f"{LOCK} is long before {len(long):,} of them, but does not divide them evenly"
    else:
        stalls = f"no lock stall between them ({int(waits.max(initial=0)):,} cycles at most) stands out"
    return f"{counted_text(len(core.calls), 'call', ',')} of {sequence}; {stalls}: only the tiling can show iterations"


def _report_against_tiling(
    tile: TileTrace, split: IterationSplit, pattern: IterationSplit | None, long: Ints
) -> Iterator[Message]:
    if split.by != "tiling":
        return
    if pattern and split.calls_needed % pattern.calls_needed:
        yield tile_finding(
            "tiling_against_kinds",
            Severity.MEDIUM,
            title="the tiling does not match the repeating sequence of calls",
            evidence=(
                f"{counted_text(split.calls_needed, 'working call', ',')} per iteration, {pattern.calls_needed:,} in "
                f"{pattern.reason}"
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
    rows, expected = result.iterations, result.expected
    complete = sum(row.has_sure_ends for row in rows)
    if expected is not None and not expected == len(rows) == complete:
        seen = "no call does the tiling's work"
        if rows:
            seen = f"the trace has {counted_text(rows[-1].last_call + 1, 'call', ',')} in them"
        step = "those beyond the expected ones are marked as extra; check the numbers of iterations and the tiling"
        if complete < expected:
            step = "trace fewer events or enlarge the trace buffer; check the numbers of iterations and the tiling"
        yield tile_finding(
            "iterations_unexpected",
            Severity.MEDIUM,
            title=(
                f"{counted_text(expected, 'iteration', ',')} {'was' if expected == 1 else 'were'} expected, "
                f"{len(rows):,} detected, {complete:,} of them complete"
            ),
            evidence=seen,
            where=place(tile),
            step="check where calls are missing or in excess before the end" if result.gaps else step,
        )
    lost = [row for row in rows if row.has_sure_ends and not row.complete]
    if lost:
        counts = ", ".join(
            f"{calls} of {result.calls_needed} calls lost" if calls else "marks of calls lost"
            for calls in sorted({row.lost_calls for row in lost})
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
                evidence=f"{work} in iteration {group[0].number}, {result.calls_needed:,} are typical",
                where=place(tile, f"cycle {group[0].start}"),
                step=step,
            )
    yield from result.doubts


def _iteration_names(rows: Sequence[Iteration]) -> str:
    if len(rows) == 1:
        return f"iteration {rows[0].number}"
    more = f" and {len(rows) - 2} more" if len(rows) > 2 else ""  # noqa: PLR2004 - two of them are named
    return f"iterations {rows[0].number}, {rows[1].number}{more}"
