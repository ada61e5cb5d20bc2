"""Iterations of the calls of a core: which are whole, which calls are missing, and how many were expected."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.kinds import Kinds

    Mask = NDArray[np.bool_]


_TWICE = 2
"""Iterations that must end alike for the end of the trace to be recognised as one."""
_RARE = 3
"""Iterations with the usual number of calls for each without, from which on that one is damage."""
_SHOWN = 20
"""Partial iterations that get a finding of their own."""


class CallGap(msgspec.Struct, frozen=True):
    """Calls that are missing before the end of a trace, or too many there."""

    missing: int  # working calls that are; below 0 there are too many
    # the earliest that the first of them can be: end of the call before, else start of the iteration that lacks
    # them, of the first that of the trace
    cycle: int
    last_cycle: int  # the latest that they can be: start of the call behind them, else of the next iteration
    at_start: bool  # whether they may be missing since the trace began late
    why: str  # in words


_FUSED = 1.5
"""So many usual calls and more are two iterations whose border was lost."""


class Iteration(msgspec.Struct, frozen=True):
    """A repetition of the whole product on one core.

    Attributes:
        number: from 1.
        phase: warmup, measured, extra beyond those expected; or partial, when it would be measured but calls of it are
            missing.
        complete: whether all its calls are in the trace.
        calls: in the trace.
        first_call: from 0.
        last_call: likewise.
        start: first cycle.
        end: of the last call.
        cycles: from start to end.
        macs: of its calls that multiply; null without a tiling.
        mac_per_cycle: from start to end; null likewise, and where it would be above the peak.
        split: cycles by what the core did in them; null in analyses of opscope 0.1.
        gap: cycles from the end to the start of the next iteration, likewise; null for the last one.
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


class Iterations(msgspec.Struct, frozen=True):
    """All repetitions that a tile's calls form."""

    # in order of time, without what the core did in them; empty where nothing tells them apart
    iterations: tuple[Iteration, ...]
    by: By | None  # what they were found by
    reason: str  # why these, or why none, and whether LOCK_STALL supports it, in words
    expected: int | None  # warm-up and measured ones that were asked for; None where that was not said
    pattern: str | None = None  # sequence of kinds that repeats, such as `zero-fill, 12 x kernel 1`; None without one
    findings: tuple[Message, ...] = ()  # what does not fit
    # of those before the last that lack working calls, or have too many; empty where most differ
    gaps: tuple[CallGap, ...] = ()

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
    pattern = find_pattern(kinds)
    stalls = event_cover(tile, LOCK)
    gaps = None if stalls is None else stalls.within(calls.end[:-1], calls.start[1:])
    long = long_gaps(gaps, calls)
    if calls_per_iteration is not None and kinds.work.any():
        split: IterationSplit | None = by_tiling(kinds, calls_per_iteration, pattern, long, expected)
    else:
        split = by_stalls(kinds, long, gaps, expected) or (by_pattern(kinds, pattern, long) if pattern else None)
    if split is None:
        reason = _nothing(calls, kinds, gaps, long)
        return Iterations((), None, reason, expected, findings=tuple(_unexpected(tile, (), expected, ())))
    iterations = _iterations(calls, kinds, split, (warmup, expected))
    uneven = tuple(_gaps((tile, calls, kinds), iterations, split, expected))
    return Iterations(
        iterations=iterations,
        by=split.by,
        reason="; ".join(_reasons(calls, iterations, split, gaps)),
        expected=expected,
        pattern=pattern.reason if pattern else None,
        findings=(
            *_unexpected(tile, iterations, expected, uneven),
            *_partial(tile, iterations, split),
            *_against_tiling(tile, split, pattern, long),
        ),
        gaps=uneven,
    )


def without_damaged(iterations: Iterations, cycles: Sequence[int]) -> Iterations:
    """The same with iterations that a loss of packets lies in as incomplete, so that they are not measured."""
    return _incomplete(iterations, _inside(iterations, cycles) > 0) if cycles else iterations


def without_lossy(cores: Sequence[tuple[Iterations, Sequence[int], Kinds]]) -> list[Iterations]:
    """The same without those that lost events, of cores with their starts and ends without partner, and kinds.

    The fewest such marks in an iteration are the kernel's own; one with more lost events. Once any did, no iteration is
    whole that has fewer marks than another of these cores, as a call that lost both leaves no other sign.
    """
    alone = [_inside(iterations, unpaired) for iterations, unpaired, _ in cores]
    usual = min((int(own.min()) for own in alone if len(own)), default=0)
    if not any((own > usual).any() for own in alone):
        return [iterations for iterations, _, _ in cores]
    marked = [
        own - usual + [row.calls for row in iterations.iterations]
        for (iterations, *_), own in zip(cores, alone, strict=True)
    ]
    counts = [_counts_calls(iterations, kinds) for iterations, _, kinds in cores]
    most = max((int(own.max()) for own, counted in zip(marked, counts, strict=True) if counted), default=0)
    whole = []
    for (iterations, *_), own, own_marks, counted in zip(cores, alone, marked, counts, strict=True):
        fewer = own_marks < (most if counted and most < _FUSED * np.median(own_marks) else 0)
        whole.append(_incomplete(iterations, (own > 0) | fewer))
    return whole


