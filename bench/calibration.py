"""How often a comparison of identical variants calls a difference, on simulated noise of several shapes.

Every cell is the share of comparisons with a verdict of faster or slower; it should not exceed 5 %. Beside it, what
two usual ways of judging the same data would have called: a t-test on inferences pooled over processes, and
comparing means that differ by more than their standard errors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from opscope.stats.distributions import normal_cdf
from opscope.stats.effect import Verdict, paired_effects

_COMPARISONS = 1_000
_INFERENCES = 50
_BATCH = 100
Floats = NDArray[np.float64]


def noise(shape: str, size: tuple[int, int], generator: np.random.Generator) -> Floats:
    """Log latencies of processes."""
    if shape == "normal":
        return generator.normal(0, 0.02, size)
    if shape == "heavy tails":
        return generator.standard_t(1.5, size) * 0.02
    if shape == "bimodal":
        return generator.choice([0.0, math.log(2)], p=[0.8, 0.2], size=size) + generator.normal(0, 0.01, size)
    drift = np.linspace(0, 0.3, size[0])[:, None]
    return drift + generator.normal(0, 0.02, size)


def called(baseline: Floats, candidate: Floats) -> float:
    """Share of columns that opscope calls different."""
    count = 0
    for start in range(0, baseline.shape[1], _BATCH):
        part = slice(start, start + _BATCH)
        effects = paired_effects(baseline[:, part], candidate[:, part])
        count += sum(effect.verdict() in (Verdict.FASTER, Verdict.SLOWER) for effect in effects)
    return count / baseline.shape[1]


def pooled_called(baseline: Floats, candidate: Floats, generator: np.random.Generator) -> float:
    """Share that a two-sample test on pooled inferences calls different: it takes inferences for independent."""
    rejected = 0
    for column in range(baseline.shape[1]):
        left, right = (
            (side[:, column, None] + generator.normal(0, 0.01, (len(side), _INFERENCES))).ravel()
            for side in (baseline, candidate)
        )
        error = math.sqrt(left.var(ddof=1) / left.size + right.var(ddof=1) / right.size)
        p_value = 2 * normal_cdf(-abs(left.mean() - right.mean()) / error)
        rejected += p_value <= 0.05  # noqa: PLR2004 - the level of all tests here
    return rejected / baseline.shape[1]


def main() -> None:
    """Print the table."""
    generator = np.random.default_rng(7)
    print(f"share called different, {_COMPARISONS} comparisons of identical variants\n")
    print(f"{'noise between processes':<26}{'rounds':>8}{'opscope':>10}{'pooled test':>14}")
    for shape in ("normal", "heavy tails", "bimodal", "drift"):
        for rounds in (6, 10, 20):
            size = (rounds, _COMPARISONS)
            sides = noise(shape, size, generator), noise(shape, size, generator)
            ours, pooled = called(*sides), pooled_called(*sides, generator)
            print(f"{shape:<26}{rounds:>8}{ours:>10.1%}{pooled:>14.1%}")


if __name__ == "__main__":
    main()
