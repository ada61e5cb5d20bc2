"""Iterations: groups of calls that repeat, by the tiling, by long waits for a lock, or by the sequence of kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from opscope.analyze.aie_findings import TileFinding, place
from opscope.analyze.aie_lock_gaps import LOCK, lock_gaps, long_gaps, support
from opscope.analyze.aie_pattern import find_pattern
from opscope.analyze.aie_splits import Split, by_pattern, by_stalls, by_tiling
from opscope.analyze.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.analyze.aie_calls import Calls
    from opscope.analyze.aie_kinds import Kinds
    from opscope.analyze.aie_pattern import Pattern
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

Phase = Literal["warmup", "measured", "extra", "partial"]
_SHOWN = 20
"""Partial iterations that get a finding of their own."""


class Iteration(msgspec.Struct, frozen=True):
    """One repetition.

    Attributes:
        number: from 1.
        first_call: its first call, counted from 0.
        last_call: its last call, counted from 0.
        start: of the first call, in cycles.
        end: of the last call.
        phase: ``warmup``, ``measured``, ``extra`` beyond those expected; ``partial`` when it would be measured but
            calls of it are missing.
        complete: whether all its calls are in the trace.
        work_calls: calls of it that count as those of the tiling.
    """

    number: int
    first_call: int
    last_call: int
    start: int
    end: int
    phase: Phase
    complete: bool
    work_calls: int


class Iterations(msgspec.Struct, frozen=True):
    """All repetitions that a tile's calls form.

    Attributes:
        iterations: in order of time; empty where nothing tells them apart.
        by: what they were found by.
        reason: why these, or why none, and whether LOCK_STALL supports it, in words.
        calls_each: calls of a complete one, zero-fills included; None when none is complete.
        expected: warm-up and measured ones that were asked for; None where that was not said.
        detected: number found, partial ones included.
        complete: number of those of which no call is missing.
        pattern: sequence of kinds that repeats, such as ``zero-fill, 12 x kernel 1``; None without one.
        findings: what does not fit.
    """

    iterations: tuple[Iteration, ...]
    by: Literal["tiling", "kinds", "lock_stall"] | None
    reason: str
    calls_each: int | None
    expected: int | None
    detected: int
    complete: int = 0
    pattern: str | None = None
    findings: tuple[TileFinding, ...] = ()


def find_iterations(
    tile: TileTrace,
    calls: Calls,
    kinds: Kinds,
    calls_per_iteration: int | None = None,
    warmup: int = 0,
    measured: int | None = None,
) -> Iterations:
    """Group calls into iterations.

    The tiling decides where it is given. Else waits for a lock do that are of another size than all others and divide
    the calls evenly; else each repetition of the sequence of kinds counts as one.

    Args:
        tile: whose lock stalls support or doubt the grouping.
        calls: of the tile.
        kinds: of these calls.
        calls_per_iteration: working calls (no zero-fills) of one iteration on this tile, as the tiling has it, at
            least 1; None without one.
        warmup: iterations at the beginning that are not measured; not negative.
        measured: iterations after these; None for all.
    """
    expected = None if measured is None else warmup + measured
    pattern = find_pattern(kinds)
    gaps = lock_gaps(tile, calls)
    long = long_gaps(gaps, calls)
    if calls_per_iteration is not None and kinds.work.any():
        split: Split | None = by_tiling(kinds, calls_per_iteration, pattern, long)
    else:
        split = by_stalls(kinds, long, gaps, expected) or (by_pattern(kinds, pattern, long) if pattern else None)
    if split is None:
        reason = _nothing(calls, kinds, (gaps, long))
        return Iterations((), None, reason, None, expected, 0, findings=tuple(_unexpected(tile, (), expected)))
    found = _iterations(calls, kinds, split, (warmup, expected))
    return Iterations(
        iterations=found,
        by=split.by,
        reason="; ".join(_reasons(calls, found, split, gaps)),
        calls_each=_usual_calls(found),
        expected=expected,
        detected=len(found),
        complete=sum(own.complete for own in found),
        pattern=pattern.words if pattern else None,
        findings=tuple(_findings(tile, found, split, expected, (pattern, long))),
    )


def _iterations(calls: Calls, kinds: Kinds, split: Split, asked: tuple[int, int | None]) -> tuple[Iteration, ...]:
    """All with working calls, without zero-fills at their ends: these have run ahead for what follows."""
    kept = np.flatnonzero(split.work)
    solid = np.flatnonzero(~kinds.fills)
    last = solid[np.searchsorted(solid, np.append(split.starts[1:], len(calls))[kept]) - 1]
    first = split.starts[kept]
    columns = (first, last, calls.start[first], calls.end[last], split.complete[kept], split.work[kept])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Iteration(number + 1, a, b, start, end, _phase(number, *asked, complete=complete), complete, work)
        for number, (a, b, start, end, complete, work) in enumerate(rows)
    )


def _phase(number: int, warmup: int, expected: int | None, *, complete: bool) -> Phase:
    if number < warmup:
        return "warmup"
    if expected is not None and number >= expected:
        return "extra"
    return "measured" if complete else "partial"


def _usual_calls(found: Sequence[Iteration]) -> int | None:
    """Calls of most of the complete ones."""
    sizes = np.array([own.last_call - own.first_call + 1 for own in found if own.complete], np.int64)
    return int(np.bincount(sizes).argmax()) if len(sizes) else None


def _nothing(calls: Calls, kinds: Kinds, waits: tuple[Ints | None, Ints]) -> str:
    """Why no iterations were found."""
    gaps, long = waits
    if not len(calls):
        return "there are no calls"
    what = "one kind" if len(kinds.kinds) == 1 else f"{len(kinds.kinds):,} kinds without a sequence that repeats"
    if gaps is None:
        stalls = f"{LOCK} was not traced"
    elif len(long):
        stalls = f"{LOCK} is long before {len(long):,} of them but does not divide them evenly"
    else:
        stalls = f"no wait for a lock between them ({int(gaps.max(initial=0)):,} cycles at most) stands out"
    return f"{len(calls):,} calls of {what}; {stalls}: only the tiling can tell iterations"


def _reasons(calls: Calls, found: Sequence[Iteration], split: Split, gaps: Ints | None) -> Iterator[str]:
    yield split.reason
    if split.by != "lock_stall":
        yield support(gaps, split.starts)
    ahead = len(calls) - sum(own.last_call - own.first_call + 1 for own in found)
    if ahead:
        yield f"zero-fills that ran ahead of an iteration are in none: {ahead:,}"


def _findings(
    tile: TileTrace,
    found: Sequence[Iteration],
    split: Split,
    expected: int | None,
    evidence: tuple[Pattern | None, Ints],
) -> Iterator[TileFinding]:
    pattern, long = evidence
    yield from _unexpected(tile, found, expected)
    yield from _partial(tile, found, split)
    if split.by == "tiling" and pattern and split.whole % pattern.work_calls:
        title = "the tiling does not fit the sequence of kinds that the calls repeat"
        seen = f"{split.whole:,} working calls an iteration, {pattern.work_calls:,} in {pattern.words}"
        step = "check the sizes of matrices and tiles and the numbers of rows and columns"
        yield TileFinding("tiling_against_kinds", Severity.MEDIUM, title, seen, place(tile), step)
    astray = np.setdiff1d(long, split.starts)
    if split.by == "tiling" and len(astray):
        title = "the core waits long within iterations of the tiling"
        seen = f"{len(astray):,} of {len(long):,} waits for a lock that are much longer than the others"
        where = place(tile, f"before call {astray[0] + 1}")
        step = "check the tiling; if it is right, look at what feeds the core there"
        yield TileFinding("tiling_against_stalls", Severity.MEDIUM, title, seen, where, step)


def _unexpected(tile: TileTrace, found: Sequence[Iteration], expected: int | None) -> Iterator[TileFinding]:
    complete = sum(own.complete for own in found)
    if expected is None or expected == len(found) == complete:
        return
    title = f"{expected:,} iterations were expected, {len(found):,} detected, {complete:,} of them complete"
    fewer = complete < expected
    seen = f"the trace has {found[-1].last_call + 1:,} calls in them" if found else "no call does the tiling's work"
    step = (
        "trace fewer events or give the trace a larger buffer, and check the numbers of iterations and the tiling"
        if fewer
        else "those beyond the expected ones are marked as extra; check the numbers of iterations and the tiling"
    )
    yield TileFinding("iterations_unexpected", Severity.MEDIUM, title, seen, place(tile), step)


def _partial(tile: TileTrace, found: Sequence[Iteration], split: Split) -> Iterator[TileFinding]:
    partial, usual = [own for own in found if not own.complete], _usual_calls(found)
    for own in partial[:_SHOWN]:
        edge = own.number in {1, len(found)}
        title = f"iteration {own.number} is partial"
        calls = own.last_call - own.first_call + 1
        every = f" of {usual:,}" if usual else ""
        seen = f"{own.work_calls:,} of {split.whole:,} working calls, {calls:,}{every} calls with zero-fills"
        where = place(tile, f"calls {own.first_call + 1} to {own.last_call + 1}", f"cycle {own.start}")
        step = "it is at an edge of the trace and is not measured" if edge else "look for lost packets; not measured"
        severity = Severity.INFO if edge else Severity.MEDIUM
        yield TileFinding("iteration_partial", severity, title, seen, where, step)
    if len(partial) > _SHOWN:
        title = f"{len(partial) - _SHOWN:,} more iterations are partial"
        step = "look for lost packets"
        seen = f"{len(partial):,} of {len(found):,}"
        yield TileFinding("iteration_partial", Severity.MEDIUM, title, seen, place(tile), step)
