"""The sequence of kinds that a tile's calls repeat, such as a zero-fill and twelve calls of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
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
    period = _period(runs)
    if period is None:
        return None
    usual = np.array([_usual(runs, phase, period) for phase in range(period)])
    phases = Runs(runs.first[:period], usual[:, 0], usual[:, 1])
    if not any(kinds.kinds[kind].multiplies for kind in phases.kind):
        return None
    opener = _opener(phases, kinds)
    ordered = Runs(*(np.roll(column, -opener) for column in phases))
    return _pattern(runs, ordered, _openings(runs, phases, opener), kinds)


def _period(runs: Runs) -> int | None:
    """Number of runs after which they repeat."""
    some = Runs(*(column[:_LOOKED_AT] for column in runs))
    longest = min(_LONGEST, len(some.first) // _PERIODS)
    fits = []
    for period in range(2, longest + 1):
        fits.append((period, _fit(some, period)))
        unlike = round((1 - fits[-1][1]) * len(some.first))
        if fits[-1][1] >= _AS_GOOD or (len(some.first) >= _OFTEN * period and unlike <= 1):
            return period
    best = max((fit for _, fit in fits), default=0.0)
    if best < _FITS:
        return None
    return next(period for period, fit in fits if fit >= _AS_GOOD * best)


def _fit(runs: Runs, period: int) -> float:
    """Share of the runs that are as usual in their place; the first and the last may be parts."""
    fitting = 0
    for phase in range(period):
        kind, calls = _usual(runs, phase, period)
        same = runs.kind[phase::period] == kind
        fitting += int((same & (runs.calls[phase::period] == calls)).sum())
    ends = {0, len(runs.first) - 1}
    for at in ends:
        kind, calls = _usual(runs, at % period, period)
        fitting += bool(runs.kind[at] == kind and runs.calls[at] < calls)
    return fitting / len(runs.first)


def _usual(runs: Runs, phase: int, period: int) -> tuple[int, int]:
    """Kind and calls of the most frequent run in a place of the period, the longest of equally frequent ones."""
    values, counts = np.unique(runs.kind[phase::period] << _KIND | runs.calls[phase::period], return_counts=True)
    value = int(values[len(counts) - 1 - int(np.argmax(counts[::-1]))])
    return value >> _KIND, value & ((1 << _KIND) - 1)


def _opener(phases: Runs, kinds: Kinds) -> int:
    """Which run opens a period: a zero-fill behind work; else work behind something else; else the trace's first."""
    works = [kinds.kinds[kind].multiplies for kind in phases.kind]
    fills = [kinds.kinds[kind].fills for kind in phases.kind]
    after_work = [at for at in range(len(fills)) if fills[at] and not fills[at - 1]]
    work = [at for at in range(len(works)) if works[at] and not works[at - 1]]
    return (after_work or work or [0])[0]


def _openings(runs: Runs, phases: Runs, opener: int) -> Ints:
    """Runs that open a period: all of the opener's kind, where it occurs once in a period."""
    kind = phases.kind[opener]
    if (phases.kind == kind).sum() == 1:
        return np.flatnonzero(runs.kind == kind)
    return np.arange(opener, len(runs.first), len(phases.kind))


def _pattern(runs: Runs, ordered: Runs, openings: Ints, kinds: Kinds) -> IterationSplit:
    begins = openings if openings[:1] == [0] else np.concatenate([[0], openings])
    starts = runs.first[begins]
    total = len(kinds.labels)
    calls = np.diff(np.append(starts, total))
    work = np.add.reduceat(kinds.work.astype(np.int64), starts)
    period = [(kinds.kinds[kind], int(count)) for kind, count in zip(ordered.kind, ordered.calls, strict=True)]
    whole_work = sum(count for kind, count in period if kind.multiplies)
    count = np.diff(np.append(begins, len(runs.first)))
    complete = (calls == ordered.calls.sum()) & (work == whole_work) & (count == len(period))
    words = ", ".join(f"{count:,} x {kind.kind}" if count > 1 else kind.kind for kind, count in period)
    return IterationSplit("kinds", starts, work, whole_work, complete, words)
