"""Error rates, coverage and power of verdicts on simulated experiments. Every function here is one cell of a table.

Cells are computed in several processes, so that what they are given and what they return can be pickled. Each draws
from a stream of its own: a cell is the same in any order and whatever else is computed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from calibration_methods import BESIDE, NAIVE, Signs, effect, opscope, sign, t_test
from calibration_noise import NOISES, Floats, Noise, interleaved, normal, one_after_other
from calibration_shares import Share, share

from opscope.core.stats.effect import ALPHA, Effect, Verdict, adjust_for_many, paired_effects

UNPAIRED = 0
"""In the place of a number of rounds: two groups of ten processes, one after the other."""
_PROCESSES = 10
_BATCH = 500
_WITHIN = 0.03
_OPERATORS, _CHANGED, _CHANGE = 300, 30, 0.1
_OPERATOR_SD = 0.05
GREAT_CHANGES = (0.05, 0.1, 0.2)


class Cell(NamedTuple):
    """Identical variants under one noise.

    Attributes:
        noise: number in ``NOISES``.
        rounds: or ``UNPAIRED``.
        comparisons: how many of them.
        beside: whether to judge them by the other methods, too.
    """

    noise: int
    rounds: int
    comparisons: int
    beside: bool


def false_calls(cell: Cell) -> dict[str, Share]:
    """Share of comparisons of identical variants that are called different, by method."""
    found: dict[str, list[Signs]] = {}
    for number in range(-(-cell.comparisons // _BATCH)):
        size = min(_BATCH, cell.comparisons - number * _BATCH)
        generator = np.random.default_rng((cell.noise, cell.rounds, number))
        sides = _sides(NOISES[cell.noise], cell.rounds, size, generator)
        called = {"opscope": opscope(*sides, paired=cell.rounds != UNPAIRED)}
        if cell.beside:
            called |= {name: method(*sides) for name, method in (NAIVE | {"t-test": t_test}).items()}
        for name, signs in called.items():
            found.setdefault(name, []).append(signs)
    return {name: share(np.concatenate(signs) != 0) for name, signs in found.items()}


def coverage(cell: Cell) -> Share:
    """Share of intervals that hold the true ratio of identical variants, which is 1."""
    generator = np.random.default_rng((cell.noise, cell.rounds, 1_000_000))
    paired = cell.rounds != UNPAIRED
    sides = _sides(NOISES[cell.noise], cell.rounds, cell.comparisons, generator)
    effects = [effect(*pair, paired=paired) for pair in zip(*sides, strict=True)]
    return share(np.array([_holds(found, 0.0) for found in effects]))


class Seen(NamedTuple):
    """How methods fare under one noise.

    Attributes:
        called: share of identical variants called different, by method.
        seen: by change of latency, share of slower candidates called slower, by method.
        covered: share of the product's intervals that hold the true ratio, of the slower candidates too.
    """

    called: dict[str, Share]
    seen: dict[float, dict[str, Share]]
    covered: Share


def seen(number: int, rounds: int, count: int) -> Seen:
    """The product's verdicts beside other methods that take processes for the unit.

    Args:
        number: of the noise.
        rounds: processes of each side.
        count: experiments, for identical variants and for each change.
    """
    noise = NOISES[number]
    generator = np.random.default_rng((number, rounds, 3_000_000))
    baseline, candidate = interleaved(noise, rounds, count, generator)
    found = {change: _seen(baseline, _slower(candidate, noise, change)) for change in (0.0, *GREAT_CHANGES)}
    held = [
        _holds(effect(*pair, paired=True), -math.log1p(change))
        for change in (0.0, *GREAT_CHANGES)
        for pair in zip(baseline, _slower(candidate, noise, change), strict=True)
    ]
    called = {name: share(signs != 0) for name, signs in found.pop(0.0).items()}
    right = {change: {name: share(signs > 0) for name, signs in own.items()} for change, own in found.items()}
    return Seen(called, right, share(np.array(held)))


def _seen(baseline: Floats, candidate: Floats) -> dict[str, Signs]:
    ours = {"opscope": opscope(baseline, candidate, paired=True)}
    return ours | {name: method(baseline, candidate) for name, method in BESIDE.items()}


def _slower(candidate: Floats, noise: Noise, change: float) -> Floats:
    slower: Floats = np.rint(candidate * (1 + change) / noise.unit_ns) * noise.unit_ns
    return slower


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
    """Verdicts on a candidate that is slower by a fraction, in paired rounds.

    Args:
        between: standard deviation between processes, in logarithms.
        rounds: processes of each side.
        change: of latency.
        count: number of experiments.
    """
    generator = np.random.default_rng((round(between * 1e6), rounds, round(change * 1e6)))
    baseline, candidate = interleaved(Noise("", normal(between), normal(_WITHIN)), rounds, count, generator)
    slower = np.rint(candidate * (1 + change))
    effects = [effect(*pair, paired=True) for pair in zip(baseline, slower, strict=True)]
    signs = np.array([sign(found) for found in effects])
    held = np.array([_holds(found, -math.log1p(change)) for found in effects])
    detectable = float(np.median([found.minimum_detectable or math.nan for found in effects]))
    return Power(share(signs > 0), share(signs < 0), share(held), math.expm1(detectable))


class Operators(NamedTuple):
    """Verdicts on the operators of a model.

    Attributes:
        alarms: share of experiments of identical variants in which any operator is called different.
        uncorrected: likewise without the correction.
        false: of the operators that are called when some really changed, the share that did not, averaged over
            experiments: the false discovery rate.
        found: share of the operators that changed that are called.
    """

    alarms: Share
    uncorrected: Share
    false: float
    found: Share


def operators(rounds: int, count: int) -> Operators:
    """300 operators whose processes share their speed: all identical, then with 30 of them slower by 10 %."""
    alarms, alone, false, found = [], [], [], []
    for number in range(count):
        generator = np.random.default_rng((rounds, number, 2_000_000))
        left, right = _operator_times(rounds, generator), _operator_times(rounds, generator)
        effects = paired_effects(left, right)
        alarms.append(_called(effects).any())
        alone.append(any(one.verdict() in {Verdict.FASTER, Verdict.SLOWER} for one in effects))
        right[:, :_CHANGED] *= 1 + _CHANGE
        called = _called(paired_effects(left, right))
        false.append(called[_CHANGED:].sum() / max(called.sum(), 1))
        found.append(called[:_CHANGED])
    return Operators(share(np.array(alarms)), share(np.array(alone)), float(np.mean(false)), share(np.array(found)))


def _called(effects: list[Effect]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which operators are called different, corrected for their number as the product does."""
    corrected = adjust_for_many([one.p_value or 0.0 for one in effects])
    verdicts = [one.verdict(p) for one, p in zip(effects, corrected, strict=True)]
    return np.array([verdict in {Verdict.FASTER, Verdict.SLOWER} for verdict in verdicts])


def _operator_times(rounds: int, generator: np.random.Generator) -> Floats:
    """Times in ns, shape (rounds, operators): from 1 to 1,000 microseconds, each with the speed of its process."""
    level = np.logspace(3, 6, _OPERATORS)
    speed = generator.normal(0, 0.02, (rounds, 1))
    order = np.random.default_rng(0).permutation(_OPERATORS)
    times: Floats = level[order] * np.exp(speed + generator.normal(0, _OPERATOR_SD, (rounds, _OPERATORS)))
    return times


def _sides(noise: Noise, rounds: int, count: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    if rounds == UNPAIRED:
        return one_after_other(noise, _PROCESSES, count, generator)
    return interleaved(noise, rounds, count, generator)


def _holds(found: Effect, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


LEVEL = ALPHA
"""The largest share of false calls that is promised."""
