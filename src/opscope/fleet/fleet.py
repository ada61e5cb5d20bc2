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
from opscope.core.parts import noted
from opscope.core.tracebacks import page, tracebacks_kept
from opscope.core.units import counted_text
from opscope.fleet.analysis.fleet import SortTime, counted_runs, fleet
from opscope.fleet.analysis.nights import RunSeries, level_changes_since, run_changes
from opscope.fleet.analysis.parts import FleetRun
from opscope.fleet.results import FleetResult
from opscope.fleet.store.place import place_of, store_address
from opscope.fleet.store.querying import ask
from opscope.fleet.stored_runs import ORDER, RUNS, TRUSTED, filter_text, run_filter
from opscope.measurements.notebook import shown_as
from opscope.workflows.reports.reports import check_formats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.fleet.analysis.nights import FleetLevelChange
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.stored_runs import RunFilter, RunSelection

NAME = "fleet"
_CONFIGURATION = "model, dtype, device, target, variant, method, threads, affinity"
_COLUMNS = (
    "bundle, model, dtype, device, target, variant, role, created, runs, latency_ns, arm, "
    "speedup, speedup_low, speedup_high, verdict, grade, threads, method, placed"
)
_NIGHT, _LATELY = timedelta(hours=24), timedelta(days=14)
"""What counts as the newest night, and as lately: before the newest run."""
_FOLLOWED = 60
"""Newest runs of a configuration in which changes are looked for; what is told of them rests on all runs."""


