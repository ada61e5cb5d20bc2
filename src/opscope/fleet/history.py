"""The history of a figure over the runs of a store, and the gate against it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.analysis.compare.compare import ComparedSide
from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.bundle.bundle import is_bundle
from opscope.bundle.manifest import device_text
from opscope.core.errors import (
    InconclusiveError,
    MismatchError,
    NotFoundError,
    RegressionError,
    UsageError,
    did_you_mean,
)
from opscope.core.json import from_json
from opscope.core.outputs import write_outputs
from opscope.core.parts import part
from opscope.core.system.memory import file_bytes
from opscope.core.units import counted_text
from opscope.fleet.analysis.history import FigureUnit, Metric, Order, Point, Subject, history
from opscope.fleet.analysis.history_changes import (
    KnownChanges,
    acknowledged,
    common_steps,
    new_for_the_worse,
    seen_since,
    with_known,
)
from opscope.fleet.analysis.history_gate import Predecessors, history_gate
from opscope.fleet.results import HistoryResult
from opscope.fleet.store.place import place_of, store_address
from opscope.fleet.store.querying import ask
from opscope.fleet.stored_bundle import origin_of, read_found
from opscope.fleet.stored_runs import (
    ORDER,
    RUNS,
    RUNTIME,
    SAME_METHOD,
    TRUSTED,
    WHOLE_RUNS,
    RunFilter,
    date_of,
    facts_of_runs,
    filter_text,
    of_methods,
    run_filter,
)
from opscope.machine.clock import SystemClock
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import GateResult
from opscope.measurements.sides import usual_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.bundle.manifest import Manifest, Variant
    from opscope.fleet.analysis.common_moves import CommonMove
    from opscope.fleet.analysis.history import History
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.store.rows import AnalysedBundle
    from opscope.fleet.stored_runs import RunFilter, RunSelection
    from opscope.machine.clock import TimeSource


NOT_KNOWN = "not known"


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
"""Of those that are not times."""
_WHOLE = ("load", "memory")
"""Of those that several methods do not have one by one."""
_PARTS = {
    "category": ("operators", "category", "time_ns"),
    "kind": ("operators", "kind", "time_ns"),
    "backend": ("operators", "backend", "time_ns"),
    "operator": ("operators", "name", "time_ns"),
    "module": ("modules", "path", "total_ns"),
    "kernel": ("kernels", "operator", "time_ns"),
}
_SUBJECT = ", ".join(f"r.{name}" for name in Subject.__struct_fields__)
_SUBJECTS = len(Subject.__struct_fields__)
METRICS = (*_PLAIN, *(f"{name}:NAME" for name in _PARTS))


def stored_history(
    metric: str,
    store: str | Path | None = None,
    *,
    by: str = "date",
    where: RunSelection = "",
    since: str = "",
    known: str | Path | None = None,
) -> HistoryResult:
    """A figure over the runs of a store, one series for each model, device and variant, with changes of level.

    Times and ratios of runs that are graded ``do_not_trust`` are left out, and counted.

    Args:
        metric: ``latency``, ``mean``, ``p90``, ``p95``, ``p99``, ``load``, ``memory``, ``speedup``; or ``category:``,
            ``kind:``, ``backend:``, ``operator:``, ``module:`` or ``kernel:`` and a name.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        by: ``date``, ``commit``, ``version`` (of executorch) or ``version:PACKAGE``.
        where: which runs, as ``KEY=VALUE,...`` or ``{KEY: VALUE}`` with ``model``, ``device``, ``variant``, ``role``,
            ``since``, ``last`` and the other keys of ``opscope history --where``.
        since: only changes that were seen on this date or later; all runs are judged. Empty: all changes.
        known: file of acknowledged changes, which bear their notes; it may be missing.

    Raises:
        UsageError: the metric, the order, the filter or the date is unknown, or the file is no such file.
        NotFoundError: no run fits.
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    order, label = _order(by)
    where = filter_text(where)
    chosen = run_filter(where)
    address = store_address(store)
    shown = Metric(metric, _UNITS.get(metric, FigureUnit.TIME), higher_is_better=metric == "speedup")
    expression, beside, values = _figure(metric)
    trusted = "true" if shown.unit is FigureUnit.SIZE else f"r.{TRUSTED}"
    columns = f"{_SUBJECT}, r.bundle, r.created, r.placed, {label}, CASE WHEN {trusted} THEN {expression} END"
    source = WHOLE_RUNS if metric in _WHOLE else RUNS
    runs = f"(SELECT * FROM {source} {chosen.where}) AS r {beside}"  # noqa: S608 - names of ours; values are bound
    sql = f"SELECT {columns} FROM {runs} WHERE r.kind = 'bundle' ORDER BY r.placed DESC, r.created DESC, r.bundle DESC"  # noqa: S608 - same
    rows = ask(place_of(address), sql, (*chosen.values, *values)).rows
    if not rows:
        hint = "`opscope store list` shows the stored runs"
        raise NotFoundError("no stored run matches", where=where or address, hint=hint)
    known_rows = [row for row in rows if row[-1] is not None]
    if not known_rows:
        hint = "`opscope store query` shows the names in use"
        raise NotFoundError(f"no trustworthy run has the figure {metric}", where=address, hint=hint)
    judged = history(address, shown, order, _newest(known_rows, chosen), len(rows) - len(known_rows))
    marked = judged if known is None else with_known(judged, read_known(Path(known)))
    told = seen_since(marked, date_of(since, "--since", "--since ").isoformat()) if since else marked
    nothing: list[CommonMove] = []
    facts_of = partial(facts_of_runs, place_of(address))
    moves = part("what changes have in common", lambda: common_steps(told, facts_of), nothing)
    return shown_as(HistoryResult, msgspec.structs.replace(told, moves=moves))


