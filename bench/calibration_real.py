"""What verdicts say of real experiments of identical variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from calibration_methods import NAIVE, Floats, opscope, t_test
from calibration_shares import Share, share

if TYPE_CHECKING:
    from calibration_runs import Runs

CHANGES = (0.01, 0.02, 0.05, 0.1)
THRESHOLD = 0.03
"""Of the gate: ``opscope check`` lets through what is slower by less."""


class Called(NamedTuple):
    """What was called different.

    Attributes:
        shares: of comparisons, by method.
        regressions: share called slower by more than the gate's threshold.
    """

    shares: dict[str, Share]
    regressions: Share


def in_rounds(runs: Runs) -> Called:
    """The two sides of every experiment, which ran in turns."""
    return _judged(*_sides(runs), paired=True)


def apart(runs: Runs, gap: int) -> Called:
    """One side of an experiment against the other side of a later one; every process is used once at most.

    Args:
        runs: of one condition.
        gap: how many experiments later.
    """
    one, other = _sides(runs)
    return _judged(one[:-gap], other[gap:], paired=False)


class Slower(NamedTuple):
    """Real experiments whose candidate was made slower.

    Attributes:
        right: share called slower.
        wrong: share called faster.
        tested: share that a t-test on the processes' medians calls slower.
    """

    right: Share
    wrong: Share
    tested: Share


def made_slower(runs: Runs, change: float) -> Slower:
    """Every experiment with the durations of its candidate multiplied."""
    one, other = _sides(runs)
    slower = other * (1 + change)
    signs, tested = opscope(one, slower, paired=True), t_test(one, slower)
    return Slower(share(signs > 0), share(signs < 0), share(tested > 0))


def spread(runs: Runs) -> tuple[float, float]:
    """Standard deviation between processes of an experiment, and the robust one: both of log medians."""
    medians = np.log(np.median(runs.durations, axis=3))
    difference = (medians[:, 0] - medians[:, 1]).ravel()
    robust = 1.4826 * float(np.median(np.abs(difference)))
    return float(np.std(difference)) / 2**0.5, robust / 2**0.5


def _sides(runs: Runs) -> tuple[Floats, Floats]:
    durations = runs.durations.astype(np.float64)
    return durations[:, 0], durations[:, 1]


def _judged(one: Floats, other: Floats, *, paired: bool) -> Called:
    signs = opscope(one, other, paired=paired)
    methods = NAIVE | ({"t-test": t_test} if paired else {})
    shares = {"opscope": share(signs != 0)} | {name: share(method(one, other) != 0) for name, method in methods.items()}
    slowdown = np.expm1(_level(other) - _level(one))
    return Called(shares, share((signs > 0) & (slowdown > THRESHOLD)))


def _level(side: Floats) -> Floats:
    """Mean log median of the processes of each experiment."""
    level: Floats = np.log(np.median(side, axis=2)).mean(axis=1)
    return level
