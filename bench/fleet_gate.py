"""How often a gate over a fleet is red without a reason, and what it sees: 12,000 series for thirty nights.

300 models on 40 devices, a run a night. Every night of the month is judged by the nights before it, as `opscope check
--new` does; nothing changes, so each red night is a false one. Then one series, one device and one model get slower,
and it is counted whether the first, the second and the third night afterwards show it.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.stats.many_series import CONFIRMING
from opscope.fleet.analysis.fleet_decision import FALSE_RED_NIGHTS, RATES, Families, judged_families

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MODELS, DEVICES, HISTORY, MONTH = 300, 40, 30, 30
SCATTERS = (0.003, 0.01, 0.02)
THRESHOLDS = (DEFAULT_THRESHOLD, 0.02)
STEPS = (0.03, 0.05, 0.1, 0.2)
NOISES = ("normal", "heavy tails", "autocorrelated", "mixed", "nights in common")
_NIGHT_SHARE, _TAILED_SHARE = 0.5, 0.1


class Fleet(NamedTuple):
    """A simulated fleet.

    Attributes:
        logs: logarithms, a series a row, a night a column.
        models: number of the model of each series.
        devices: likewise.
    """

    logs: Floats
    models: NDArray[np.int64]
    devices: NDArray[np.int64]

    def judged(self, end: int, nights: int = HISTORY) -> Families:
        """The night before a column, judged by those before it."""
        first = max(0, end - nights - 1)
        own = self.logs[:, first:end]
        numbers = np.broadcast_to(np.arange(own.shape[1]), own.shape)
        return judged_families(own, numbers, self.devices, self.models)


def fleet(
    noise: str, scatter: float, nights: int, seed: int = 0, models: int = MODELS, devices: int = DEVICES
) -> Fleet:
    """A fleet in which nothing changes."""
    generator = np.random.default_rng([seed, *noise.encode(), round(scatter * 1e4)])
    count = models * devices
    device = np.tile(np.arange(devices), models)
    logs = _noise(noise, generator, count, nights)
    if noise == "nights in common":
        logs = logs + _NIGHT_SHARE * generator.normal(0, 1, (devices, nights))[device]
    return Fleet(logs * scatter, np.repeat(np.arange(models), devices), device)


def _noise(noise: str, generator: np.random.Generator, count: int, nights: int) -> Floats:
    if noise == "heavy tails":
        return generator.standard_t(2, (count, nights))
    values = generator.normal(0, 1, (count, nights))
    if noise == "autocorrelated":
        for night in range(1, nights):
            values[:, night] = 0.5 * values[:, night - 1] + math.sqrt(0.75) * values[:, night]
    if noise == "mixed":
        tailed = generator.random(count) < _TAILED_SHARE
        values[tailed] = generator.standard_t(2, (int(tailed.sum()), nights))
    return values


def red(found: Families, threshold: float = DEFAULT_THRESHOLD) -> tuple[int, int, int]:
    """Series, devices and models that are red."""
    series, devices, models = (int(flags.sum()) for flags in found.slower(threshold))
    return series, devices, models


def false_reds(noise: str, scatter: float, months: int) -> tuple[int, int, int, int]:
    """Red nights of months in which nothing changes, and the red series, devices and models in them."""
    nights = series = 0
    groups = [0, 0]
    for month in range(months):
        made = fleet(noise, scatter, HISTORY + MONTH, seed=month)
        for night in range(HISTORY, HISTORY + MONTH):
            found = red(made.judged(night + 1))
            nights += any(found)
            series += found[0]
            groups = [groups[0] + found[1], groups[1] + found[2]]
    return nights, series, *groups


def power(noise: str, scatter: float, step: float, thresholds: Sequence[float]) -> dict[float, list[list[float]]]:
    """Shares in which a step is red in its first, second and third night: of one series, one device, one model.

    All series are slower by the step, and each is judged as if it were the only one: its p-value against the rate
    divided by the number of series, not by the false discovery rate, which would help them all.
    """
    found: dict[float, list[list[float]]] = {threshold: [[], [], []] for threshold in thresholds}
    made = fleet(noise, scatter, HISTORY + CONFIRMING, seed=1000)
    for night in range(1, CONFIRMING + 1):
        logs = made.logs.copy()
        logs[:, HISTORY:] += math.log1p(step)
        judged = made._replace(logs=logs).judged(HISTORY + night)
        for threshold in thresholds:
            for place, one in enumerate((judged.series, judged.devices, judged.models)):
                alone = one.p_values * one.runs.judged.sum() <= RATES[place]
                found[threshold][place].append(float((alone & (one.change > math.log1p(threshold))).mean()))
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=1)
    asked = parser.parse_args()
    began = time.process_time()
    print(
        f"{MODELS} models on {DEVICES} devices, {MONTH} nights, {asked.months} months; "
        f"aim: {FALSE_RED_NIGHTS:.3f} a night"
    )
    print(f"{'nothing changes':<20}{'scatter':>9}{'red nights':>12}{'series':>9}{'devices':>9}{'models':>9}")
    for noise in NOISES:
        for scatter in SCATTERS:
            row = "".join(
                f"{count:>{width}}"
                for count, width in zip(false_reds(noise, scatter, asked.months), (12, 9, 9, 9), strict=True)
            )
            print(f"{noise:<20}{scatter:>9.1%}{row}", flush=True)
    print("\nred in the first, second and third night, with thresholds of 3 % and 2 %")
    print(
        f"{'noise':<18}{'scatter':>8}{'step':>6}",
        "".join(f"{what:>20}" for what in 2 * ("series", "device", "model")),
        sep="",
    )
    for noise in NOISES:
        for scatter in SCATTERS:
            for step in STEPS:
                shares = power(noise, scatter, step, THRESHOLDS)
                cells = (f"{' '.join(f'{share:.0%}' for share in own):>20}" for one in shares.values() for own in one)
                print(f"{noise:<18}{scatter:>8.1%}{step:>6.0%}{''.join(cells)}", flush=True)
    print(f"\n{time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
