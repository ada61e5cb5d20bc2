"""Division of calls into iterations: by the tiling, long waits for a lock, or a sequence of kinds that repeats.

Such a sequence is a zero-fill and twelve calls of a kernel, for instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from opscope.core.units import counted_text
from opscope.npu.analysis.cycles import EVENTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.kinds import Kinds

    Mask = NDArray[np.bool_]

LOCK = EVENTS["lock_stall"]
_LONGEST = 64
"""Runs of a period that is looked for."""
_LOOKED_AT = 4096
"""Runs in which it is looked for."""
_KIND = 40
"""Bits above which a run's kind stands when it is one number with its calls."""
_PERIODS = 2
"""Periods that must be there."""
_FITS = 2 / 3
"""Share of the runs that a period must explain."""
_OFTEN = 3
"""Periods that must be there for a single run that differs to be damage, not part of a longer period."""
_AS_GOOD = 0.98
"""Share of the best fit from which a shorter period is preferred."""
_LONGER = 4
"""How many times the longest usual wait a long one lasts at least."""
_HALVES = 2
"""Parts into which a single wait divides the calls."""

By = Literal["tiling", "kinds", "lock_stall"]


class IterationSplit(NamedTuple):
    """Calls divided into iterations."""

    by: By  # what divides them
    starts: Ints  # first call of each
    work: Ints  # calls of each that count as the tiling's
    calls_needed: int  # such calls of a complete one
    complete: Mask  # whether all its calls are there
    reason: str  # why, in words


class _Runs(NamedTuple):
    """Calls of one kind in a row; arrays of shape (runs,)."""

    first: Ints  # first call of each
    kind: Ints  # of its calls
    calls: Ints  # how many


def find_pattern(kinds: Kinds) -> IterationSplit | None:
    """Find the shortest sequence that explains how kinds follow each other. None without one with work.

    Its reason is the sequence, such as `zero-fill, 12 x kernel 1`; the first repetition may begin within one.
    """
    labels = kinds.labels
    first = np.flatnonzero(np.concatenate([np.ones(min(len(labels), 1), bool), labels[1:] != labels[:-1]]))
    runs = _Runs(first, labels[first], np.diff(np.append(first, len(labels))))
    period = _find_period(runs)
    if period is None:
        return None
    phases = [_usual_run(runs, phase, period) for phase in range(period)]
    rows = [kinds.kinds[kind] for kind, _ in phases]
    if not any(row.multiplies for row in rows):
        return None
    # a zero-fill behind work opens a period, else work behind another kind, else the first run
    fills = [at for at in range(period) if rows[at].fills and not rows[at - 1].fills]
    works = [at for at in range(period) if rows[at].multiplies and not rows[at - 1].multiplies]
    opener = (fills or works or [0])[0]
    openings = np.arange(opener, len(first), period)
    if [kind for kind, _ in phases].count(phases[opener][0]) == 1:
        openings = np.flatnonzero(runs.kind == phases[opener][0])
    begins = openings if openings[:1] == [0] else np.concatenate([[0], openings])
    starts = first[begins]
    work = _count_work(kinds, starts)
    calls_needed = sum(calls for row, (_, calls) in zip(rows, phases, strict=True) if row.multiplies)
    complete = (
        (np.diff(np.append(starts, len(labels))) == sum(calls for _, calls in phases))
        & (work == calls_needed)
        & (np.diff(np.append(begins, len(first))) == period)
    )
    ordered = [(rows[at - period], phases[at - period][1]) for at in range(opener, opener + period)]
    words = ", ".join(f"{calls:,} x {row.kind}" if calls > 1 else row.kind for row, calls in ordered)
    return IterationSplit("kinds", starts, work, calls_needed, complete, words)


