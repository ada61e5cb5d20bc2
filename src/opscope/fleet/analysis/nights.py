"""The newest run of each configuration against its predecessors, and levels that changed lately, over a whole fleet.

Among thousands of series many do by chance what one series seldom does. So verdicts on newest runs are corrected for
all that were judged together, and so are changes of level (false discovery rate of 5 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.core.stats.distributions import t_cdf, t_quantile
from opscope.core.stats.effect import ALPHA, Verdict, adjust_for_many, interval_of, predict
from opscope.core.stats.segments import FEWEST_RUNS, SMALLEST_CHANGE, scatter_around, segments, step_between
from opscope.fleet.analysis.history_gate import current_level

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.core.stats.effect import PredictionInterval
    from opscope.core.stats.segments import SeriesSegment


class FleetConfiguration(msgspec.Struct, frozen=True):
    """What is followed from night to night.

    Attributes:
        model: name of the model, with its number type.
        device: name of the device, with the kind of target where several are in use.
        variant: its name.
    """

    model: str
    device: str
    variant: str


class RunSeries(FleetConfiguration, frozen=True):
    """The runs of one configuration, all timed in one way, oldest first; at least one."""

    latencies_ns: Sequence[float]  # of the runs
    begun: Sequence[datetime | None]  # when they began, UTC; None where that is not known
    placed: Sequence[datetime | None]  # where they stand in the history, UTC; None likewise


class RunChange(msgspec.Struct, frozen=True):
    """The newest run of a configuration against its predecessors.

    Attributes:
        previous_ns: latency of the run before.
        since_previous: newest / run before; two single runs, nothing tests it.
        level_ns: geometric mean of the predecessors since their level changed for the last time.
        since_level: newest / level.
        expected: 95 % interval of one more run of the same level, over the level; null with too few predecessors.
        verdict: slower or faster where the scatter of the predecessors does not explain the newest run, after
            correction for all configurations that were judged, and it is off by 1 % or more.
        runs: predecessors of that level.
        in_a_row: newest runs one after the other that are as far off, by half or more; 0 without a difference.
        latencies_ns: of the runs that were looked at, oldest first; empty without a difference.
    """

    previous_ns: float
    since_previous: float
    level_ns: float
    since_level: float
    expected: tuple[float, float] | None
    verdict: Verdict
    runs: int
    in_a_row: int
    latencies_ns: list[float] = []


class FleetLevelChange(FleetConfiguration, frozen=True):
    """A configuration whose level changed lately.

    Attributes:
        when: when the first run of the new level was placed, or the last run of a drift, ISO 8601.
        drifts: whether the level rose or fell from run to run, in place of a step between two runs.
        before: date of the last run that is certainly before a step, or of the first one of a drift.
        label: date of the first run that is certainly behind a step, or of the last one of a drift.
        from_ns: level before; where it drifts, what the drift begins with.
        to_ns: level after; where it drifts, what the drift ends with.
        ratio: after / before.
        ci95: 95 % interval of the ratio by Student's t, with the scatter around all segments.
        better: whether the latency is lower.
        runs: of the new level, or of the drift.
        latencies_ns: of the runs it was found in, oldest first.
        certain: whether the two are neighbours, so that the place of a step is known to the run.
    """

    when: str
    drifts: bool
    before: str
    label: str
    from_ns: float
    to_ns: float
    ratio: float
    ci95: tuple[float, float]
    better: bool
    runs: int
    latencies_ns: list[float]
    certain: bool = True


def run_changes(runs: Sequence[RunSeries]) -> list[RunChange | None]:
    """The newest run of each series against its predecessors; None where it has none."""
    judged = [_predicted(np.array(one.latencies_ns, np.float64)) for one in runs]
    known = [interval.p_value for interval in judged if interval is not None and interval.p_value is not None]
    corrected = iter(adjust_for_many(known) if known else [])
    return [
        None if interval is None else _change(one, interval, None if interval.p_value is None else next(corrected))
        for one, interval in zip(runs, judged, strict=True)
    ]


def level_changes_since(runs: Sequence[RunSeries], since: datetime) -> list[FleetLevelChange]:
    """Series whose level changed since a moment, the newest first: by the day of a step, or when a drift began.

    Of one day, the largest change is first.
    """
    found = [_last_change(one) for one in runs]
    corrected = adjust_for_many([1.0 if pair is None else pair[1] for pair in found]) if found else []
    seen = since.isoformat(timespec="seconds")
    changes = [
        pair[0] for pair, p in zip(found, corrected, strict=True) if pair and p <= ALPHA and pair[0].when >= seen
    ]
    changes.sort(key=lambda one: (-abs(math.log(one.ratio)), one.model, one.device))
    return sorted(changes, key=lambda one: one.before if one.drifts else one.label, reverse=True)


def _predicted(values: NDArray[np.float64]) -> PredictionInterval | None:
    if len(values) < 2 or not bool((values > 0).all()):  # noqa: PLR2004 - a run and one before it
        return None
    logs = np.log(values)
    return predict(logs[current_level(values[:-1].tolist()) : -1], float(logs[-1]))


def _change(one: RunSeries, interval: PredictionInterval, corrected: float | None) -> RunChange:
    newest, before = one.latencies_ns[-1], one.latencies_ns[-2]
    verdict = interval.verdict(corrected)
    if abs(interval.excess) < math.log1p(SMALLEST_CHANGE) and verdict is not Verdict.UNDECIDABLE:
        verdict = Verdict.NO_DIFFERENCE
    shown = verdict in {Verdict.SLOWER, Verdict.FASTER}
    ends = interval_of(interval, lambda excess: excess - interval.excess)
    return RunChange(
        previous_ns=before,
        since_previous=newest / before,
        level_ns=math.exp(interval.level),
        since_level=math.exp(interval.excess),
        expected=None if ends is None else (math.exp(ends[0]), math.exp(ends[1])),
        verdict=verdict,
        runs=interval.predecessors,
        in_a_row=_in_a_row(one, interval) if shown else 0,
        latencies_ns=list(one.latencies_ns) if shown else [],
    )


def _in_a_row(one: RunSeries, interval: PredictionInterval) -> int:
    count = 0
    for latency in reversed(one.latencies_ns):
        if (math.log(latency) - interval.level) / interval.excess < 0.5:  # noqa: PLR2004 - half as far
            break
        count += 1
    return count


def _last_change(one: RunSeries) -> tuple[FleetLevelChange, float] | None:
    """The last change of a series, and its p-value: Student's t, times the places where it could have been found."""
    values = np.array(one.latencies_ns, np.float64)
    if len(values) < FEWEST_RUNS or not bool((values > 0).all()):
        return None
    series_segments = segments(values)
    last = series_segments[-1]
    if len(series_segments) == 1 and not last.drifts:
        return None
    if not last.drifts:
        step = step_between(values, series_segments, len(series_segments) - 1)
        ends = (step.earliest - 1, step.latest)
        fleet_level_change = _level_change(one, last, (step.before, step.after), ends, step.ci95)
        return msgspec.structs.replace(fleet_level_change, certain=step.certain), min(1.0, last.end * step.p_value)
    scatter, degrees = scatter_around(np.log(values), series_segments)
    change, error = math.log(last.ends / last.begins), scatter * math.sqrt(12 / (last.end - last.first))
    p_value = min(1.0, last.end * 2 * (1 - t_cdf(abs(change) / error, degrees))) if error > 0 else 0.0
    room = t_quantile(1 - ALPHA / 2, degrees) * error
    ci95 = math.exp(change - room), math.exp(change + room)
    return _level_change(one, last, (last.begins, last.ends), (last.first, last.end - 1), ci95), p_value


def _level_change(
    one: RunSeries,
    last: SeriesSegment,
    values: tuple[float, float],
    ends: tuple[int, int],
    ci95: tuple[float, float],
) -> FleetLevelChange:
    """A change, by what is before and behind it, and the runs between which it is."""
    before, after = values
    seen = one.placed[-1 if last.drifts else last.first] or datetime.min  # noqa: DTZ901 - as the store: UTC without a zone
    return FleetLevelChange(
        model=one.model,
        device=one.device,
        variant=one.variant,
        when=seen.isoformat(timespec="seconds"),
        drifts=last.drifts,
        before=_date(one.begun[ends[0]]),
        label=_date(one.begun[ends[1]]),
        from_ns=before,
        to_ns=after,
        ratio=after / before,
        ci95=ci95,
        better=after < before,
        runs=last.end - last.first,
        latencies_ns=list(one.latencies_ns),
    )


def _date(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d}" if moment else ""
