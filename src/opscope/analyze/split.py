"""The change of time in groups of operators between two sides, as far as clock and delegate can tell.

XNNPACK reports whole microseconds, cut off: a duration d is a time in [d, d + 1 us), and what is cut off reads as time
of the call around it. The missing part stays the same when the experiment is repeated, so no interval that comes from
repetition holds it. It is therefore added to each interval: taking the missing parts of different operators as
independent and uniform, which is what rounding does to values that know nothing of the grid (Sheppard's correction;
Kendall and Stuart, The Advanced Theory of Statistics, volume 1, section 3.18).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.stats.effect import Effect, Verdict, adjust_for_many, paired_effects, unpaired_effects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.analyze.matching import OperatorPair
    from opscope.analyze.operators import Operator

    Floats: TypeAlias = NDArray[np.float64]
    Labels: TypeAlias = NDArray[np.int64]

_NORMAL_95 = 1.959964


class Change(NamedTuple):
    """Time of a group on both sides.

    Attributes:
        baseline_ns: mean self time per inference.
        candidate_ns: likewise.
        saved_ns: their difference, positive when the candidate takes less.
        speedup: their ratio; None where one side has no measurable time.
        ci95_saved_ns: 95 % interval of ``saved_ns``, what was cut off included; None with fewer than two processes.
        verdict: corrected for the number of groups (false discovery rate of 5 %).
        resolution_ns: the part of the interval that is due to durations that were cut off.
    """

    baseline_ns: float
    candidate_ns: float
    saved_ns: float
    speedup: float | None
    ci95_saved_ns: tuple[float, float] | None
    verdict: Verdict
    resolution_ns: float


class Split(NamedTuple):
    """Operators of two sides in pairs, and the time that each process spent in them.

    Attributes:
        pairs: the operators; a side that has no such operator is None.
        baseline: mean self time per inference of each; shape (processes, pairs).
        candidate: likewise; of paired sides, rows of both are of the same rounds.
        paired: whether they are.
    """

    pairs: Sequence[OperatorPair]
    baseline: Floats
    candidate: Floats
    paired: bool

    def changes(self, groups: tuple[Labels, Labels], count: int) -> list[Change]:
        """The change of each group.

        Args:
            groups: number of the group of each pair's baseline, and of each pair's candidate; -1 for none.
            count: number of groups.
        """
        if not count:
            return []
        before, after = (
            _sums(times, labels, count) for times, labels in zip((self.baseline, self.candidate), groups, strict=True)
        )
        effects = (paired_effects if self.paired else unpaired_effects)(before, after)
        widened = [_widen(effect, *lost) for effect, lost in zip(effects, self._lost(groups, count), strict=True)]
        verdicts = _corrected([effect for effect, _ in widened])
        rows = zip(before.mean(axis=0).tolist(), after.mean(axis=0).tolist(), widened, verdicts, strict=True)
        return [
            Change(b, c, effect.estimate, _ratio(b, c), _bounds(effect), verdict, resolution)
            for b, c, (effect, resolution), verdict in rows
        ]

    def _lost(self, groups: tuple[Labels, Labels], count: int) -> list[tuple[float, float]]:
        """Mean and standard deviation of what cut-off durations hide of each group's saving."""
        (mean, variance), (other_mean, other_variance) = (
            _cut_off([pair[side] for pair in self.pairs], labels, count) for side, labels in enumerate(groups)
        )
        return list(zip((mean - other_mean).tolist(), np.sqrt(variance + other_variance).tolist(), strict=True))


def _sums(times: Floats, labels: Labels, count: int) -> Floats:
    """Time of each group in each process; shape (processes, groups)."""
    sums = np.zeros((len(times), count))
    used = labels >= 0
    np.add.at(sums.T, labels[used], times[:, used].T)
    return sums


def _cut_off(operators: Sequence[Operator | None], labels: Labels, count: int) -> tuple[Floats, Floats]:
    """Mean and variance of the time that each group lacks.

    What an operator lacks, the call around it has too much; a group that holds both lacks nothing by it.
    """
    calls = {
        (operator.method, operator.instruction): int(label)
        for operator, label in zip(operators, labels, strict=True)
        if operator is not None and operator.position is None
    }
    mean, variance = np.zeros(count), np.zeros(count)
    for operator, label in zip(operators, labels.tolist(), strict=True):
        if operator is None or not operator.uncertainty_ns or operator.position is None:
            continue
        around = calls.get((operator.method, operator.instruction), -1)
        if around == label:
            continue
        for group, sign in ((label, 1), (around, -1)):
            if group >= 0:
                mean[group] += sign * operator.uncertainty_ns / 2
                variance[group] += operator.uncertainty_ns**2 / 12
    return mean, variance


def _widen(effect: Effect, shift: float, deviation: float) -> tuple[Effect, float]:
    """The effect with an interval that holds what was cut off, and by how much that widened an end at most."""
    below, above = _NORMAL_95 * deviation - min(shift, 0), _NORMAL_95 * deviation + max(shift, 0)
    resolution = max(below, above)
    if effect.low is None or effect.high is None or math.isclose(resolution, 0.0, abs_tol=1e-9):
        return effect, resolution
    return msgspec.structs.replace(effect, low=effect.low - below, high=effect.high + above), resolution


def _corrected(found: list[Effect]) -> list[Verdict]:
    p_values = [effect.p_value for effect in found]
    known = [p for p in p_values if p is not None]
    if len(known) != len(found):
        return [Verdict.UNDECIDABLE] * len(found)
    return [effect.verdict(p) for effect, p in zip(found, adjust_for_many(known), strict=True)]


def _bounds(effect: Effect) -> tuple[float, float] | None:
    return None if effect.low is None or effect.high is None else (effect.low, effect.high)


def _ratio(baseline_ns: float, candidate_ns: float) -> float | None:
    return baseline_ns / candidate_ns if baseline_ns > 0 and candidate_ns > 0 else None
