"""Devices and models of a fleet over the newest runs of all configurations, and pairs far from the best device."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.analysis.findings.message import Grade
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.fleet.analysis.nights import FleetConfiguration, RunChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.fleet.analysis.nights import FleetLevelChange


DISTANT = 1.5
"""Times what is usual for the device from which a pair is far from the best one: chosen, not measured."""
_FEWEST = 5
"""Configurations of a device below which nothing is usual for it, and no change is widespread."""
_MANY = 0.25
"""Part of the configurations from which a change is widespread: chosen, not measured."""


class FleetPart(msgspec.Struct, frozen=True):
    """A device over all of its models, or a model over all of its devices.

    Attributes:
        name: of it.
        configurations: that are counted.
        tonight: of them, with a run in the newest night that has a predecessor.
        worse: of them, slower than the scatter of their predecessors explains.
        better: likewise faster.
        rose: levels that rose lately: they take longer.
        fell: levels that fell lately.
        median_change: median over them of newest / run before; null without one.
        times_best: median over pairs of latency / latency of the fastest device; null without one.
        fastest: of a model, its fastest device and the latency there in ns; null for a device, and with one device.
        slowest: likewise its slowest one.
    """

    name: str
    configurations: int
    tonight: int
    worse: int
    better: int
    rose: int
    fell: int
    median_change: float | None
    times_best: float | None
    fastest: tuple[str, float] | None = None
    slowest: tuple[str, float] | None = None


class DistantPair(FleetConfiguration, frozen=True):
    """A model that is slower on a device than the device's other models let expect, in its fastest variant there.

    Attributes:
        latency_ns: of it.
        times_best: latency / latency of the fastest device.
        usual: median of the same over the device's models.
    """

    latency_ns: float
    times_best: float
    usual: float


class Widespread(msgspec.Struct, frozen=True):
    """A device or a model of which many configurations changed in the same direction.

    Attributes:
        key: ``device`` or ``model``.
        name: of it.
        lately: whether levels changed lately, in place of newest runs that differ from their predecessors.
        better: whether they became faster.
        count: configurations that did.
        of: configurations that were judged.
        ratio: median of after / before over those that did.
    """

    key: Literal["device", "model"]
    name: str
    lately: bool
    better: bool
    count: int
    of: int
    ratio: float


def widespread(counted: Sequence[FleetRun], changes: Sequence[FleetLevelChange]) -> list[Widespread]:
    """Devices and models of which a quarter of the configurations, five at least, changed in the same direction.

    Slower ones of the newest night first, then by how many.
    """
    widespreads = []
    for key in ("device", "model"):
        groups = grouped(counted, lambda run: str(getattr(run, key)))  # noqa: B023 - used before the next one
        levels = grouped(changes, lambda change: str(getattr(change, key)))  # noqa: B023 - same
        for name, runs in groups.items():
            judged = [run.change for run in runs if run.change is not None]
            for better, verdict in ((False, Verdict.SLOWER), (True, Verdict.FASTER)):
                newest = [one.since_level for one in judged if one.verdict is verdict]
                lately = [one.ratio for one in levels.get(name, ()) if one.better is better]
                widespreads += [
                    Widespread(key, name, at == 1, better, len(ratios), of, median(ratios))
                    for at, (ratios, of) in enumerate(((newest, len(judged)), (lately, len(runs))))
                    if len(ratios) >= max(_FEWEST, of * _MANY)
                ]
    return sorted(widespreads, key=lambda one: (one.better, one.lately, -one.count, one.name))


def with_times_best(runs: Sequence[FleetRun], counted: Sequence[FleetRun]) -> list[FleetRun]:
    """The runs; the fastest one of each model and device with its distance from the fastest device."""
    fastest = {
        group: min(fleet_runs, key=lambda run: (run.latency_ns or 0.0, run.variant))
        for group, fleet_runs in grouped(counted, lambda run: (run.model, run.arm, run.device)).items()
    }
    found: dict[int, float] = {}
    for fleet_runs in grouped(_one_way(list(fastest.values())), lambda run: (run.model, run.arm)).values():
        best = min(run.latency_ns or 0.0 for run in fleet_runs)
        if len(fleet_runs) > 1 and best > 0:
            found |= {id(run): (run.latency_ns or 0.0) / best for run in fleet_runs}
    return [msgspec.structs.replace(run, times_best=found[id(run)]) if id(run) in found else run for run in runs]


def parts_by(
    key: Literal["device", "model"], counted: Sequence[FleetRun], changes: Sequence[FleetLevelChange]
) -> list[FleetPart]:
    """Devices or models: those with most configurations that got worse first, then by changes and by how much."""
    levels = grouped(changes, lambda change: getattr(change, key))
    groups = grouped(counted, lambda run: getattr(run, key))
    parts = [_part(name, runs, levels.get(name, ()), ranked=key == "model") for name, runs in groups.items()]
    return sorted(parts, key=_worst_first)


def distant_pairs(counted: Sequence[FleetRun]) -> list[DistantPair]:
    """Pairs that are further from the best device than is usual for their device by half or more, furthest first."""
    pairs = []
    for runs in grouped([run for run in counted if run.times_best], lambda run: run.device).values():
        usual = median(run.times_best or 0.0 for run in runs)
        far = [run for run in runs if len(runs) >= _FEWEST and (run.times_best or 0.0) >= DISTANT * usual]
        pairs += [
            DistantPair(run.model, run.device, run.variant, run.latency_ns or 0.0, run.times_best or 0.0, usual)
            for run in far
        ]
    return sorted(pairs, key=lambda one: (-one.times_best / one.usual, one.model, one.device))


def _one_way(fastest: Sequence[FleetRun]) -> list[FleetRun]:
    """Of a pair that was timed in two ways, the run without tracing: a cell has one distance."""
    kept: dict[tuple[str, str], FleetRun] = {}
    for run in sorted(fastest, key=lambda run: run.arm == "untraced"):
        kept[run.model, run.device] = run
    return list(kept.values())


def _part(name: str, runs: Sequence[FleetRun], changes: Sequence[FleetLevelChange], *, ranked: bool) -> FleetPart:
    judged = [run.change for run in runs if run.change is not None]
    far = [run for run in runs if run.times_best is not None]
    ordered = sorted(far, key=lambda run: (run.latency_ns or 0.0, run.device)) if ranked else []
    return FleetPart(
        name=name,
        configurations=len(runs),
        tonight=len(judged),
        worse=sum(1 for one in judged if one.verdict is Verdict.SLOWER),
        better=sum(1 for one in judged if one.verdict is Verdict.FASTER),
        rose=sum(1 for one in changes if not one.better),
        fell=sum(1 for one in changes if one.better),
        median_change=median(one.since_previous for one in judged) if judged else None,
        times_best=median(run.times_best or 0.0 for run in far) if far else None,
        fastest=(ordered[0].device, ordered[0].latency_ns or 0.0) if ordered else None,
        slowest=(ordered[-1].device, ordered[-1].latency_ns or 0.0) if ordered else None,
    )


def _worst_first(part: FleetPart) -> tuple[float, float, float, str]:
    moved = abs(math.log(part.median_change)) if part.median_change else 0.0
    return -part.worse, -part.rose, -moved, part.name


class FleetRun(FleetConfiguration, frozen=True):
    """The newest run of a configuration.

    Attributes:
        bundle: its hash.
        role: accelerated, baseline, intermediate or candidate; null where it is not known.
        created: when it began, ISO 8601.
        runs: of this configuration in the store.
        latency_ns: median; null when nothing was measured.
        arm: whether latency is of untraced or traced runs.
        speedup: over its baseline; null without one.
        ci95: its 95 % interval; null likewise, or with too few processes.
        verdict: faster, slower, no_difference, undecidable or withheld; null likewise.
        grade: how far it can be trusted; null where it was not judged.
        placed: when it was added to the store, ISO 8601.
        change: against its predecessors; null for the first run, for baselines, and for runs before the newest night.
        times_best: of the fastest configuration of its model on its device: latency over that of the fastest device,
            timed in the same way; null for the others, and where one device ran the model.
    """

    bundle: str
    role: str | None
    created: str
    runs: int
    latency_ns: float | None
    arm: str | None
    speedup: float | None
    ci95: tuple[float, float] | None
    verdict: str | None
    grade: str | None
    placed: str = ""
    change: RunChange | None = None
    times_best: float | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether its speedup may lead a page; one that was not judged may."""
        return self.grade != Grade.DO_NOT_TRUST.value
