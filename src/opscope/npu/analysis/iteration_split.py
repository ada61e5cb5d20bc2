"""What divides calls into iterations: the tiling, long waits for a lock, or a sequence of kinds that repeats.

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


class Runs(NamedTuple):
    """Calls of one kind in a row; arrays of shape (runs,)."""

    first: Ints  # first call of each
    kind: Ints  # of its calls
    calls: Ints  # how many


By = Literal["tiling", "kinds", "lock_stall"]


class IterationSplit(NamedTuple):
    """Calls divided into iterations."""

    by: By  # what divides them
    starts: Ints  # first call of each
    work: Ints  # calls of each that count as the tiling's
    whole: int  # such calls of a complete one
    complete: Mask  # whether all its calls are there
    reason: str  # why, in words


def find_pattern(kinds: Kinds) -> IterationSplit | None:
    """The shortest sequence that explains how kinds follow each other; None where there is none with work.

    Its reason is the sequence, such as `zero-fill, 12 x kernel 1`; the first repetition may begin within one.
    """
    labels = kinds.labels
    first = np.flatnonzero(np.concatenate([np.ones(min(len(labels), 1), bool), labels[1:] != labels[:-1]]))
    runs = Runs(first, labels[first], np.diff(np.append(first, len(labels))))
    period = _find_period(runs)
    if period is None:
        return None
    usual = np.array([_usual_run(runs, phase, period) for phase in range(period)])
    phases = Runs(runs.first[:period], usual[:, 0], usual[:, 1])
    if not any(kinds.kinds[kind].multiplies for kind in phases.kind):
        return None
    opener = _opening_phase(phases, kinds)
    ordered = Runs(*(np.roll(column, -opener) for column in phases))
    return _split_by_period(runs, ordered, _opening_runs(runs, phases, opener), kinds)


def _find_period(runs: Runs) -> int | None:
    some = Runs(*(column[:_LOOKED_AT] for column in runs))
    longest = min(_LONGEST, len(some.first) // _PERIODS)
    fits = []
    for period in range(2, longest + 1):
        fits.append((period, _share_explained(some, period)))
        unlike = round((1 - fits[-1][1]) * len(some.first))
        if fits[-1][1] >= _AS_GOOD or (len(some.first) >= _OFTEN * period and unlike <= 1):
            return period
    best = max((fit for _, fit in fits), default=0.0)
    if best < _FITS:
        return None
    return next(period for period, fit in fits if fit >= _AS_GOOD * best)


def _share_explained(runs: Runs, period: int) -> float:
    """Share of the runs that are as usual in their place; the first and the last may be parts."""
    fitting = 0
    for phase in range(period):
        kind, calls = _usual_run(runs, phase, period)
        same = runs.kind[phase::period] == kind
        fitting += int((same & (runs.calls[phase::period] == calls)).sum())
    ends = {0, len(runs.first) - 1}
    for at in ends:
        kind, calls = _usual_run(runs, at % period, period)
        fitting += bool(runs.kind[at] == kind and runs.calls[at] < calls)
    return fitting / len(runs.first)


def _usual_run(runs: Runs, phase: int, period: int) -> tuple[int, int]:
    values, counts = np.unique(runs.kind[phase::period] << _KIND | runs.calls[phase::period], return_counts=True)
    value = int(values[len(counts) - 1 - int(np.argmax(counts[::-1]))])
    return value >> _KIND, value & ((1 << _KIND) - 1)


def _opening_phase(phases: Runs, kinds: Kinds) -> int:
    """Find the run that opens a period: a zero-fill behind work, else work behind another kind, else the first."""
    works = [kinds.kinds[kind].multiplies for kind in phases.kind]
    fills = [kinds.kinds[kind].fills for kind in phases.kind]
    after_work = [at for at in range(len(fills)) if fills[at] and not fills[at - 1]]
    work = [at for at in range(len(works)) if works[at] and not works[at - 1]]
    return (after_work or work or [0])[0]


def _opening_runs(runs: Runs, phases: Runs, opener: int) -> Ints:
    """Runs that open a period: all of the opener's kind, where it occurs once in a period."""
    kind = phases.kind[opener]
    if (phases.kind == kind).sum() == 1:
        return np.flatnonzero(runs.kind == kind)
    return np.arange(opener, len(runs.first), len(phases.kind))