def _counts_calls(iterations: Iterations, kinds: Kinds) -> bool:
    """Whether all iterations have equally many calls: beside zero-fills, which run ahead, they have not."""
    return bool(iterations.iterations) and iterations.by != "tiling" and bool(kinds.work.all())


def _inside(iterations: Iterations, cycles: Sequence[int]) -> Ints:
    """How many of these cycles lie in each iteration; shape (iterations,)."""
    at = np.sort(np.array(cycles, np.int64))
    starts, ends = (
        np.array([getattr(row, edge) for row in iterations.iterations], np.int64) for edge in ("start", "end")
    )
    inside: Ints = np.searchsorted(at, ends) - np.searchsorted(at, starts, side="right")
    return inside


def _incomplete(iterations: Iterations, lacking: Mask) -> Iterations:
    """The same with these iterations as incomplete, so that they are not measured; shape (iterations,)."""
    rows = list(iterations.iterations)
    for number in np.flatnonzero(lacking).tolist():
        phase = "partial" if rows[number].phase == "measured" else rows[number].phase
        rows[number] = msgspec.structs.replace(rows[number], complete=False, phase=phase)
    return msgspec.structs.replace(iterations, iterations=tuple(rows))


def _gaps(
    seen: tuple[TileTrace, CallSpans, Kinds],
    iterations: Sequence[Iteration],
    split: IterationSplit,
    expected: int | None,
) -> Iterator[CallGap]:
    """Those that have not the working calls of the others; of the last only if its end is seen.

    Its place is the one odd step in or behind the iteration, else all of it; of the first, from the start on.
    None where that is not rare and no tiling says how many there must be: then the work itself is uneven.
    """
    tile, calls, kinds = seen
    whole, work = split.whole, split.work[split.work > 0].tolist()
    alike = work.count(whole)
    uneven = len(work[1:-1]) - work[1:-1].count(whole)
    if not whole or not alike or (split.by != "tiling" and alike < _RARE * uneven):
        return
    counted, odd = _units(work, whole, expected), _odd_steps(calls, kinds, iterations)
    ended = len(iterations) if _end_seen(tile, calls, iterations) else len(iterations) - 1
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
                yield CallGap(missing, int(calls.end[at]), int(calls.start[at + 1]), at_start=False, why=why)
            else:
                yield CallGap(missing, 0 if at_start else row.start, last, at_start, why)


def _end_seen(tile: TileTrace, calls: CallSpans, iterations: Sequence[Iteration]) -> bool:
    """Whether the trace ends as its iterations do: with an event behind the last call, and behind no other call."""
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
    """Which calls are as far from the next as none of these kinds in a whole iteration; shape (calls - 1,)."""
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


