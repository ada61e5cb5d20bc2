"""Latency without event tracing, and what tracing costs.

Tracing makes an inference longer, on ordinary models by 1 to 4 %, on many tiny operators by far more. So the latency of
a product is that of untraced runs, and the traced ones are for the split.

Which calls a process was kept from running during.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analysis.latency.latency import Latency, latency_of
from opscope.analysis.operators.headline import counted
from opscope.core.stats.effect import interval_of
from opscope.core.stats.hierarchy import median_effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

# Where it comes from: docs/design/quality.md.
OFF_CPU = 0.05
"""A call that was off the CPU for more than this share of its duration counts as preempted."""
FEWEST_QUIET = 5
"""A process with fewer calls that nobody preempted, and fewer than half of its own, has no figure of its own."""


class CallTimes(NamedTuple):
    """Durations of a method's calls as the caller saw them, by round."""

    untraced: Mapping[int, Sequence[int]]  # without event tracing, warm-up included
    traced: Mapping[int, Sequence[int]]  # with it
    warmup: int  # calls of each process to set aside
    load_ns: Mapping[int, int]  # loading the program in the untraced processes
    # the methods that a process called, over and over in this order; empty for a single one
    order: tuple[str, ...] = ()
    # of the traced processes that are analysed, in their order; empty where that is not known
    rounds: tuple[int, ...] = ()
    # of each untraced call how much of it was off the CPU; without the rounds where that was not recorded
    off_cpu: Mapping[int, Sequence[int]] = {}

    def walls(self) -> list[Sequence[int]] | None:
        """What the callers of the traced processes saw, warm-up included; None unless that is known of all of them."""
        if not self.rounds or any(number not in self.traced for number in self.rounds):
            return None
        return [self.traced[number] for number in self.rounds]

    def settled(self, method: str | None = None) -> dict[int, list[int]]:
        """Untraced calls behind the warm-up that nobody preempted, of every process that has any."""
        found = {}
        for number, own in self.untraced.items():
            listed = zip(own[self.warmup :], self._kept(number), self._methods(own), strict=True)
            found[number] = [call for call, kept, name in listed if kept and method in {None, name}]
        return {number: own for number, own in found.items() if own}

    def durations(self, rounds: Sequence[int], method: str | None = None) -> list[Floats]:
        """What each of these rounds counts by, of one method or of all: see :func:`counted`."""
        if method is not None:
            settled = self.settled(method)
            return [np.asarray(settled.get(number) or self._every(number, method), np.float64) for number in rounds]
        return [self._counted(self.untraced[number], self._kept(number)) for number in rounds]

    def _every(self, number: int, method: str) -> list[int]:
        """Calls of a method behind the warm-up, preempted or not: where all of them were, these are all there is."""
        own = self.untraced[number]
        return [call for call, name in zip(own[self.warmup :], self._methods(own), strict=True) if name == method]

    def traced_durations(self, rounds: Sequence[int]) -> list[Floats]:
        """The same with event tracing."""
        return [self._counted(self.traced[number]) for number in rounds]

    def _counted(self, calls: Sequence[int], kept: Sequence[bool] = ()) -> Floats:
        names = self._methods(calls)
        return counted(calls[self.warmup :], [names.index(name) for name in names], kept)

    def _methods(self, calls: Sequence[int]) -> list[str | None]:
        """Of every call behind the warm-up which method it is of."""
        order = self.order or (None,)
        return [order[at % len(order)] for at in range(self.warmup, len(calls))]

    def _kept(self, number: int) -> list[bool]:
        calls, off_cpu = self.untraced[number][self.warmup :], self.off_cpu.get(number, ())[self.warmup :]
        return undisturbed(calls, off_cpu) if len(off_cpu) == len(calls) else [True] * len(calls)


class TracingCost(msgspec.Struct, frozen=True):
    """How much longer a call takes with event tracing.

    Attributes:
        ratio: traced over untraced, of geometric means over processes of each one's median.
        ci95: its 95 % interval; null with fewer than two processes a side.
        processes: number of untraced and of traced ones.
    """

    ratio: float
    ci95: tuple[float, float] | None
    processes: tuple[int, int]


class Untraced(msgspec.Struct, frozen=True):
    """What was measured without event tracing, as the caller of the method saw it."""

    latency: Latency  # of the calls; ``process`` counts the untraced processes
    tracing: TracingCost | None  # what tracing costs; null when nothing was traced


def untraced(calls: CallTimes) -> Untraced | None:
    """The untraced arm of a variant; None when no call is left to measure."""
    settled = calls.settled()
    if not settled:
        return None
    rounds = sorted(settled)
    found = latency_of(
        "untraced",
        [settled[number] for number in rounds],
        [list(calls.untraced[number][: calls.warmup]) for number in rounds],
        [calls.load_ns.get(number) for number in rounds],
    )
    return Untraced(found, _tracing_cost(calls, settled))


def _tracing_cost(calls: CallTimes, settled: Iterable[int]) -> TracingCost | None:
    traced = [number for number, own in calls.traced.items() if own[calls.warmup :]]
    if not traced:
        return None
    common = sorted(set(settled) & set(traced))
    sides = calls.traced_durations(common or sorted(traced)), calls.durations(common or sorted(settled))
    effect = median_effect(sides[0], sides[1], paired=bool(common))
    return TracingCost(math.exp(effect.estimate), interval_of(effect, math.exp), (len(sides[1]), len(sides[0])))


def preempted(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Of every call whether it was preempted."""
    return [off > OFF_CPU * duration for duration, off in zip(wall, off_cpu, strict=True)]


def undisturbed(wall: Sequence[int], off_cpu: Sequence[int]) -> list[bool]:
    """Of every call whether figures rest on it: nobody preempted it; all of a process that has hardly any such call.

    Calls are chosen by the time off the CPU and never by their duration, so that the choice does not favour short ones.
    """
    marked, few = preempted(wall, off_cpu), is_crowded(wall, off_cpu)
    return [few or not own for own in marked]


def is_crowded(wall: Sequence[int], off_cpu: Sequence[int]) -> bool:
    """Whether hardly any call of a process was not preempted; see :func:`undisturbed`."""
    quiet = len(wall) - sum(preempted(wall, off_cpu))
    return quiet < FEWEST_QUIET and 2 * quiet < len(wall)
