"""A figure over the runs of a store, and a gate that measures a run by its predecessors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.compare.compare import ComparedSide
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.bundle.bundle import is_bundle
from opscope.bundle.manifest import device_text
from opscope.core.errors import MismatchError, NotFoundError, RegressionError, UsageError, did_you_mean
from opscope.core.units import counted_text
from opscope.fleet.analysis.history import FigureUnit, Metric, Order, make_history
from opscope.fleet.analysis.history_gate import Predecessors, history_gate
from opscope.fleet.bundles import read_bundle, run_origin
from opscope.fleet.results import HistoryResult
from opscope.fleet.runs import (
    RUNS,
    RUNTIME,
    TRUSTED,
    WHOLE_RUNS,
    FigureQuery,
    parse_date,
    parse_filter,
    read_facts,
    read_series,
    sum_by_method,
)
from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import RUN_ORDER
from opscope.fleet.store.sql import ask_snapshot
from opscope.fleet.store.table import open_store
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import GateResult
from opscope.measurements.sides import find_variant

if TYPE_CHECKING:
    from opscope.bundle.manifest import Variant
    from opscope.fleet.analysis.history import History
    from opscope.fleet.bundles import AnalysedBundle
    from opscope.fleet.runs import RunFilter, RunSelection
    from opscope.fleet.store.table import Snapshot

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
    run_filter, figure = parse_filter(where), Metric(metric, _UNITS.get(metric, FigureUnit.TIME), metric == "speedup")
    order, label = _parse_order(by)
    query = _figure_query(figure)._replace(label=label)
    moment = parse_date(since, "--since", "--since ").isoformat() if since else ""
    snapshot = open_store(find_place(store))
    runs = read_series(snapshot, run_filter, query)
    if not any(len(series.values) for series in runs):
        hint = "`opscope store list` shows the stored runs; `opscope store query` the names in use"
        problem = f"no trustworthy run has the figure {metric}" if runs else "no stored run matches"
        raise NotFoundError(problem, where=run_filter.text or snapshot.place.address, hint=hint)
    read = partial(read_facts, snapshot)
    return shown_as(HistoryResult, make_history(snapshot.place.address, figure, order, runs, read, moment))


def _parse_order(by: str) -> tuple[Order, str | None]:
    """Return what points stand beside each other by, and the SQL of their labels; None: their days."""
    name, _, package = by.partition(":")
    if name not in {order.value for order in Order} or (package and name != "version"):
        hint = "date, commit, version or version:PACKAGE"
        raise UsageError(f"unknown order {by!r}", where="--by", hint=hint)
    if name != "version":
        return Order(name), "r.commit" if name == "commit" else None
    if not (package or RUNTIME).replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(f"unknown package {package!r}", where="--by", hint="version:executorch")
    return Order.VERSION, f"json_extract_string(r.versions, '$.\"{package or RUNTIME}\"')"


def _figure_query(figure: Metric) -> FigureQuery:
    query = FigureQuery(is_trusted_only=figure.unit is not FigureUnit.SIZE, higher_is_better=figure.higher_is_better)
    if figure.name in _PLAIN:
        source = WHOLE_RUNS if figure.name in _WHOLE else RUNS
        return query._replace(expression=f"r.{_PLAIN[figure.name]}", source=source)
    sort, _, value = figure.name.partition(":")
    if sort not in _PARTS or not value:
        raise UsageError(f"unknown figure {figure.name!r}", where="METRIC", hint=did_you_mean(figure.name, METRICS))
    table, column, time = _PARTS[sort]
    same = "f.bundle = r.bundle AND f.variant = r.variant AND f.method IS NOT DISTINCT FROM r.method"
    beside = f"LEFT JOIN {sum_by_method(table, time, f'{column} = ?')} AS f ON {same}"
    return query._replace(expression="f.value", beside=beside, values=(value,))


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
    run_filter = parse_filter(against.removeprefix(HISTORY))
    path, _, name = str(candidate).partition("#")
    if not is_bundle(Path(path)):
        raise UsageError("only a bundle can be judged against a history", where=path, hint="give a bundle")
    bundle = read_bundle(Path(path))
    variant = find_variant(bundle.manifest, name or None, bundle.source)
    if variant.name not in bundle.analyses:
        raise NotFoundError(f"no repetition of {variant.name} succeeded", where=bundle.source)
    analysis, model = bundle.analyses[variant.name], bundle.manifest.model_of(variant.name)
    snapshot = open_store(find_place(store))
    predecessors = {}
    for method, (latency, _) in analysis.by_method.items():
        comparable = _add_conditions(run_filter, bundle, variant, method, latency.source)
        if runs := _find_predecessors(snapshot, comparable, bundle, model.sha256, method):
            predecessors[method] = runs
    if not predecessors:
        hint = "`opscope store list` shows what is stored; `store:device=NAME` uses runs under another device name"
        hint += "; runs graded do_not_trust do not count"
        raise MismatchError("the store has no comparable run", where=candidate, hint=hint)
    method, first_runs = next(iter(predecessors.items()))
    before = ComparedSide(
        label=f"history of {variant.name}",
        path=f"{HISTORY}{run_filter.text} in {snapshot.place.address}",
        headline_ns=float(np.mean(first_runs.latencies_ns)),
    )
    after = ComparedSide(label=variant.name, path=bundle.source, headline_ns=analysis.headline_of(method))
    limit, processes = DEFAULT_THRESHOLD if threshold is None else threshold, bundle.processes(variant.name)
    decision = history_gate(analysis, processes, (before, after), predecessors, threshold=limit, model=model.name)
    return shown_as(GateResult, decision)


def _add_conditions(
    run_filter: RunFilter, bundle: AnalysedBundle, variant: Variant, method: str, arm: str
) -> RunFilter:
    """Return a filter with what must be the same where it says nothing else."""
    model, keys = (
        bundle.manifest.model_of(variant.name),
        {word.partition("=")[0].strip() for word in run_filter.text.split(",")},
    )
    same = {
        "model": model.name,
        "dtype": model.dtype,
        "device": device_text(bundle.manifest),
        "target": bundle.manifest.target.kind,
        "variant": variant.name,
        "threads": variant.threads,
        "affinity": " ".join(map(str, variant.affinity)),
        "arm": arm,
    }
    comparable = run_filter.add_condition("method", method or None)
    for column in same.keys() - keys:
        comparable = comparable.add_condition(column, same[column])
    return comparable


def _find_predecessors(
    snapshot: Snapshot, run_filter: RunFilter, bundle: AnalysedBundle, program: str | None, method: str
) -> Predecessors | None:
    """Return the trusted runs that a bundle is measured by, oldest first; None without one.

    Times of operators are those of runs of the same program, for a call.
    """
    itself = ask_snapshot(snapshot, "SELECT bundle FROM bundles WHERE origin = ?", [run_origin(bundle.manifest)])
    sql = (
        f"SELECT bundle, variant, latency_ns, program_sha256 FROM {RUNS} {run_filter.where} AND {TRUSTED} "  # noqa: S608 - names of ours; values are bound
        f"AND latency_ns > 0 ORDER BY {RUN_ORDER}"
    )
    rows = [
        row for row in ask_snapshot(snapshot, sql, run_filter.values) if (row[0],) not in {*itself, (bundle.bundle,)}
    ]
    rows = rows[-run_filter.last :] if run_filter.last else rows
    if not rows:
        return None
    same = [bundle_hash for bundle_hash, *_, sha256 in rows if sha256 == program]
    operators: dict[tuple[str, int | None, int | None, str], dict[str, float]] = {}
    sql = (
        "SELECT o.bundle, o.time_ns / coalesce(m.calls_share, 1), o.method, o.instruction, o.position, o.name "
        "FROM operators o LEFT JOIN methods m ON m.bundle = o.bundle AND m.variant = o.variant AND m.method = o.method "
        "WHERE o.variant = ? AND o.bundle IN (SELECT unnest(?)) AND coalesce(m.method, '') = ? AND o.time_ns > 0"
    )
    for bundle_hash, time_ns, *operator in ask_snapshot(snapshot, sql, (rows[0][1], same, method)) if same else ():
        operators.setdefault(tuple(operator), {})[bundle_hash] = time_ns
    return Predecessors([row[2] for row in rows], [row[0] for row in rows], operators, len(rows) - len(same))
