"""Where a step of a series is placed, and what is told of it."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.core.stats.segments import newest_rise, segments, step_between


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "correlated"])
@pytest.mark.parametrize("age", [1, 2, 3, 4, 5, 6])
def test_a_place_that_is_stated_is_right(age: int, noise: str) -> None:
    """Of 150 steps of 3 to 10 standard deviations each: at least 95 in 100 of those whose place is told to the run."""
    generator = np.random.default_rng([age, len(noise)])
    stated, right, within = 0, 0, 0
    for _ in range(150):
        count = int(generator.integers(14, 60))
        logs = NOISE[noise](generator, count + age) * 0.01
        logs[count:] += generator.uniform(3, 10) * 0.01
        values = np.exp(logs)
        step = newest_rise(values, segments(values), float(np.exp(np.median(logs[:count]))))
        is_stated = step.earliest == step.latest
        stated += is_stated
        right += is_stated and step.first == count
        within += step.earliest <= count <= step.latest
    assert right >= 0.95 * stated
    assert within >= 0.93 * 150
    assert stated >= {"normal": 60, "heavy tails": 75, "correlated": 15}[noise], "it is told wherever it can be"


def correlated(generator: np.random.Generator, count: int) -> np.ndarray:
    """Noise of which each run has half of the run before."""
    found = generator.normal(0, np.sqrt(0.75), count + 20)
    for number in range(1, len(found)):
        found[number] += 0.5 * found[number - 1]
    return found[20:]


NOISE = {
    "normal": lambda generator, count: generator.normal(0, 1, count),
    "heavy tails": lambda generator, count: generator.standard_t(3, count) / np.sqrt(3),
    "correlated": correlated,
}


def test_a_step_behind_a_drift_has_an_interval_and_a_fall_is_no_rise() -> None:
    """The end of a drift is known less well than a level."""
    noise = np.random.default_rng(3).normal(0, 0.004, 60)
    logs = noise + np.concatenate([np.linspace(0, 0.3, 40), np.full(20, 0.5)])
    values = np.exp(logs)
    found = segments(values)
    assert [one.drifts for one in found] == [True, False]
    step = step_between(values, found, 1)
    assert step.first == 40
    assert step.ci95[0] < np.exp(0.2) < step.ci95[1]
    assert step.p_value < 1e-6
    falling = np.exp(np.concatenate([noise[:25], noise[25:30] - 0.2 - np.arange(5) / 100]))
    assert newest_rise(falling, segments(falling), 1.0) is None
