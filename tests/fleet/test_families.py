"""The gate over a fleet by numbers alone: false reds of a small fleet, and what a device or a model shows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opscope.fleet.analysis.fleet_decision import FALSE_RED_NIGHTS, Families, judged_families

MODELS, DEVICES, HISTORY = 30, 10, 24


def fleet(noise: str, nights: int, scatter: float = 0.01) -> np.ndarray:
    """300 series in which nothing changes."""
    generator = np.random.default_rng(list(noise.encode()))
    if noise == "heavy tails":
        return generator.standard_t(2, (MODELS * DEVICES, nights)) * scatter
    logs = generator.normal(0, scatter, (MODELS * DEVICES, nights))
    for night in range(1, nights if noise == "autocorrelated" else 0):
        logs[:, night] = 0.5 * logs[:, night - 1] + math.sqrt(0.75) * logs[:, night]
    return logs


def judged(logs: np.ndarray) -> Families:
    """The newest night; series of one model stand together."""
    nights = np.broadcast_to(np.arange(logs.shape[1]), logs.shape)
    rows = np.arange(len(logs))
    return judged_families(logs, nights, rows % DEVICES, rows // DEVICES)


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "autocorrelated"])
def test_at_most_one_night_of_a_month_is_red_without_a_reason(noise: str) -> None:
    """Thirty nights, each judged by those before it; bench/fleet_gate.py does it with 12,000 series."""
    logs = fleet(noise, HISTORY + 30)
    red = [
        any(flags.any() for flags in judged(logs[:, night : night + HISTORY + 1]).slower(0.03)) for night in range(30)
    ]
    assert sum(red) <= 30 * FALSE_RED_NIGHTS


def test_a_device_and_a_model_show_what_their_series_hardly_do() -> None:
    """5 % at a scatter of 2 %, for three nights: few series alone, but the device, and the model, and no others."""
    for kind, rows, place in (("device", slice(3, None, DEVICES), 3), ("model", slice(50, 60), 5)):
        logs = fleet("normal", HISTORY, scatter=0.02)
        logs[rows, -3:] += math.log(1.05)
        series, devices, models = judged(logs).slower(0.02)
        assert series[rows].mean() < 0.5
        found = {"device": devices, "model": models}
        assert np.flatnonzero(found.pop(kind)).tolist() == [place]
        assert not any(flags.any() for flags in found.values())


def test_a_change_within_the_threshold_is_let_through() -> None:
    """2 % at a scatter of 0.1 % is beyond doubt, and within 3 %."""
    logs = fleet("normal", HISTORY, scatter=0.001)
    logs[40, -1] += math.log(1.02)
    found = judged(logs)
    assert not found.slower(0.03)[0].any()
    assert np.flatnonzero(found.slower(0.01)[0]).tolist() == [40]
