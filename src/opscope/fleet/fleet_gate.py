"""The gate over all models and devices of a store: what is new since a date, and slower."""

from __future__ import annotations

import bisect
import itertools
import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.analysis.gate.decision import QUIETER
from opscope.core.errors import NotFoundError, UntrustedError
from opscope.core.grouping import grouped
from opscope.core.stats.many_series import CONFIRMING
from opscope.core.stats.segments import newest_rise, segments
from opscope.experiment.config import decoded
from opscope.experiment.config_errors import typed, wrong
from opscope.fleet.analysis.common_moves import changed_facts
from opscope.fleet.analysis.fleet_decision import (
    MOST_PREDECESSORS,
    SELECTORS,
    FleetBudgets,
    FleetTerms,
    StoredSeries,
    VanishedDevice,
    decide,
)
from opscope.fleet.analysis.fleet_gate import ChangeOrigin, PartChange, RunPlace, fleet_gate
from opscope.fleet.analysis.history import Subject
from opscope.fleet.results import FleetGateResult
from opscope.fleet.store.place import place_of
from opscope.fleet.store.querying import ask
from opscope.fleet.stored_runs import ORDER, RUNS, RUNTIME, TRUSTED, date_of, facts_of_runs, filter_text, run_filter
from opscope.measurements.notebook import shown_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.core.stats.segments import LevelStep
    from opscope.fleet.analysis.common_moves import FactsOfRuns
    from opscope.fleet.analysis.fleet_decision import FleetDecision
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.stored_runs import RunFilter, RunSelection

_MOST_TRACED = 1_000
"""Slower series whose first runs and operators are looked up."""
_MOST_PARTS = 5
_SIDE = 5
"""Runs on each side of a change whose operators are compared."""
_SUBJECT = ", ".join(Subject.__struct_fields__)
_SUBJECTS = len(Subject.__struct_fields__)
_MOST_RUNS = 1_000
"""Newest runs of a series that are asked for: new ones, and those that they are judged by."""
_DAY_US = 86_400_000_000
_RECENT = timedelta(days=14)
"""A device that has not run for longer is out of use."""


class _Row(NamedTuple):
    """What the store gives of a series: its trusted runs, oldest first."""

    subject: Subject
    latencies: list[float]  # ns
    placed: list[int]  # when they were added, us since 1970
    bundles: list[str]  # of the newest ones
    bundle_before: str | None  # of the last one before the newest
    untrusted: int  # how many new ones are not to be trusted


