"""Questions to a store in SQL: DuckDB on the files of a version, through one view a table.

A query cannot write, for three reasons that do not rest on each other: DuckDB's own parser must find nothing in it but
queries; DuckDB may open no file but those of ``OnlyReading``; and that gives the files of the views, to read.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tempfile
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, NotFoundError, OpscopeError, TraceFormatError, UsageError
from opscope.core.install import install_command
from opscope.fleet.store.log import snapshot
from opscope.fleet.store.schema import EVERY, REPLACED, STORED, Type, read_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import duckdb

    from opscope.fleet.store.log import File, Snapshot
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.store.schema import Table

MEMORY = "1GB"
"""What DuckDB may take."""
_HINT = "the views and their columns: `opscope store views`"
_WORD = re.compile(r"\w+")
_PARQUET = re.compile(r"magic bytes|parquet", re.IGNORECASE)
"""How errors of DuckDB tell that a file is not Parquet file, whatever their kind."""
_TRIES = 3
_FETCHED = 10_000
"""Rows that are held at once while an answer is passed on."""
_PROTOCOL = "store"
_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What DuckDB's parser may find in a query. A COPY or INSERT in a WITH is a ``COPY_QUERY_NODE``, and so on."""
_UNCHANGED = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""When a file changed last: none does."""
_REFUSED_FUNCTIONS = frozenset({"query", "json_execute_serialized_sql", "sniff_csv"})
"""Functions that run a text as a query, which the parser does not look into, and one that EXPLAIN lets pass."""


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

    def __init__(
        self,
        place: StoreLocation,
        running: duckdb.DuckDBPyConnection,
        files: Any,  # noqa: ANN401 - an ``OnlyReading``
        limit: int | None,
    ) -> None:
        described = running.description or []
        self.columns, self.types = [c[0] for c in described], [str(c[1]) for c in described]
        self.cut = False
        self._place, self._running, self._files, self._limit = place, running, files, limit

    def parts(self) -> Iterator[list[tuple[Any, ...]]]:
        """Rows, some thousands at a time."""
        left = self._limit
        while left is None or left > 0:
            part = self._fetched(_FETCHED if left is None else min(_FETCHED, left))
            if not part:
                return
            left = None if left is None else left - len(part)
            yield part
        self.cut = bool(self._fetched(1))

    def _fetched(self, count: int) -> list[tuple[Any, ...]]:
        with query_errors(self._place, self._files):
            return list(self._running.fetchmany(count))


def ask(place: StoreLocation, sql: str, values: Sequence[Any] = ()) -> QueryAnswer:
    """The whole answer to one query."""
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
    """The answer of one version of a store, a part at a time; see :func:`ask`."""
    with _kept(place, now), connected(place, now, sql) as connection:
        yield answered(place, connection, sql, values, limit)


def answered(
    place: StoreLocation,
    connected_to: tuple[duckdb.DuckDBPyConnection, Any],
    sql: str,
    values: Sequence[Any] = (),
    limit: int | None = None,
) -> QueryStream:
    """The answer of a connection that :func:`connected` gave."""
    connection, files = connected_to
    files.failed = None
    with query_errors(place, files):
        _check_reads_only(connection, sql)
        connection.execute(sql, list(values))
    return QueryStream(place, connection, files, limit)


def _check_reads_only(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Whether a text is one query that changes nothing, as DuckDB's own parser sees it."""
    kinds = _kinds(connection, sql)
    text = _explained(sql) if kinds == ["EXPLAIN"] else sql
    if kinds == ["EXPLAIN"]:
        kinds += _kinds(connection, text)
    if kinds not in (["SELECT"], ["EXPLAIN", "SELECT"]):
        found = ", ".join(kinds) or "nothing"
        raise UsageError(f"a store answers one query at a time and is read-only: {found}", where="SQL", hint=_HINT)
    ((parsed,),) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    refused = sorted(set(_writing(json.loads(parsed))))
    if refused:
        raise UsageError(f"a query is read-only, but this one has {', '.join(refused)}", where="SQL", hint=_HINT)


