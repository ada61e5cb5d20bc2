"""The report on everything that a store holds: devices, models and variants side by side."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.core.errors import NotFoundError
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.parts import part
from opscope.core.tracebacks import page, tracebacks_kept
from opscope.core.units import counted_text
from opscope.fleet.analysis.detector import detect_changes
from opscope.fleet.analysis.fleet import (
    DominantOperators,
    Fleet,
    FleetChange,
    FleetRun,
    SortTime,
    counted_runs,
    find_dominant,
    with_times_best,
)
from opscope.fleet.analysis.series import FigureUnit, Metric, make_level_change
from opscope.fleet.results import FleetResult
from opscope.fleet.runs import name_causes, read_series, steps_of_changes
from opscope.fleet.selection import RUNS, parse_filter, selection_text
from opscope.fleet.store.entries import RUN_ORDER
from opscope.fleet.store.place import find_place
from opscope.fleet.store.sql import ask_snapshot
from opscope.fleet.store.table import open_store
from opscope.measurements.notebook import shown_as
from opscope.workflows.reports.reports import check_formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.fleet.analysis.causes import SharedCause
    from opscope.fleet.analysis.detector import DetectedChange
    from opscope.fleet.runs import SeriesRuns
    from opscope.fleet.selection import RunFilter, RunSelection
    from opscope.fleet.store.table import Snapshot

NAME = "fleet"
_CONFIGURATION = "model, dtype, device, target, variant, method, threads, affinity"
_COLUMNS = (
    "bundle, model, dtype, device, target, variant, role, created, runs, latency_ns, arm, "
    "speedup, speedup_low, speedup_high, verdict, grade, threads, method, placed"
)
_LATELY = timedelta(days=14)
"""How long before the newest run a change is told."""
_SHOWN_RUNS = 60
"""Newest runs of a series whose course a page shows."""
_LATENCY = Metric("latency", FigureUnit.TIME)


def stored_fleet(store: str | Path | None = None, *, where: RunSelection = "") -> FleetResult:
    """Return devices, models and variants of a store, each configuration by its newest run, and what changed lately.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        where: which runs, as of :func:`opscope.stored_history`.

    Raises:
        NotFoundError: no run fits.
        UsageError: the filter is wrong.
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    snapshot, run_filter = open_store(find_place(store)), parse_filter(where := selection_text(where))
    address = snapshot.place.address
    runs = with_times_best(_newest_runs(snapshot, run_filter))
    if not runs:
        hint = "`opscope store list` shows the stored runs"
        raise NotFoundError("no stored run matches", where=where or address, hint=hint)
    counted, newest = counted_runs(runs), max(run.placed for run in runs)
    since = (datetime.fromisoformat(newest) - _LATELY).isoformat(timespec="seconds") if newest else ""
    series = [runs for runs in read_series(snapshot, run_filter) if len(runs.values)]
    changes, causes = part("changes of level", lambda: _recent_changes(snapshot, series, since), _no_changes())
    dominant = part("operators that dominate", lambda: _dominant(snapshot, counted), list[DominantOperators]())
    fleet = Fleet(
        store=address,
        models=sorted({run.model for run in runs}),
        devices=sorted({run.device for run in runs}),
        variants=sorted({run.variant for run in runs if run.speedup is not None}),
        runs=sorted(runs, key=lambda run: (run.device, run.model, run.variant)),
        series=len(series),
        since=since,
        changes=changes,
        causes=causes,
        dominant=dominant,
        counted=len(counted),
    )
    return shown_as(FleetResult, fleet)


def fleet_report(
    out: str | Path,
    store: str | Path | None = None,
    formats: Sequence[str] = ("html", "md", "json"),
    *,
    where: RunSelection = "",
) -> list[Path]:
    """Write the report: fleet.html, fleet.md and fleet.json.

    Args:
        out: directory to write to.
        store: see :func:`stored_fleet`.
        formats: any of ``html``, ``md`` and ``json``.
        where: see :func:`stored_fleet`.

    Returns:
        The files that were written.

    Raises:
        UsageError: a format is unknown, or the filter is wrong.
        NotFoundError: no run fits.
    """
    from opscope.fleet.reports.fleet import fleet_document
    from opscope.reports.document.html import html_document
    from opscope.reports.document.markdown import markdown_document

    check_formats(formats)
    directory = Path(out)
    with tracebacks_kept(directory):
        fleet = stored_fleet(store, where=where)
        contents = {
            "html": lambda: page(f"{NAME}.html", lambda: html_document(fleet_document(fleet), styles=("fleet.css",))),
            "md": lambda: page(f"{NAME}.md", lambda: markdown_document(fleet_document(fleet))),
            "json": lambda: to_json(fleet),
        }
        return write_outputs({directory / f"{NAME}.{form}": contents[form]() for form in formats})