def _find_period(runs: _Runs) -> int | None:
    some = _Runs(*(column[:_LOOKED_AT] for column in runs))
    number = len(some.first)
    fits: dict[int, float] = {}
    for period in range(2, min(_LONGEST, number // _PERIODS) + 1):
        fits[period] = _share_explained(some, period)
        unlike = round((1 - fits[period]) * number)
        if fits[period] >= _AS_GOOD or (number >= _OFTEN * period and unlike <= 1):
            return period
    best = max(fits.values(), default=0.0)
    return next((period for period, fit in fits.items() if best >= _FITS and fit >= _AS_GOOD * best), None)


def _share_explained(runs: _Runs, period: int) -> float:
    """Return the share of the runs that are as usual in their phase; the first and the last may be parts."""
    fitting = 0
    for phase in range(period):
        kind, calls = _usual_run(runs, phase, period)
        fitting += int(((runs.kind[phase::period] == kind) & (runs.calls[phase::period] == calls)).sum())
    for at in {0, len(runs.first) - 1}:
        kind, calls = _usual_run(runs, at % period, period)
        fitting += bool(runs.kind[at] == kind and runs.calls[at] < calls)
    return fitting / len(runs.first)


def _usual_run(runs: _Runs, phase: int, period: int) -> tuple[int, int]:
    """Return the kind and the number of calls that are most frequent at a phase; of equal ones the larger."""
    values, counts = np.unique(runs.kind[phase::period] << _KIND | runs.calls[phase::period], return_counts=True)
    value = int(values[len(counts) - 1 - int(np.argmax(counts[::-1]))])
    return value >> _KIND, value & ((1 << _KIND) - 1)


def _count_work(kinds: Kinds, starts: Ints) -> Ints:
    return np.add.reduceat(kinds.work.astype(np.int64), starts)


def find_long_waits(waits: Ints | None, calls: CallSpans) -> Ints:
    """Return the calls before which the core waited long, ascending, by its LOCK_STALL cycles between calls.

    A wait is long when it lasts at least as long as the median call and four times as long as the longest of the
    others, and when there are not more of them than of the others.
    """
    none = np.empty(0, np.int64)
    if waits is None or not len(waits):
        return none
    ordered = np.sort(waits)
    wide = ordered[1:] >= _LONGER * np.maximum(ordered[:-1], 1)
    enough = (ordered[1:] >= np.median(calls.durations)) & (2 * np.arange(1, len(ordered)) >= len(ordered))
    cuts = np.flatnonzero(wide & enough)
    return np.flatnonzero(waits >= ordered[cuts[-1] + 1]) + 1 if len(cuts) else none


def support_text(waits: Ints | None, starts: Ints) -> str:
    """Say whether waits tell the calls that begin an iteration from the others."""
    if waits is None:
        return f"{LOCK} was not traced, so it cannot confirm this"
    begins = np.zeros(len(waits) + 1, bool)
    begins[starts] = True
    before, elsewhere = waits[begins[1:]], waits[~begins[1:]]
    if not len(before) or not len(elsewhere):
        return f"{LOCK} cannot confirm this: there are no two kinds of gaps"
    if before.min() > elsewhere.max():
        return f"{LOCK} confirms it: {before.min():,} cycles or more before an iteration, {elsewhere.max():,} elsewhere"
    medians = f"median {np.median(before):,.0f} cycles before an iteration, {np.median(elsewhere):,.0f} elsewhere"
    return f"{LOCK} does not separate these gaps from others: {medians}"


def split_by_tiling(
    kinds: Kinds, per_iteration: int, pattern: IterationSplit | None, long: Ints, expected: int | None
) -> IterationSplit:
    """Make iterations of so many working calls.

    Where a repeated sequence fits into an iteration, its repetitions are counted, so that a call that is missing in one
    iteration does not shift all that follow. A zero-fill belongs to the working calls behind it, unless the core waited
    long between them: then it ran ahead.
    """
    if pattern and per_iteration % pattern.calls_needed == 0 and not pattern.complete[1:-1].all():
        repetitions = per_iteration // pattern.calls_needed
        units = np.maximum(np.rint(pattern.work / pattern.calls_needed).astype(np.int64), 1)
        number = (np.cumsum(units) - units) // min(repetitions, int(units.sum()))
        starts = pattern.starts[np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))]
        counted = f"{repetitions:,} times ({pattern.reason})"
    else:
        first, solid = np.flatnonzero(kinds.work)[::per_iteration], np.flatnonzero(~kinds.fills)
        starts = solid[np.maximum(np.searchsorted(solid, first) - 1, 0)] + 1
        starts[0] = 0
        counted = counted_text(per_iteration, "working call", ",")
    starts = move_behind_waits(starts, kinds, long)
    between = _split_between_waits(starts, kinds, per_iteration, long, expected)
    if between is not None:
        starts, counted = between, f"{counted}, and the lock stalls show where they begin,"
    work = _count_work(kinds, starts)
    return IterationSplit(
        "tiling", starts, work, per_iteration, work == per_iteration, f"the tiling gives {counted} per iteration"
    )