def _kinds(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    return [statement.type.name for statement in connection.extract_statements(sql)]


def _explained(sql: str) -> str:
    """What follows EXPLAIN or EXPLAIN ANALYZE; options in parentheses stay, and are no query then."""
    starts = [at for at, _ in duckdb_module().tokenize(sql)]
    before = ["EXPLAIN", "ANALYZE"]
    for at in starts:
        word = _WORD.match(sql, at)
        if word and word[0].upper() in before:
            del before[: before.index(word[0].upper()) + 1]
        elif not sql.startswith(("--", "/*"), at):
            return sql[at:]
    return ""


def _writing(parsed: Any) -> Iterator[str]:  # noqa: ANN401 - a tree of JSON
    """What is no query in what DuckDB's parser made of one."""
    if isinstance(parsed, list):
        for one in parsed:
            yield from _writing(one)
    elif isinstance(parsed, dict):
        kind, name = parsed.get("type"), parsed.get("function_name")
        if parsed.get("error") is True:
            yield str(parsed.get("error_message"))
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            yield kind.removesuffix("_NODE").replace("_", " ")
        if isinstance(name, str) and name.lower() in _REFUSED_FUNCTIONS:
            yield f"{name}()"
        yield from _writing(list(parsed.values()))


@contextlib.contextmanager
def query_errors(place: StoreLocation, files: Any = None) -> Iterator[None]:  # noqa: ANN401 - an ``OnlyReading``
    """Tell mistakes in a query from files that cannot be read."""
    duckdb = duckdb_module()
    try:
        yield
    except duckdb.Error as error:
        if files is not None and files.failed is not None:
            raise files.failed if isinstance(files.failed, OpscopeError) else _damage(place, files.failed) from error
        refused = isinstance(error, duckdb.PermissionException)
        if not refused and (isinstance(error, duckdb.IOException) or _PARQUET.search(str(error))):
            raise _damage(place, error) from error
        raise UsageError(_first_line(error), where="SQL", hint=_HINT) from error


@contextlib.contextmanager
def connected(place: StoreLocation, now: Snapshot, sql: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, Any]]:
    """A connection that sees the views which a query names, and can read their files and no other, and write none."""
    named = [table for table in EVERY.values() if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE)]
    also = [REPLACED] if named else []
    files = only_reading(place, [file for table in (*named, *also) for file in now.of(table.name)])
    with reading_connection(files) as connection:
        try:
            for table in named:
                connection.execute(f"CREATE VIEW {table.name} AS {_select(table, now)}")
            for setting, value in _LOCKED.items():
                connection.execute(f"SET {setting} = {value}")
        except duckdb_module().Error as error:
            raise _damage(place, files.failed or error) from error
        yield connection, files


_LOCKED = {
    "allowed_directories": f"['{_PROTOCOL}://']",
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}


@contextlib.contextmanager
def reading_connection(files: Any) -> Iterator[duckdb.DuckDBPyConnection]:  # noqa: ANN401 - an ``OnlyReading``
    """A connection that finds some files of a store, and puts what does not fit into memory where nobody looks."""
    spilled = f"{tempfile.gettempdir()}/opscope-{secrets.token_hex(8)}"
    connection = duckdb_module().connect(config={"memory_limit": MEMORY, "temp_directory": spilled})
    try:
        connection.register_filesystem(files)
        yield connection
    finally:
        connection.close()


