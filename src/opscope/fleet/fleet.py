"""The report on all series of a store, and the gate over them: devices, models and variants side by side."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from opscope.analysis.gate.decision import QUIETER
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.errors import NotFoundError, UntrustedError
from opscope.core.grouping import grouped
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.parts import part
from opscope.core.tracebacks import page, tracebacks_kept
from opscope.experiment.config import decode_config
from opscope.experiment.config_errors import convert_config, field_error
from opscope.fleet.analysis.causes import CauseKind, changed_facts, find_causes
from opscope.fleet.analysis.changes import FALSE_RED_NIGHTS, detect_changes
from opscope.fleet.analysis.fleet import (
    DominantOperators,
    Fleet,
    FleetChange,
    FleetRun,
    counted_runs,
    find_dominant,
    with_times_best,
)
from opscope.fleet.analysis.gate import (
    SELECTORS,
    FleetBudgets,
    FleetEvidence,
    PartChange,
    RunPlace,
    SlowerSeries,
    VanishedDevice,
    count_models,
    count_unjudged,
    decide_fleet,
    measure_budgets,
    select_changes,
)
from opscope.fleet.results import FleetGateResult, FleetResult
from opscope.fleet.runs import ISO, RUNS, parse_date, parse_filter, read_facts, read_series
from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import RUN_ORDER
from opscope.fleet.store.sql import ask_snapshot
from opscope.fleet.store.table import open_store
from opscope.measurements.notebook import shown_as
from opscope.workflows.reports.reports import check_formats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.fleet.analysis.causes import RunFacts, SharedCause
    from opscope.fleet.analysis.changes import LevelChange, SeriesRuns
    from opscope.fleet.analysis.gate import GateSeries
    from opscope.fleet.runs import RunFilter, RunSelection
    from opscope.fleet.store.table import Snapshot

NAME = "fleet"
_CONFIGURATION = "model, dtype, device, target, variant, method, threads, affinity"
_MOST_EXPLAINED = 1_000
"""Slower series whose manifests and operators are compared."""
_MOST_PARTS = 5
_SIDE_RUNS = 5
"""Runs on each side of a change whose operators are compared."""
_RECENT = timedelta(days=14)
"""A device that has not run for longer is out of use."""
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
    return sorted(
        changes, key=lambda recent_change: (recent_change.placed, abs(recent_change.change.ratio - 1)), reverse=True
    ), causes


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


def check_fleet(
    since: str,
    store: str | Path | None = None,
    *,
    where: RunSelection = "",
    threshold: float | None = None,
    budget: str | Path | None = None,
) -> FleetGateResult:
    """Decide which series of a store are slower since a date, over all models and devices.

    A series is what ``opscope history`` takes for one: a model with its number type on a device, in a variant, with its
    threads and its way of timing. Runs that are graded ``do_not_trust`` are not judged, nor others by them.

    Args:
        since: runs that began then or later are new; ISO 8601, UTC without a zone.
        store: directory or URL; see ``opscope.fleet.store.place.store_address``.
        where: which runs, as of :func:`opscope.stored_history`.
        threshold: the largest slowdown that is let through, as a fraction; None: that of the budget file, else 3 %.
        budget: a file with limits of chosen series, TOML or JSON.

    Raises:
        NotFoundError: no run fits, or none is new.
        UntrustedError: every new run is graded ``do_not_trust``.
        UsageError: the date, the filter or the budget file is wrong, or an entry of it chooses no series.
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    moment, run_filter = parse_date(since, "--new", "--new "), parse_filter(where)
    budgets = FleetBudgets() if budget is None else read_fleet_budgets(Path(budget))
    snapshot, start = open_store(find_place(store)), moment.isoformat()
    limit, address = budgets.fleet.max_slower if threshold is None else threshold, snapshot.place.address
    usual_limit = DEFAULT_THRESHOLD if limit is None else limit
    every = read_series(snapshot, run_filter)
    new = [runs for runs in every if runs.placed and runs.placed[-1] >= start]
    untrusted = sum(runs.newest_untrusted >= start for runs in every if not runs.placed or runs.placed[-1] < start)
    if not new and untrusted:
        hint = f"they are graded do_not_trust: {QUIETER}"
        raise UntrustedError(f"no new run of {untrusted} series is trustworthy", where=address, hint=hint)
    if not new:
        problem = "no run began since then" if every else "no stored run matches"
        hint = "`opscope store list` shows the stored runs and when they began"
        raise NotFoundError(problem, where=f"{address} {run_filter.text}".strip(), hint=hint)
    courses, detectable = detect_changes(new)
    series = select_changes(new, courses, start, budgets, usual_limit, str(budget))
    changes = [gated.changes if gated.is_judged else None for gated in series]
    causes = find_causes(new, changes, partial(read_facts, snapshot))
    slower = _explain_slower(snapshot, series, causes)
    is_told = budgets.fleet.device_changes == "tell"
    failing = [gated for gated in slower if not (is_told and gated.cause is CauseKind.DEVICE)]
    evidence = FleetEvidence(
        store=address,
        since=start,
        threshold=usual_limit,
        false_red_nights=FALSE_RED_NIGHTS,
        series=len(new) + untrusted,
        without=len(every) - len(new) - untrusted,
        judged=sum(gated.is_judged for gated in series),
        not_judged=count_unjudged(series, untrusted),
        slower=failing,
        causes=causes,
        budgets=measure_budgets(series, budgets),
        models=count_models(series, failing),
        detectable=detectable,
        vanished=_find_vanished(snapshot, run_filter, moment),
    )
    decision = decide_fleet(evidence, untrusted=untrusted, let_through=len(slower) - len(failing))
    return shown_as(FleetGateResult, decision)


