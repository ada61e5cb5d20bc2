"""The newest run of each configuration against its predecessors, and levels that changed lately, over a whole fleet.

Among thousands of series many do by chance what one series seldom does. So verdicts on newest runs are corrected for all
that were judged together, and so are changes of level (false discovery rate of 5 %).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.core.stats.distributions import t_cdf
from opscope.core.stats.effect import ALPHA, Verdict, adjust_for_many, interval_of
from opscope.core.stats.prediction import predict
from opscope.core.stats.segments import FEWEST_RUNS, SMALLEST_CHANGE, segments
from opscope.fleet.analysis.history import LevelChange, LevelDrift, series
from opscope.fleet.analysis.history_gate import current_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.core.stats.prediction import PredictionInterval
    from opscope.core.stats.segments import SeriesSegment
    from opscope.fleet.analysis.history import Metric, Point, Subject

_FIGURES = 2
"""Fitted for each segment: where it is and where it begins."""


class RunSeries(NamedTuple):
    """The runs of one configuration, all timed in one way.

    Attributes:
        subject: what they are runs of.
        points: their latencies in ns, oldest first; at least one.
    """

    subject: Subject
    points: Sequence[Point]


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
    """

    previous_ns: float
    since_previous: float
    level_ns: float
    since_level: float
    expected: tuple[float, float] | None
    verdict: Verdict
    runs: int
    in_a_row: int


class FleetLevelChange(msgspec.Struct, frozen=True):
    """A configuration whose level changed lately.

    Attributes:
        model: name of the model, with its number type.
        device: name of the device.
        variant: its name.
        when: when the first run of the new level was placed, or the last run of a drift, ISO 8601.
        ratio: after / before.
        better: whether the new level is lower.
        step: the change of level; null for a drift.
        drift: the drift; null for a step.
        latencies_ns: of the runs it was found in, oldest first.
    """

    model: str
    device: str
    variant: str
    when: str
    ratio: float
    better: bool
    step: LevelChange | None
    drift: LevelDrift | None
    latencies_ns: list[float]


def run_changes(runs: Sequence[RunSeries]) -> list[RunChange | None]:
    """The newest run of each series against its predecessors; None where it has none.

    Args:
        runs: that are judged together.
    """
    judged = [_predicted(np.array([point.value for point in one.points], np.float64)) for one in runs]
    known = [found.p_value for found in judged if found is not None and found.p_value is not None]
    corrected = iter(adjust_for_many(known) if known else [])
    return [
        None if found is None else _change(one, found, None if found.p_value is None else next(corrected))
        for one, found in zip(runs, judged, strict=True)
    ]


def level_changes_since(runs: Sequence[RunSeries], metric: Metric, since: str) -> list[FleetLevelChange]:
    """Series whose level changed since a moment, the newest change first and of those of one moment the largest.

    Args:
        runs: that are judged together.
        metric: what their values are.
        since: ISO 8601.
    """
    found = [_last_change(one) for one in runs]
    changed = [(one, p) for one, p in zip(runs, adjust_for_many([p for _, p in found]), strict=True)] if found else []
    told = [
        _told(one, metric)
        for (one, p), (when, _) in zip(changed, found, strict=True)
        if p <= ALPHA and when >= since
    ]
    kept = [one for one in told if one is not None]
    kept.sort(key=lambda one: (-abs(math.log(one.ratio)), one.model, one.device))
    return sorted(kept, key=lambda one: one.when[:10], reverse=True)


def _predicted(values: NDArray[np.float64]) -> PredictionInterval | None:
    if len(values) < 2 or not bool((values > 0).all()):  # noqa: PLR2004 - a run and one before it
        return None
    logs = np.log(values)
    return predict(logs[current_level(values[:-1]) : -1], float(logs[-1]))


def _change(one: RunSeries, found: PredictionInterval, corrected: float | None) -> RunChange:
    newest, before = one.points[-1].value, one.points[-2].value
    verdict = found.verdict(corrected)
    if abs(found.excess) < math.log1p(SMALLEST_CHANGE) and verdict is not Verdict.UNDECIDABLE:
        verdict = Verdict.NO_DIFFERENCE
    return RunChange(
        previous_ns=before,
        since_previous=newest / before,
        level_ns=math.exp(found.level),
        since_level=math.exp(found.excess),
        expected=_expected(found),
        verdict=verdict,
        runs=found.predecessors,
        in_a_row=_in_a_row(one, found) if verdict in {Verdict.SLOWER, Verdict.FASTER} else 0,
    )


def _expected(found: PredictionInterval) -> tuple[float, float] | None:
    """Interval of a further run over the level: that of the excess lies around the excess as this one around nothing."""
    ends = interval_of(found, lambda excess: excess - found.excess)
    return None if ends is None else (math.exp(ends[0]), math.exp(ends[1]))


def _in_a_row(one: RunSeries, found: PredictionInterval) -> int:
    count = 0
    for point in reversed(one.points):
        if (math.log(point.value) - found.level) / found.excess < 0.5:  # noqa: PLR2004 - half as far
            break
        count += 1
    return count


def _last_change(one: RunSeries) -> tuple[str, float]:
    """When the level changed for the last time, and how probable it is that a level without a change shows that."""
    values = np.array([point.value for point in one.points], np.float64)
    if len(values) < FEWEST_RUNS or not bool((values > 0).all()):
        return "", 1.0
    found = segments(values)
    last = found[-1]
    if len(found) == 1 and not last.drifts:
        return "", 1.0
    when = one.points[-1 if last.drifts else last.first]
    return when.placed or when.created, _p_value(np.log(values), found)


def _p_value(logs: NDArray[np.float64], found: Sequence[SeriesSegment]) -> float:
    """Of the last step or drift: Student's t, times the number of places where it could have been found."""
    residuals = logs - np.log(np.concatenate([one.fitted() for one in found]))
    degrees = max(1, len(logs) - _FIGURES * len(found))
    scatter, last = math.sqrt(float(residuals @ residuals) / degrees), found[-1]
    size = last.end - last.first
    if last.drifts:
        distance, error = math.log(last.ends / last.begins), scatter * math.sqrt(12 / size)
    else:
        before = found[-2]
        distance = math.log(last.begins / before.ends)
        error = scatter * math.sqrt(1 / size + 1 / (before.end - before.first))
    if error <= 0:
        return 0.0
    return min(1.0, len(logs) * 2 * (1 - t_cdf(abs(distance) / error, degrees)))


def _told(one: RunSeries, metric: Metric) -> FleetLevelChange | None:
    found, subject = series(one.subject, one.points, metric), one.subject
    last = found.segments[-1]
    step = next((change for change in found.changes if change.index == last.first), None)
    drift = next((drift for drift in found.drifts if drift.index == last.first), None)
    told = drift or step
    if told is None:
        return None
    at = one.points[-1 if drift else last.first]
    return FleetLevelChange(
        model=" ".join(filter(None, (subject.model, subject.dtype))),
        device=subject.device,
        variant=subject.variant,
        when=at.placed or at.created,
        ratio=told.ratio,
        better=told.better,
        step=None if drift else step,
        drift=drift,
        latencies_ns=[point.value for point in one.points],
    )
