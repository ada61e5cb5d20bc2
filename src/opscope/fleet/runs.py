"""The runs of a store as series: one query for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from opscope.fleet.analysis.causes import CauseSeries, CauseStep, find_causes
from opscope.fleet.analysis.series import Subject
from opscope.fleet.selection import RUNS, TRUSTED, read_facts
from opscope.fleet.store.entries import RUN_ORDER
from opscope.fleet.store.sql import ask_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from opscope.fleet.analysis.causes import SharedCause
    from opscope.fleet.analysis.detector import DetectedChange
    from opscope.fleet.analysis.series import LevelChange
    from opscope.fleet.selection import RunFilter
    from opscope.fleet.store.table import Snapshot

_SUBJECT = ", ".join(f"r.{name}" for name in Subject.__struct_fields__)
_SUBJECTS = len(Subject.__struct_fields__)
_ISO = "%Y-%m-%dT%H:%M:%S"


class SeriesRuns(NamedTuple):
    """The runs of one series that have the figure and are trusted, oldest first; perhaps none."""

    subject: Subject
    values: NDArray[np.float64]
    untrusted: int  # runs that were left out
    newest_untrusted: str  # when the newest of them was placed; empty without one
    bundles: list[str]
    placed: list[str]  # ISO 8601, UTC
    created: list[str | None]  # ISO 8601, UTC, where it differs from `placed`; empty where it is not known
    labels: Sequence[str | None] = ()  # of points, where these have others than their dates


class FigureQuery(NamedTuple):
    """How the store is asked for a figure."""

    expression: str = "r.latency_ns"  # SQL over the runs `r`
    beside: str = ""  # SQL of a table beside the runs
    values: tuple[str, ...] = ()  # of its question marks
    source: str = RUNS  # SQL of the runs
    is_trusted_only: bool = True  # whether runs that are graded do_not_trust are left out
    label: str | None = None  # SQL; None: by their dates


_LATENCY = FigureQuery()


def read_series(snapshot: Snapshot, run_filter: RunFilter, query: FigureQuery = _LATENCY) -> list[SeriesRuns]:
    """Return the series of the runs that a filter chooses, by one query."""
    order = ", ".join(f"r.{name}" for name in RUN_ORDER.split(", "))
    usable = f"({query.expression}) IS NOT NULL"
    usable += f" AND r.{TRUSTED}" if query.is_trusted_only else ""
    newest = f"[-{run_filter.last}:]" if run_filter.last else ""
    cells = {"value": query.expression, "bundle": "r.bundle", "placed": f"strftime(r.placed, '{_ISO}')"}
    cells["created"] = (
        f"CASE WHEN r.created IS DISTINCT FROM r.placed THEN coalesce(strftime(r.created, '{_ISO}'), '') END"
    )
    if query.label:
        cells["label"] = query.label
    pack = ", ".join(f"{name} := {cell}" for name, cell in cells.items())  # one list is sorted, and then taken apart
    lists = ", ".join(f"[run.{name} FOR run IN runs_in_order]" for name in cells)
    omitted = (
        f"count(*) FILTER (NOT ({usable})), coalesce(max(strftime(r.placed, '{_ISO}')) FILTER (NOT ({usable})), '')"
    )
    grouped = (
        f"SELECT {_SUBJECT}, coalesce(list(struct_pack({pack}) ORDER BY {order}) FILTER ({usable}), []){newest} "  # noqa: S608 - names of ours; values are bound
        f"AS runs_in_order, {omitted} FROM (SELECT * FROM {query.source} {run_filter.where}) AS r "
        f"{query.beside} WHERE r.kind = 'bundle' GROUP BY ALL ORDER BY ALL"
    )
    sql = f"SELECT * EXCLUDE runs_in_order, {lists} FROM ({grouped})"  # noqa: S608 - as above
    rows = ask_snapshot(snapshot, sql, (*run_filter.values, *query.values))
    return [_make_runs(row) for row in rows]


def _make_runs(row: tuple[Any, ...]) -> SeriesRuns:
    untrusted, newest, values, *lists = row[_SUBJECTS:]
    return SeriesRuns(Subject(*row[:_SUBJECTS]), np.array(values, np.float64), untrusted, newest, *lists)


def name_causes(
    snapshot: Snapshot,
    series: Sequence[tuple[Subject, Sequence[str], Sequence[str]]],
    changes: Sequence[Sequence[CauseStep] | None],
    *,
    by_date: bool = True,
) -> list[SharedCause]:
    """Return what series have in common that changed, by comparing the manifests of their runs.

    Args:
        snapshot: the store.
        series: subject, bundles and keys of the runs of each series; keys are days, versions or commits.
        changes: of each series; None where they were not looked for.
        by_date: whether keys are days.
    """
    kept = [number for number, steps in enumerate(changes) if steps is not None]
    judged = []
    for number in kept:
        subject, bundles, keys = series[number]
        judged.append(CauseSeries(subject.model, subject.device, subject.variant, bundles, keys, changes[number] or ()))
    causes = find_causes(judged, lambda names: read_facts(snapshot, names), by_date=by_date)
    return [msgspec.structs.replace(cause, subjects=[kept[number] for number in cause.subjects]) for cause in causes]


def steps_of_changes(changes: Iterable[DetectedChange | LevelChange]) -> list[CauseStep]:
    """Return the steps of a series as causes are looked for; a drift has no moment."""
    return [
        CauseStep(change.first, change.earliest - 1, change.latest, change.ratio)
        for change in changes
        if change.kind == "step"
    ]