def acknowledge_changes(found: History, known: str | Path, note: str, clock: TimeSource | None = None) -> int:
    """Write the changes of a history to the file of acknowledged ones.

    Args:
        found: a history that was found with this file.
        known: the file; made when it is missing.
        note: why they are in order, or what is done about them.
        clock: that says when; None: the machine's.

    Returns:
        How many were added.

    Raises:
        UsageError: the file is there and is no such file.
        StorageError: it cannot be written.
    """
    path, before = Path(known), read_known(Path(known))
    when = (clock or SystemClock()).now().isoformat(timespec="seconds")
    after = acknowledged(found, before, note, when)
    if len(after.changes) > len(before.changes):
        write_outputs({path: msgspec.json.format(msgspec.json.encode(after), indent=1) + b"\n"})
    return len(after.changes) - len(before.changes)


def read_known(path: Path) -> KnownChanges:
    """The acknowledged changes of a file; none where it is missing."""
    if not path.exists():
        return KnownChanges()
    try:
        return from_json(file_bytes(path), KnownChanges)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "`opscope history ... --acknowledge NOTE` writes it"
        raise UsageError(f"not a file of acknowledged changes: {error}", where=path, hint=hint) from error


def check_new_changes(found: History) -> None:
    """Raise when a change for the worse is not acknowledged.

    Raises:
        RegressionError: naming how many there are.
        InconclusiveError: a bug in opscope kept changes of a series from being looked for.
    """
    lost = [one for one in found.series if one.is_lost]
    new = new_for_the_worse(found)
    if new:
        changes = counted_text(len(new), "change")
        hint = "check them; --acknowledge NOTE --known FILE marks them as known"
        raise RegressionError(f"{changes} not acknowledged", where=found.metric.name, hint=hint)
    if lost:
        problem = f"{len(lost)} of {len(found.series)} series are not judged: {lost[0].not_judged}"
        raise InconclusiveError(problem, where=found.metric.name, hint="report the bug; all other series were judged")