def _split_by_period(runs: Runs, ordered: Runs, openings: Ints, kinds: Kinds) -> IterationSplit:
    begins = openings if openings[:1] == [0] else np.concatenate([[0], openings])
    starts = runs.first[begins]
    total = len(kinds.labels)
    calls = np.diff(np.append(starts, total))
    work = _count_work(kinds, starts)
    period = [(kinds.kinds[kind], int(count)) for kind, count in zip(ordered.kind, ordered.calls, strict=True)]
    whole_work = sum(count for kind, count in period if kind.multiplies)
    count = np.diff(np.append(begins, len(runs.first)))
    complete = (calls == ordered.calls.sum()) & (work == whole_work) & (count == len(period))
    words = ", ".join(f"{count:,} x {kind.kind}" if count > 1 else kind.kind for kind, count in period)
    return IterationSplit("kinds", starts, work, whole_work, complete, words)


LOCK = EVENTS["lock_stall"]
_LONGER = 4
"""How many times the longest usual wait a long one lasts at least."""


def long_gaps(gaps: Ints | None, calls: CallSpans) -> Ints:
    """Calls before which the core waited long, by the LOCK_STALL cycles between each call and the next; ascending.

    A wait is long when it lasts at least as long as the median call and four times as long as the longest of the
    others, and when there are not more of them than of the others.
    """
    if gaps is None or not len(gaps):
        return np.empty(0, np.int64)
    ordered = np.sort(gaps)
    wide = ordered[1:] >= _LONGER * np.maximum(ordered[:-1], 1)
    enough = (ordered[1:] >= np.median(calls.durations)) & (2 * np.arange(1, len(ordered)) >= len(ordered))
    cuts = np.flatnonzero(wide & enough)
    if not len(cuts):
        return np.empty(0, np.int64)
    return np.flatnonzero(gaps >= ordered[cuts[-1] + 1]) + 1


def support(gaps: Ints | None, starts: Ints) -> str:
    """Return whether waits tell the calls that begin an iteration from the others, in words."""
    if gaps is None:
        return f"{LOCK} was not traced, so it cannot confirm this"
    begins = np.zeros(len(gaps) + 1, bool)
    begins[starts] = True
    before, elsewhere = gaps[begins[1:]], gaps[~begins[1:]]
    if not len(before) or not len(elsewhere):
        return f"{LOCK} cannot confirm this: there are no two kinds of gaps"
    if before.min() > elsewhere.max():
        return f"{LOCK} confirms it: {before.min():,} cycles or more before an iteration, {elsewhere.max():,} elsewhere"
    medians = f"median {np.median(before):,.0f} cycles before an iteration, {np.median(elsewhere):,.0f} elsewhere"
    return f"{LOCK} does not separate these gaps from others: {medians}"


_HALVES = 2
"""Parts into which a single wait divides the calls."""


def by_tiling(
    kinds: Kinds, each: int, pattern: IterationSplit | None, long: Ints, expected: int | None
) -> IterationSplit:
    """Iterations of so many working calls.

    Where a repeated sequence fits into an iteration, its repetitions are counted, so that a call that is missing in one
    iteration does not shift all that follow. A zero-fill belongs to the working calls behind it, unless the core waited
    long between them: then it ran ahead.
    """
    if pattern and each % pattern.whole == 0 and not pattern.complete[1:-1].all():
        units = np.maximum(np.rint(pattern.work / pattern.whole).astype(np.int64), 1)
        number = (np.cumsum(units) - units) // min(each // pattern.whole, int(units.sum()))
        starts = pattern.starts[np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))]
        counted = f"{each // pattern.whole:,} times ({pattern.reason})"
    else:
        first = np.flatnonzero(kinds.work)[::each]
        solid = np.flatnonzero(~kinds.fills)
        starts = solid[np.maximum(np.searchsorted(solid, first) - 1, 0)] + 1
        starts[0] = 0
        counted = counted_text(each, "working call", ",")
    starts = _behind_waits(starts, kinds, long)
    between = _between_waits(starts, kinds, each, long, expected)
    if between is not None:
        starts, counted = between, f"{counted}, and the lock stalls show where they begin,"
    work = _count_work(kinds, starts)
    return IterationSplit("tiling", starts, work, each, work == each, f"the tiling gives {counted} per iteration")


