"""What a mechanism that switches features changes by itself: a variant without it beside one with it, both complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.stats.effect import Verdict

_WITHIN = 1.1
"""Largest ratio of times that the interval may hold: switching off AVX-512 changes them by 1.2 and more."""

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.compare.outputs import OutputAgreement


def identical(outputs: OutputAgreement | None) -> bool | None:
    """Whether two variants computed the very same numbers; None where that was not compared."""
    return None if outputs is None else outputs.agree and outputs.max_abs_error == 0.0


def changes_nothing(control: Comparison) -> bool:
    """Whether the mechanism changed neither outputs nor times: no difference detected, and a narrow interval."""
    end = control.end_to_end
    near = end.ci95 is not None and 1 / _WITHIN <= end.ci95[0] <= end.ci95[1] <= _WITHIN
    return identical(control.outputs) is True and end.verdict is Verdict.NO_DIFFERENCE and near