def _newest(rows: list[tuple[Any, ...]], chosen: RunFilter) -> list[tuple[Subject, Point]]:
    """Points of all rows, or of the newest ones of each subject, oldest first."""
    counts: dict[Subject, int] = {}
    found = []
    for row in rows:
        subject = Subject(*row[:_SUBJECTS])
        counts[subject] = counts.get(subject, 0) + 1
        if chosen.last is None or counts[subject] <= chosen.last:
            bundle, created, placed, label, value = row[_SUBJECTS:]
            began = created.isoformat(timespec="seconds") if created else ""
            named = NOT_KNOWN if label is None else str(label)
            found.append((subject, Point(bundle, began, named, float(value), placed.isoformat() if placed else "")))
    return found[::-1]


def _order(by: str) -> tuple[Order, str]:
    """What points stand beside each other by, and the label in SQL."""
    name, _, package = by.partition(":")
    if name not in {one.value for one in Order} or (package and name != "version"):
        hint = "date, commit, version or version:PACKAGE"
        raise UsageError(f"unknown order {by!r}", where="--by", hint=hint)
    if name == "version":
        return Order.VERSION, f"json_extract_string(r.versions, '$.{_identifier(package or RUNTIME)}')"
    return Order(name), "r.commit" if name == "commit" else "strftime(r.created, '%Y-%m-%d')"


def _identifier(package: str) -> str:
    if not package.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(f"unknown package {package!r}", where="--by", hint="version:executorch")
    return f'"{package}"'


def _figure(name: str) -> tuple[str, str, tuple[str, ...]]:
    """How the store is asked for a figure: an expression over the runs `r`, a table `f` beside them, its values."""
    if name in _PLAIN:
        return f"r.{_PLAIN[name]}", "", ()
    sort, _, value = name.partition(":")
    if sort not in _PARTS or not value:
        raise UsageError(f"unknown figure {name!r}", where="METRIC", hint=did_you_mean(name, METRICS))
    table, column, time = _PARTS[sort]
    beside = f"LEFT JOIN {of_methods(table, time, f'{column} = ?', 'value')} AS f ON {SAME_METHOD.format('f')}"
    return "f.value", beside, (value,)


HISTORY = "store:"
"""How a baseline that is a history begins; behind it stands a filter."""


