"""Error rates, coverage and power of verdicts on simulated experiments. Every function here is one cell of a table.

Cells are computed in several processes, so that what they are given and what they return can be pickled. Each draws
from a stream of its own: a cell is the same in any order and whatever else is computed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bench.noise import NOISES, Floats, Noise, draw_interleaved, draw_normal, draw_one_after_other
from bench.shares import Share, count_true
from bench.verdicts import call_signs, effect_of, sign_of
from opscope.core.stats.effect import Effect, Verdict, adjust_for_many, paired_effects

UNPAIRED = 0
"""In the place of a number of rounds: two groups of ten processes, one after the other."""
_PROCESSES = 10
_BATCH = 500
_WITHIN = 0.03
_OPERATORS, _CHANGED, _CHANGE = 300, 30, 0.1
_OPERATOR_SD = 0.05
_DIFFERENT = {Verdict.FASTER, Verdict.SLOWER}


class Cell(NamedTuple):
    """Identical variants under a noise: its number in ``NOISES``, rounds or ``UNPAIRED``, and how many comparisons."""

    noise: int
    rounds: int
    comparisons: int


def false_calls(cell: Cell) -> Share:
    """Return the share of comparisons of identical variants that are called different."""
    signs = []
    for number, first in enumerate(range(0, cell.comparisons, _BATCH)):
        generator = np.random.default_rng((cell.noise, cell.rounds, number))
        sides = _draw_sides(cell, min(_BATCH, cell.comparisons - first), generator)
        signs.append(call_signs(*sides, paired=cell.rounds != UNPAIRED))
    return count_true(np.concatenate(signs) != 0)


def coverage(cell: Cell) -> Share:
    """Return the share of intervals that hold the true ratio of identical variants, which is 1."""
    generator = np.random.default_rng((cell.noise, cell.rounds, 1_000_000))
    paired = cell.rounds != UNPAIRED
    sides = _draw_sides(cell, cell.comparisons, generator)
    effects = [effect_of(*pair, paired=paired) for pair in zip(*sides, strict=True)]
    return count_true(np.array([_holds(effect, 0.0) for effect in effects]))


def _draw_sides(cell: Cell, count: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    if cell.rounds == UNPAIRED:
        return draw_one_after_other(NOISES[cell.noise], _PROCESSES, count, generator)
    return draw_interleaved(NOISES[cell.noise], cell.rounds, count, generator)


class Power(NamedTuple):
    """How a real change fares.

    Attributes:
        right: share called slower, which is right.
        wrong: share called faster.
        covered: share of intervals that hold the true ratio.
        detectable: median of the smallest changes that the experiments stated they could show, as a fraction.
    """

    right: Share
    wrong: Share
    covered: Share
    detectable: float


def power(between: float, rounds: int, change: float, count: int) -> Power:
    """Return the verdicts on a candidate that is slower by a fraction, in paired rounds.

    Args:
        between: standard deviation between processes, in logarithms.
        rounds: processes of each side.
        change: of latency.
        count: number of experiments.
    """
    generator = np.random.default_rng((round(between * 1e6), rounds, round(change * 1e6)))
    noise = Noise("", draw_normal(between), draw_normal(_WITHIN))
    baseline, candidate = draw_interleaved(noise, rounds, count, generator)
    slower = np.rint(candidate * (1 + change))
    effects = [effect_of(*pair, paired=True) for pair in zip(baseline, slower, strict=True)]
    signs = np.array([sign_of(effect) for effect in effects])
    held = np.array([_holds(effect, -math.log1p(change)) for effect in effects])
    detectable = float(np.median([effect.minimum_detectable or math.nan for effect in effects]))
    return Power(count_true(signs > 0), count_true(signs < 0), count_true(held), math.expm1(detectable))


def _holds(effect: Effect, truth: float) -> bool:
    return effect.low is not None and effect.high is not None and effect.low <= truth <= effect.high


class Operators(NamedTuple):
    """Verdicts on the operators of a model.

    Attributes:
        alarms: share of experiments of identical variants in which any operator is called different.
        uncorrected: that share without the correction for their number.
        false: of the operators that are called when some really changed, the share that did not, averaged over
            experiments: the false discovery rate.
        found: share of the operators that changed that are called.
    """

    alarms: Share
    uncorrected: Share
    false: float
    found: Share


def operator_calls(rounds: int, count: int) -> Operators:
    """Judge 300 operators whose processes share their speed: all identical, then with 30 of them slower by 10 %."""
    alarms, uncorrected, false, found = [], [], [], []
    for number in range(count):
        generator = np.random.default_rng((rounds, number, 2_000_000))
        left, right = _draw_operator_times(rounds, generator), _draw_operator_times(rounds, generator)
        effects = paired_effects(left, right)
        alarms.append(_called_different(effects).any())
        uncorrected.append(any(effect.verdict() in _DIFFERENT for effect in effects))
        right[:, :_CHANGED] *= 1 + _CHANGE
        called = _called_different(paired_effects(left, right))
        false.append(called[_CHANGED:].sum() / max(called.sum(), 1))
        found.append(called[:_CHANGED])
    shares = count_true(np.array(alarms)), count_true(np.array(uncorrected))
    return Operators(*shares, float(np.mean(false)), count_true(np.array(found)))


def _called_different(effects: list[Effect]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which operators are called different, corrected for their number as opscope does."""
    corrected = adjust_for_many([effect.p_value or 0.0 for effect in effects])
    verdicts = [effect.verdict(p) for effect, p in zip(effects, corrected, strict=True)]
    return np.array([verdict in _DIFFERENT for verdict in verdicts])


def _draw_operator_times(rounds: int, generator: np.random.Generator) -> Floats:
    """Draw times in ns, shape (rounds, operators): 1 to 1,000 microseconds, each with the speed of its process."""
    level = np.logspace(3, 6, _OPERATORS)
    speed = generator.normal(0, 0.02, (rounds, 1))
    order = np.random.default_rng(0).permutation(_OPERATORS)
    times: Floats = level[order] * np.exp(speed + generator.normal(0, _OPERATOR_SD, (rounds, _OPERATORS)))
    return times
