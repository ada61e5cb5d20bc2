"""The sequence of kinds that a tile's calls repeat, such as a zero-fill and twelve calls of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class KindRun(NamedTuple):
    """Calls of one kind in a row: the kind, and how many."""

    kind: int
    calls: int


class Runs(NamedTuple):
    """All of them; arrays of shape (runs,)."""

    first: Ints  # first call of each
    kind: Ints  # of its calls
    calls: Ints  # how many


class CallPattern(NamedTuple):
    """A sequence that repeats, and the groups of calls that do so."""

    runs: tuple[KindRun, ...]  # of one period, from the one that opens it
    starts: Ints  # first call of each group; the first group may begin within a period
    complete: Mask  # whether a group is the whole period
    work: Ints  # calls of each group that count as those of the tiling
    words: str  # the sequence, such as `zero-fill, 12 x kernel 1`
    calls: int  # of one period
    work_calls: int  # those of them that count as the tiling's


def find_pattern(kinds: Kinds) -> CallPattern | None:
    """The shortest sequence that explains how kinds follow each other; None where there is none with work."""
    runs = _runs(kinds.labels)
    period = _period(runs)
    if period is None:
        return None
    phases = [_usual(runs, phase, period) for phase in range(period)]
    if not any(kinds.kinds[run.kind].multiplies for run in phases):
        return None
    opener = _opener(phases, kinds)
    ordered = (*phases[opener:], *phases[:opener])
    return _pattern(runs, ordered, _openings(runs, phases, opener), kinds)


def _runs(labels: Ints) -> Runs:
    first = np.flatnonzero(np.concatenate([np.ones(min(len(labels), 1), bool), labels[1:] != labels[:-1]]))
    return Runs(first, labels[first], np.diff(np.append(first, len(labels))))


def _period(runs: Runs) -> int | None:
    """Number of runs after which they repeat."""
    some = Runs(*(column[:_LOOKED_AT] for column in runs))
    longest = min(_LONGEST, len(some.first) // _PERIODS)
    fits = []
    for period in range(2, longest + 1):
        fits.append((period, _fit(some, period)))
        if fits[-1][1] >= _AS_GOOD or _but_for_one(fits[-1][1], period, len(some.first)):
            return period
    best = max((fit for _, fit in fits), default=0.0)
    if best < _FITS:
        return None
    return next(period for period, fit in fits if fit >= _AS_GOOD * best)


def _but_for_one(fit: float, period: int, runs: int) -> bool:
    """Whether a period that is there several times explains all runs but one."""
    return runs >= _OFTEN * period and round((1 - fit) * runs) <= 1


def _fit(runs: Runs, period: int) -> float:
    """Share of the runs that are as usual in their place; the first and the last may be parts."""
    fitting = 0
    for phase in range(period):
        usual = _usual(runs, phase, period)
        same = runs.kind[phase::period] == usual.kind
        fitting += int((same & (runs.calls[phase::period] == usual.calls)).sum())
    ends = {0, len(runs.first) - 1}
    for at in ends:
        usual = _usual(runs, at % period, period)
        fitting += bool(runs.kind[at] == usual.kind and runs.calls[at] < usual.calls)
    return fitting / len(runs.first)


def _usual(runs: Runs, phase: int, period: int) -> KindRun:
    """The most frequent run in a place of the period, the longest of equally frequent ones."""
    values, counts = np.unique(runs.kind[phase::period] << _KIND | runs.calls[phase::period], return_counts=True)
    value = int(values[len(counts) - 1 - int(np.argmax(counts[::-1]))])
    return KindRun(value >> _KIND, value & ((1 << _KIND) - 1))


def _opener(phases: list[KindRun], kinds: Kinds) -> int:
    """Which run opens a period: a zero-fill behind work; else work behind something else; else the trace's first."""
    works = [kinds.kinds[run.kind].multiplies for run in phases]
    fills = [kinds.kinds[run.kind].fills for run in phases]
    after_work = [at for at in range(len(phases)) if fills[at] and not fills[at - 1]]
    work = [at for at in range(len(phases)) if works[at] and not works[at - 1]]
    return (after_work or work or [0])[0]


def _openings(runs: Runs, phases: list[KindRun], opener: int) -> Ints:
    """Runs that open a period: all of the opener's kind, where it occurs once in a period."""
    kind = phases[opener].kind
    if sum(run.kind == kind for run in phases) == 1:
        return np.flatnonzero(runs.kind == kind)
    return np.arange(opener, len(runs.first), len(phases))


def _pattern(runs: Runs, ordered: tuple[KindRun, ...], openings: Ints, kinds: Kinds) -> CallPattern:
    begins = openings if openings[:1] == [0] else np.concatenate([[0], openings])
    starts = runs.first[begins]
    total = len(kinds.labels)
    calls = np.diff(np.append(starts, total))
    work = np.add.reduceat(kinds.work.astype(np.int64), starts)
    whole = sum(run.calls for run in ordered)
    whole_work = sum(run.calls for run in ordered if kinds.kinds[run.kind].multiplies)
    count = np.diff(np.append(begins, len(runs.first)))
    complete = (calls == whole) & (work == whole_work) & (count == len(ordered))
    words = ", ".join(
        f"{run.calls:,} x {kinds.kinds[run.kind].kind}" if run.calls > 1 else kinds.kinds[run.kind].kind
        for run in ordered
    )
    return CallPattern(ordered, starts, complete, work, words, whole, whole_work)