class PartReader:
    """A file as DuckDB reads it, in two steps and in several threads at once: each has a position of its own.

    ``part``: what gives bytes from an offset on; ``size``: of the file.
    """

    def __init__(self, part: Callable[[int, int], bytes], size: int) -> None:
        self._part, self._size, self._own = part, size, threading.local()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset from the beginning, from here, or from the end."""
        self._own.at = offset + (0, self.tell(), self._size)[whence]
        return self.tell()

    def tell(self) -> int:
        """The offset of this thread."""
        return int(getattr(self._own, "at", 0))

    def read(self, count: int = -1) -> bytes:
        """So many bytes, or all that are left."""
        at = self.tell()
        left = max(0, self._size - at)
        content = self._part(at, left if count < 0 else min(count, left))
        self._own.at = at + len(content)
        return content

    def close(self) -> None:
        """Nothing: the file is let go with this."""


def only_reading(place: StoreLocation, files: Iterable[File]) -> Any:  # noqa: ANN401 - a class of a package that may be absent
    """Some files of a store as DuckDB finds them, to read. Attribute ``failed`` is why one could not be opened."""
    try:
        from fsspec import AbstractFileSystem
    except ImportError:
        raise MissingDependencyError("fsspec is not installed", where="store", hint=install_command("store")) from None
    sizes = {file.path: file.size for file in files}

    class OnlyReading(AbstractFileSystem):  # type: ignore[misc] # of a package without types
        protocol = _PROTOCOL
        cachable = False
        failed: Exception | None = None

        def open(self, path: str, mode: str = "rb", **_options: Any) -> Any:  # noqa: ANN401 - as fsspec has it
            name = self._known(path, mode)
            try:
                return PartReader(place.ranges(name, sizes[name]), sizes[name])
            except (OSError, OpscopeError) as error:
                self.failed = error
                raise

        def info(self, path: str, **_options: Any) -> dict[str, Any]:  # noqa: ANN401 - likewise
            return {"name": path, "type": "file", "size": sizes[self._known(path)]}

        def glob(self, path: str, **_options: Any) -> list[str]:  # noqa: ANN401 - likewise
            return [self._known(path)]

        def modified(self, _path: str) -> datetime:
            return _UNCHANGED

        def _known(self, path: str, mode: str = "rb") -> str:
            name = str(path).removeprefix(f"{_PROTOCOL}://")
            if mode != "rb" or name not in sizes:
                self.failed = UsageError("a query can only read the views", where="SQL", hint=_HINT)
                raise self.failed
            return name

    return OnlyReading()


def parquet_of(paths: Sequence[str], options: str = "") -> str:
    """Some files of a store as a table of SQL."""
    named = ", ".join(quoted(f"{_PROTOCOL}://{path}") for path in paths)
    return f"read_parquet([{named}], hive_partitioning = false{options})"


def quoted(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def duckdb_module() -> Any:  # noqa: ANN401 - the module, which may be absent
    """The package duckdb."""
    try:
        import duckdb
    except ImportError:
        raise MissingDependencyError("duckdb is not installed", where="store", hint=install_command("store")) from None
    return duckdb


def _select(table: Table, now: Snapshot) -> str:
    """The rows of a table that count, from all files that have some."""
    paths = [file.path for file in now.of(table.name)]
    if not paths:
        empty = ", ".join(f'NULL::{column.type.sql} AS "{column.name}"' for column in table.columns)
        return f"SELECT {empty} WHERE false"
    source = _with_absent(table, paths) if now.grown else parquet_of(paths)
    rows = f"SELECT {read_as(table)} FROM {source}"  # noqa: S608 - names of ours, quoted paths
    replaced = [file.path for file in now.of(REPLACED.name)]
    if not replaced or table is REPLACED:
        return rows
    return f"{rows} WHERE bundle NOT IN (SELECT bundle FROM {parquet_of(replaced)})"  # noqa: S608 - likewise


def _with_absent(table: Table, paths: Sequence[str]) -> str:
    """Files of which older ones lack columns that were added since, perhaps all of them."""
    columns = [column for column in table.columns if column.type is not Type.MOMENT]
    absent = ", ".join(f'NULL::{STORED[column.name].sql} AS "{column.name}"' for column in columns)
    found = parquet_of(paths, ", union_by_name = true")
    return f"(SELECT * FROM {found} UNION ALL BY NAME SELECT {absent} WHERE false)"  # noqa: S608 - as above


class _MissingFileError(TraceFormatError):
    """A file that a snapshot names is not there."""


@contextlib.contextmanager
def _kept(place: StoreLocation, now: Snapshot) -> Iterator[None]:
    """Say of an earlier version that its files are not kept any more."""
    try:
        yield
    except _MissingFileError as error:
        if not now.past:
            raise
        hint = "files stay for a week after compaction, or until a bundle is removed"
        raise NotFoundError(
            f"the files of version {now.version} are deleted", where=place.address, hint=hint
        ) from error


def _damage(place: StoreLocation, error: Exception) -> TraceFormatError:
    hint = "`opscope store verify` names every file that is missing or damaged"
    kind = _MissingFileError if isinstance(error, FileNotFoundError) else TraceFormatError
    return kind(f"a file of the store cannot be read: {_first_line(error)}", where=place.address, hint=hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