def check_fleet(
    since: str,
    store: str | Path | None = None,
    *,
    where: RunSelection = "",
    threshold: float | None = None,
    budget: str | Path | None = None,
) -> FleetGateResult:
    """Which series of a store are slower since a date, over all models and devices.

    A series is what ``opscope history`` takes for one: a model with its number type on a device, in a variant, with its
    threads and its way of timing. Runs that are graded ``do_not_trust`` are not judged, nor others by them.

    Args:
        since: runs that were added then or later are new; ISO 8601, UTC without a zone.
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
    moment, where = date_of(since, "--new", "--new "), filter_text(where)
    budgets = FleetBudgets() if budget is None else read_fleet_budgets(Path(budget))
    place = place_of(store)
    series, without, untrusted = _series(place, run_filter(where), moment)
    if not series and untrusted:
        hint = f"they are graded do_not_trust: {QUIETER}"
        raise UntrustedError(f"no new run of {untrusted} series is trustworthy", where=place.address, hint=hint)
    if not series:
        what = "no run was added since then" if without else "no stored run matches"
        hint = "`opscope store list` shows the stored runs and when they were added"
        raise NotFoundError(what, where=f"{place.address} {where}".strip(), hint=hint)
    gone = _vanished(place, run_filter(where), moment)
    terms = FleetTerms(place.address, moment.isoformat(), threshold, budgets, str(budget), without, untrusted, gone)
    decision = decide(series, terms)
    return shown_as(FleetGateResult, fleet_gate(series, terms, decision, _origins(place, series, decision)))


def read_fleet_budgets(file: Path) -> FleetBudgets:
    """The limits that a file sets for the series of a fleet."""
    raw = decoded(file, hint="give a TOML or JSON file with [fleet] and [[budget]] entries")
    budgets = typed(raw, FleetBudgets, file, {"device_changes": ("fail", "tell")})
    for number, one in enumerate(budgets.budget):
        if one.max_ms is None and one.max_slower is None:
            raise wrong(file, f"budget[{number}]", "it sets no limit", "give max_slower or max_ms")
        if all(getattr(one, name) is None for name in SELECTORS):
            hint = f"give at least one of {', '.join(SELECTORS)}; limits for all series belong in [fleet]"
            raise wrong(file, f"budget[{number}]", "it chooses no series", hint)
    return budgets


def _series(place: StoreLocation, chosen: RunFilter, since: datetime) -> tuple[list[StoredSeries], int, int]:
    """The series with a new run, how many have none, and how many have only new ones that are not to be trusted.

    One query for times, one for the facts of two runs each.
    """
    kept = chosen.also("kind", "bundle")
    newest = min(kept.last or _MOST_RUNS, _MOST_RUNS)
    columns = ", ".join(
        [
            f"list(latency_ns ORDER BY {ORDER}) FILTER ({TRUSTED})[-{newest}:]",
            f"list(epoch_us(placed) ORDER BY {ORDER}) FILTER ({TRUSTED})[-{newest}:]",
            f"list(bundle ORDER BY {ORDER}) FILTER ({TRUSTED})[-{CONFIRMING + 1}:]",
            f"list(bundle ORDER BY {ORDER}) FILTER ({TRUSTED} AND placed < ?)[-1]",
            f"count(*) FILTER (NOT ({TRUSTED}) AND placed >= ?)",
        ]
    )
    sql = (
        f"SELECT {_SUBJECT}, {columns} FROM {RUNS} {kept.where} AND latency_ns IS NOT NULL AND placed IS NOT NULL "  # noqa: S608 - names of ours; values are bound
        "GROUP BY ALL ORDER BY ALL"
    )
    rows = [
        _Row(Subject(*row[:_SUBJECTS]), *row[_SUBJECTS:]) for row in ask(place, sql, (since, since, *kept.values)).rows
    ]
    moment_us = round((since - datetime(1970, 1, 1)) / timedelta(microseconds=1))  # noqa: DTZ001 - tables hold UTC without a zone
    judged = [bool(row.placed) and row.placed[-1] >= moment_us for row in rows]
    new = list(itertools.compress(rows, judged))
    untrusted = sum(1 for row, own in zip(rows, judged, strict=True) if row.untrusted and not own)
    pairs = [(row, _cut(row.placed, moment_us)) for row in new]
    wanted = {bundle for row, cut in pairs for bundle in (row.bundles[-1], _last_before(row, cut))}
    facts = facts_of_runs(place, sorted(wanted)) if new else {}
    return [_stored(row, cut, facts) for row, cut in pairs], len(rows) - len(new) - untrusted, untrusted


def _vanished(place: StoreLocation, chosen: RunFilter, since: datetime) -> list[VanishedDevice]:
    """Devices that stopped where others of the same CPU began: a series ends, and nobody would hear of it."""
    kept = chosen.also("kind", "bundle")
    sql = (
        f"WITH devices AS (SELECT device, cpu, min(placed) AS first, max(placed) AS last FROM {RUNS} {kept.where} "  # noqa: S608 - names of ours; values are bound
        "AND cpu IS NOT NULL AND placed IS NOT NULL GROUP BY ALL) "
        "SELECT old.device, old.cpu, list(new.device ORDER BY new.device) FROM devices AS old JOIN devices AS new "
        "ON new.cpu = old.cpu AND new.first >= ? AND old.last < ? AND old.last >= ? GROUP BY ALL ORDER BY ALL"
    )
    rows = ask(place, sql, (*kept.values, since, since, since - _RECENT)).rows
    return [VanishedDevice(device, cpu, appeared) for device, cpu, appeared in rows]


def _cut(times: Sequence[int], since: int) -> tuple[int, int]:
    """Of the runs of a series: how many are before those that are judged together, and the first of the newest."""
    first = bisect.bisect_left(times, since)
    newest = max(len(times) - CONFIRMING, 0)
    # The runs beside the new ones may confirm them, and are judged with them.
    return min(first, newest), newest


def _last_before(row: _Row, cut: tuple[int, int]) -> str:
    before, newest = cut
    return row.bundles[0] if before == newest else row.bundle_before or row.bundles[0]


def _stored(row: _Row, cut: tuple[int, int], facts: FactsOfRuns) -> StoredSeries:
    (before, newest), subject = cut, row.subject
    first = max(0, before - MOST_PREDECESSORS)
    times = row.placed[first:before] + row.placed[newest:]
    return StoredSeries(
        subject=subject,
        latencies=row.latencies[first:before] + row.latencies[newest:],
        nights=[time // _DAY_US for time in times],
        bundle=row.bundles[-1],
        facts_before=facts[_last_before(row, cut), subject.variant],
        facts=facts[row.bundles[-1], subject.variant],
    )


def _origins(
    place: StoreLocation, series: Sequence[StoredSeries], decision: FleetDecision
) -> dict[int, tuple[LevelStep, ChangeOrigin]]:
    """Since when slower series are slower and where, by their numbers: a query each for runs, facts and operators."""
    numbers = decision.slower[:_MOST_TRACED]
    if not numbers:
        return {}
    runs = _runs(place, {"#".join(_key(series[n])): n for n in numbers})
    steps, sides = {}, {}
    for n in numbers:
        values = np.array([latency for _, latency in runs[n]])
        step = newest_rise(values, segments(values), math.exp(decision.families.series.runs.level[n]))
        if step is None:
            continue
        steps[n] = step
        places = [run for run, _ in runs[n]]
        sides[n] = places[: step.earliest][-_SIDE:], places[step.latest :][:_SIDE]
    if not steps:
        return {}
    facts = facts_of_runs(place, [run.bundle for before, after in sides.values() for run in (*before[-1:], after[0])])
    parts = _parts(place, series, sides)
    return {
        n: (step, _origin(series[n].subject.variant, sides[n], _ago(step, len(runs[n])), facts, parts[n]))
        for n, step in steps.items()
    }


def _ago(step: LevelStep, count: int) -> tuple[int, int]:
    return count - step.latest, count - step.earliest


def _origin(
    variant: str,
    sides: tuple[Sequence[RunPlace], Sequence[RunPlace]],
    runs_ago: tuple[int, int],
    facts: FactsOfRuns,
    parts: tuple[list[PartChange], list[PartChange]],
) -> ChangeOrigin:
    first, before = sides[1][0], sides[0][-1] if sides[0] else None
    changed = changed_facts(facts[before.bundle, variant], facts[first.bundle, variant]) if before else []
    return ChangeOrigin(first, before, runs_ago, changed, *parts)


def _key(series: StoredSeries) -> tuple[str, str, str]:
    return series.bundle, series.subject.variant, series.subject.method or ""


def _runs(place: StoreLocation, chosen: Mapping[str, int]) -> dict[int, list[tuple[RunPlace, float]]]:
    """The runs of some series with their latencies, oldest first, by the number of the series."""
    same = " AND ".join(f"r.{name} IS NOT DISTINCT FROM k.{name}" for name in Subject.__struct_fields__)
    key = "bundle || '#' || variant || '#' || coalesce(method, '') AS key"
    keys = f"SELECT {_SUBJECT}, {key} FROM {RUNS} WHERE key IN (SELECT unnest(?))"  # noqa: S608 - names of ours
    sql = (
        f"SELECT k.key, r.latency_ns, r.bundle, r.created, r.placed, r.commit, r.opscope, r.versions->>'{RUNTIME}' "  # noqa: S608 - same
        f"FROM {RUNS} r JOIN ({keys}) k ON {same} WHERE r.latency_ns > 0 AND r.{TRUSTED} "
        "ORDER BY r.placed, r.created, r.bundle"
    )
    runs: dict[int, list[tuple[RunPlace, float]]] = {}
    for key, latency, bundle, created, placed, *versions in ask(place, sql, [list(chosen)]).rows:
        began, added = (one.isoformat(timespec="seconds") if one else "" for one in (created, placed))
        runs.setdefault(chosen[key], []).append((RunPlace(bundle, began, added, *versions), latency))
    return runs


def _parts(
    place: StoreLocation,
    series: Sequence[StoredSeries],
    sides: Mapping[int, tuple[Sequence[RunPlace], Sequence[RunPlace]]],
) -> dict[int, tuple[list[PartChange], list[PartChange]]]:
    """Operators and categories whose time grew most, by the number of the series."""
    wanted = [
        (number, side, run.bundle, series[number].subject.variant, series[number].subject.method)
        for number, pair in sides.items()
        for side, runs in enumerate(pair)
        for run in runs
    ]
    names = ("number", "side", "bundle", "variant", "method")
    lists = ", ".join(f"unnest(?) AS {name}" for name in names)
    sql = (
        f"WITH wanted AS (SELECT {lists}), "  # noqa: S608 - names of ours
        "sums AS (SELECT w.number, w.side, w.bundle, o.category, regexp_replace(o.name, ' #\\d+$', '') AS name, "
        "sum(o.time_ns) / coalesce(any_value(m.calls_share), 1) AS ns "
        "FROM operators o JOIN wanted w ON o.bundle = w.bundle AND o.variant = w.variant "
        "AND coalesce(w.method, o.method) = o.method "
        "LEFT JOIN methods m ON m.bundle = w.bundle AND m.variant = w.variant AND m.method = w.method GROUP BY ALL), "
        "whole AS (SELECT number, side, bundle, category, NULL AS name, sum(ns) AS ns FROM sums GROUP BY ALL), "
        "medians AS (SELECT number, category, name, coalesce(median(ns) FILTER (side = 0), 0) AS before, "
        "coalesce(median(ns) FILTER (side = 1), 0) AS after FROM (FROM sums UNION ALL FROM whole) GROUP BY ALL) "
        "SELECT number, name, category, before, after FROM medians WHERE after > before "
        "QUALIFY row_number() OVER (PARTITION BY number, name IS NULL ORDER BY after - before DESC) <= ? "
        "ORDER BY number, after - before DESC"
    )
    values = [*(list(column) for column in zip(*wanted, strict=True)), _MOST_PARTS]
    rows = grouped(ask(place, sql, values).rows, lambda row: row[0])
    return {number: _split(rows.get(number, [])) for number in sides}


def _split(rows: Sequence[tuple[Any, ...]]) -> tuple[list[PartChange], list[PartChange]]:
    parts = [(row[1] is None, PartChange(row[1] or row[2], *row[2:])) for row in rows]
    return [part for whole, part in parts if not whole], [part for whole, part in parts if whole]
