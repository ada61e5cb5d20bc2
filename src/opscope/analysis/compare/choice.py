"""Verdicts on the fastest of several variants: which one that is, the same latencies tell that it is judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.stats.effect import ALPHA, Verdict, stepped_down
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison


def corrected_for_choice(comparisons: Sequence[Comparison], variants: int) -> list[Comparison]:
    """Comparisons of the fastest of so many variants with the others, none called different for having been chosen.

    The fastest could have been any, so every pair was looked at: with Holm's procedure over all pairs of them, variants
    that take the same are told apart at most 5 times in 100. Where only the correction keeps a pair from being called,
    it is undecidable: its interval, which is that of the pair alone, excludes no difference.
    """
    pairs = variants * (variants - 1) // 2
    known = [one.end_to_end.p_value for one in comparisons]
    corrected = iter(stepped_down([value for value in known if value is not None], pairs))
    p_values = [None if value is None else next(corrected) for value in known]
    text = f"the verdict is corrected for {counted_text(pairs, 'pair')}: the same data chose the fastest variant"
    return [_judged(one, p_value, text) for one, p_value in zip(comparisons, p_values, strict=True)]


def _judged(comparison: Comparison, p_value: float | None, text: str) -> Comparison:
    end = comparison.end_to_end
    called = end.verdict in {Verdict.FASTER, Verdict.SLOWER}
    verdict = Verdict.UNDECIDABLE if called and p_value is not None and p_value > ALPHA else end.verdict
    return msgspec.structs.replace(
        comparison,
        end_to_end=msgspec.structs.replace(end, verdict=verdict),
        notes=[*comparison.notes, *([text] if p_value is not None else [])],
    )
