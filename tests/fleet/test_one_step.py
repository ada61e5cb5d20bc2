"""One step of latency, told by the gate, the page of a fleet and a history: the same size at the same date."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fleet_nights import steady, write_nights
from opscope.api import check_fleet, stored_fleet, stored_history
from opscope.core.stats.segments import newest_rise, segments, steps

BEFORE, MODELS, DEVICES = 70, 6, 2
STEPS = (1.05, 1.08, 1.12, 1.2, 1.35, 1.8)


def stored(directory: Path, age: int) -> Path:
    """Models that became slower on the first device so many nights ago, each by another step."""
    nights = steady(MODELS, DEVICES, BEFORE + age, scatter=0.01, seed=age)
    nights.latency[:, 0, BEFORE:] *= np.array(STEPS)[:, None]
    return write_nights(directory / f"store-{age}", nights)


def day(text: str) -> np.datetime64:
    """A date, of a moment or a label."""
    return np.datetime64(text[:10])


@pytest.mark.parametrize("age", [1, 3, *(pytest.param(age, marks=pytest.mark.nightly) for age in (2, 4, 5, 6))])
def test_all_three_tell_the_same_step(tmp_path: Path, age: int) -> None:
    """Whoever tells it: ratio, last run before, first run behind; and the true night lies between these."""
    store = stored(tmp_path, age)
    told: dict[str, dict[str, tuple[float, str, str]]] = {}
    began = np.datetime64("2026-01-01") + BEFORE
    for row in check_fleet(str(began), store).evidence.slower:
        assert row.origin is not None
        assert row.origin.before is not None
        ends = row.origin.before.placed[:10], row.origin.first.placed[:10]
        told.setdefault(row.subject.model, {})["gate"] = (row.slowdown + 1, *ends)
    for change in stored_fleet(store).level_changes:
        if change.device == "phone 0":
            told.setdefault(change.model.split()[0], {})["page"] = (change.ratio, change.before, change.label)
    for series in stored_history("latency", store=store).series:
        if series.changes and series.subject.device == "phone 0":
            step = series.changes[-1]
            told.setdefault(series.subject.model, {})["history"] = (step.ratio, step.before[:10], step.label[:10])
    for model, own in told.items():
        ratios = [ratio for ratio, _, _ in own.values()]
        assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-9), (model, own)
        ((before, first),) = {(day(before), day(first)) for _, before, first in own.values()}
        assert before < began <= first, (model, own)
    count = Counter(name for own in told.values() for name in own)
    assert count["gate"] >= 5
    assert min(count["page"], count["history"]) >= (5 if age >= 3 else 0)


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
        stated += step.certain
        right += step.certain and step.first == count
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
    (step,) = steps(values, found)
    assert step.first == 40
    assert step.ci95[0] < np.exp(0.2) < step.ci95[1]
    assert step.p_value < 1e-6
    falling = np.exp(np.concatenate([noise[:25], noise[25:30] - 0.2 - np.arange(5) / 100]))
    assert newest_rise(falling, segments(falling), 1.0) is None