def _split_between_waits(
    starts: Ints, kinds: Kinds, per_iteration: int, long: Ints, expected: int | None
) -> Ints | None:
    """Return starts behind long waits, where counting runs over some of them and these divide the calls as the tiling.

    Lost events only take calls away, and may hide a wait, so that a part is two iterations: then no part has more calls
    than its iterations, most are one, and there are as many as were expected, or each but the first and the last has
    most of its calls.
    """
    if not len(np.setdiff1d(long, starts)):
        return None
    behind = _starts_behind(long, kinds)
    work = _count_work(kinds, behind)
    complete = int((work == per_iteration).sum())
    units = np.maximum(np.rint(work / per_iteration).astype(np.int64), 1)
    most = _HALVES * work > per_iteration * units
    likely = int(units.sum()) == expected or (len(work) > _HALVES and bool(most[1:-1].all()))
    fits = (
        bool((work <= units * per_iteration).all() and most.any()) and _HALVES * int((units == 1).sum()) > len(work) > 1
    )
    return behind if (likely and fits) or (complete > 1 and 2 * complete >= len(behind)) else None


def _starts_behind(long: Ints, kinds: Kinds) -> Ints:
    """Return the calls behind long waits, with the first of all unless no call before the first wait works."""
    return np.concatenate([[0], long]) if kinds.work[: long[0]].any() else long


def move_behind_waits(starts: Ints, kinds: Kinds, long: Ints) -> Ints:
    """Let iterations begin behind a long wait that lies before their first working call; none where the next does."""
    if not len(long):
        return starts
    work = np.flatnonzero(kinds.work)
    first_work = work[np.minimum(np.searchsorted(work, starts), len(work) - 1)]
    wait = long[np.maximum(np.searchsorted(long, first_work, side="right") - 1, 0)]
    following = np.append(starts[1:], len(kinds.work))
    return np.where((wait > starts) & (wait <= first_work) & (wait < following), wait, starts)


def split_by_stalls(kinds: Kinds, long: Ints, waits: Ints | None, expected: int | None) -> IterationSplit | None:
    """Make iterations between long waits. None unless most have equally many working calls, and none has more.

    Where there are as many as were expected, the largest is complete: lost events only take calls away. One wait alone
    can be chance: it divides only equal halves, or as many iterations as were expected. All calls but zero-fills count
    if more iterations agree then.
    """
    if not len(long) or waits is None:
        return None
    starts = _starts_behind(long, kinds)
    work, solid = (np.add.reduceat(mask.astype(np.int64), starts) for mask in (kinds.work, ~kinds.fills))
    if (solid == solid.max()).sum() > (work == work.max()).sum():
        work = solid  # a call that takes unusually long or short is of a kind of its own, and is there
    inner = work[1:-1] if len(work) > _HALVES else work[:1]
    calls_needed, is_expected = int(work.max()), expected == len(work)
    is_divided = len(work) > _HALVES or is_expected or (len(work) == _HALVES and work[0] == work[1])
    is_alike = is_expected or _HALVES * int((inner == calls_needed).sum()) > len(inner)
    if not is_divided or not calls_needed or not is_alike:
        return None
    other_waits = np.delete(waits, long - 1)
    usual = f"the longest other one is {other_waits.max():,}" if len(other_waits) else "there is no other lock stall"
    reason = (
        f"{LOCK} lasts {waits[long - 1].min():,} cycles or more between iterations, {usual}; {calls_needed:,} working "
        "calls each"
    )
    return IterationSplit("lock_stall", starts, work, calls_needed, work == calls_needed, reason)
