"""Whether ceilings that were kept still hold: which of them a short probe tries again, and what its figures say.

Where the tolerances come from: ``docs/concepts/roofline.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.core.units import size_text
from opscope.program.peak_rates.peak_rates import Drift, DriftCheck, KernelClass, Pattern, PeakRate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.program.peak_rates.peak_rates import PeakRates

COMPUTE_TOLERANCE = 0.10
CACHE_TOLERANCE = 0.10
FAR_TOLERANCE = 0.30

_TRIED_DTYPES = ("f32", "qs8")
# The first is in the smaller caches of any processor; the second is beyond those of most, and its memory is there in
# some hundredths of a second.
_NEAR_SET, _FAR_SET = 1 << 18, 1 << 26

_R = TypeVar("_R", bound=PeakRate)


class _Tried(NamedTuple):
    """A ceiling that is tried again: what it is in words, and by how much it may differ."""

    roof: PeakRate
    words: str
    tolerance: float


def drift_sample(kept: PeakRates) -> PeakRates:
    """The few ceilings that a short probe tries again: arithmetic of several number types, memory near and far."""
    chosen = [tried.roof for tried in _tried(kept)]
    return msgspec.structs.replace(
        kept,
        compute=_only(kept.compute, chosen),
        elements=_only(kept.elements, chosen),
        memory=_only(kept.memory, chosen),
        dispatch=_only(kept.dispatch, chosen),
    )


def drift_of(kept: PeakRates, probes: Sequence[PeakRates], checked_at: str) -> Drift:
    """The tried ceilings beside the best rate that any of the probes reached.

    Args:
        kept: the ceilings in question, which know when they were measured.
        probes: what trying :func:`drift_sample` again gave, once or more often.
        checked_at: when, ISO 8601 with time zone.
    """
    seconds = round(sum(probe.seconds for probe in probes), 3)
    return Drift(kept.measured_at or "", checked_at, seconds, [_check(tried, probes) for tried in _tried(kept)])


def unmeasured(roof: _R) -> _R:
    """What a ceiling is of, without what was measured: equal for the same graph."""
    return msgspec.structs.replace(roof, rate=None, operators=[], unsupported=None)


def _check(tried: _Tried, probes: Iterable[PeakRates]) -> DriftCheck:
    wanted = unmeasured(tried.roof)
    again = [roof.rate.best for probe in probes for roof in probe.all() if roof.rate and unmeasured(roof) == wanted]
    kept = tried.roof.rate.best if tried.roof.rate else 0
    return DriftCheck(tried.words, kept, max(again, default=None), tried.tolerance)


def _tried(kept: PeakRates) -> list[_Tried]:
    found = [
        _Tried(roof, f"{roof.dtype} {roof.kernel.value}", COMPUTE_TOLERANCE)
        for dtype in _TRIED_DTYPES
        if (roof := kept.mac_roof(dtype, KernelClass.GEMM))
    ]
    for limit, tolerance in ((_NEAR_SET, CACHE_TOLERANCE), (_FAR_SET, FAR_TOLERANCE)):
        copies = [roof for roof in kept.memory if roof.pattern is Pattern.COPY and roof.working_set <= limit]
        if copies:
            largest = max(copies, key=lambda roof: roof.working_set)
            found.append(_Tried(largest, f"copy of {size_text(largest.working_set)}", tolerance))
    return [tried for tried in found if tried.roof.rate]


def _only(roofs: Iterable[_R], chosen: list[PeakRate]) -> list[_R]:
    return [roof for roof in roofs if any(roof is one for one in chosen)]
