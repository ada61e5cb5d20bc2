"""Questions to a store in SQL: DuckDB on its files, through one view a table."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, TraceFormatError, UsageError
from opscope.fleet.store.log import snapshot
from opscope.fleet.store.place import EXTRA
from opscope.fleet.store.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

    from opscope.fleet.store.log import Snapshot, StorePart
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.store.schema import Table

_MEMORY = "1GB"
_HINT = "the views and their columns: `opscope store views`"
_PARQUET = re.compile(r"magic bytes|parquet", re.IGNORECASE)
"""How errors of DuckDB tell that a file is no Parquet file, whatever their kind."""
_TRIES = 3


class QueryResult:
    """What a query gave.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        rows: cells in the order of the columns.
    """

    def __init__(self, columns: list[str], types: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self.types, self.rows = columns, types, rows


def ask(place: StoreLocation, sql: str, values: Sequence[Any] = ()) -> QueryResult:
    """The answer to one query.

    Args:
        place: of the store.
        sql: one SELECT (or WITH, DESCRIBE, SUMMARIZE, EXPLAIN) over the views; ``?`` stands for a value.
        values: of the question marks.

    Raises:
        UsageError: it is wrong, or no query.
        TraceFormatError: a file of the store is missing or damaged.
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(_MissingFileError):
            return _asked(place, sql, values)  # a file may be compacted while it is asked for
    return _asked(place, sql, values)


class _MissingFileError(TraceFormatError):
    """A file that a snapshot names is not there."""


def _asked(place: StoreLocation, sql: str, values: Sequence[Any]) -> QueryResult:
    duckdb = _duckdb()
    with connected(place, snapshot(place), sql) as connection:
        try:
            kinds = [statement.type.name for statement in connection.extract_statements(sql)]
            if len(kinds) != 1 or kinds[0] not in {"SELECT", "EXPLAIN"}:
                raise UsageError("a store answers one query at a time, and changes nothing", where="SQL", hint=_HINT)
            connection.execute(sql, list(values))
            described = connection.description or []
            return QueryResult([c[0] for c in described], [str(c[1]) for c in described], connection.fetchall())
        except duckdb.Error as error:
            if isinstance(error, duckdb.IOException) or _PARQUET.search(str(error)):
                raise _damage(place, error) from error
            raise UsageError(_first_line(error), where="SQL", hint=_HINT) from error


@contextlib.contextmanager
def connected(place: StoreLocation, now: Snapshot, sql: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees the views which a query names, and no other file."""
    duckdb = _duckdb()
    connection = duckdb.connect(config={"memory_limit": _MEMORY})
    try:
        if place.file_system() is not None:
            connection.register_filesystem(place.file_system())
        parts = now.parts()
        for table in TABLES.values():
            if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE):
                connection.execute(f"CREATE VIEW {table.name} AS {_select(place, table, parts)}")
        connection.execute(f"SET allowed_directories = [{_text(place.url(''))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    except duckdb.Error as error:
        raise _damage(place, error) from error
    finally:
        connection.close()


def _select(place: StoreLocation, table: Table, parts: Sequence[StorePart]) -> str:
    """The rows of a table that count, from all files that have some."""
    groups: dict[frozenset[str], list[str]] = {}
    for part in parts:
        paths = [place.url(file.path) for file in part.files if file.table == table.name]
        if paths:
            groups.setdefault(part.without, []).extend(paths)
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    if not groups:
        empty = ", ".join(f'NULL::{column.type.sql} AS "{column.name}"' for column in table.columns)
        return f"SELECT {empty} WHERE false"
    return " UNION ALL ".join(
        f"SELECT {columns} FROM read_parquet([{', '.join(map(_text, paths))}])"  # noqa: S608 - quoted
        + (f" WHERE bundle NOT IN ({', '.join(map(_text, sorted(without)))})" if without else "")
        for without, paths in groups.items()
    )


def _text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def _damage(place: StoreLocation, error: Exception) -> TraceFormatError:
    hint = "`opscope store verify` names every file that is missing or damaged"
    missing = "No files found" in str(error) or "No such file" in str(error) or "not found" in str(error).lower()
    kind = _MissingFileError if missing else TraceFormatError
    return kind(f"a file of the store cannot be read: {_first_line(error)}", where=place.address, hint=hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _duckdb() -> Any:  # noqa: ANN401 - the module, which may be absent
    try:
        import duckdb
    except ImportError:
        raise MissingDependencyError("duckdb is not installed", where="store", hint=EXTRA) from None
    return duckdb