def read_fleet_budgets(file: Path) -> FleetBudgets:
    """Return the limits that a file sets for the series of a fleet."""
    raw = decode_config(file, hint="give a TOML or JSON file with [fleet] and [[budget]] entries")
    budgets = convert_config(raw, FleetBudgets, file, {"device_changes": ("fail", "tell")})
    for number, entry in enumerate(budgets.budget):
        if entry.max_ms is None and entry.max_slower is None:
            raise field_error(file, f"budget[{number}]", "it sets no limit", "give max_slower or max_ms")
        if all(getattr(entry, name) is None for name in SELECTORS):
            hint = f"give at least one of {', '.join(SELECTORS)}; limits for all series belong in [fleet]"
            raise field_error(file, f"budget[{number}]", "it chooses no series", hint)
    return budgets


def _find_vanished(snapshot: Snapshot, run_filter: RunFilter, since: datetime) -> list[VanishedDevice]:
    """Return devices that stopped where others of the same CPU began: a series ends, and nobody would hear of it."""
    bundles = run_filter.add_condition("kind", "bundle")
    sql = f"""
        WITH devices AS (
            SELECT device, cpu, min(placed) AS first, max(placed) AS last FROM {RUNS} {bundles.where}
            AND cpu IS NOT NULL AND placed IS NOT NULL GROUP BY ALL
        )
        SELECT old.device, old.cpu, list(new.device ORDER BY new.device) FROM devices AS old JOIN devices AS new
        ON new.cpu = old.cpu AND new.first >= ? AND old.last < ? AND old.last >= ? GROUP BY ALL ORDER BY ALL
    """  # noqa: S608 - names of ours; values are bound
    rows = ask_snapshot(snapshot, sql, (*bundles.values, since, since, since - _RECENT))
    return [VanishedDevice(device, cpu, appeared) for device, cpu, appeared in rows]


