"""The newest runs of a fleet in three families: each series, what a device's series share, what a model's series share.

Each family has its part of the rate at which nights may be red without a reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from opscope.core.stats.many_series import JudgedSeries, common_courses, judge_newest, levels, newest_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.int64]

FALSE_RED_NIGHTS = 1 / 30
"""Nights in which the gate may be red though nothing changed: one of thirty."""
RATES = (FALSE_RED_NIGHTS / 2, FALSE_RED_NIGHTS / 4, FALSE_RED_NIGHTS / 4)
"""Parts of it: of series, devices and models. Each is a false discovery rate, too."""


class Families(NamedTuple):
    """A night of a fleet."""

    series: JudgedSeries  # each by itself
    devices: JudgedSeries  # medians over the series of each device; not judged where these are fewer than three
    models: JudgedSeries

    def slower(self, limits: Floats | float) -> tuple[Flags, Flags, Flags]:
        """Which series, devices and models are slower than noise explains, and by more than a limit."""
        least = float(np.min(limits)) if np.size(limits) else 0.0
        series = (self.series.corrected <= RATES[0]) & (self.series.change > np.log1p(limits))
        devices = (self.devices.corrected <= RATES[1]) & (self.devices.change > math.log1p(least))
        models = (self.models.corrected <= RATES[2]) & (self.models.change > math.log1p(least))
        return series, devices, models


def judged_families(logs: Floats, nights: Integers, devices: Integers, models: Integers) -> Families:
    """Judge the newest runs of a fleet."""
    found = levels(logs)
    runs = newest_runs(logs, found)
    of_devices, of_models = (common_courses(found, runs, nights, groups) for groups in (devices, models))
    by_device, by_model = judge_newest(of_devices.logs), judge_newest(of_models.logs)
    # What changed on a whole device or in a whole model is no noise of its series, however small it is in each.
    changed = of_devices.runs_in(by_device.lasting, nights, devices) | of_models.runs_in(
        by_model.lasting, nights, models
    )
    return Families(judge_newest(logs, changed), by_device, by_model)
