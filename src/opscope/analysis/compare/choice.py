"""Verdicts on the fastest of several variants, which the tested latencies themselves chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.stats.effect import ALPHA, Verdict, stepped_down
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison


def corrected_for_choice(comparisons: Sequence[Comparison], variants: int) -> list[Comparison]:
    """Correct comparisons of the fastest variant with the others for having been chosen by the same data.

    ``variants`` is the number of variants. The fastest could have been any of them, so every pair was looked at: with
    Holm's procedure over all pairs, equally fast variants are called different at most 5 times in 100. A pair that only
    the correction keeps from being called different is undecidable: its interval, which is that of the pair alone,
    excludes no difference.
    """
    pairs = variants * (variants - 1) // 2
    known = [comparison.end_to_end.p_value for comparison in comparisons]
    corrected = iter(stepped_down([value for value in known if value is not None], pairs))
    p_values = [None if value is None else next(corrected) for value in known]
    text = f"the verdict is corrected for {counted_text(pairs, 'pair')}: the same data chose the fastest variant"
    return [
        _correct_verdict(comparison, p_value, text) for comparison, p_value in zip(comparisons, p_values, strict=True)
    ]


def _correct_verdict(comparison: Comparison, p_value: float | None, text: str) -> Comparison:
    end = comparison.end_to_end
    is_different = end.verdict in {Verdict.FASTER, Verdict.SLOWER}
    verdict = Verdict.UNDECIDABLE if is_different and p_value is not None and p_value > ALPHA else end.verdict
    return msgspec.structs.replace(
        comparison,
        end_to_end=msgspec.structs.replace(end, verdict=verdict),
        notes=[*comparison.notes, *([text] if p_value is not None else [])],
    )
