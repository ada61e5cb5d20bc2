"""Runs of a store: chosen by filters of a few words, read as series by one query, and what is known of each run."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from opscope.analysis.findings.message import Grade
from opscope.core.errors import UsageError, did_you_mean
from opscope.fleet.analysis.causes import FACTS, OBJECTS, make_facts
from opscope.fleet.analysis.changes import SeriesRuns, Subject
from opscope.fleet.store.schema import METHOD_FIGURES, RUN_ORDER, parse_moment
from opscope.fleet.store.sql import ask_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from opscope.fleet.analysis.causes import RunFacts
    from opscope.fleet.store.table import Snapshot

RunSelection: TypeAlias = str | Mapping[str, str | int]
"""Which runs: ``KEY=VALUE,...``, or values by key."""
_COLUMNS = (
    *("model", "device", "variant", "method", "role", "dtype", "threads", "target"),
    *("commit", "opscope", "arm", "bundle"),
)
KEYS = (*_COLUMNS, "version", "since", "until", "last")
_NEXT = re.compile(rf",\s*(?=(?:{'|'.join(KEYS)}|[A-Za-z_]+)=)")
TRUSTED = f"latency_grade IS DISTINCT FROM '{Grade.DO_NOT_TRUST.value}'"
"""SQL: whether times of a run may be judged, or other runs be judged by them."""
RUNTIME = "executorch"
"""The package whose version is meant by `version`."""
_CONDITIONS = {
    "since": "created >= ?",
    "until": "created <= ?",
    "version": f"versions->>'{RUNTIME}' = ?",
    "bundle": "bundle LIKE ? || '%'",
}
"""Keys that do not mean a column as it is."""
_FACT_COLUMNS = (*FACTS, *OBJECTS)
_FIGURES = ", ".join(
    f"CASE WHEN m.method IS NULL THEN r.{name} ELSE m.{name} END AS {name}" for name in sorted(METHOD_FIGURES)
)
RUNS = (
    f"(SELECT r.* REPLACE ({_FIGURES}), m.method "  # noqa: S608 - names of ours
    "FROM runs AS r LEFT JOIN methods AS m ON m.bundle = r.bundle AND m.variant = r.variant)"
)
"""SQL: the runs, those of several methods as a run of each method with its own figures."""
WHOLE_RUNS = "(SELECT *, NULL::VARCHAR AS method FROM runs)"
"""SQL: the runs for figures that a method has no part of: each once, of no method."""
_NOT_KNOWN = "not known"
ISO = "%Y-%m-%dT%H:%M:%S"
"""Format of moments for ``strftime``."""


class RunFilter(NamedTuple):
    """Which runs are meant."""

    text: str = ""  # as a user writes it
    conditions: tuple[str, ...] = ()  # SQL over `RUNS`, each with a question mark for its value
    values: tuple[Any, ...] = ()  # of the question marks
    last: int | None = None  # only so many, the newest ones; None: all

    @property
    def where(self) -> str:
        """The filter as a WHERE clause, empty without conditions."""
        return f"WHERE {' AND '.join(self.conditions)}" if self.conditions else ""

    def add_condition(self, column: str, value: object) -> RunFilter:
        """Return the filter with one more condition by a key; of a column null is equal to null."""
        condition = _CONDITIONS.get(column, f'"{column}" IS NOT DISTINCT FROM ?')
        return self._replace(conditions=(*self.conditions, condition), values=(*self.values, value))


def parse_filter(where: RunSelection) -> RunFilter:
    """Return the filter that ``device=Pixel 8,last=30`` or ``{"device": "Pixel 8", "last": 30}`` means.

    In a text a comma belongs to a value unless a key and ``=`` follow it. Raises UsageError for what is no filter.
    """
    pairs, run_filter = _split_filter(where), RunFilter()
    for key, value in pairs:
        if key not in KEYS:
            hint = f"KEY=VALUE,...; {did_you_mean(key, KEYS)}"
            raise UsageError(f"unknown filter {key!r}", where="filter", hint=hint)
        if isinstance(value, bool) or not isinstance(value, str | int):
            hint = f"write {key}=VALUE; a value is a text or a whole number"
            raise UsageError(f"{key} has no value that fits: {value!r}", where="filter", hint=hint)
        if key in {"last", "threads"} and (not f"{value}".isdecimal() or int(value) < 1):
            hint = f"for example {key}=4"
            raise UsageError(f"{value!r} is not a positive whole number", where=f"filter, {key}", hint=hint)
        if key == "last":
            run_filter = run_filter._replace(last=int(value))
        elif key in {"since", "until"}:
            run_filter = run_filter.add_condition(key, parse_date(f"{value}", f"filter, {key}", f"{key}="))
        else:
            run_filter = run_filter.add_condition(key, int(value) if key == "threads" else f"{value}")
    return run_filter._replace(text=where if isinstance(where, str) else ",".join(f"{k}={v}" for k, v in pairs))


def _split_filter(where: RunSelection) -> list[tuple[str, Any]]:
    """Return the keys of a filter with their values; None for a value that is missing."""
    if isinstance(where, Mapping):
        return list(where.items())
    if not isinstance(where, str):
        hint = 'write where="device=NAME,last=30" or where={"device": "NAME", "last": 30}'
        raise UsageError(f"{type(where).__name__} is not a filter", where="where", hint=hint)
    words = [text.partition("=") for text in _NEXT.split(where) if text.strip()]
    return [(key.strip(), value.strip() if equals else None) for key, equals, value in words]


def parse_date(text: str, where: str, before: str) -> datetime:
    """Return the moment that a user named, in UTC without a zone; what stands before it is of the hint."""
    moment = parse_moment(text)
    if moment is None:
        raise UsageError(f"{text!r} is not a date", where=where, hint=f"{before}2026-01-31")
    return moment


class FigureQuery(NamedTuple):
    """How the store is asked for a figure."""

    expression: str = "r.latency_ns"  # SQL over the runs `r`
    beside: str = ""  # SQL of a table beside the runs
    values: tuple[str, ...] = ()  # of its question marks
    source: str = RUNS  # SQL of the runs
    is_trusted_only: bool = True  # whether runs that are graded do_not_trust are left out
    higher_is_better: bool = False
    label: str | None = None  # SQL of what readers know a run by; None: its day


def read_series(snapshot: Snapshot, run_filter: RunFilter, query: FigureQuery | None = None) -> list[SeriesRuns]:
    """Return the series of the runs that a filter chooses, by one query; None: of their latency."""
    query = query or FigureQuery()
    subject = ", ".join(f"r.{name}" for name in Subject.__struct_fields__)
    order = ", ".join(f"r.{name}" for name in RUN_ORDER.split(", "))
    usable = f"({query.expression}) IS NOT NULL"
    usable += f" AND r.{TRUSTED}" if query.is_trusted_only else ""
    newest = f"[-{run_filter.last}:]" if run_filter.last else ""
    began = f"CASE WHEN r.created IS DISTINCT FROM r.placed THEN coalesce(strftime(r.created, '{ISO}'), '') END"
    cells = {
        "value": query.expression,
        "bundle": "r.bundle",
        "placed": f"strftime(r.placed, '{ISO}')",
        "label": f"coalesce({query.label}, '{_NOT_KNOWN}')" if query.label else "NULL",
        "created": began,
    }
    pack = ", ".join(f"{name} := {cell}" for name, cell in cells.items())  # one list is sorted, and then taken apart
    lists = ", ".join(f"[run.{name} FOR run IN runs_in_order]" for name in cells)
    omitted = (
        f"count(*) FILTER (NOT ({usable})), coalesce(max(strftime(r.placed, '{ISO}')) FILTER (NOT ({usable})), '')"
    )
    grouped = (
        f"SELECT {subject}, coalesce(list(struct_pack({pack}) ORDER BY {order}) FILTER ({usable}), []){newest} "  # noqa: S608 - names of ours; values are bound
        f"AS runs_in_order, {omitted} FROM (SELECT * FROM {query.source} {run_filter.where}) AS r "
        f"{query.beside} WHERE r.kind = 'bundle' GROUP BY ALL ORDER BY ALL"
    )
    sql = f"SELECT {lists}, * EXCLUDE runs_in_order FROM ({grouped})"  # noqa: S608 - as above
    series = []
    for values, bundles, placed, label_cells, created, *facts, untrusted, newest_untrusted in ask_snapshot(
        snapshot, sql, (*run_filter.values, *query.values)
    ):
        labels = (
            label_cells if query.label else [intern(moment[:10]) for moment in placed]
        )  # each day once in the memory
        figures, direction = np.array(values, np.float64), query.higher_is_better
        runs = SeriesRuns(Subject(*facts), figures, bundles, placed, labels, direction, created)
        series.append(runs._replace(untrusted=untrusted, newest_untrusted=newest_untrusted))
    return series


def sum_by_method(table: str, time: str, condition: str) -> str:
    """Return SQL for sums of times of a table's rows by bundle, variant and method, for a call as in ``RUNS``."""
    return (
        f"(SELECT t.bundle, t.variant, m.method, sum(t.{time}) / coalesce(any_value(m.calls_share), 1) AS value "  # noqa: S608 - names of ours
        f"FROM {table} AS t LEFT JOIN methods AS m ON m.bundle = t.bundle AND m.variant = t.variant "
        f"AND m.method = t.method WHERE t.{condition} GROUP BY ALL)"
    )


