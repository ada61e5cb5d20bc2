"""A figure over the runs of a store, and a gate that measures a run by its predecessors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from opscope.analysis.compare.compare import ComparedSide
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.bundle.bundle import is_bundle
from opscope.bundle.manifest import device_text
from opscope.core.errors import MismatchError, NotFoundError, RegressionError, UsageError, did_you_mean
from opscope.core.parts import part
from opscope.core.units import counted_text
from opscope.fleet.analysis.causes import SharedCause
from opscope.fleet.analysis.history_gate import Predecessors, history_gate
from opscope.fleet.analysis.series import FigureUnit, Metric, Order, Point, keep_since, make_history
from opscope.fleet.bundles import read_bundle, run_origin
from opscope.fleet.results import HistoryResult
from opscope.fleet.runs import FigureQuery, name_causes, read_series, steps_of_changes
from opscope.fleet.selection import (
    RUNS,
    RUNTIME,
    TRUSTED,
    WHOLE_RUNS,
    parse_date,
    parse_filter,
    selection_text,
    sum_by_method,
)
from opscope.fleet.store.entries import RUN_ORDER
from opscope.fleet.store.place import find_place
from opscope.fleet.store.sql import ask_snapshot
from opscope.fleet.store.table import open_store
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import GateResult
from opscope.measurements.sides import usual_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Manifest, Variant
    from opscope.fleet.analysis.series import History
    from opscope.fleet.runs import SeriesRuns
    from opscope.fleet.selection import RunFilter, RunSelection
    from opscope.fleet.store.rows import AnalysedBundle
    from opscope.fleet.store.table import Snapshot

NOT_KNOWN = "not known"
HISTORY = "store:"
"""How a baseline that is a history begins; behind it stands a filter."""
_PLAIN = {
    "latency": "latency_ns",
    "mean": "mean_ns",
    "p90": "p90_ns",
    "p95": "p95_ns",
    "p99": "p99_ns",
    "load": "load_ns",
    "memory": "memory_bytes",
    "speedup": "speedup",
}
"""Columns of ``runs`` that are figures."""
_UNITS = {"memory": FigureUnit.SIZE, "speedup": FigureUnit.RATIO}
"""Units of the figures that are no times."""
_WHOLE = ("load", "memory")
"""Figures that several methods do not have one by one."""
_PARTS = {
    "category": ("operators", "category", "time_ns"),
    "kind": ("operators", "kind", "time_ns"),
    "backend": ("operators", "backend", "time_ns"),
    "operator": ("operators", "name", "time_ns"),
    "module": ("modules", "path", "total_ns"),
    "kernel": ("kernels", "operator", "time_ns"),
}
METRICS = (*_PLAIN, *(f"{name}:NAME" for name in _PARTS))


def stored_history(
    metric: str,
    store: str | Path | None = None,
    *,
    by: str = "date",
    where: RunSelection = "",
    since: str = "",
) -> HistoryResult:
    """Return a figure over the runs of a store, one series for each model, device and variant, with its changes.

    Times and ratios of runs that are graded ``do_not_trust`` are left out, and counted.

    Args:
        metric: ``latency``, ``mean``, ``p90``, ``p95``, ``p99``, ``load``, ``memory``, ``speedup``; or ``category:``,
            ``kind:``, ``backend:``, ``operator:``, ``module:`` or ``kernel:`` and a name.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        by: ``date``, ``commit``, ``version`` (of executorch) or ``version:PACKAGE``.
        where: which runs, as ``KEY=VALUE,...`` or ``{KEY: VALUE}`` with ``model``, ``device``, ``variant``, ``role``,
            ``since``, ``last`` and the other keys of ``opscope history --where``.
        since: only changes that were seen on this date or later; all runs are judged. Empty: all changes.

    Raises:
        UsageError: the metric, the order, the filter or the date is unknown.
        NotFoundError: no run fits.
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    order, label = _parse_order(by)
    run_filter = parse_filter(where := selection_text(where))
    figure = Metric(metric, _UNITS.get(metric, FigureUnit.TIME), higher_is_better=metric == "speedup")
    query = _figure_query(metric, figure, label)
    snapshot = open_store(find_place(store))
    address = snapshot.place.address
    every = read_series(snapshot, run_filter, query)
    series = [runs for runs in every if len(runs.values)]
    if not series:
        hint = "`opscope store list` shows the stored runs; `opscope store query` the names in use"
        problem = f"no trustworthy run has the figure {metric}" if every else "no stored run matches"
        raise NotFoundError(problem, where=where or address, hint=hint)
    points = [(runs.subject, _make_points(runs)) for runs in series]
    history = make_history(address, figure, order, points, sum(runs.untrusted for runs in every))
    if since:
        history = keep_since(history, parse_date(since, "--since", "--since ").isoformat())
    causes = part("what changes have in common", lambda: _name_causes(snapshot, history), list[SharedCause]())
    return shown_as(HistoryResult, msgspec.structs.replace(history, causes=causes))


