"""How the time of decoding a token grows with its position, and with the places that are allocated for a cache.

A line is fitted to the median of each position, process by process; the interval is that of Student's t over processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.grouping import grouped
from opscope.core.stats.distributions import t_quantile
from opscope.program.phases import PhaseKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.analysis.latency.methods import MethodTime

    Floats: TypeAlias = NDArray[np.float64]

_LEAST = 2
_STRAIGHT = 3
_TWO_SIDED = 0.975


class Estimated(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval over processes; null with fewer than two."""

    value: float
    ci95: tuple[float, float] | None


class DecodeGrowth(msgspec.Struct, frozen=True):
    """Time of decoding a token as a function of its position.

    Attributes:
        cache: places that are allocated; null where that is not known.
        positions: that were measured, ascending.
        fixed_ns: time at position 0.
        per_position_ns: what each token before it adds.
        doubled_at: position at which the token takes twice the fixed time; null where it does not grow.
        departure: largest distance of a measured median from the line, as a share of it; null with two positions.
    """

    cache: int | None
    positions: list[int]
    fixed_ns: Estimated
    per_position_ns: Estimated
    doubled_at: float | None
    departure: float | None


class CacheCost(msgspec.Struct, frozen=True):
    """What more places of a cache cost a token at one position, used or not.

    Attributes:
        position: of the token.
        places: that are allocated, the fewer and the more.
        ratio: time with the more to time with the fewer.
    """

    position: int
    places: tuple[int, int]
    ratio: Estimated


def cache_costs(methods: Sequence[MethodTime]) -> list[CacheCost]:
    """Every position that was measured with caches of several sizes: each size against the smallest."""
    costs = []
    for position, method_times in grouped(
        _decoding(methods), lambda one: one.phase.position if one.phase else None
    ).items():
        by_size = {
            one.phase.cache: one for one in method_times if one.phase is not None and one.phase.cache is not None
        }
        least, *more = sorted(by_size) or [0]
        for places in more:
            ratio = _ratio(by_size[least], by_size[places])
            if position is not None and ratio is not None:
                costs.append(CacheCost(position, (least, places), ratio))
    return costs


def _ratio(fewer: MethodTime, more: MethodTime) -> Estimated | None:
    """Of the medians of processes, on a logarithmic scale."""
    before = {latency.process: latency.median_ns for latency in fewer.latency.processes}
    logs = [
        np.log(latency.median_ns / before[latency.process])
        for latency in more.latency.processes
        if before.get(latency.process)
    ]
    if not logs:
        return None
    estimate = _estimated(np.array(logs))
    ends = estimate.ci95 and (float(np.exp(estimate.ci95[0])), float(np.exp(estimate.ci95[1])))
    return Estimated(float(np.exp(estimate.value)), ends)


def _decoding(methods: Sequence[MethodTime]) -> list[MethodTime]:
    """Calls of one token: those of several, as tools time them, are of no one position.

    What runs in another way has another name behind a blank, and is not on the same line.
    """
    known = [one for one in methods if one.phase is not None and " " not in one.method]
    return [one for one in known if one.phase and one.phase.kind is PhaseKind.DECODE and one.phase.tokens == 1]


def decode_growth(methods: Sequence[MethodTime]) -> list[DecodeGrowth]:
    """One line for each size of the cache at which two positions or more were measured."""
    each = grouped(_decoding(methods), lambda one: one.phase.cache if one.phase else None)
    return [line for cache, method_times in each.items() if (line := _line(cache, method_times)) is not None]


def _line(cache: int | None, methods: Sequence[MethodTime]) -> DecodeGrowth | None:
    placed = {one.phase.position: one for one in methods if one.phase is not None and one.phase.position is not None}
    if len(placed) < _LEAST:
        return None
    positions = sorted(placed)
    medians = [{own.process: own.median_ns for own in placed[at].latency.processes} for at in positions]
    shared = sorted(set.intersection(*map(set, medians)))
    if not shared:
        return None
    times = np.array([[own[process] for own in medians] for process in shared])
    slopes, fixed = np.polynomial.polynomial.polyfit(np.array(positions, np.float64), times.T, 1)[::-1]
    line = float(fixed.mean()) + float(slopes.mean()) * np.array(positions)
    away = np.abs(times.mean(axis=0) / line - 1).max() if len(positions) >= _STRAIGHT and (line > 0).all() else None
    grows = slopes.mean() > 0 and fixed.mean() > 0
    return DecodeGrowth(
        cache=cache,
        positions=positions,
        fixed_ns=_estimated(fixed),
        per_position_ns=_estimated(slopes),
        doubled_at=float(fixed.mean() / slopes.mean()) if grows else None,
        departure=None if away is None else float(away),
    )


def _estimated(values: Floats) -> Estimated:
    """The mean over processes."""
    mean, count = float(values.mean()), len(values)
    if count < _LEAST:
        return Estimated(mean, None)
    half = t_quantile(_TWO_SIDED, count - 1) * float(values.std(ddof=1)) / count**0.5
    return Estimated(mean, (mean - half, mean + half))