def find_machine_names(snapshot: Snapshot) -> dict[tuple[str | None, ...], str]:
    """Return what machines that ran more than once are called in a store, by host, CPU and architecture."""
    sql = (
        "SELECT host, cpu, machine, arg_max(device, placed) FROM runs WHERE host IS NOT NULL "
        "GROUP BY ALL HAVING count(DISTINCT bundle) > 1"
    )
    return {(host, cpu, machine): name for host, cpu, machine, name in ask_snapshot(snapshot, sql)}


def read_facts(snapshot: Snapshot, bundles: Collection[str]) -> dict[tuple[str, str], RunFacts]:
    """Return the facts of the runs of some bundles, by bundle and variant."""
    columns = ", ".join(f'"{name}"::VARCHAR' for name in _FACT_COLUMNS)
    sql = f"SELECT bundle, variant, {columns} FROM runs WHERE bundle IN (SELECT unnest(?))"  # noqa: S608 - names of ours
    rows = ask_snapshot(snapshot, sql, [sorted(bundles)]) if bundles else []
    return {(bundle, variant): _facts_of_cells(tuple(cells)) for bundle, variant, *cells in rows}


@functools.lru_cache(maxsize=4096)
def _facts_of_cells(values: tuple[str | None, ...]) -> RunFacts:
    """Return the facts of a run by the values of its columns; runs of one night mostly have the same."""
    return make_facts(dict(zip(_FACT_COLUMNS, values, strict=True)))