def _no_changes() -> tuple[list[FleetChange], list[SharedCause]]:
    return [], []


def _recent_changes(
    snapshot: Snapshot, series: Sequence[SeriesRuns], since: str
) -> tuple[list[FleetChange], list[SharedCause]]:
    """Return the confirmed changes of level since a moment, the newest first, and what they have in common."""
    courses = detect_changes([runs.values for runs in series]).courses
    recent = [
        [change for change in course.changes if change.is_confirmed and runs.placed[change.seen] >= since]
        for runs, course in zip(series, courses, strict=True)
    ]
    changes = [_make_change(runs, change) for runs, own in zip(series, recent, strict=True) for change in own[-1:]]
    named = [(runs.subject, runs.bundles, [placed[:10] for placed in runs.placed]) for runs in series]
    judged = [steps_of_changes(own) if course.is_judged else None for course, own in zip(courses, recent, strict=True)]
    causes = name_causes(snapshot, named, judged)
    return sorted(changes, key=lambda told: (told.placed, abs(told.change.ratio - 1)), reverse=True), causes


def _make_change(series: SeriesRuns, change: DetectedChange) -> FleetChange:
    labels = [placed[:10] for placed in series.placed]
    told = make_level_change(change, labels, _LATENCY)
    return FleetChange(series.subject, told, series.placed[change.seen], series.values[-_SHOWN_RUNS:].tolist())


def _newest_runs(snapshot: Snapshot, run_filter: RunFilter) -> list[FleetRun]:
    """Return the newest run of each configuration; names tell what configurations differ in beside their names."""
    order = ", ".join(f"{name} DESC" for name in RUN_ORDER.split(", "))
    window = f"count(*) OVER (PARTITION BY {_CONFIGURATION}) AS runs"
    runs = f"(SELECT * FROM {RUNS} {run_filter.where}) WHERE kind = 'bundle'"  # noqa: S608 - names of ours; values are bound
    newest = f"QUALIFY row_number() OVER (PARTITION BY {_CONFIGURATION} ORDER BY {order}) = 1"
    sql = f"SELECT {_COLUMNS} FROM (SELECT *, {window} FROM {runs} {newest}) ORDER BY ALL"  # noqa: S608 - as above
    names = [name.strip() for name in _COLUMNS.split(",")]
    rows = [dict(zip(names, row, strict=True)) for row in ask_snapshot(snapshot, sql, run_filter.values)]
    targets = Counter(device for device, _ in {(row["device"], row["target"]) for row in rows})
    found = [(_make_run(row, is_several=targets[row["device"]] > 1), row["threads"]) for row in rows]
    counts = Counter((run.device, run.model, run.variant) for run, _ in found)
    return [
        msgspec.structs.replace(run, device=f"{run.device}, {counted_text(threads or 1, 'thread')}")
        if counts[run.device, run.model, run.variant] > 1
        else run
        for run, threads in found
    ]


def _make_run(row: dict[str, Any], *, is_several: bool) -> FleetRun:
    low, high = row["speedup_low"], row["speedup_high"]
    same = ("bundle", "role", "runs", "latency_ns", "arm", "speedup", "verdict", "grade")
    created, placed = (row[name].isoformat(timespec="seconds") if row[name] else "" for name in ("created", "placed"))
    return FleetRun(
        model=" ".join(filter(None, (row["model"], row["dtype"]))),
        device=f"{row['device']}, {row['target']}" if is_several else row["device"],
        variant=_variant_name(row["variant"], row["method"]),
        created=created,
        placed=placed,
        ci95=None if low is None or high is None else (low, high),
        **{name: row[name] for name in same},
    )


def _variant_name(variant: str, method: str | None) -> str:
    """Return the name of a variant, with the method where a run calls several."""
    return f"{variant}, {method}" if method else variant


def _dominant(snapshot: Snapshot, runs: Sequence[FleetRun]) -> list[DominantOperators]:
    columns = (
        "k.bundle, k.variant, m.method, operator, category, backend, sum(k.share) / coalesce(any_value(m.share), 1)"
    )
    same = "m.bundle = k.bundle AND m.variant = k.variant AND m.method = k.method"
    chosen = "k.bundle IN (SELECT unnest(?))"
    sql = f"SELECT {columns} FROM kernels k LEFT JOIN methods m ON {same} WHERE {chosen} GROUP BY ALL ORDER BY ALL"  # noqa: S608 - names of ours
    rows = ask_snapshot(snapshot, sql, [sorted({run.bundle for run in runs})])
    sorts = [SortTime(bundle, _variant_name(variant, method), *rest) for bundle, variant, method, *rest in rows]
    return find_dominant(runs, sorts)
