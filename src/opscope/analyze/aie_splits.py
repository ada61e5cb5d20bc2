"""Ways to divide calls into iterations: by the tiling, by long waits for a lock, by the sequence of kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from opscope.analyze.aie_lock_gaps import LOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.analyze.aie_kinds import Kinds
    from opscope.analyze.aie_pattern import Pattern
    from opscope.table.nesting import Ints

    Mask = NDArray[np.bool_]

By = Literal["tiling", "kinds", "lock_stall"]
_HALVES = 2
"""Parts into which a single wait divides the calls."""


class Split(NamedTuple):
    """Calls divided into iterations.

    Attributes:
        by: what divides them.
        starts: first call of each.
        work: calls of each that count as the tiling's.
        whole: such calls of a complete one.
        complete: whether all its calls are there.
        reason: why, in words.
    """

    by: By
    starts: Ints
    work: Ints
    whole: int
    complete: Mask
    reason: str


def by_tiling(kinds: Kinds, each: int, pattern: Pattern | None, long: Ints) -> Split:
    """Iterations of so many working calls.

    Where a repeated sequence fits into an iteration, its repetitions are counted, so that a call that is missing in one
    iteration does not shift all that follow. A zero-fill belongs to the working calls behind it, unless the core waited
    long between them: then it ran ahead.

    Args:
        kinds: of the calls.
        each: working calls of an iteration.
        pattern: sequence of kinds that repeats.
        long: calls before which the core waited long.
    """
    if pattern and each % pattern.work_calls == 0 and not pattern.complete[1:-1].all():
        starts = _by_repetitions(pattern, each // pattern.work_calls)
        counted = f"{each // pattern.work_calls:,} times ({pattern.words})"
    else:
        starts = _by_count(kinds, each)
        counted = f"{each:,} working calls"
    starts = _behind_waits(starts, kinds, long)
    work = _work(kinds, starts)
    return Split("tiling", starts, work, each, work == each, f"the tiling gives {counted} for each iteration")


def _by_repetitions(pattern: Pattern, each: int) -> Ints:
    units = np.maximum(np.rint(pattern.work / pattern.work_calls).astype(np.int64), 1)
    number = (np.cumsum(units) - units) // min(each, int(units.sum()))
    return pattern.starts[np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))]


def _by_count(kinds: Kinds, each: int) -> Ints:
    first = np.flatnonzero(kinds.work)[::each]
    solid = np.flatnonzero(~kinds.fills)
    starts: Ints = solid[np.maximum(np.searchsorted(solid, first) - 1, 0)] + 1
    starts[0] = 0
    return starts


def _behind_waits(starts: Ints, kinds: Kinds, long: Ints) -> Ints:
    """Iterations begin behind a long wait that lies before their first working call."""
    if not len(long):
        return starts
    work = np.flatnonzero(kinds.work)
    first_work = work[np.minimum(np.searchsorted(work, starts), len(work) - 1)]
    wait = long[np.maximum(np.searchsorted(long, first_work, side="right") - 1, 0)]
    return np.where((wait > starts) & (wait <= first_work), wait, starts)


def _work(kinds: Kinds, starts: Ints) -> Ints:
    return np.add.reduceat(kinds.work.astype(np.int64), starts)


def by_stalls(kinds: Kinds, long: Ints, gaps: Ints | None, expected: int | None) -> Split | None:
    """Iterations between long waits; None unless they have equally many working calls, but for the first and the last.

    One wait alone can be chance: it divides only equal halves, or as many iterations as were expected.
    """
    if not len(long) or gaps is None:
        return None
    starts = np.concatenate([[0], long])
    starts = starts if kinds.work[: long[0]].any() else long
    work = _work(kinds, starts)
    inner = work[1:-1] if len(work) > _HALVES else work[:1]
    whole = int(inner.max())
    known = len(work) > _HALVES or expected == len(work) or (len(work) == _HALVES and work[0] == work[1])
    if not known or not whole or inner.min() < whole or max(work[0], work[-1]) > whole:
        return None
    waits = gaps[long - 1]
    others = np.delete(gaps, long - 1)
    usual = f"the longest other wait is {others.max():,}" if len(others) else "there is no other wait"
    reason = f"{LOCK} lasts {waits.min():,} cycles or more between iterations, {usual}; {whole:,} working calls each"
    return Split("lock_stall", starts, work, whole, work == whole, reason)


def by_pattern(kinds: Kinds, pattern: Pattern, long: Ints) -> Split:
    """Each repetition of the sequence of kinds."""
    reason = (
        f"calls repeat the sequence {pattern.words}; "
        "an iteration of the whole run may have many of these, which its tiling would tell"
    )
    starts = _behind_waits(pattern.starts, kinds, long)
    return Split("kinds", starts, pattern.work, pattern.work_calls, pattern.complete, reason)