def stored_fleet(store: str | Path | None = None, *, where: RunSelection = "") -> FleetResult:
    """Devices, models and variants of a store, each configuration by its newest run.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        where: which runs, as of :func:`opscope.stored_history`; ``last`` has no part here.

    Raises:
        NotFoundError: no run fits.
        UsageError: the filter is wrong.
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    address, where = store_address(store), filter_text(where)
    place = place_of(address)
    chosen = run_filter(where)
    rows = _newest(place, chosen)
    if not rows:
        hint = "`opscope store list` shows the stored runs"
        raise NotFoundError("no stored run matches", where=where or address, hint=hint)
    runs = _named(rows)
    newest = max((row[-1] for row in rows if row[-1] is not None), default=None)
    counted = counted_runs(runs)
    lost: dict[str, str] = {}
    sorts = noted(lost, "dominant", "the operators of runs", lambda: _sorts(place, counted), list[SortTime]())
    if newest is None:
        return shown_as(FleetResult, fleet(address, runs, sorts, failed=lost))
    night, lately = _text(newest - _NIGHT), newest - _LATELY
    before: dict[tuple[str, str], RunSeries] = {}
    followed = noted(lost, "changes", "the runs before the newest", lambda: _followed(place, counted, chosen), before)
    if lost.get("changes"):
        lost["level_changes"] = lost["changes"]
    steady: list[FleetLevelChange] = []
    changes = noted(
        lost,
        "level_changes",
        "changes of level",
        lambda: _level_changes(place, counted, chosen, followed, lately),
        steady,
    )
    changed = noted(lost, "changes", "what changed tonight", lambda: _with_changes(runs, followed, night), runs)
    return shown_as(FleetResult, fleet(address, changed, sorts, changes, night, lost))


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
    check_formats(formats)
    with tracebacks_kept(Path(out)):
        return _reported(Path(out), stored_fleet(store, where=where), formats)


def _reported(out: Path, result: FleetResult, formats: Sequence[str]) -> list[Path]:
    from opscope.fleet.reports.fleet import fleet_html, fleet_markdown

    contents = {
        "html": lambda: page(f"{NAME}.html", lambda: fleet_html(result)),
        "md": lambda: page(f"{NAME}.md", lambda: fleet_markdown(result)),
        "json": lambda: to_json(result),
    }
    return write_outputs({out / f"{NAME}.{form}": contents[form]() for form in formats})


def _newest(place: StoreLocation, chosen: RunFilter) -> list[tuple[Any, ...]]:
    order = f"(PARTITION BY {_CONFIGURATION} ORDER BY placed DESC, created DESC, bundle DESC)"
    counted = f"count(*) OVER (PARTITION BY {_CONFIGURATION}) AS runs, row_number() OVER {order} AS place"
    runs = f"(SELECT * FROM {RUNS} {chosen.where}) WHERE kind = 'bundle'"  # noqa: S608 - names of ours; values are bound
    sql = f"SELECT {_COLUMNS} FROM (SELECT *, {counted} FROM {runs}) WHERE place = 1 ORDER BY ALL"  # noqa: S608 - same
    return ask(place, sql, chosen.values).rows


def _level_changes(
    place: StoreLocation,
    counted: Sequence[FleetRun],
    chosen: RunFilter,
    followed: Mapping[tuple[str, str], RunSeries],
    lately: datetime,
) -> list[FleetLevelChange]:
    """Changes of level: found in the newest runs, and told as all runs of a configuration show them, as a history."""
    found = {(one.model, one.device, one.variant) for one in level_changes_since(list(followed.values()), lately)}
    moved = [run for run in counted if (run.model, run.device, run.variant) in found]
    return level_changes_since(list(_followed(place, moved, chosen, None).values()), lately) if moved else []


def _followed(
    place: StoreLocation, counted: Sequence[FleetRun], chosen: RunFilter, most: int | None = _FOLLOWED
) -> dict[tuple[str, str], RunSeries]:
    """The newest runs of configurations, timed in one way, by bundle and variant of the newest one; None: all runs."""
    same = f"{_CONFIGURATION}, arm"
    number = f"row_number() OVER (PARTITION BY {same} ORDER BY placed DESC, created DESC, bundle DESC) AS number"
    runs = f"(SELECT * FROM {RUNS} {chosen.where})"  # noqa: S608 - names of ours; values are bound
    judged = f"kind = 'bundle' AND latency_ns IS NOT NULL AND role IS DISTINCT FROM 'baseline' AND {TRUSTED}"
    followed = f"SELECT *, {number} FROM {runs} WHERE {judged}"  # noqa: S608 - same
    lists = ", ".join(f"list({name} ORDER BY {ORDER})" for name in ("created", "placed", "latency_ns"))
    newest = f"({followed}) {'' if most is None else f'WHERE number <= {most}'}"
    last = f"last(bundle ORDER BY {ORDER}) AS newest"
    sql = f"SELECT variant, method, {last}, {lists} FROM {newest} GROUP BY {same} HAVING newest IN (SELECT unnest(?))"  # noqa: S608 - same
    known = {(run.bundle, run.variant): run for run in counted}
    series = {}
    bundles = sorted({run.bundle for run in counted})
    for variant, method, bundle, begun, placed, latencies in ask(place, sql, (*chosen.values, bundles)).rows:
        run = known.get((bundle, _called(variant, method)))
        if run is not None:
            series[run.bundle, run.variant] = RunSeries(run.model, run.device, run.variant, latencies, begun, placed)
    return series


def _with_changes(
    runs: Sequence[FleetRun], followed: Mapping[tuple[str, str], RunSeries], night: str
) -> list[FleetRun]:
    """The runs; those of the newest night with what they are against their predecessors."""
    tonight = [run for run in runs if run.placed >= night and (run.bundle, run.variant) in followed]
    changes = run_changes([followed[run.bundle, run.variant] for run in tonight])
    judged = {(run.bundle, run.variant): change for run, change in zip(tonight, changes, strict=True)}
    return [msgspec.structs.replace(run, change=judged.get((run.bundle, run.variant))) for run in runs]


def _called(variant: str, method: str | None) -> str:
    """A variant; one of several methods that it calls is followed by itself."""
    return f"{variant}, {method}" if method else variant


def _text(moment: datetime | None) -> str:
    return moment.isoformat(timespec="seconds") if moment else ""


def _named(rows: Sequence[tuple[Any, ...]]) -> list[FleetRun]:
    """The runs; where configurations differ in more than their names tell, the names tell it too."""
    targets: dict[str, set[str]] = {}
    for row in rows:
        targets.setdefault(row[3], set()).add(str(row[4]))
    found = []
    for row in rows:
        bundle, model, dtype, device, target, variant, role, created, runs, latency, arm = row[:11]
        speedup, low, high, verdict, grade, threads, method, at = row[11:]
        run = FleetRun(
            bundle=bundle,
            model=" ".join(filter(None, (model, dtype))),
            device=f"{device}, {target}" if len(targets[device]) > 1 else device,
            variant=_called(variant, method),
            role=role,
            created=created.isoformat(timespec="seconds") if created else "",
            runs=runs,
            latency_ns=latency,
            arm=arm,
            speedup=speedup,
            ci95=None if low is None or high is None else (low, high),
            verdict=verdict,
            grade=grade,
            placed=_text(at),
        )
        found.append((run, threads))
    counts = Counter((run.device, run.model, run.variant) for run, _ in found)
    return [
        msgspec.structs.replace(run, device=f"{run.device}, {counted_text(threads or 1, 'thread')}")
        if counts[run.device, run.model, run.variant] > 1
        else run
        for run, threads in found
    ]


def _sorts(place: StoreLocation, runs: Sequence[FleetRun]) -> list[SortTime]:
    if not runs:
        return []
    columns = (
        "k.bundle, k.variant, m.method, operator, category, backend, sum(k.share) / coalesce(any_value(m.share), 1)"
    )
    chosen = "k.bundle IN (SELECT unnest(?))"  # a join: a mark for each bundle would be compared one by one
    same = "m.bundle = k.bundle AND m.variant = k.variant AND m.method = k.method"
    sql = f"SELECT {columns} FROM kernels k LEFT JOIN methods m ON {same} WHERE {chosen} GROUP BY ALL ORDER BY ALL"  # noqa: S608 - names of ours
    rows = ask(place, sql, [sorted({run.bundle for run in runs})]).rows
    return [SortTime(bundle, _called(variant, method), *rest) for bundle, variant, method, *rest in rows]
