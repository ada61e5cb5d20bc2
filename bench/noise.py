"""Simulated experiments of identical variants: durations of inferences in processes, with noise of many shapes.

All noise is multiplicative: the logarithm of a duration is the sum of what its process has and what is its own.
Processes run one after the other in places. In a paired experiment every round has two places, whose order is drawn; in
an unpaired one all processes of one side come first. Noise that moves with time belongs to the place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Floats: TypeAlias = NDArray[np.float64]
Generator: TypeAlias = np.random.Generator
Shape: TypeAlias = "tuple[int, ...]"

INFERENCES = 50
_MICROSECOND = 1_000.0
_RHO = 0.9


class Noise(NamedTuple):
    """What makes durations differ.

    Attributes:
        name: for the table.
        process: logarithms of what each process has; from a generator and the shape (comparisons, places).
        inference: logarithms of what each inference has; the shape has one axis more.
        level_ns: duration without noise.
        unit_ns: durations are whole multiples of this.
        is_moving: whether time matters, so that one side after the other is not the same as both in turn.
    """

    name: str
    process: Callable[[Generator, Shape], Floats]
    inference: Callable[[Generator, Shape], Floats]
    level_ns: float = 1e6
    unit_ns: float = 1.0
    is_moving: bool = False


def draw_interleaved(noise: Noise, rounds: int, count: int, generator: Generator) -> tuple[Floats, Floats]:
    """Draw durations in ns of the two sides of so many paired experiments: process i of either side ran in round i.

    Args:
        noise: of the machine.
        rounds: processes of each side.
        count: number of experiments.
        generator: source of randomness.

    Returns:
        Baseline and candidate, each of the shape (experiments, processes, inferences).
    """
    places = _draw_durations(noise, count, 2 * rounds, generator).reshape(count, rounds, 2, INFERENCES)
    first = generator.integers(0, 2, (count, rounds))
    experiment, number = np.ogrid[:count, :rounds]
    return places[experiment, number, first], places[experiment, number, 1 - first]


def draw_one_after_other(noise: Noise, processes: int, count: int, generator: Generator) -> tuple[Floats, Floats]:
    """Draw durations of the two sides where the baseline's processes had all run before the candidate's began."""
    places = _draw_durations(noise, count, 2 * processes, generator)
    return places[:, :processes], places[:, processes:]


def _draw_durations(noise: Noise, count: int, places: int, generator: Generator) -> Floats:
    own = noise.process(generator, (count, places))[..., None]
    exact = noise.level_ns * np.exp(own + noise.inference(generator, (count, places, INFERENCES)))
    return np.maximum(np.rint(exact / noise.unit_ns), 1) * noise.unit_ns


def draw_normal(sd: float) -> Callable[[Generator, Shape], Floats]:
    """Draw independent normal noise of this standard deviation, in logarithms: about that share."""
    return lambda generator, shape: generator.normal(0, sd, shape)


def draw_student(degrees: float, scale: float) -> Callable[[Generator, Shape], Floats]:
    """Draw noise with tails so heavy that below two degrees of freedom it has no variance."""
    return lambda generator, shape: np.clip(generator.standard_t(degrees, shape) * scale, -5, 5)


def draw_modes(share: float, ratio: float, sd: float) -> Callable[[Generator, Shape], Floats]:
    """Draw processes of which a share is slower by this ratio; all vary a little besides."""

    def drawn(generator: Generator, shape: Shape) -> Floats:
        slow = generator.random(shape) < share
        return np.where(slow, math.log(ratio), 0.0) + generator.normal(0, sd, shape)

    return drawn


def draw_drift(whole: float, sd: float) -> Callable[[Generator, Shape], Floats]:
    """Draw processes of a machine that gets slower by this share from the first to the last."""

    def drawn(generator: Generator, shape: Shape) -> Floats:
        slow: Floats = np.log1p(np.linspace(0, whole, shape[1]))
        return slow + generator.normal(0, sd, shape)

    return drawn


def draw_wandering(rho: float, sd: float) -> Callable[[Generator, Shape], Floats]:
    """Draw an autoregressive series along the last axis: each value remembers so much of the one before."""

    def drawn(generator: Generator, shape: Shape) -> Floats:
        steps = generator.normal(0, sd, shape)
        steps[..., 1:] *= math.sqrt(1 - rho * rho)
        for place in range(1, shape[-1]):
            steps[..., place] += rho * steps[..., place - 1]
        return steps

    return drawn


def draw_spikes(share: float, index: float, sd: float) -> Callable[[Generator, Shape], Floats]:
    """Draw log-normal inferences, a share of which is interrupted for a Pareto time of this index."""

    def drawn(generator: Generator, shape: Shape) -> Floats:
        hit = generator.random(shape) < share
        longer: Floats = np.log1p(np.minimum(generator.pareto(index, shape), 1e3)) * hit
        return generator.normal(0, sd, shape) + longer

    return drawn


def draw_bursts(share: float, ratio: float, sd: float) -> Callable[[Generator, Shape], Floats]:
    """Draw inferences of which a share of the processes has a busy neighbour, from some inference to its end."""

    def drawn(generator: Generator, shape: Shape) -> Floats:
        begin = generator.integers(0, shape[-1], shape[:-1]) + (generator.random(shape[:-1]) >= share) * shape[-1]
        busy = np.arange(shape[-1]) >= begin[..., None]
        return np.where(busy, math.log(ratio), 0.0) + generator.normal(0, sd, shape)

    return drawn


def add_noises(*parts: Callable[[Generator, Shape], Floats]) -> Callable[[Generator, Shape], Floats]:
    """Add several noises."""
    return lambda generator, shape: np.sum([part(generator, shape) for part in parts], axis=0)


NOISES = (
    Noise("normal: 2 % between processes, 2 % within", draw_normal(0.02), draw_normal(0.02)),
    Noise("normal: 2 % between processes, 5 % within", draw_normal(0.02), draw_normal(0.05)),
    Noise("drift of 30 % over the experiment", draw_drift(0.3, 0.02), draw_normal(0.03), is_moving=True),
    Noise("heavy tails between processes (t, 1.5 df)", draw_student(1.5, 0.02), draw_normal(0.03)),
    Noise("log-normal tails within (sd 50 %)", draw_normal(0.02), draw_normal(0.5)),
    Noise("Pareto spikes within (5 %, index 1.1)", draw_normal(0.02), draw_spikes(0.05, 1.1, 0.03)),
    Noise("one process in five twice as slow", draw_modes(0.2, 2, 0.01), draw_normal(0.03)),
    Noise("a busy neighbour within processes", draw_normal(0.02), draw_bursts(0.3, 1.5, 0.03)),
    Noise("autocorrelated inferences (rho 0.9)", draw_normal(0.02), draw_wandering(_RHO, 0.05)),
    Noise(
        "autocorrelated rounds (rho 0.9, 10 %)",
        add_noises(draw_wandering(_RHO, 0.1), draw_normal(0.02)),
        draw_normal(0.03),
        is_moving=True,
    ),
    Noise("whole microseconds of 20", draw_normal(0.02), draw_normal(0.03), 20_000.0, _MICROSECOND),
    Noise(
        "all of these together",
        add_noises(
            draw_drift(0.3, 0.02), draw_modes(0.2, 2, 0.01), draw_wandering(_RHO, 0.05), draw_student(1.5, 0.01)
        ),
        add_noises(draw_spikes(0.05, 1.1, 0.03), draw_wandering(_RHO, 0.05), draw_bursts(0.3, 1.5, 0.01)),
        20_000.0,
        _MICROSECOND,
        is_moving=True,
    ),
)
"""What identical variants are compared under. Percentages are standard deviations of logarithms."""
