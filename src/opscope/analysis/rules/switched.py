"""What was switched between two variants, what it should bring, and whether the measurement could have seen that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.compare.compare import NOT_FASTER
from opscope.analysis.operators.delegates import delegated_kernels, is_delegated
from opscope.analysis.rules.evidence import time_of
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.units import rate_text, ratio_text, share_text
from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.compare.compare import EndToEnd
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import PairEvidence
    from opscope.program.ceilings import Ceilings, KernelUse

HEAVY = (Category.CONVOLUTION, Category.GEMM)
"""Categories that matrix units and wide vectors are made for."""
LEAST_GAIN = NOT_FASTER
"""Kernels whose ceiling is not so many times the other one are no faster; where it comes from: docs/design/rules.md."""
_NAMED = 3
_GIGA = 1e9


class KernelGain(NamedTuple):
    """Ceilings of one class of kernels in both variants."""

    kernels: str  # number type and class
    baseline_per_s: float  # best rate without what was switched, in multiply-accumulates
    candidate_per_s: float  # with it
    time_ns: float  # what the candidate's operators that run such kernels take in an inference

    @property
    def ratio(self) -> float:
        """How many times as fast the kernels are with it."""
        return self.candidate_per_s / self.baseline_per_s

    @property
    def faster(self) -> bool:
        """Whether the library has faster kernels with it."""
        return self.ratio >= LEAST_GAIN

    def text(self) -> str:
        """Both ceilings in words."""
        without, with_it = (rate_text(rate / _GIGA) for rate in (self.baseline_per_s, self.candidate_per_s))
        return f"{self.kernels}: {without} GMAC/s without, {with_it} with"


def switched_text(pair: PairEvidence) -> str:
    """What was switched, in words."""
    return ", ".join(pair.switched or ()) or "acceleration"


def not_switched(pair: PairEvidence) -> str | None:
    """Why a comparison says nothing about acceleration; None when features differ between the sides."""
    if pair.switched is None:
        return "which CPU features differ between the two variants is not known"
    return None if pair.switched else "nothing was switched: the two variants ran with the same CPU features"


def undecided(pair: PairEvidence) -> str | None:
    """Why the measurements decide nothing: they were disturbed, or too few rounds ran; None when they do."""
    found = pair.comparison.end_to_end
    if found.reason:
        return f"the comparison is withheld: {found.reason}"
    few = found.verdict is Verdict.UNDECIDABLE
    return "inconclusive: add rounds (--rounds 6)" if few else None


def heavy_operators(pair: PairEvidence) -> list[Operator]:
    """Convolutions and matrix products that ran in the candidate's delegates."""
    wanted = pair.evidence.where(is_delegated) if pair.evidence else []
    return [operator for operator in wanted if operator.category in HEAVY]


def kernel_gains(pair: PairEvidence, operators: Iterable[Operator]) -> list[KernelGain]:
    """Ceilings of the kernels of these operators in both variants, those that take most first.

    Empty where the ceilings of one variant were not measured, or none is of these kernels.
    """
    baseline, candidate = pair.ceilings
    if baseline is None or candidate is None:
        return []
    own = {use: rows for use, rows in grouped(operators, delegated_kernels).items() if use is not None}
    found = [_gain(use, rows, baseline, candidate) for use, rows in own.items()]
    return sorted((gain for gain in found if gain), key=lambda gain: -gain.time_ns)


def _gain(use: KernelUse, rows: Sequence[Operator], baseline: Ceilings, candidate: Ceilings) -> KernelGain | None:
    pair = [ceilings.mac_ceiling(use.dtype, use.kernel) for ceilings in (baseline, candidate)]
    before, after = (ceiling.rate if ceiling else None for ceiling in pair)
    if before is None or after is None:
        return None
    time = time_of(rows)
    return KernelGain(f"{use.dtype} {use.kernel.value}", before.best, after.best, time)


def other_gains(pair: PairEvidence, used: Iterable[KernelGain]) -> list[KernelGain]:
    """Kernels that are faster with what was switched, of types and classes that no operator uses; best first."""
    baseline, candidate = pair.ceilings
    if baseline is None or candidate is None:
        return []
    known = {gain.kernels for gain in used}
    before = {(ceiling.dtype, ceiling.kernel, ceiling.taps): ceiling.rate for ceiling in baseline.compute}
    found = [
        KernelGain(f"{ceiling.dtype} {ceiling.kernel.value}", lower.best, ceiling.rate.best, 0.0)
        for ceiling in candidate.compute
        if ceiling.rate and (lower := before.get((ceiling.dtype, ceiling.kernel, ceiling.taps)))
    ]
    others = [gain for gain in found if gain.faster and gain.kernels not in known]
    return sorted(others, key=lambda gain: -gain.ratio)


def gains_text(gains: Sequence[KernelGain]) -> str:
    """The ceilings of some kernels in words."""
    return "; ".join(gain.text() for gain in gains[:_NAMED])


def expected_speedup(pair: PairEvidence, gains: Sequence[KernelGain]) -> float | None:
    """Of the inference, if operators reach the same share of their ceilings on both sides; None where not known."""
    if not gains or pair.evidence is None or not pair.evidence.total:
        return None
    longer = sum(gain.time_ns * (gain.ratio - 1) for gain in gains)
    return max(1.0, 1 + longer / pair.evidence.total)


def unseen(result: EndToEnd, wanted: float) -> str | None:
    """Why a speedup of this size may be there unseen; None when the measurement excludes it."""
    if result.ci95 is None or result.minimum_detectable is None:
        return "there is no interval"
    low, high = result.ci95
    if high >= wanted:
        between = f"{ratio_text(low)} to {ratio_text(high)}"
        return (
            f"no difference detected, but {ratio_text(wanted)} is not ruled out (95 % interval {between}): add rounds"
        )
    if result.minimum_detectable > wanted - 1:
        return (
            f"this data cannot detect a change below {share_text(result.minimum_detectable)}, "
            f"and {share_text(wanted - 1)} was expected: add rounds"
        )
    return None
