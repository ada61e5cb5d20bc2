"""Questions to a store in SQL: DuckDB on the files of a version, through one view a table."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, NotFoundError, TraceFormatError, UsageError
from opscope.fleet.store.log import snapshot
from opscope.fleet.store.place import EXTRA
from opscope.fleet.store.schema import EVERY, REPLACED, read_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

    from opscope.fleet.store.log import Snapshot
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.store.schema import Table

MEMORY = "1GB"
"""What DuckDB may take."""
_HINT = "the views and their columns: `opscope store views`"
_PARQUET = re.compile(r"magic bytes|parquet", re.IGNORECASE)
"""How errors of DuckDB tell that a file is not Parquet file, whatever their kind."""
_TRIES = 3
_FETCHED = 10_000
"""Rows that are held at once while an answer is passed on."""


class QueryAnswer:
    """What a query gave.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        rows: cells in the order of the columns.
    """

    def __init__(self, columns: list[str], types: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self.types, self.rows = columns, types, rows


class QueryStream:
    """What a query gives, a part at a time.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        cut: whether more rows were there than were to be given; known when all parts were taken.
    """

    def __init__(self, place: StoreLocation, running: duckdb.DuckDBPyConnection, limit: int | None) -> None:
        described = running.description or []
        self.columns, self.types = [c[0] for c in described], [str(c[1]) for c in described]
        self.cut = False
        self._place, self._running, self._limit = place, running, limit

    def parts(self) -> Iterator[list[tuple[Any, ...]]]:
        """Rows, some thousands at a time.

        Raises:
            UsageError: a value cannot be computed.
            TraceFormatError: a file of the store is missing or damaged.
        """
        left = self._limit
        while left is None or left > 0:
            part = self._fetched(_FETCHED if left is None else min(_FETCHED, left))
            if not part:
                return
            left = None if left is None else left - len(part)
            yield part
        self.cut = bool(self._fetched(1))

    def _fetched(self, count: int) -> list[tuple[Any, ...]]:
        with query_errors(self._place):
            return list(self._running.fetchmany(count))


def ask(place: StoreLocation, sql: str, values: Sequence[Any] = ()) -> QueryAnswer:
    """The whole answer to one query.

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
        with contextlib.suppress(_MissingFileError):  # a removal deletes files while they are asked for
            return ask_snapshot(place, snapshot(place), sql, values)
    return ask_snapshot(place, snapshot(place), sql, values)


def ask_snapshot(place: StoreLocation, now: Snapshot, sql: str, values: Sequence[Any] = ()) -> QueryAnswer:
    """The answer of one version of a store; see :func:`ask`."""
    with streamed(place, now, sql, values) as stream:
        return QueryAnswer(stream.columns, stream.types, [row for part in stream.parts() for row in part])


@contextlib.contextmanager
def streamed(
    place: StoreLocation, now: Snapshot, sql: str, values: Sequence[Any] = (), limit: int | None = None
) -> Iterator[QueryStream]:
    """The answer of one version of a store, a part at a time; see :func:`ask`.

    Args:
        place: of the store.
        now: the version.
        sql: see :func:`ask`.
        values: see :func:`ask`.
        limit: at most so many rows; None: all.
    """
    with _kept(place, now), connected(place, now, sql) as connection:
        with query_errors(place):
            kinds = [statement.type.name for statement in connection.extract_statements(sql)]
            if len(kinds) != 1 or kinds[0] not in {"SELECT", "EXPLAIN"}:
                raise UsageError("a store answers one query at a time, and changes nothing", where="SQL", hint=_HINT)
            connection.execute(sql, list(values))
        yield QueryStream(place, connection, limit)


@contextlib.contextmanager
def query_errors(place: StoreLocation) -> Iterator[None]:
    """Tell mistakes in a query from files that cannot be read.

    Raises:
        UsageError: the query is wrong.
        TraceFormatError: a file of the store is missing or damaged.
    """
    duckdb = duckdb_module()
    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException) or _PARQUET.search(str(error)):
            raise _damage(place, error) from error
        raise UsageError(_first_line(error), where="SQL", hint=_HINT) from error


@contextlib.contextmanager
def connected(place: StoreLocation, now: Snapshot, sql: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees the views which a query names, and no other file."""
    duckdb = duckdb_module()
    connection = duckdb.connect(config={"memory_limit": MEMORY})
    try:
        if place.file_system() is not None:
            connection.register_filesystem(place.file_system())
        try:
            for table in EVERY.values():
                if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE):
                    connection.execute(f"CREATE VIEW {table.name} AS {_select(place, table, now)}")
            connection.execute(f"SET allowed_directories = [{quoted(place.url(''))}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            raise _damage(place, error) from error
        yield connection
    finally:
        connection.close()


def parquet_of(place: StoreLocation, paths: Sequence[str], options: str = "") -> str:
    """Some files of a store as a table of SQL."""
    return f"read_parquet([{', '.join(quoted(place.url(path)) for path in paths)}], hive_partitioning = false{options})"


def quoted(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def duckdb_module() -> Any:  # noqa: ANN401 - the module, which may be absent
    """The package duckdb.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingDependencyError("duckdb is not installed", where="store", hint=EXTRA) from None
    return duckdb


def _select(place: StoreLocation, table: Table, now: Snapshot) -> str:
    """The rows of a table that count, from all files that have some."""
    paths = [file.path for file in now.of(table.name)]
    if not paths:
        empty = ", ".join(f'NULL::{column.type.sql} AS "{column.name}"' for column in table.columns)
        return f"SELECT {empty} WHERE false"
    rows = f"SELECT {read_as(table)} FROM {parquet_of(place, paths)}"  # noqa: S608 - names of ours, quoted paths
    replaced = [file.path for file in now.of(REPLACED.name)]
    if not replaced or table is REPLACED:
        return rows
    return f"{rows} WHERE bundle NOT IN (SELECT bundle FROM {parquet_of(place, replaced)})"  # noqa: S608 - likewise


class _MissingFileError(TraceFormatError):
    """A file that a snapshot names is not there."""


@contextlib.contextmanager
def _kept(place: StoreLocation, now: Snapshot) -> Iterator[None]:
    """Say of an earlier version that its files are not kept any more.

    Raises:
        NotFoundError: likewise.
    """
    try:
        yield
    except _MissingFileError as error:
        if not now.past:
            raise
        hint = "files are kept for a week after they were compacted, and until a bundle is removed"
        raise NotFoundError(
            f"the files of version {now.version} are deleted", where=place.address, hint=hint
        ) from error


def _damage(place: StoreLocation, error: Exception) -> TraceFormatError:
    hint = "`opscope store verify` names every file that is missing or damaged"
    missing = "No files found" in str(error) or "No such file" in str(error) or "not found" in str(error).lower()
    kind = _MissingFileError if missing else TraceFormatError
    return kind(f"a file of the store cannot be read: {_first_line(error)}", where=place.address, hint=hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
