"""The gate over all models and devices of a store: what is new since a date, and slower."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.gate.decision import QUIETER
from opscope.core.errors import NotFoundError, UntrustedError
from opscope.core.grouping import grouped
from opscope.experiment.config import decoded
from opscope.experiment.config_errors import typed, wrong
from opscope.fleet.analysis.causes import changed_facts
from opscope.fleet.analysis.detector import detect_changes
from opscope.fleet.analysis.gate import (
    SELECTORS,
    FleetBudgets,
    FleetTerms,
    GateSeries,
    PartChange,
    RunPlace,
    SlowerSeries,
    VanishedDevice,
    decide_fleet,
    series_limits,
)
from opscope.fleet.results import FleetGateResult
from opscope.fleet.runs import name_causes, read_series, steps_of_changes
from opscope.fleet.selection import RUNS, parse_date, parse_filter, read_facts, selection_text
from opscope.fleet.store.place import find_place
from opscope.fleet.store.sql import ask_snapshot
from opscope.fleet.store.table import open_store
from opscope.measurements.notebook import shown_as

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from opscope.fleet.analysis.causes import SharedCause
    from opscope.fleet.analysis.detector import DetectedChange
    from opscope.fleet.runs import SeriesRuns
    from opscope.fleet.selection import RunFilter, RunSelection
    from opscope.fleet.store.table import Snapshot

_MOST_EXPLAINED = 1_000
"""Slower series whose manifests and operators are compared."""
_MOST_PARTS = 5
_SIDE_RUNS = 5
"""Runs on each side of a change whose operators are compared."""
_RECENT = timedelta(days=14)
"""A device that has not run for longer is out of use."""


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
    moment, where = parse_date(since, "--new", "--new "), selection_text(where)
    budgets = FleetBudgets() if budget is None else read_fleet_budgets(Path(budget))
    snapshot, run_filter, start = open_store(find_place(store)), parse_filter(where), moment.isoformat()
    every = read_series(snapshot, run_filter)
    new = [runs for runs in every if runs.placed and runs.placed[-1] >= start]
    untrusted = sum(runs.newest_untrusted >= start for runs in every if not runs.placed or runs.placed[-1] < start)
    address = snapshot.place.address
    if not new and untrusted:
        hint = f"they are graded do_not_trust: {QUIETER}"
        raise UntrustedError(f"no new run of {untrusted} series is trustworthy", where=address, hint=hint)
    if not new:
        problem = "no run began since then" if every else "no stored run matches"
        hint = "`opscope store list` shows the stored runs and when they began"
        raise NotFoundError(problem, where=f"{address} {where}".strip(), hint=hint)
    gone = _find_vanished(snapshot, run_filter, moment)
    without = len(every) - len(new) - untrusted
    terms = FleetTerms(address, start, threshold, budgets, str(budget), without, untrusted, gone)
    detection = detect_changes([runs.values for runs in new])
    changes = [
        [
            change
            for change in course.changes
            if change.kind == "step" and change.is_confirmed and runs.placed[change.settled] >= start
        ]
        for runs, course in zip(new, detection.courses, strict=True)
    ]
    series = [
        GateSeries(runs.subject, runs.values, course.is_judged, _newest_rise(own))
        for runs, course, own in zip(new, detection.courses, changes, strict=True)
    ]
    limits = series_limits(series, terms)
    named = [(runs.subject, runs.bundles, [placed[:10] for placed in runs.placed]) for runs in new]
    judged = [steps_of_changes(own) if one.is_judged else None for one, own in zip(series, changes, strict=True)]
    causes = name_causes(snapshot, named, judged)
    rises = {
        number: one.rise
        for number, one in enumerate(series)
        if one.rise is not None and one.rise.ratio > 1 + limits[number]
    }
    slower = _explain_slower(snapshot, new, rises, limits, causes)
    return shown_as(FleetGateResult, decide_fleet(series, slower, causes, terms, detection.detectable))


def read_fleet_budgets(file: Path) -> FleetBudgets:
    """Return the limits that a file sets for the series of a fleet."""
    raw = decoded(file, hint="give a TOML or JSON file with [fleet] and [[budget]] entries")
    budgets = typed(raw, FleetBudgets, file, {"device_changes": ("fail", "tell")})
    for number, entry in enumerate(budgets.budget):
        if entry.max_ms is None and entry.max_slower is None:
            raise wrong(file, f"budget[{number}]", "it sets no limit", "give max_slower or max_ms")
        if all(getattr(entry, name) is None for name in SELECTORS):
            hint = f"give at least one of {', '.join(SELECTORS)}; limits for all series belong in [fleet]"
            raise wrong(file, f"budget[{number}]", "it chooses no series", hint)
    return budgets


def _newest_rise(changes: Sequence[DetectedChange]) -> DetectedChange | None:
    """Return the newest rise, unless the level fell again since."""
    newest = max(changes, key=lambda change: change.seen, default=None)
    return newest if newest is not None and newest.ratio > 1 else None


def _find_vanished(snapshot: Snapshot, run_filter: RunFilter, since: datetime) -> list[VanishedDevice]:
    """Return devices that stopped where others of the same CPU began: a series ends, and nobody would hear of it."""
    kept = run_filter.add_condition("kind", "bundle")
    sql = (
        f"WITH devices AS (SELECT device, cpu, min(placed) AS first, max(placed) AS last FROM {RUNS} {kept.where} "  # noqa: S608 - names of ours; values are bound
        "AND cpu IS NOT NULL AND placed IS NOT NULL GROUP BY ALL) "
        "SELECT old.device, old.cpu, list(new.device ORDER BY new.device) FROM devices AS old JOIN devices AS new "
        "ON new.cpu = old.cpu AND new.first >= ? AND old.last < ? AND old.last >= ? GROUP BY ALL ORDER BY ALL"
    )
    rows = ask_snapshot(snapshot, sql, (*kept.values, since, since, since - _RECENT))
    return [VanishedDevice(device, cpu, appeared) for device, cpu, appeared in rows]


def _explain_slower(
    snapshot: Snapshot,
    series: Sequence[SeriesRuns],
    rises: dict[int, DetectedChange],
    limits: Sequence[float],
    causes: Sequence[SharedCause],
) -> list[SlowerSeries]:
    """Return the slower series, the largest slowdown first, with what differs between the runs before and behind."""
    numbers = sorted(rises, key=lambda number: -rises[number].ratio)
    explained = numbers[:_MOST_EXPLAINED]
    sides = {number: _sides(series[number], rises[number]) for number in explained}
    facts = read_facts(snapshot, {bundles[at] for bundles, at in _edges(sides)}) if sides else {}
    operators = _compare_operators(snapshot, series, sides)
    kinds = {number: cause.kind for cause in reversed(causes) if cause.ratio > 1 for number in cause.subjects}
    slower = []
    for number in numbers:
        runs, change = series[number], rises[number]
        first, before = change.latest, change.earliest - 1
        variant = runs.subject.variant
        old, new = (facts.get((runs.bundles[at], variant), {}) for at in (before, first))
        slower.append(
            SlowerSeries(
                subject=runs.subject,
                before_ns=change.before,
                after_ns=change.after,
                slowdown=change.ratio - 1,
                ci95=(change.ci95[0] - 1, change.ci95[1] - 1),
                limit=limits[number],
                runs=change.end - first,
                p_value=change.p_value,
                first=RunPlace(runs.bundles[first], runs.placed[first]),
                before=RunPlace(runs.bundles[before], runs.placed[before]),
                cause=kinds.get(number),
                changed=changed_facts(old, new),
                operators=operators.get(number, []),
            )
        )
    return slower


def _sides(runs: SeriesRuns, change: DetectedChange) -> tuple[list[str], list[str]]:
    """Return the bundles of the last runs before a change and the first ones behind it, in order."""
    return runs.bundles[: change.earliest][-_SIDE_RUNS:], runs.bundles[change.latest :][:_SIDE_RUNS]


def _edges(sides: dict[int, tuple[list[str], list[str]]]) -> list[tuple[list[str], int]]:
    return [edge for before, after in sides.values() for edge in ((before, -1), (after, 0))]


def _compare_operators(
    snapshot: Snapshot, series: Sequence[SeriesRuns], sides: dict[int, tuple[list[str], list[str]]]
) -> dict[int, list[PartChange]]:
    """Return the operators whose time grew most, by the number of the series."""
    if not sides:
        return {}
    wanted = [
        (number, side, bundle, series[number].subject.variant, series[number].subject.method)
        for number, pair in sides.items()
        for side, bundles in enumerate(pair)
        for bundle in bundles
    ]
    lists = ", ".join(f"unnest(?) AS {name}" for name in ("number", "side", "bundle", "variant", "method"))
    sql = (
        f"WITH wanted AS (SELECT {lists}), "  # noqa: S608 - names of ours
        "sums AS (SELECT w.number, w.side, w.bundle, o.category, regexp_replace(o.name, ' #\\d+$', '') AS name, "
        "sum(o.time_ns) / coalesce(any_value(m.calls_share), 1) AS ns "
        "FROM operators o JOIN wanted w ON o.bundle = w.bundle AND o.variant = w.variant "
        "AND coalesce(w.method, o.method) = o.method "
        "LEFT JOIN methods m ON m.bundle = w.bundle AND m.variant = w.variant AND m.method = w.method GROUP BY ALL), "
        "medians AS (SELECT number, category, name, coalesce(median(ns) FILTER (side = 0), 0) AS before, "
        "coalesce(median(ns) FILTER (side = 1), 0) AS after FROM sums GROUP BY ALL) "
        "SELECT number, name, category, before, after FROM medians WHERE after > before "
        "QUALIFY row_number() OVER (PARTITION BY number ORDER BY after - before DESC) <= ? "
        "ORDER BY number, after - before DESC"
    )
    rows = ask_snapshot(snapshot, sql, [*(list(column) for column in zip(*wanted, strict=True)), _MOST_PARTS])
    return {
        number: [PartChange(*row[1:]) for row in own] for number, own in grouped(rows, lambda row: int(row[0])).items()
    }
