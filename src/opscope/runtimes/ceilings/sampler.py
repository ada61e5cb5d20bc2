"""Finding the ceilings: every probe is run again and again, in more than one pass, and the shortest run counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from opscope.program.ceilings import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.program.ceilings import MeasuredCeiling

GraphT = TypeVar("GraphT")
"""What a runtime's graphs are built with."""


class RefusedError(Exception):
    """The library does not do what was asked, with its own reason."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(f"{function}: {reason}")


@dataclass(frozen=True)
class ProbeCandidate(Generic[GraphT]):
    """One way to reach a ceiling."""

    ceiling: MeasuredCeiling  # the ceiling as it is kept, without its rate
    work: int  # of one invocation, in the ceiling's unit
    build: Callable[[GraphT], None]  # puts operators into an empty graph


@dataclass(frozen=True)
class Probe(Generic[GraphT]):
    """One ceiling to measure."""

    candidates: list[ProbeCandidate[GraphT]]  # of which the fastest counts; at least one
    # whether an operator, by the name that the library reports, is of the kind that was meant. The library may
    # run another one: where it has no half precision it converts, and computes with single
    meant: Callable[[str], bool]


PASSES = 3
"""Passes over all probes, so that a disturbance of a second does not fall on every run of a ceiling."""

LEAST_RUNS = 2
"""Runs of a candidate in a pass, even when its time is up; the first does not count."""

PATIENCE = 5
"""After so many times the time that was given, what has not begun is left out. Slow processors come here."""

OPENING_PATIENCE = 20
"""Likewise where opening a model takes longer than measuring it."""

_BILLION = 1_000_000_000
_LATE = "not measured: the time limit for ceilings was reached"


class ProbeRunner(Protocol):
    """A compiled graph."""

    @property
    def operators(self) -> Sequence[str]:
        """Names of its operators, as the library reports them."""
        ...

    def invoke(self) -> None:
        """Run every operator once."""
        ...

    def delete(self) -> None:
        """Give its memory back."""
        ...


class _Trial(Generic[GraphT]):
    """A candidate that is measured."""

    def __init__(self, candidate: ProbeCandidate[GraphT], runner: ProbeRunner) -> None:
        self.candidate, self.runner = candidate, runner
        self.durations: list[int] = []

    def sample(self, nanoseconds: float, clock: Callable[[], int]) -> None:
        """Run for so long. The first run does not count: its data are not in cache."""
        end, durations = clock() + nanoseconds, list[int]()
        while clock() < end or len(durations) < LEAST_RUNS:
            before = clock()
            self.runner.invoke()
            durations.append(max(1, clock() - before))
        self.durations += durations[1:]

    @property
    def best(self) -> float:
        """Work per second of the shortest run; 0 before any."""
        return self.candidate.work * _BILLION / min(self.durations, default=math.inf)

    def ceiling(self) -> MeasuredCeiling:
        """The ceiling with its rate."""
        low, median, high = (float(value) for value in np.percentile(self.durations, (25, 50, 75)))
        usual = self.candidate.work * _BILLION / median
        rate = Rate(round(self.best), round(usual), len(self.durations), round((high - low) / median, 4))
        names = list(dict.fromkeys(self.runner.operators))
        return msgspec.structs.replace(self.candidate.ceiling, rate=rate, operators=names)


def measure(
    probes: Sequence[Probe[GraphT]],
    compiled: Callable[[ProbeCandidate[GraphT]], ProbeRunner],
    seconds: float,
    clock: Callable[[], int],
    patience: int = PATIENCE,
) -> list[MeasuredCeiling]:
    """One ceiling for each probe, in their order.

    A probe that the library refuses, or answers with an operator of another kind, becomes a ceiling without a rate and
    with the reason.
    """
    share = seconds * _BILLION / PASSES / max(1, len(probes))
    deadline = clock() + seconds * _BILLION * patience
    tried: list[list[_Trial[GraphT] | str]] = []
    for number in range(PASSES):
        for place, probe in enumerate(probes):
            late = clock() > deadline
            if number == 0:
                tried.append(
                    [_LATE] if late else [_opened(candidate, probe, compiled) for candidate in probe.candidates]
                )
            if not late:
                tried[place] = [_sampled(trial, share / len(tried[place]), clock) for trial in tried[place]]
    return [_ceiling(probe, found) for probe, found in zip(probes, tried, strict=True)]


def _opened(
    candidate: ProbeCandidate[GraphT], probe: Probe[GraphT], compiled: Callable[[ProbeCandidate[GraphT]], ProbeRunner]
) -> _Trial[GraphT] | str:
    """A candidate that runs the operators that were meant, or why it does not."""
    try:
        runner = compiled(candidate)
    except RefusedError as error:
        return str(error)
    if all(probe.meant(operator) for operator in runner.operators):
        return _Trial(candidate, runner)
    runner.delete()
    return f"no separate kernel: runs as {', '.join(dict.fromkeys(runner.operators))}"


def _sampled(trial: _Trial[GraphT] | str, share: float, clock: Callable[[], int]) -> _Trial[GraphT] | str:
    """A candidate after more runs, or why it cannot be run."""
    if isinstance(trial, str):
        return trial
    try:
        trial.sample(share, clock)
    except RefusedError as error:
        trial.runner.delete()
        return str(error)
    return trial


def _ceiling(probe: Probe[GraphT], found: list[_Trial[GraphT] | str]) -> MeasuredCeiling:
    """The ceiling of the fastest candidate, or the reason of the first one when none could be run."""
    trials = [trial for trial in found if isinstance(trial, _Trial)]
    if trials:
        return max(trials, key=lambda trial: trial.best).ceiling()
    reason = next((trial for trial in found if isinstance(trial, str)), _LATE)
    return msgspec.structs.replace(probe.candidates[0].ceiling, unsupported=reason)