def _between_waits(starts: Ints, kinds: Kinds, each: int, long: Ints, expected: int | None) -> Ints | None:
    """Starts behind long waits, where counting runs over some of them and these divide the calls as the tiling does.

    Lost events only take calls away, and may hide a wait, so that a part is two iterations: then no part has more calls
    than its iterations, most are one, and there are as many as were expected, or each but the first and the last has
    most of its calls.
    """
    if not len(np.setdiff1d(long, starts)):
        return None
    behind = np.concatenate([[0], long])
    behind = behind if kinds.work[: long[0]].any() else long
    work = _count_work(kinds, behind)
    whole = int((work == each).sum())
    units = np.maximum(np.rint(work / each).astype(np.int64), 1)
    most = _HALVES * work > each * units
    likely = int(units.sum()) == expected or (len(work) > _HALVES and bool(most[1:-1].all()))
    fits = bool((work <= units * each).all() and most.any()) and _HALVES * int((units == 1).sum()) > len(work) > 1
    lossy = likely and fits
    return behind if lossy or (whole > 1 and 2 * whole >= len(behind)) else None


def _behind_waits(starts: Ints, kinds: Kinds, long: Ints) -> Ints:
    """Iterations begin behind a long wait that lies before their first working call, and none where the next does."""
    if not len(long):
        return starts
    work = np.flatnonzero(kinds.work)
    first_work = work[np.minimum(np.searchsorted(work, starts), len(work) - 1)]
    wait = long[np.maximum(np.searchsorted(long, first_work, side="right") - 1, 0)]
    following = np.append(starts[1:], len(kinds.work))
    return np.where((wait > starts) & (wait <= first_work) & (wait < following), wait, starts)


def _count_work(kinds: Kinds, starts: Ints) -> Ints:
    return np.add.reduceat(kinds.work.astype(np.int64), starts)


def by_stalls(kinds: Kinds, long: Ints, gaps: Ints | None, expected: int | None) -> IterationSplit | None:
    """Iterations between long waits; None unless most have equally many working calls, and none has more.

    Where there are as many as were expected, the largest is whole: lost events only take calls away. One wait alone can
    be chance: it divides only equal halves, or as many iterations as were expected. All calls but zero-fills count if
    more iterations agree then.
    """
    if not len(long) or gaps is None:
        return None
    starts = np.concatenate([[0], long])
    starts = starts if kinds.work[: long[0]].any() else long
    work, solid = (np.add.reduceat(mask.astype(np.int64), starts) for mask in (kinds.work, ~kinds.fills))
    if (solid == solid.max()).sum() > (work == work.max()).sum():
        work = solid  # a call that takes unusually long or short is of a kind of its own, and is there
    inner = work[1:-1] if len(work) > _HALVES else work[:1]
    whole = int(work.max())
    known = len(work) > _HALVES or expected == len(work) or (len(work) == _HALVES and work[0] == work[1])
    alike = expected == len(work) or _HALVES * int((inner == whole).sum()) > len(inner)
    if not known or not whole or not alike:
        return None
    waits = gaps[long - 1]
    others = np.delete(gaps, long - 1)
    usual = f"the longest other one is {others.max():,}" if len(others) else "there is no other lock stall"
    reason = f"{LOCK} lasts {waits.min():,} cycles or more between iterations, {usual}; {whole:,} working calls each"
    return IterationSplit("lock_stall", starts, work, whole, work == whole, reason)


def by_pattern(kinds: Kinds, pattern: IterationSplit, long: Ints) -> IterationSplit:
    """Make an iteration of each repetition of the sequence of kinds."""
    reason = (
        f"calls repeat the sequence {pattern.reason}; an iteration of the whole run may contain several of these, as "
        "its tiling would show"
    )
    return pattern._replace(starts=_behind_waits(pattern.starts, kinds, long), reason=reason)