def check_new_changes(history: History) -> None:
    """Raise RegressionError, naming how many there are, when a history shows changes for the worse."""
    worse = sum(not change.better for series in history.series for change in series.changes)
    if worse:
        hint = "check them; --since DATE leaves out those that were seen before"
        raise RegressionError(f"{counted_text(worse, 'change')} for the worse", where=history.metric.name, hint=hint)


def check_history(
    candidate: str | Path,
    against: str,
    *,
    store: str | Path | None = None,
    threshold: float | None = None,
) -> GateResult:
    """Decide whether a bundle is slower than its stored predecessors, by more than their scatter explains.

    Its predecessors are the stored runs of the same model, number type, variant, threads, CPUs, kind of target, arm and
    device; whatever the filter says about one of these stands in its place.

    Args:
        candidate: a bundle (its accelerated variant) or ``BUNDLE#variant``.
        against: ``store:`` and which runs, as ``where`` of :func:`opscope.stored_history`.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        threshold: the largest slowdown that is let through, as a fraction; None: 3 %.

    Raises:
        NotFoundError: there is no such bundle or variant, or no store.
        MismatchError: no stored run can be compared with it.
        UsageError: the filter is wrong, or the candidate is not a bundle.
    """
    text = against.removeprefix(HISTORY)
    parse_filter(text)  # refuses a wrong one before anything is read
    path, _, name = str(candidate).partition("#")
    if not is_bundle(Path(path)):
        raise UsageError("only a bundle can be judged against a history", where=path, hint="give a bundle")
    bundle = read_bundle(Path(path))
    variant = _find_variant(bundle, name)
    analysis, model = bundle.analyses[variant.name], bundle.manifest.model_of(variant.name)
    snapshot = open_store(find_place(store))
    predecessors = {}
    for method, (latency, _) in analysis.by_method.items():
        rows = _comparable_runs(snapshot, _comparable(bundle.manifest, variant, method, latency.source, text), bundle)
        if rows:
            predecessors[method] = _make_predecessors(snapshot, rows, model.sha256, method)
    if not predecessors:
        hint = "`opscope store list` shows what is stored; `store:device=NAME` uses runs under another device name"
        hint += "; runs graded do_not_trust do not count"
        raise MismatchError("the store has no comparable run", where=candidate, hint=hint)
    method, shown = next(iter(predecessors.items()))
    sides = (
        ComparedSide(
            label=f"history of {variant.name}",
            path=f"{HISTORY}{text} in {snapshot.place.address}",
            headline_ns=float(np.mean(shown.latencies_ns)),
        ),
        ComparedSide(label=variant.name, path=bundle.source, headline_ns=analysis.headline_of(method)),
    )
    limit = DEFAULT_THRESHOLD if threshold is None else threshold
    processes = bundle.processes(variant.name)
    return shown_as(
        GateResult, history_gate(analysis, processes, sides, predecessors, threshold=limit, model=model.name)
    )


def _parse_order(by: str) -> tuple[Order, str | None]:
    """Return what points stand beside each other by, and their label in SQL; None by date."""
    name, _, package = by.partition(":")
    if name not in {order.value for order in Order} or (package and name != "version"):
        hint = "date, commit, version or version:PACKAGE"
        raise UsageError(f"unknown order {by!r}", where="--by", hint=hint)
    if name != "version":
        return Order(name), "r.commit" if name == "commit" else None
    if not (package or RUNTIME).replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(f"unknown package {package!r}", where="--by", hint="version:executorch")
    return Order.VERSION, f"json_extract_string(r.versions, '$.\"{package or RUNTIME}\"')"


def _figure_query(name: str, figure: Metric, label: str | None) -> FigureQuery:
    is_trusted_only = figure.unit is not FigureUnit.SIZE
    if name in _PLAIN:
        source = WHOLE_RUNS if name in _WHOLE else RUNS
        return FigureQuery(f"r.{_PLAIN[name]}", source=source, is_trusted_only=is_trusted_only, label=label)
    sort, _, value = name.partition(":")
    if sort not in _PARTS or not value:
        raise UsageError(f"unknown figure {name!r}", where="METRIC", hint=did_you_mean(name, METRICS))
    table, column, time = _PARTS[sort]
    same = "f.bundle = r.bundle AND f.variant = r.variant AND f.method IS NOT DISTINCT FROM r.method"
    beside = f"LEFT JOIN {sum_by_method(table, time, f'{column} = ?')} AS f ON {same}"
    return FigureQuery("f.value", beside, (value,), label=label)


