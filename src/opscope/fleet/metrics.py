"""What dashboards keep of a store: the newest run of each series, as OpenMetrics text.

Families and labels are those of a bundle's own metrics, with the number type beside them, since a store holds a model
in several. Samples have no time, which collectors that read files refuse; when a run began is a figure of its own.
"""

from __future__ import annotations

from datetime import timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.analysis.findings.message import Grade
from opscope.core.errors import NotFoundError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.fleet.store.place import place_of
from opscope.fleet.store.querying import ask
from opscope.fleet.stored_runs import ORDER, RUNS, RUNTIME, run_filter
from opscope.reports.formats.openmetrics import FAMILIES, Family, Sample, exposition, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NANO = 1e9
_STARTED = Family("opscope_run_start_seconds", "gauge", "seconds", "When the run began, since 1970 in UTC.")
_SERIES = ("model", "device", "target", "cpu", "variant", "method", "role", "threads", "dtype")
"""Columns that tell series apart, and labels of every sample."""
_ABOUT = ("commit", "program_sha256", "system", "machine", "executorch", "opscope", "status", "bundle")
"""Columns that are labels of `opscope_measurement` alone."""
_FIGURES = (
    *("arm", "created", "processes", "latency_ns", "ci_low_ns", "ci_high_ns", "p90_ns", "p95_ns", "p99_ns"),
    *("memory_bytes", "load_ns", "baseline", "speedup", "speedup_low", "speedup_high", "verdict", "grade"),
)
_EXPRESSIONS = {"executorch": f"versions->>'{RUNTIME}'"}
"""Of what is no column as it is."""


class _Run(NamedTuple):
    """The newest run of a series."""

    labels: dict[str, str]
    about: dict[str, str]
    figures: dict[str, Any]


def store_metrics(where: str = "", store: str | Path | None = None) -> bytes:
    """The metrics of the newest run of each series of a store.

    Args:
        where: which runs, as of :func:`opscope.stored_history`; empty: all.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.

    Raises:
        NotFoundError: there is no store, or no run in it fits.
        UsageError: the filter is wrong.
        OpscopeError: of the kind that fits when the store cannot be read.
    """
    chosen = run_filter(where).also("kind", "bundle")
    if chosen.last is not None:
        raise UsageError("metrics are of the newest run of each series", where="last", hint="leave it out")
    columns = ", ".join(_EXPRESSIONS.get(name, f'"{name}"') for name in (*_SERIES, *_ABOUT, *_FIGURES))
    series = ", ".join(f'"{name}"' for name in _SERIES)
    newest = ", ".join(f"{name.strip()} DESC" for name in ORDER.split(","))
    sql = (
        f"SELECT {columns} FROM {RUNS} {chosen.where} "  # noqa: S608 - names of ours
        f"QUALIFY row_number() OVER (PARTITION BY {series} ORDER BY {newest}) = 1 ORDER BY {series}"
    )
    place = place_of(store)
    rows = ask(place, sql, list(chosen.values)).rows
    if not rows:
        raise NotFoundError("no run fits", where=place.address, hint="`opscope store list` shows what is stored")
    every = [sample for row in rows for sample in _samples(_run(row))]
    samples = list({(one.family, one.suffix, *sorted(one.labels.items())): one for one in every}.values())
    return exposition(samples, (*FAMILIES, _STARTED))


def _run(row: tuple[Any, ...]) -> _Run:
    cells = dict(zip((*_SERIES, *_ABOUT, *_FIGURES), row, strict=True))
    labels, about = ({name: _label(cells[name]) for name in names} for names in (_SERIES, _ABOUT))
    if not labels["method"]:
        del labels["method"]  # all calls are of one
    return _Run(labels, about, {name: cells[name] for name in _FIGURES})


def _label(value: object) -> str:
    return "" if value is None else str(value)


def _samples(run: _Run) -> Iterator[Sample]:
    figures, arm = run.figures, run.labels | {"arm": _label(run.figures["arm"])}
    whole = {name: text for name, text in run.labels.items() if name != "method"}  # of the process, whatever it called
    yield Sample("opscope_measurement", run.labels | run.about, 1, "_info")
    yield Sample(_STARTED.name, run.labels, figures["created"].replace(tzinfo=timezone.utc).timestamp())
    for quantile, name in (("0.5", "latency_ns"), ("0.9", "p90_ns"), ("0.95", "p95_ns"), ("0.99", "p99_ns")):
        if figures[name] is not None:
            yield Sample("opscope_latency_seconds", arm | {"quantile": quantile}, figures[name] / _NANO)
    known = (
        ("opscope_median_latency_seconds", "latency_ns", arm, _NANO),
        ("opscope_median_bound_seconds", "ci_low_ns", arm | {"bound": "lower"}, _NANO),
        ("opscope_median_bound_seconds", "ci_high_ns", arm | {"bound": "upper"}, _NANO),
        ("opscope_processes", "processes", arm, 1),
        ("opscope_peak_memory_bytes", "memory_bytes", whole, 1),
        ("opscope_load_seconds", "load_ns", whole, _NANO),
    )
    yield from (Sample(family, own, figures[name] / by) for family, name, own, by in known if figures[name] is not None)
    yield from _judged(run)


def _judged(run: _Run) -> Iterator[Sample]:
    """The comparison with the baseline of its own bundle, and how far to trust both."""
    figures = run.figures
    labels = {name: text for name, text in run.labels.items() if name not in {"variant", "role"}}
    labels |= {"candidate": run.labels["variant"], "baseline": _label(figures["baseline"])}
    known = (
        ("opscope_speedup_ratio", "speedup", labels),
        ("opscope_speedup_bound_ratio", "speedup_low", labels | {"bound": "lower"}),
        ("opscope_speedup_bound_ratio", "speedup_high", labels | {"bound": "upper"}),
    )
    yield from (Sample(family, own, figures[name]) for family, name, own in known if figures[name] is not None)
    if figures["verdict"]:
        yield from states("opscope_verdict", labels, Verdict, Verdict(figures["verdict"]))
    if figures["grade"]:
        yield from states("opscope_quality", run.labels, Grade, Grade(figures["grade"]))
