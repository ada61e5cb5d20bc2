"""The report on everything that a store holds: devices, models and variants side by side."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from opscope.core.errors import NotFoundError
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.parts import part
from opscope.core.tracebacks import page, tracebacks_kept
from opscope.fleet.analysis.causes import find_causes
from opscope.fleet.analysis.changes import detect_changes
from opscope.fleet.analysis.fleet import (
    DominantOperators,
    Fleet,
    FleetChange,
    FleetRun,
    counted_runs,
    find_dominant,
    with_times_best,
)
from opscope.fleet.results import FleetResult
from opscope.fleet.runs import ISO, RUNS, parse_filter, read_facts, read_series
from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import RUN_ORDER
from opscope.fleet.store.sql import ask_snapshot
from opscope.fleet.store.table import open_store
from opscope.measurements.notebook import shown_as
from opscope.workflows.reports.reports import check_formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.fleet.analysis.causes import SharedCause
    from opscope.fleet.analysis.changes import SeriesRuns
    from opscope.fleet.runs import RunFilter, RunSelection
    from opscope.fleet.store.table import Snapshot

NAME = "fleet"
_CONFIGURATION = "model, dtype, device, target, variant, method, threads, affinity"
_LATELY = timedelta(days=14)
"""How long before the newest run a change is told."""
_SHOWN_RUNS = 60
"""Newest runs of a series whose course a page shows."""


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
    run_filter, snapshot = parse_filter(where), open_store(find_place(store))
    address = snapshot.place.address
    runs = with_times_best(_find_newest_runs(snapshot, run_filter))
    if not runs:
        hint = "`opscope store list` shows the stored runs"
        raise NotFoundError("no stored run matches", where=run_filter.text or address, hint=hint)
    counted, newest = counted_runs(runs), max(run.placed for run in runs)
    since = (datetime.fromisoformat(newest) - _LATELY).isoformat(timespec="seconds") if newest else ""
    series = [runs for runs in read_series(snapshot, run_filter) if len(runs.values)]
    nothing: tuple[list[FleetChange], list[SharedCause]] = ([], [])
    changes, causes = part("changes of level", lambda: _find_recent_changes(snapshot, series, since), nothing)
    dominant = part("operators that dominate", lambda: _read_dominant(snapshot, counted), list[DominantOperators]())
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


def _find_recent_changes(
    snapshot: Snapshot, series: Sequence[SeriesRuns], since: str
) -> tuple[list[FleetChange], list[SharedCause]]:
    """Return the confirmed changes of level since a moment, the newest first, and what they have in common."""
    courses = detect_changes(series).courses
    recent = [
        [change for change in course.changes if change.confirmed and runs.placed[change.seen] >= since]
        for runs, course in zip(series, courses, strict=True)
    ]
    changes = [
        FleetChange(runs.subject, change, runs.placed[change.seen], runs.values[-_SHOWN_RUNS:].tolist())
        for runs, confirmed in zip(series, recent, strict=True)
        for change in confirmed[-1:]
    ]
    judged = [confirmed if course.is_judged else None for course, confirmed in zip(courses, recent, strict=True)]
    causes = find_causes(series, judged, partial(read_facts, snapshot))
    return sorted(changes, key=lambda one: (one.placed, abs(one.change.ratio - 1)), reverse=True), causes


def _find_newest_runs(snapshot: Snapshot, run_filter: RunFilter) -> list[FleetRun]:
    """Return the newest run of each configuration; names tell what configurations differ in beside their names."""
    order = ", ".join(f"{name} DESC" for name in RUN_ORDER.split(", "))
    sql = f"""
        WITH newest AS (
            SELECT *, count(*) OVER alike AS runs FROM (SELECT * FROM {RUNS} {run_filter.where}) WHERE kind = 'bundle'
            WINDOW alike AS (PARTITION BY {_CONFIGURATION})
            QUALIFY row_number() OVER (alike ORDER BY {order}) = 1
        ), named AS (
            SELECT * REPLACE (
                concat_ws(' ', model, dtype) AS model,
                concat_ws(', ', variant, method) AS variant,
                if(count(DISTINCT target) OVER (PARTITION BY device) > 1, concat_ws(', ', device, target), device)
                    AS device
            ), coalesce(threads, 1) || if(threads > 1, ' threads', ' thread') AS pool FROM newest
        )
        SELECT model, variant, bundle, role, runs, latency_ns, arm, speedup, verdict, grade,
            if(count(*) OVER (PARTITION BY device, model, variant) > 1, concat_ws(', ', device, pool), device),
            coalesce(strftime(created, '{ISO}'), ''), coalesce(strftime(placed, '{ISO}'), ''), speedup_low, speedup_high
        FROM named ORDER BY bundle, model, dtype, device
    """  # noqa: S608 - names of ours; values are bound
    names = "model variant bundle role runs latency_ns arm speedup verdict grade device created placed".split()
    return [
        FleetRun(**dict(zip(names, cells, strict=True)), ci95=None if low is None or high is None else (low, high))
        for *cells, low, high in ask_snapshot(snapshot, sql, run_filter.values)
    ]


def _read_dominant(snapshot: Snapshot, runs: Sequence[FleetRun]) -> list[DominantOperators]:
    sql = """
        SELECT k.bundle, concat_ws(', ', k.variant, m.method) AS variant, operator, category, backend,
            sum(k.share) / coalesce(any_value(m.share), 1) AS share
        FROM kernels k LEFT JOIN methods m ON m.bundle = k.bundle AND m.variant = k.variant AND m.method = k.method
        WHERE k.bundle IN (SELECT unnest(?)) GROUP BY ALL ORDER BY ALL
    """
    rows = ask_snapshot(snapshot, sql, [sorted({run.bundle for run in runs})])
    names = dict.fromkeys(("bundle", "variant", "operator", "category", "backend"), pl.String)
    return find_dominant(runs, pl.DataFrame(rows, schema={**names, "share": pl.Float64}, orient="row"))
