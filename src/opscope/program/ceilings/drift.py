"""Whether ceilings that were kept still hold: which of them a short probe tries again, and what its figures say.

Where the tolerances come from: ``docs/concepts/roofline.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.units import size_text
from opscope.program.ceilings.ceilings import Drift, DriftCheck, KernelClass, MeasuredCeiling, Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.program.ceilings.ceilings import Ceilings

COMPUTE_TOLERANCE = 0.10
CACHE_TOLERANCE = 0.10
FAR_TOLERANCE = 0.30

_TRIED_DTYPES = ("f32", "qs8")
# The first is in the smaller caches of any processor; the second is beyond those of most, and its memory is there in
# some hundredths of a second.
_NEAR_SET, _FAR_SET = 1 << 18, 1 << 26

_R = TypeVar("_R", bound=MeasuredCeiling)


def drift_sample(kept: Ceilings) -> Ceilings:
    """The few ceilings that a short probe tries again: arithmetic of several number types, memory near and far."""
    chosen = [ceiling for ceiling, _ in _tried(kept)]
    return msgspec.structs.replace(
        kept,
        compute=_only(kept.compute, chosen),
        elements=_only(kept.elements, chosen),
        memory=_only(kept.memory, chosen),
        dispatch=_only(kept.dispatch, chosen),
    )


def drift_of(kept: Ceilings, probes: Sequence[Ceilings], checked_at: str) -> Drift:
    """The tried ceilings beside the best rate that any of the probes reached."""
    seconds = round(sum(probe.seconds for probe in probes), 3)
    checks = [msgspec.structs.replace(check, found=_best_again(ceiling, probes)) for ceiling, check in _tried(kept)]
    return Drift(kept.measured_at or "", checked_at, seconds, checks)


def unmeasured(ceiling: _R) -> _R:
    """What a ceiling is of, without what was measured: equal for the same graph."""
    return msgspec.structs.replace(ceiling, rate=None, operators=[], unsupported=None)


def _best_again(tried: MeasuredCeiling, probes: Iterable[Ceilings]) -> int | None:
    wanted = unmeasured(tried)
    again = [one.rate.best for probe in probes for one in probe.all() if one.rate and unmeasured(one) == wanted]
    return max(again, default=None)


def _tried(kept: Ceilings) -> list[tuple[MeasuredCeiling, DriftCheck]]:
    """The ceilings that are tried again, each with what is known of its check before."""
    found: list[tuple[MeasuredCeiling, str, float]] = [
        (ceiling, f"{ceiling.dtype} {ceiling.kernel.value}", COMPUTE_TOLERANCE)
        for dtype in _TRIED_DTYPES
        if (ceiling := kept.mac_ceiling(dtype, KernelClass.GEMM))
    ]
    for limit, tolerance in ((_NEAR_SET, CACHE_TOLERANCE), (_FAR_SET, FAR_TOLERANCE)):
        copies = [
            ceiling for ceiling in kept.memory if ceiling.pattern is Pattern.COPY and ceiling.working_set <= limit
        ]
        if copies:
            largest = max(copies, key=lambda ceiling: ceiling.working_set)
            found.append((largest, f"copy of {size_text(largest.working_set)}", tolerance))
    return [
        (ceiling, DriftCheck(words, ceiling.rate.best, None, tolerance))
        for ceiling, words, tolerance in found
        if ceiling.rate
    ]


def _only(ceilings: Iterable[_R], chosen: list[MeasuredCeiling]) -> list[_R]:
    return [ceiling for ceiling in ceilings if any(ceiling is one for one in chosen)]
