"""Which runs of a store are meant, by filters of a few words, and what a store knows of a run beside its times."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from opscope.analysis.findings.message import Grade
from opscope.core.errors import UsageError, did_you_mean
from opscope.fleet.analysis.common_moves import FACTS, OBJECTS, run_facts
from opscope.fleet.store.querying import ask
from opscope.fleet.store.rows import moment
from opscope.fleet.store.schema import METHOD_FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from opscope.fleet.analysis.common_moves import FactsOfRuns, RunFacts
    from opscope.fleet.store.place import StoreLocation


RunSelection: TypeAlias = str | Mapping[str, str | int]
"""Which runs: ``KEY=VALUE,...``, or values by key."""
_FIGURE = "CASE WHEN m.method IS NULL THEN r.{0} ELSE m.{0} END"
_COLUMNS = (
    *("model", "device", "variant", "method", "role", "dtype", "threads", "target"),
    *("commit", "opscope", "arm", "bundle"),
)
_OTHERS = ("version", "since", "until", "last")
KEYS = (*_COLUMNS, *_OTHERS)
_NEXT = re.compile(rf",\s*(?=(?:{'|'.join(KEYS)}|[A-Za-z_]+)=)")
ORDER = "placed, created, bundle"
"""Oldest first: by when runs were added, and those that were added together by their own clocks."""
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
"""Columns of ``runs`` that facts are taken from."""


_FIGURES = ", ".join(f"{_FIGURE.format(name)} AS {name}" for name in sorted(METHOD_FIGURES))
RUNS = (
    f"(SELECT r.* REPLACE ({_FIGURES}), m.method "  # noqa: S608 - names of ours
    "FROM runs AS r LEFT JOIN methods AS m ON m.bundle = r.bundle AND m.variant = r.variant)"
)
"""SQL: the runs, those of several methods as a run of each method with its own figures."""
WHOLE_RUNS = "(SELECT *, NULL::VARCHAR AS method FROM runs)"
"""SQL: the same for figures that a method has no part of: each run once, of no method."""


SAME_METHOD = "{0}.bundle = r.bundle AND {0}.variant = r.variant AND {0}.method IS NOT DISTINCT FROM r.method"
"""SQL: whether a row of :func:`of_methods` belongs to a run of ``RUNS``."""


def of_methods(table: str, time: str, condition: str, name: str) -> str:
    """SQL: sums of times of a table's rows by bundle, variant and method, for a call of the method as in ``RUNS``."""
    return (
        f"(SELECT t.bundle, t.variant, m.method, sum(t.{time}) / coalesce(any_value(m.calls_share), 1) AS {name} "  # noqa: S608 - names of ours
        f"FROM {table} AS t LEFT JOIN methods AS m ON m.bundle = t.bundle AND m.variant = t.variant "
        f"AND m.method = t.method WHERE t.{condition} GROUP BY ALL)"
    )


class RunFilter(NamedTuple):
    """Which runs are meant."""

    conditions: tuple[str, ...] = ()  # SQL over `RUNS`, each with a question mark for its value
    values: tuple[Any, ...] = ()  # of the question marks
    last: int | None = None  # only so many, the newest ones; None: all

    @property
    def where(self) -> str:
        """As a WHERE clause, empty without conditions."""
        return f"WHERE {' AND '.join(self.conditions)}" if self.conditions else ""

    def also(self, column: str, value: object) -> RunFilter:
        """With one more condition by a key; of a column null is equal to null."""
        condition = _CONDITIONS.get(column, f'"{column}" IS NOT DISTINCT FROM ?')
        return self._replace(conditions=(*self.conditions, condition), values=(*self.values, value))


def filter_text(where: RunSelection) -> str:
    """A filter as text, also one that is given by key and value, such as ``{"device": "Pixel 8", "last": 30}``.

    Raises UsageError: it is neither, or a value cannot stand in a filter; the hint has the text to write.
    """
    if isinstance(where, str):
        return where
    if not isinstance(where, Mapping):
        hint = 'write where="device=NAME,last=30" or where={"device": "NAME", "last": 30}'
        raise UsageError(f"{type(where).__name__} is not a filter", where="where", hint=hint)
    text = ",".join(f"{key}={value}" for key, value in where.items())
    for key, value in where.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            hint = f'values are text or whole numbers: where="{text}"'
            raise UsageError(f"{key}={value!r} is not a filter", where="where", hint=hint)
        if _NEXT.search(f"{value}"):
            hint = "choose by another key"
            raise UsageError(f"{value!r} cannot be told from two filters", where=f"where, {key}", hint=hint)
    return text


def run_filter(text: str) -> RunFilter:
    """The filter that a text such as ``device=Pixel 8,since=2026-01-01,last=30`` means.

    A comma belongs to a value unless a key and ``=`` follow it.
    """
    found = RunFilter()
    for part in filter(None, (word.strip() for word in _NEXT.split(text))):
        key, equals, value = part.partition("=")
        if not equals or key not in KEYS:
            raise UsageError(
                f"unknown filter {part!r}", where="filter", hint=f"KEY=VALUE,...; {did_you_mean(key, KEYS)}"
            )
        found = _with(found, key, value.strip())
    return found


def _with(found: RunFilter, key: str, value: str) -> RunFilter:
    if key == "last":
        return found._replace(last=_number(key, value))
    if key == "threads":
        return found.also(key, _number(key, value))
    dated = key in {"since", "until"}
    return found.also(key, date_of(value, f"filter, {key}", f"{key}=") if dated else value)


def _number(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(
            f"{value!r} is not a positive whole number", where=f"filter, {key}", hint=f"for example {key}=4"
        )
    return int(value)


def date_of(text: str, where: str, before: str) -> datetime:
    """The moment that a user named, in UTC without a zone; what stands before it is of the hint."""
    found = moment(text)
    if found is None:
        raise UsageError(f"{text!r} is not a date", where=where, hint=f"{before}2026-01-31")
    return found


def names_of_machines(place: StoreLocation) -> dict[tuple[str | None, ...], str]:
    """What machines that ran more than once are called in a store, by host, CPU and architecture."""
    sql = (
        "SELECT host, cpu, machine, arg_max(device, placed) FROM runs WHERE host IS NOT NULL "
        "GROUP BY ALL HAVING count(DISTINCT bundle) > 1"
    )
    return {(host, cpu, machine): name for host, cpu, machine, name in ask(place, sql).rows}


def facts_of_runs(place: StoreLocation, bundles: Sequence[str]) -> FactsOfRuns:
    """The facts of the runs of some bundles, by bundle and variant."""
    columns = ", ".join(f'"{name}"::VARCHAR' for name in _FACT_COLUMNS)
    sql = f"SELECT bundle, variant, {columns} FROM runs WHERE bundle IN (SELECT unnest(?))"  # noqa: S608 - names of ours
    return {(row[0], row[1]): _facts(tuple(row[2:])) for row in ask(place, sql, [list(bundles)]).rows}


@functools.lru_cache(maxsize=4096)
def _facts(values: tuple[str | None, ...]) -> RunFacts:
    """The facts of a run by the values of its columns; runs of one night mostly have the same."""
    return run_facts(dict(zip(_FACT_COLUMNS, values, strict=True)))