def _units(work: Sequence[int], whole: int, expected: int | None) -> list[int]:
    """How many iterations each group of calls stands for, so that all together are those expected."""
    least = [max(calls // whole, 1) for calls in work]
    order = sorted(range(len(work)), key=lambda at: least[at] * whole - work[at])
    beyond = [at for at in order if work[at] > least[at] * whole]
    if expected is None:
        beyond = [at for at in beyond if 2 * (work[at] - least[at] * whole) > whole]
    more = len(beyond) if expected is None else expected - sum(least)
    for at in beyond[: max(more, 0)]:
        least[at] += 1
    return least


def _iterations(
    calls: CallSpans, kinds: Kinds, split: IterationSplit, asked: tuple[int, int | None]
) -> tuple[Iteration, ...]:
    """All with working calls, without zero-fills at their ends: these have run ahead for what follows."""
    kept = np.flatnonzero(split.work)
    solid = np.flatnonzero(~kinds.fills)
    last = solid[np.searchsorted(solid, np.append(split.starts[1:], len(calls))[kept]) - 1]
    first = split.starts[kept]
    columns = (first, last, calls.start[first], calls.end[last], split.complete[kept])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Iteration(
            number=number + 1,
            phase=_phase(number, *asked, complete=complete),
            complete=complete,
            calls=b - a + 1,
            first_call=a,
            last_call=b,
            start=start,
            end=end,
            cycles=end - start,
            macs=None,
            mac_per_cycle=None,
        )
        for number, (a, b, start, end, complete) in enumerate(rows)
    )


def _phase(number: int, warmup: int, expected: int | None, *, complete: bool) -> str:
    if number < warmup:
        return "warmup"
    if expected is not None and number >= expected:
        return "extra"
    return "measured" if complete else "partial"


def _nothing(calls: CallSpans, kinds: Kinds, gaps: Ints | None, long: Ints) -> str:
    """Why no iterations were found."""
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


def _reasons(
    calls: CallSpans, iterations: Sequence[Iteration], split: IterationSplit, gaps: Ints | None
) -> Iterator[str]:
    yield split.reason
    if split.by != "lock_stall":
        yield support(gaps, split.starts)
    ahead = len(calls) - sum(iteration.calls for iteration in iterations)
    if ahead:
        yield f"zero-fills that ran ahead of an iteration belong to none: {ahead:,}"


def _against_tiling(
    tile: TileTrace, split: IterationSplit, pattern: IterationSplit | None, long: Ints
) -> Iterator[Message]:
    """That the sequence of kinds, or waits for a lock, contradict iterations of the tiling."""
    if split.by != "tiling":
        return
    if pattern and split.whole % pattern.whole:
        title = "the tiling does not match the repeating sequence of calls"
        seen = f"{counted_text(split.whole, 'working call', ',')} per iteration, {pattern.whole:,} in {pattern.reason}"
        step = "check the matrix and tile sizes and the numbers of rows and columns"
        yield tile_finding("tiling_against_kinds", Severity.MEDIUM, title, seen, place(tile), step)
    astray = np.setdiff1d(long, split.starts)
    if len(astray):
        title = "long lock stalls within iterations of the tiling"
        seen = f"{len(astray):,} of {len(long):,} unusually long lock stalls"
        where = place(tile, f"before call {astray[0] + 1}")
        step = "check the tiling; if it is right, check what feeds the core there"
        yield tile_finding("tiling_against_stalls", Severity.MEDIUM, title, seen, where, step)


def _unexpected(
    tile: TileTrace, iterations: Sequence[Iteration], expected: int | None, uneven: Sequence[CallGap]
) -> Iterator[Message]:
    complete = sum(iteration.complete for iteration in iterations)
    if expected is None or expected == len(iterations) == complete:
        return
    title = (
        f"{counted_text(expected, 'iteration', ',')} {'was' if expected == 1 else 'were'} expected, "
        f"{len(iterations):,} detected, {complete:,} of them complete"
    )
    fewer = complete < expected
    seen = (
        f"the trace has {counted_text(iterations[-1].last_call + 1, 'call', ',')} in them"
        if iterations
        else "no call does the tiling's work"
    )
    step = (
        "trace fewer events or give the trace a larger buffer, and check the numbers of iterations and the tiling"
        if fewer
        else "those beyond the expected ones are marked as extra; check the numbers of iterations and the tiling"
    )
    if uneven:
        step = "check where calls are missing or in excess before the end"
    yield tile_finding("iterations_unexpected", Severity.MEDIUM, title, seen, place(tile), step)


def _partial(tile: TileTrace, iterations: Sequence[Iteration], split: IterationSplit) -> Iterator[Message]:
    work = split.work[split.work > 0].tolist()
    partial = [
        (iteration, worked) for iteration, worked in zip(iterations, work, strict=True) if not iteration.complete
    ]
    sizes = Counter(iteration.calls for iteration in iterations if iteration.complete)
    every = f" of {max(sizes, key=lambda size: (sizes[size], -size)):,}" if sizes else ""
    for iteration, worked in partial[:_SHOWN]:
        edge = iteration.number in {1, len(iterations)}
        title = f"iteration {iteration.number} is partial"
        seen = f"{worked:,} of {split.whole:,} working calls, {iteration.calls:,}{every} calls with zero-fills"
        if worked > split.whole:
            seen = f"{counted_text(worked, 'working call', ',')}, {split.whole:,} are typical"
        where = place(
            tile, f"calls {iteration.first_call + 1} to {iteration.last_call + 1}", f"cycle {iteration.start}"
        )
        step = "excluded: cut off by the trace" if edge else "excluded: look for lost packets"
        severity = Severity.INFO if edge else Severity.MEDIUM
        yield tile_finding("iteration_partial", severity, title, seen, where, step)
    if len(partial) > _SHOWN:
        more = len(partial) - _SHOWN
        title = f"{counted_text(more, 'more iteration', ',')} {'is' if more == 1 else 'are'} partial"
        step = "look for lost packets"
        seen = f"{len(partial):,} of {len(iterations):,}"
        yield tile_finding("iteration_partial", Severity.MEDIUM, title, seen, place(tile), step)