def _make_points(runs: SeriesRuns) -> list[Point]:
    beginnings = [placed if began is None else began for began, placed in zip(runs.created, runs.placed, strict=True)]
    labels = runs.labels or [began[:10] or None for began in beginnings]
    texts = [NOT_KNOWN if label is None else label for label in labels]
    return list(map(Point, runs.bundles, beginnings, texts, runs.values.tolist(), runs.placed))


def _name_causes(snapshot: Snapshot, history: History) -> list[SharedCause]:
    by_date = history.order is Order.DATE
    series = [
        (
            one.subject,
            [point.bundle for point in one.points],
            [point.placed[:10] if by_date else point.label for point in one.points],
        )
        for one in history.series
    ]
    steps = [None if one.not_judged else steps_of_changes(one.changes) for one in history.series]
    return name_causes(snapshot, series, steps, by_date=by_date)


def _find_variant(bundle: AnalysedBundle, name: str) -> Variant:
    manifest = bundle.manifest
    variant = manifest.variant(name) if name else usual_variant(manifest)
    if variant is None:
        hint = did_you_mean(name, (known.name for known in manifest.variants))
        raise NotFoundError(f"the bundle has no variant {name!r}", where=bundle.source, hint=hint)
    if variant.name not in bundle.analyses:
        raise NotFoundError(f"no repetition of {variant.name} succeeded", where=bundle.source)
    return variant


def _comparable(manifest: Manifest, variant: Variant, method: str, arm: str, text: str) -> RunFilter:
    """Return the filter, with what must be the same where it says nothing else."""
    keys = {word.partition("=")[0].strip() for word in text.split(",")}
    model = manifest.model_of(variant.name)
    same: dict[str, Any] = {
        "model": model.name,
        "dtype": model.dtype,
        "device": device_text(manifest),
        "target": manifest.target.kind,
        "variant": variant.name,
        "threads": variant.threads,
        "affinity": " ".join(map(str, variant.affinity)),
        "arm": arm,
    }
    chosen = parse_filter(text).add_condition("method", method or None)
    for column in same.keys() - keys:
        chosen = chosen.add_condition(column, same[column])
    return chosen


def _comparable_runs(snapshot: Snapshot, chosen: RunFilter, bundle: AnalysedBundle) -> list[tuple[Any, ...]]:
    """Return bundle, latency, program and variant of the runs that fit and can be trusted, oldest first."""
    itself = ask_snapshot(snapshot, "SELECT bundle FROM bundles WHERE origin = ?", [run_origin(bundle.manifest)])
    excluded = {row[0] for row in itself} | {bundle.bundle}
    sql = (
        f"SELECT bundle, latency_ns, program_sha256, variant FROM {RUNS} {chosen.where} AND {TRUSTED} "  # noqa: S608 - names of ours; values are bound
        f"ORDER BY {RUN_ORDER}"
    )
    rows = [row for row in ask_snapshot(snapshot, sql, chosen.values) if row[0] not in excluded and row[1]]
    return rows[-chosen.last :] if chosen.last else rows


def _make_predecessors(
    snapshot: Snapshot, rows: Sequence[tuple[Any, ...]], program: str | None, method: str
) -> Predecessors:
    """Return the runs that a bundle is measured by; times of operators of those of the same program, for a call."""
    same = [row[0] for row in rows if row[2] == program]
    operators: dict[tuple[str, int | None, int | None, str], dict[str, float]] = {}
    if same:
        join = "m.bundle = o.bundle AND m.variant = o.variant AND m.method = o.method"
        where = "WHERE o.variant = ? AND o.bundle IN (SELECT unnest(?)) AND coalesce(m.method, '') = ?"
        columns = "o.method, o.instruction, o.position, o.name, o.bundle, o.time_ns / coalesce(m.calls_share, 1)"
        sql = f"SELECT {columns} FROM operators o LEFT JOIN methods m ON {join} {where}"  # noqa: S608 - names of ours
        for *place, bundle, time_ns in ask_snapshot(snapshot, sql, (str(rows[0][3]), same, method)):
            operators.setdefault((place[0], place[1], place[2], place[3]), {})[bundle] = float(time_ns)
    latencies, bundles = [float(row[1]) for row in rows], [str(row[0]) for row in rows]
    return Predecessors(latencies, bundles, operators, len(rows) - len(same))
