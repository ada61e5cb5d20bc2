"""Many devices, models and variants side by side: speedups, who is slowest where, what takes the time everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opscope.core.grouping import grouped
from opscope.core.parts import noted
from opscope.fleet.analysis.nights import FleetLevelChange
from opscope.fleet.analysis.parts import (
    DistantPair,
    FleetPart,
    FleetRun,
    Widespread,
    distant_pairs,
    parts_by,
    widespread,
    with_times_best,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class SortTime(NamedTuple):
    """Time of the operators of one kind in one run, as a fraction of its latency."""

    bundle: str
    variant: str
    operator: str
    category: str
    backend: str
    share: float


class Ranking(msgspec.Struct, frozen=True):
    """Devices by latency of one model in one variant, slowest first; only those that were timed in one way.

    Attributes:
        model: the model.
        variant: the variant.
        devices: names with latencies in ns, slowest first.
        ratio: slowest over fastest.
    """

    model: str
    variant: str
    devices: list[tuple[str, float]]
    ratio: float


class Dominant(msgspec.Struct, frozen=True):
    """Operators of one kind over the whole fleet.

    Attributes:
        operator: as the backend calls it.
        category: upper level of the taxonomy.
        backend: that runs it.
        share: of latency, mean over all configurations that were counted, those without it too.
        highest: the largest share in one configuration.
        where: that configuration, in words.
        present: configurations that have it.
        first: configurations in which nothing takes longer.
    """

    operator: str
    category: str
    backend: str
    share: float
    highest: float
    where: str
    present: int
    first: int


class Fleet(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.fleet/1"):
    """Devices, models and variants of a store.

    Attributes:
        store: where they are.
        models: in order of their names.
        devices: likewise.
        variants: that have a baseline, likewise.
        runs: the newest one of each configuration.
        rankings: of every model in every variant that more than one device ran.
        dominant: sorts of operators by their share over the fleet, largest first.
        counted: configurations that `dominant` counts: those of accelerated variants, else all but baselines. They are
            those that are followed from night to night.
        night: begin of the newest night, ISO 8601: 24 hours before the newest run; empty where no time is known.
        level_changes: since two weeks before the newest run, the newest first.
        by_device: of the configurations that are counted, in the order of reports: most that got worse first.
        by_model: likewise.
        distant: pairs that are further from the best device than is usual for their device, the furthest first.
        widespread: devices and models of which many configurations changed in the same direction.
        failed: fields that a bug in opscope leaves empty, and ``changes`` for those of runs: what is not known and why.
    """

    store: str
    models: list[str]
    devices: list[str]
    variants: list[str]
    runs: list[FleetRun]
    rankings: list[Ranking]
    dominant: list[Dominant]
    counted: int
    night: str = ""
    level_changes: list[FleetLevelChange] = []
    by_device: list[FleetPart] = []
    by_model: list[FleetPart] = []
    distant: list[DistantPair] = []
    widespread: list[Widespread] = []
    failed: dict[str, str] = {}

    def run(self, device: str, model: str, variant: str) -> FleetRun | None:
        """The run of a configuration; None when there is none."""
        wanted = (device, model, variant)
        return next((run for run in self.runs if (run.device, run.model, run.variant) == wanted), None)


def fleet(
    store: str,
    given: Sequence[FleetRun],
    sorts: Iterable[SortTime],
    level_changes: Sequence[FleetLevelChange] = (),
    night: str = "",
    failed: Mapping[str, str] | None = None,
) -> Fleet:
    """What the newest runs say together."""
    lost = dict(failed or {})
    runs = with_times_best(given, counted_runs(given))
    counted = counted_runs(runs)
    return Fleet(
        store=store,
        models=sorted({run.model for run in runs}),
        devices=sorted({run.device for run in runs}),
        variants=sorted({run.variant for run in runs if run.speedup is not None}),
        runs=sorted(runs, key=lambda run: (run.device, run.model, run.variant)),
        rankings=noted(lost, "rankings", "the rankings of devices", lambda: rankings(runs), []),
        dominant=noted(lost, "dominant", "the operators that dominate", lambda: dominant(counted, sorts), []),
        counted=len(counted),
        night=night,
        level_changes=list(level_changes),
        by_device=_parts("device", counted, level_changes, lost),
        by_model=_parts("model", counted, level_changes, lost),
        distant=noted(lost, "distant", "pairs far from the best device", lambda: distant_pairs(counted), []),
        widespread=noted(lost, "widespread", "common changes", lambda: widespread(counted, level_changes), []),
        failed=lost,
    )


def _parts(
    key: Literal["device", "model"],
    runs: Sequence[FleetRun],
    changes: Sequence[FleetLevelChange],
    lost: dict[str, str],
) -> list[FleetPart]:
    """Devices or models; they count changes of level, so that without these they are not known either."""
    if "level_changes" in lost:
        return []
    return noted(lost, f"by_{key}", f"the table of {key}s", lambda: parts_by(key, runs, changes), [])


def counted_runs(runs: Sequence[FleetRun]) -> list[FleetRun]:
    """Runs whose operators are counted: a model that has several variants counts with its accelerated ones."""
    measured = [run for run in runs if run.latency_ns is not None]
    accelerated = {(run.device, run.model) for run in measured if run.role == "accelerated"}
    return [
        run
        for run in measured
        if run.role == "accelerated" or (run.role != "baseline" and (run.device, run.model) not in accelerated)
    ]


def rankings(runs: Iterable[FleetRun]) -> list[Ranking]:
    """Devices of every model and variant, slowest first; latencies with and without tracing are never mixed."""
    measured = [run for run in runs if run.latency_ns is not None]
    groups = grouped(measured, lambda run: (run.model, run.variant, run.arm or ""))
    found = []
    for (model, variant, _), fleet_runs in sorted(groups.items()):
        ordered = sorted(
            ((run.device, run.latency_ns or 0.0) for run in fleet_runs), key=lambda pair: (-pair[1], pair[0])
        )
        if len(ordered) > 1:
            found.append(Ranking(model, variant, ordered, ordered[0][1] / ordered[-1][1]))
    return found


def dominant(runs: Sequence[FleetRun], sorts: Iterable[SortTime]) -> list[Dominant]:
    """Sorts of operators by their mean share over configurations, largest first."""
    known = {(run.bundle, run.variant): run for run in runs}
    groups: dict[tuple[str, str, str], dict[tuple[str, str], float]] = {}
    for one in sorts:
        place = one.bundle, one.variant
        if place in known:
            own = groups.setdefault((one.operator, one.category, one.backend), {})
            own[place] = own.get(place, 0.0) + one.share
    largest: dict[tuple[str, str], float] = {}
    for own in groups.values():
        for place, share in own.items():
            largest[place] = max(largest.get(place, 0.0), share)
    dominants = [_dominant(sort, own, largest, known) for sort, own in groups.items()]
    return sorted(dominants, key=lambda one: (-one.share, one.operator, one.backend))


def _dominant(
    sort: tuple[str, str, str],
    shares: Mapping[tuple[str, str], float],
    largest: Mapping[tuple[str, str], float],
    known: Mapping[tuple[str, str], FleetRun],
) -> Dominant:
    place = max(shares, key=lambda at: (shares[at], at))
    run = known[place]
    return Dominant(
        operator=sort[0],
        category=sort[1],
        backend=sort[2],
        share=sum(shares.values()) / len(known),
        highest=shares[place],
        where=f"{run.model} on {run.device}, {run.variant}",
        present=len(shares),
        first=sum(1 for at, share in shares.items() if share >= largest[at]),
    )
