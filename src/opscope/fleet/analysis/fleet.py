"""Devices, models and variants side by side: what changed, speedups, and what takes the time everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.analysis.findings.message import Grade
from opscope.core.grouping import grouped
from opscope.fleet.analysis.causes import SharedCause
from opscope.fleet.analysis.changes import LevelChange, Subject

if TYPE_CHECKING:
    from collections.abc import Sequence


class DominantOperators(msgspec.Struct, frozen=True):
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


class FleetRun(msgspec.Struct, frozen=True):
    """The newest run of a configuration.

    Attributes:
        model: name of the model, with its number type.
        device: name of the device, with the kind of target or the threads where several are in use.
        variant: its name, with the method where a run calls several.
        bundle: its hash.
        role: accelerated, baseline, intermediate or candidate; null where it is not known.
        created: when it began, ISO 8601.
        placed: its place in histories, ISO 8601.
        runs: of this configuration in the store.
        latency_ns: as the report states it; null when nothing was measured.
        arm: whether latency is of untraced or traced runs.
        speedup: over its baseline; null without one.
        ci95: its 95 % interval; null without a baseline, or with too few processes.
        verdict: faster, slower, no_difference, undecidable or withheld; null without a baseline.
        grade: how far it can be trusted; null where it was not judged.
        times_best: of the fastest variant of its model on its device: latency over that of the fastest device, timed in
            the same way; null for the others, and where one device ran the model.
    """

    model: str
    device: str
    variant: str
    bundle: str
    role: str | None
    created: str
    placed: str
    runs: int
    latency_ns: float | None
    arm: str | None
    speedup: float | None
    ci95: tuple[float, float] | None
    verdict: str | None
    grade: str | None
    times_best: float | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether its speedup may lead a page; one that was not judged may."""
        return self.grade != Grade.DO_NOT_TRUST.value


class FleetChange(msgspec.Struct, frozen=True):
    """A series whose level changed lately.

    Attributes:
        subject: what it is a series of.
        change: the change.
        placed: when the first run of the new level began, or the last run of a drift, ISO 8601.
        latencies_ns: of its newest runs, oldest first.
    """

    subject: Subject
    change: LevelChange
    placed: str
    latencies_ns: list[float]


class Fleet(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.fleet/2"):
    """Devices, models and variants of a store.

    Attributes:
        store: where they are.
        models: in order of their names.
        devices: in order of their names.
        variants: that have a baseline, in order of their names.
        runs: the newest one of each configuration.
        series: whose latency was searched for changes.
        since: changes that were seen then or later are told, ISO 8601; empty where no time is known.
        changes: confirmed changes of level of latency, the newest first.
        causes: what series have in common that changed.
        dominant: sorts of operators by their share over the fleet, largest first.
        counted: configurations that `dominant` counts: those of accelerated variants, else all but baselines.
    """

    store: str
    models: list[str]
    devices: list[str]
    variants: list[str]
    runs: list[FleetRun]
    series: int
    since: str
    changes: list[FleetChange]
    causes: list[SharedCause]
    dominant: list[DominantOperators]
    counted: int


def counted_runs(runs: Sequence[FleetRun]) -> list[FleetRun]:
    """Return the runs whose operators are counted: a model that has several variants counts with accelerated ones."""
    measured = [run for run in runs if run.latency_ns is not None]
    accelerated = {(run.device, run.model) for run in measured if run.role == "accelerated"}
    return [
        run
        for run in measured
        if run.role == "accelerated" or (run.role != "baseline" and (run.device, run.model) not in accelerated)
    ]


def with_times_best(runs: Sequence[FleetRun]) -> list[FleetRun]:
    """Return the runs; the fastest one of each model and device with its distance from the fastest device.

    Where a pair was timed in two ways, the run without tracing counts.
    """
    fastest: dict[tuple[str, str], FleetRun] = {}
    for run in sorted(
        counted_runs(runs), key=lambda candidate: (candidate.arm == "untraced", -(candidate.latency_ns or 0.0))
    ):
        fastest[run.model, run.device] = run
    times: dict[int, float] = {}
    for group in grouped(list(fastest.values()), lambda run: (run.model, run.arm)).values():
        best = min(run.latency_ns or 0.0 for run in group)
        if len(group) > 1 and best > 0:
            times |= {id(run): (run.latency_ns or 0.0) / best for run in group}
    return [msgspec.structs.replace(run, times_best=times.get(id(run))) for run in runs]


def find_dominant(runs: Sequence[FleetRun], shares: pl.DataFrame) -> list[DominantOperators]:
    """Return kinds of operators by their mean share over configurations, largest first.

    ``shares``: of the latency, with the columns ``bundle``, ``variant``, ``operator``, ``category``, ``backend`` and
    ``share``; those of other runs are left out.
    """
    words = [(run.bundle, run.variant, f"{run.model} on {run.device}, {run.variant}") for run in runs]
    run_key, kind = ("bundle", "variant"), ("operator", "category", "backend")
    dominant = (
        shares.group_by(*run_key, *kind)
        .agg(pl.col("share").sum())
        .join(pl.DataFrame(words, schema=dict.fromkeys((*run_key, "where"), pl.String), orient="row"), on=run_key)
        .with_columns(first=pl.col("share") >= pl.col("share").max().over(run_key))
        .sort("share", *run_key, descending=True)
        .group_by(kind, maintain_order=True)
        .agg(
            pl.col("share").sum() / len(runs),
            pl.col("first").sum(),
            pl.col("where").first(),
            highest=pl.col("share").first(),
            present=pl.len(),
        )
        .sort(-pl.col("share"), "operator", "backend")
    )
    return [DominantOperators(**row) for row in dominant.iter_rows(named=True)]
