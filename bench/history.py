"""How often a history tells of a change that is none, and how soon it finds one that is.

Simulated series have a known truth. Real ones are experiments of identical variants that were run on one machine for
hours (``bench/data/identical_variants.npz``): each experiment is taken for a run, its latency for the run's figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.identical import read_runs
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.stats.effect import FEWEST, Verdict, predict
from opscope.core.stats.segments import firm_segments
from opscope.fleet.analysis.history_gate import current_level

if TYPE_CHECKING:
    from collections.abc import Callable

Floats: TypeAlias = NDArray[np.float64]
_SCATTER = 0.02
_LENGTHS = (12, 20, 50, 100)
_STEPS = (0.03, 0.05, 0.1, 0.2)
_SIDE, _NEAR = 15, 2
"""Runs before and behind a step, and within how many of its place it counts as found."""
_BEFORE = (FEWEST, 10, 30)
_REAL_RUNS = 30
_MOST_FALSE = {"normal": 0.05, "heavy tails": 0.05, "autocorrelated": 0.1}
"""The largest share of series without a change in which one may be told."""


def draw_normal(generator: np.random.Generator, count: int) -> Floats:
    """Draw independent scatter of 2 %."""
    return generator.normal(0, _SCATTER, count)


def draw_heavy_tails(generator: np.random.Generator, count: int) -> Floats:
    """Draw Student's t with two degrees of freedom: now and then a run is far off."""
    return generator.standard_t(2, count) * _SCATTER


def draw_autocorrelated(generator: np.random.Generator, count: int) -> Floats:
    """Draw an autoregressive process with a correlation of 0.5."""
    values = generator.normal(0, _SCATTER, count)
    for place in range(1, count):
        values[place] = 0.5 * values[place - 1] + math.sqrt(0.75) * values[place]
    return values


_SHAPES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": draw_normal,
    "heavy tails": draw_heavy_tails,
    "autocorrelated": draw_autocorrelated,
}


def run(*, full: bool) -> bool:
    """Print the tables; return whether changes that are none are told as seldom as they are to be."""
    series = 2_000 if full else 200
    print(f"levels of a gate: series with a change that is none, of {series} of each sort")
    print(f"{'scatter of 2 %':<20}" + "".join(f"{f'{count} runs':>12}" for count in _LENGTHS))
    held = True
    for name in _SHAPES:
        shares = [share_changed(name, count, series) for count in _LENGTHS]
        held &= max(shares) <= _MOST_FALSE[name]
        print(f"{name:<20}" + "".join(f"{share:>12.1%}" for share in shares))
    print(f"\nsteps that are found within {_NEAR} runs of their place, {_SIDE} runs before and behind, of {series}")
    print(f"{'scatter of 2 %':<20}" + "".join(f"{f'+{step:.0%}':>12}" for step in _STEPS))
    for name in _SHAPES:
        print(f"{name:<20}" + "".join(f"{share_found(name, step, series):>12.1%}" for step in _STEPS))
    print(f"\nnext runs called slower, and by more than {DEFAULT_THRESHOLD:.0%} (which a gate fails), of {series}")
    print(f"{'scatter of 2 %':<20}" + "".join(f"{f'{count} before':>18}" for count in _BEFORE))
    for name in _SHAPES:
        pairs = [shares_gated(name, count, series) for count in _BEFORE]
        print(f"{name:<20}" + "".join(f"{f'{slower:.1%}, {failed:.1%}':>18}" for slower, failed in pairs))
    print_real_runs()
    return held


def share_changed(shape: str, count: int, series: int) -> float:
    """Return the share of series without a change in which one is told."""
    generator = np.random.default_rng(count)
    return sum(_has_change(np.exp(_SHAPES[shape](generator, count))) for _ in range(series)) / series


def share_found(shape: str, step: float, series: int) -> float:
    """Return the share of series with a step in which it is found near its place."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(series):
        values = _SHAPES[shape](generator, 2 * _SIDE)
        values[_SIDE:] += math.log1p(step)
        hits += any(abs(segment.first - _SIDE) <= _NEAR for segment in firm_segments(np.exp(values))[1:])
    return hits / series


def shares_gated(shape: str, before: int, series: int) -> tuple[float, float]:
    """Return the shares of next runs, of the same level, that are called slower and that a gate fails."""
    generator = np.random.default_rng(before)
    rows = [_SHAPES[shape](generator, before + 1) for _ in range(series)]
    verdicts = [_judge_next(values[:-1], values[-1]) for values in rows]
    return sum(slower for slower, _ in verdicts) / series, sum(failed for _, failed in verdicts) / series


def print_real_runs() -> None:
    """Print what histories and gates say of real runs of identical variants, for each condition and side."""
    print("\nreal runs of identical variants")
    columns = f"{'runs':>6}{'scatter':>9}{'series':>8}{'changed':>9}{'gated':>8}{'slower':>8}{'failed':>8}"
    print(f"{'condition':<36}{columns}")
    for name, durations in read_runs().items():
        levels = np.log(np.median(durations, axis=3)).mean(axis=2)
        for side in range(levels.shape[1]):
            values = levels[:, side]
            parts = [values[first : first + _REAL_RUNS] for first in range(0, len(values) - 29, _REAL_RUNS)] or [values]
            changed = sum(_has_change(np.exp(part)) for part in parts)
            places = range(FEWEST, len(values))
            verdicts = [_judge_next(values[max(0, at - _REAL_RUNS) : at], values[at]) for at in places]
            slower, failed = (sum(column) / len(verdicts) for column in zip(*verdicts, strict=True))
            row = f"{f'{name}, side {side + 1}':<36}{len(values):>6}{float(values.std(ddof=1)):>9.1%}{len(parts):>8}"
            print(f"{row}{changed:>9}{len(verdicts):>8}{slower:>8.1%}{failed:>8.1%}")


def _has_change(values: Floats) -> bool:
    segments = firm_segments(values)
    return len(segments) > 1 or segments[0].drifts


def _judge_next(before: Floats, value: float) -> tuple[bool, bool]:
    """Return whether the next run is called slower, and whether a gate would fail it."""
    prediction = predict(before[current_level(np.exp(before)) :], value)
    slower = prediction.verdict() is Verdict.SLOWER
    return slower, slower and math.expm1(prediction.excess) > DEFAULT_THRESHOLD