def check_history(
    candidate: str | Path,
    against: str,
    *,
    store: str | Path | None = None,
    threshold: float | None = None,
) -> GateResult:
    """Whether a bundle is slower than its stored predecessors, by more than is let through and their scatter explains.

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
    run_filter(text)  # refuses a wrong one before anything is read
    path, _, name = str(candidate).partition("#")
    if not is_bundle(Path(path)):
        raise UsageError("only a bundle can be judged against a history", where=path, hint="give a bundle")
    bundle = read_found(Path(path))
    variant = _variant(bundle, name)
    analysis = bundle.analyses[variant.name]
    place = place_of(store)
    stored = {
        method: _runs(place, _alike(bundle.manifest, variant, method, latency.source, text), bundle)
        for method, (latency, _) in analysis.by_method.items()
    }
    found = {method: rows for method, rows in stored.items() if rows}
    if not found:
        hint = "`opscope store list` shows what is stored; `store:device=NAME` uses runs under another device name"
        hint += "; runs graded do_not_trust do not count"
        raise MismatchError("the store has no comparable run", where=candidate, hint=hint)
    shown = next(iter(found))
    first = [float(row[1]) for row in found[shown]]
    sides = (
        ComparedSide(
            label=f"history of {variant.name}",
            path=f"{HISTORY}{text} in {place.address}",
            headline_ns=sum(first) / len(first),
        ),
        ComparedSide(label=variant.name, path=bundle.source, headline_ns=analysis.by_method[shown][0].median_ns),
    )
    model = bundle.manifest.model_of(variant.name)
    before = {method: _predecessors(place, rows, model.sha256, method) for method, rows in found.items()}
    limit = DEFAULT_THRESHOLD if threshold is None else threshold
    decision = history_gate(analysis, bundle.processes(variant.name), sides, before, threshold=limit, model=model.name)
    return shown_as(GateResult, decision)


def _predecessors(
    place: StoreLocation, rows: Sequence[tuple[Any, ...]], program: str | None, method: str
) -> Predecessors:
    same = [row for row in rows if row[2] == program]
    operators = _operators(place, same, str(rows[0][3]), method)
    return Predecessors(
        [float(row[1]) for row in rows], [str(row[0]) for row in rows], operators, len(rows) - len(same)
    )


def _variant(bundle: AnalysedBundle, name: str) -> Variant:
    manifest = bundle.manifest
    variant = manifest.variant(name) if name else usual_variant(manifest)
    if variant is None:
        hint = did_you_mean(name, (one.name for one in manifest.variants))
        raise NotFoundError(f"the bundle has no variant {name!r}", where=bundle.source, hint=hint)
    if variant.name not in bundle.analyses:
        raise NotFoundError(f"no repetition of {variant.name} succeeded", where=bundle.source)
    return variant


def _alike(manifest: Manifest, variant: Variant, method: str, arm: str, text: str) -> RunFilter:
    """The filter, with what must be the same where it says nothing else."""
    said = {word.partition("=")[0].strip() for word in text.split(",")}
    same: dict[str, Any] = {
        "model": manifest.model_of(variant.name).name,
        "dtype": manifest.model_of(variant.name).dtype,
        "device": device_text(manifest),
        "target": manifest.target.kind,
        "variant": variant.name,
        "threads": variant.threads,
        "affinity": " ".join(map(str, variant.affinity)),
        "arm": arm,
    }
    chosen = run_filter(text).also("method", method or None)
    for column, value in same.items():
        if column not in said:
            chosen = chosen.also(column, value)
    return chosen


def _runs(place: StoreLocation, chosen: RunFilter, bundle: AnalysedBundle) -> Sequence[tuple[Any, ...]]:
    """Bundle, latency, program and variant of the runs that fit and can be trusted, oldest first; without itself."""
    itself = ask(place, "SELECT bundle FROM bundles WHERE origin = ?", [origin_of(bundle.manifest)]).rows
    own = {row[0] for row in itself} | {bundle.bundle}
    sql = (
        f"SELECT bundle, latency_ns, program_sha256, variant FROM {RUNS} {chosen.where} AND {TRUSTED} ORDER BY {ORDER}"  # noqa: S608 - names of ours; values are bound
    )
    rows = [row for row in ask(place, sql, chosen.values).rows if row[0] not in own and row[1]]
    return rows[-chosen.last :] if chosen.last else rows


def _operators(
    place: StoreLocation, rows: Sequence[tuple[Any, ...]], variant: str, method: str
) -> dict[tuple[str, int | None, int | None, str], dict[str, float]]:
    """Times of the operators of some runs, by place and bundle; of one of several methods for a call of it."""
    operators: dict[tuple[str, int | None, int | None, str], dict[str, float]] = {}
    if rows:
        same = "m.bundle = o.bundle AND m.variant = o.variant AND m.method = o.method"
        where = "WHERE o.variant = ? AND o.bundle IN (SELECT unnest(?)) AND coalesce(m.method, '') = ?"
        columns = "o.method, o.instruction, o.position, o.name, o.bundle, o.time_ns / coalesce(m.calls_share, 1)"
        sql = f"SELECT {columns} FROM operators o LEFT JOIN methods m ON {same} {where}"  # noqa: S608 - same
        for *at, bundle, time_ns in ask(place, sql, (variant, [row[0] for row in rows], method)).rows:
            operators.setdefault((at[0], at[1], at[2], at[3]), {})[bundle] = float(time_ns)
    return operators