def _explain_slower(
    snapshot: Snapshot, series: Sequence[GateSeries], causes: Sequence[SharedCause]
) -> list[SlowerSeries]:
    """Return the slower series, the largest slowdown first, with what differs between the runs before and behind."""
    rises = {number: gated.rise for number, gated in enumerate(series) if gated.rise}
    numbers = sorted(rises, key=lambda number: -rises[number].ratio)
    explained = {number: rises[number] for number in numbers[:_MOST_EXPLAINED]}
    sides = {side for number, rise in explained.items() for side in _find_edges(series[number], rise)}
    facts, operators = read_facts(snapshot, sides), _compare_operators(snapshot, series, explained)
    kinds = {number: cause.kind for cause in reversed(causes) if cause.ratio > 1 for number in cause.subjects}
    return [
        _describe_slower(series[number], rises[number], kinds.get(number), facts, operators.get(number, []))
        for number in numbers
    ]


def _find_edges(series: GateSeries, rise: LevelChange) -> tuple[str, str]:
    """Return the bundles of the last run that is certainly before a change, and the first one behind it."""
    return series.runs.bundles[rise.earliest - 1], series.runs.bundles[rise.latest]


def _describe_slower(
    series: GateSeries,
    rise: LevelChange,
    cause: CauseKind | None,
    facts: Mapping[tuple[str, str], RunFacts],
    operators: list[PartChange],
) -> SlowerSeries:
    runs, before, first = series.runs, *_find_edges(series, rise)
    old, new = (facts.get((bundle, runs.subject.variant), {}) for bundle in (before, first))
    return SlowerSeries(
        subject=runs.subject,
        before_ns=rise.from_value,
        after_ns=rise.to_value,
        slowdown=rise.ratio - 1,
        ci95=(rise.ci95[0] - 1, rise.ci95[1] - 1),
        limit=series.limit,
        runs=rise.end - rise.latest,
        p_value=rise.p_value,
        first=RunPlace(first, runs.placed[rise.latest]),
        before=RunPlace(before, runs.placed[rise.earliest - 1]),
        cause=cause,
        changed=changed_facts(old, new),
        operators=operators,
    )


def _compare_operators(
    snapshot: Snapshot, series: Sequence[GateSeries], rises: Mapping[int, LevelChange]
) -> dict[int, list[PartChange]]:
    """Return the operators whose time grew most, by the number of the series.

    Of the last runs before a change and the first ones behind it.
    """
    wanted = []
    for number, rise in rises.items():
        runs = series[number].runs
        sides = runs.bundles[: rise.earliest][-_SIDE_RUNS:], runs.bundles[rise.latest :][:_SIDE_RUNS]
        key = (runs.subject.variant, runs.subject.method)
        wanted += [(number, side, bundle, *key) for side, bundles in enumerate(sides) for bundle in bundles]
    if not wanted:
        return {}
    lists = ", ".join(f"unnest(?) AS {name}" for name in ("number", "side", "bundle", "variant", "method"))
    sql = f"""
        WITH wanted AS (SELECT {lists}), sums AS (
            SELECT w.number, w.side, w.bundle, o.category, regexp_replace(o.name, ' #\\d+$', '') AS name,
                sum(o.time_ns) / coalesce(any_value(m.calls_share), 1) AS ns
            FROM operators o JOIN wanted w ON o.bundle = w.bundle AND o.variant = w.variant
                AND coalesce(w.method, o.method) = o.method
            LEFT JOIN methods m ON m.bundle = w.bundle AND m.variant = w.variant AND m.method = w.method GROUP BY ALL
        ), medians AS (
            SELECT number, category, name, coalesce(median(ns) FILTER (side = 0), 0) AS before,
                coalesce(median(ns) FILTER (side = 1), 0) AS after FROM sums GROUP BY ALL
        )
        SELECT number, name, category, before, after FROM medians WHERE after > before
        QUALIFY row_number() OVER (PARTITION BY number ORDER BY after - before DESC) <= {_MOST_PARTS}
        ORDER BY number, after - before DESC
    """  # noqa: S608 - names of ours
    rows = ask_snapshot(snapshot, sql, [list(column) for column in zip(*wanted, strict=True)])
    return {
        number: [PartChange(*cells) for _, *cells in changes]
        for number, changes in grouped(rows, lambda row: int(row[0])).items()
    }
