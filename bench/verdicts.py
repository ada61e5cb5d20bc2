"""opscope's verdicts on many experiments at once, and on the real ones of identical variants.

Durations have the shape (experiments, processes, inferences) for each side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opscope.core.stats.effect import ALPHA, Effect, Verdict, unpaired_effects
from opscope.core.stats.hierarchy import FEWEST_ROUNDS, median_effect, process_level, round_effect, round_p_values

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats: TypeAlias = NDArray[np.float64]
Signs: TypeAlias = NDArray[np.int64]
"""1 where the candidate is called slower, -1 where it is called faster, 0 where no difference is called."""

_BATCH = 200
_SIGN = {Verdict.SLOWER: 1, Verdict.FASTER: -1}


def effect_of(baseline: Sequence[Floats], candidate: Sequence[Floats], *, paired: bool) -> Effect:
    """Return the effect of one experiment, as opscope reports it."""
    return median_effect(list(baseline), list(candidate), paired=paired)


def sign_of(effect: Effect) -> int:
    """Return the direction that an effect's verdict calls."""
    return _SIGN.get(effect.verdict(), 0)


def call_signs(baseline: Floats, candidate: Floats, *, paired: bool) -> Signs:
    """Return the verdict on each experiment.

    A difference is called only when the p-value is at most 5 % and the interval agrees. The p-values of many
    experiments are computed at once, and the whole effect only where its interval still matters: every verdict is that
    of :func:`effect_of`, sooner.
    """
    signs = np.zeros(len(baseline), np.int64)
    for number in np.flatnonzero(p_values(baseline, candidate, paired=paired) <= ALPHA + 1e-9):
        signs[number] = sign_of(effect_of(baseline[number], candidate[number], paired=paired))
    return signs


def p_values(baseline: Floats, candidate: Floats, *, paired: bool) -> Floats:
    """Return the p-values of opscope's test on the levels of processes."""
    if paired:
        sides = _levels(baseline), _levels(candidate)
        if len(sides[0]) < FEWEST_ROUNDS:
            return np.array([round_effect(*pair).p_value for pair in zip(sides[0].T, sides[1].T, strict=True)])
        return round_p_values(*sides)
    left, right = (np.log(np.median(side, axis=2)).T for side in (baseline, candidate))
    parts = [slice(start, start + _BATCH) for start in range(0, left.shape[1], _BATCH)]
    effects = [effect for part in parts for effect in unpaired_effects(left[:, part], right[:, part])]
    return np.array([effect.p_value for effect in effects], np.float64)


def _levels(durations: Floats) -> Floats:
    """Return the level of each process; shape (processes, experiments)."""
    ordered = np.sort(durations, axis=2)
    return np.array([[process_level(process) for process in experiment] for experiment in ordered], np.float64).T
