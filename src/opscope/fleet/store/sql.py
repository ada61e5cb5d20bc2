"""Questions to a store in SQL: DuckDB on the files of a version, through one view a table.

A query cannot write, for reasons that do not rest on each other: DuckDB's own parser must find nothing in it but one
query, without functions that sleep, write or read files; and DuckDB may open no file but those of the views.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tempfile
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, TraceFormatError, UsageError
from opscope.core.install import install_command
from opscope.fleet.store.place import RESTORE, has_plain_endpoint
from opscope.fleet.store.schema import EVERY, REPLACED, STORED, Type, columns_as_sql
from opscope.fleet.store.table import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

    from opscope.fleet.store.place import StorePlace
    from opscope.fleet.store.schema import Table
    from opscope.fleet.store.table import Snapshot, StoredFile

MEMORY, SPILLED = "1GB", "8GB"
"""What DuckDB may take of the memory, and of the directory for temporary files."""
_HINT = "the views and their columns: `opscope store query --views`"
_FETCHED_ROWS = 10_000
"""Rows that are held at once while an answer is passed on."""
_LOCKED = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What DuckDB's parser may find in a query. A COPY or INSERT in a WITH is a ``COPY_QUERY_NODE``, and so on."""
TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "histogram"}
)
"""Functions that may stand in place of a table: others read files, run a text as a query, or show the process."""
REFUSED_FUNCTIONS = frozenset(
    "sleep_ms pg_sleep write_log nextval currval setval setseed stats vector_type getenv current_query "
    "current_query_id current_connection_id current_transaction_id".split()
)
"""Functions that wait, write, or have other effects."""
_FILE_NAME = re.compile(r"[\\/:*?\[]|\.\w+$")
"""What tells a file from a view where a table is named."""
_IGNORED = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_EXPLAIN = re.compile(rf"{_IGNORED}explain\b{_IGNORED}(analyze\b)?", re.IGNORECASE | re.DOTALL)


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
    """What a query gives, some rows at a time.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        is_cut: whether there were more rows than the limit; known when all parts were taken.
    """

    def __init__(self, asker: StoreConnection, limit: int | None) -> None:
        described = asker.connection.description or []
        self.columns, self.types = [c[0] for c in described], [str(c[1]) for c in described]
        self.is_cut = False
        self._asker, self._limit = asker, limit

    def parts(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some thousands at a time."""
        left = self._limit
        while left is None or left > 0:
            part = self._asker.fetch_rows(_FETCHED_ROWS if left is None else min(_FETCHED_ROWS, left))
            if not part:
                return
            left = None if left is None else left - len(part)
            yield part
        self.is_cut = bool(self._asker.fetch_rows(1))


def ask_store(place: StorePlace, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of the answer of a store to a query."""
    return ask_snapshot(open_store(place), sql, values)


def ask_snapshot(snapshot: Snapshot, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of the answer of one version of a store."""
    with stream_answer(snapshot, sql, values) as stream:
        return [row for part in stream.parts() for row in part]


@contextlib.contextmanager
def stream_answer(
    snapshot: Snapshot, sql: str, values: Sequence[Any] = (), *, limit: int | None = None
) -> Iterator[QueryStream]:
    """Give the answer of one version of a store, some rows at a time.

    Raises:
        UsageError: the text is wrong, or is not one query that only reads the views.
        TraceFormatError: a file is missing or damaged; the message names it.
    """
    asker = StoreConnection(snapshot, sql)
    with contextlib.closing(asker.connection):
        asker.execute_query(sql, values)
        yield QueryStream(asker, limit)


class StoreConnection:
    """A connection of DuckDB that sees the views which a query names, reads their files, and nothing else."""

    def __init__(self, snapshot: Snapshot, sql: str) -> None:
        tables = [table for table in EVERY.values() if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE)]
        self._place = snapshot.place
        self._files = snapshot.files_of({table.name for table in tables} | ({REPLACED.name} if tables else set()))
        spilled = f"{tempfile.gettempdir()}/opscope-{secrets.token_hex(8)}"
        config = {"memory_limit": MEMORY, "temp_directory": spilled, "max_temp_directory_size": SPILLED}
        self.connection: duckdb.DuckDBPyConnection = _import_duckdb().connect(config=config)
        if snapshot.place.is_remote:
            self.connection.register_filesystem(_remote_files(snapshot.place))
        self.connection.execute(f"SET allowed_paths = {self._sql_list(self._files)}")
        for setting, value in _LOCKED.items():
            self.connection.execute(f"SET {setting} = {value}")
        with self._query_errors():
            for table in tables:
                self.connection.execute(f"CREATE VIEW {table.name} AS {self._select_rows(table)}")

    def execute_query(self, sql: str, values: Sequence[Any]) -> None:
        """Run a text if it is one query that changes nothing."""
        duckdb = _import_duckdb()
        try:
            checked = check_query(self.connection, sql)
        except duckdb.Error as error:
            raise UsageError(_first_line(error), where="SQL", hint=_HINT) from error
        with self._query_errors():
            self.connection.execute(checked, list(values))

    def fetch_rows(self, count: int) -> list[tuple[Any, ...]]:
        """Return the next rows of the answer; empty at its end."""
        with self._query_errors():
            return list(self.connection.fetchmany(count))

    @contextlib.contextmanager
    def _query_errors(self) -> Iterator[None]:
        """Tell a mistake in a query from a file that is damaged: by reading each file, since any text may name one."""
        duckdb = _import_duckdb()
        try:
            yield
        except duckdb.Error as error:
            message = _first_line(error)
            for file in self._files:
                self._check_file(file)
            raise UsageError(message, where="SQL", hint=_HINT) from error

    def _check_file(self, file: StoredFile) -> None:
        """Raise TraceFormatError for a file of which not all rows can be read."""
        duckdb = _import_duckdb()
        try:
            sql = f"SELECT max(COLUMNS(*)::VARCHAR) FROM {self._read_files([file])}"  # noqa: S608 - a quoted path
            self.connection.execute(sql).fetchall()
        except duckdb.Error as error:
            problem = f"the file cannot be read: {_first_line(error)}"
            raise TraceFormatError(problem, where=self._place.file_address(file.path), hint=RESTORE) from error

    def _select_rows(self, table: Table) -> str:
        """Return SQL for the rows of a table that count, from all files that have some."""
        files = [file for file in self._files if file.table == table.name]
        if not files:
            empty = ", ".join(f'NULL::{column.type.sql} AS "{column.name}"' for column in table.columns)
            return f"SELECT {empty} WHERE false"
        rows = f"SELECT {columns_as_sql(table)} FROM {self._read_all_columns(table, files)}"  # noqa: S608 - names of ours
        marks = [file for file in self._files if file.table == REPLACED.name]
        if not marks or table is REPLACED:
            return rows
        return f"{rows} WHERE bundle NOT IN (SELECT bundle FROM {self._read_files(marks)})"  # noqa: S608 - quoted paths

    def _read_all_columns(self, table: Table, files: Sequence[StoredFile]) -> str:
        """Return SQL for files of which older ones may lack columns that were added since, perhaps all of them."""
        columns = [column for column in table.columns if column.type is not Type.MOMENT]
        absent = ", ".join(f'NULL::{STORED[column.name].sql} AS "{column.name}"' for column in columns)
        found = self._read_files(files, ", union_by_name = true")
        return f"(SELECT * FROM {found} UNION ALL BY NAME SELECT {absent} WHERE false)"  # noqa: S608 - names of ours

    def _read_files(self, files: Sequence[StoredFile], options: str = "") -> str:
        return f"read_parquet({self._sql_list(files)}, hive_partitioning = false{options})"

    def _sql_list(self, files: Sequence[StoredFile]) -> str:
        addresses = (self._place.file_address(file.path).replace("'", "''") for file in files)
        return "[" + ", ".join(f"'{address}'" for address in addresses) + "]"


def check_query(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return a text to run in place of a query that changes nothing, as DuckDB's own parser sees it.

    Raises UsageError for everything else.
    """
    kinds, prefix, text = _statement_kinds(connection, sql), "", sql
    explained = _EXPLAIN.match(sql) if kinds == ["EXPLAIN"] else None
    if explained:
        prefix, text = f"EXPLAIN {explained[1] or ''} ", sql[explained.end() :]
        kinds = _statement_kinds(connection, text)
    if kinds != ["SELECT"]:
        problem = f"a store answers one query at a time and is read-only: {', '.join(kinds) or 'nothing'}"
        raise UsageError(problem, where="SQL", hint=_HINT)
    ((parsed,),) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    refused = sorted(set(_find_refused(json.loads(parsed))))
    if refused:
        raise UsageError(
            f"a query only reads the views, but this one has {', '.join(refused)}", where="SQL", hint=_HINT
        )
    return prefix + text


def _statement_kinds(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    return [statement.type.name for statement in connection.extract_statements(sql)]


def _find_refused(parsed: Any) -> Iterator[str]:  # noqa: ANN401 - a tree of JSON
    """Yield what no query may hold of what DuckDB's parser made of a text."""
    if isinstance(parsed, list):
        for part in parsed:
            yield from _find_refused(part)
    elif isinstance(parsed, dict):
        kind, name = str(parsed.get("type")), str(parsed.get("function_name", "")).lower()
        if parsed.get("error") is True:
            yield str(parsed.get("error_message"))
        if kind.endswith("_NODE") and kind not in _QUERY_NODES:
            yield kind.removesuffix("_NODE").replace("_", " ")
        if name in REFUSED_FUNCTIONS:
            yield f"{name}()"
        if kind == "TABLE_FUNCTION" and (called := parsed["function"]["function_name"].lower()) not in TABLE_FUNCTIONS:
            yield f"{called}()"
        if kind == "BASE_TABLE" and _FILE_NAME.search(str(parsed.get("table_name"))):
            yield "a file"
        yield from _find_refused(list(parsed.values()))


def _remote_files(place: StorePlace) -> Any:  # noqa: ANN401 - of a package that may be absent
    try:
        from obstore.fsspec import FsspecStore
    except ImportError:
        hint = install_command("store")
        raise MissingDependencyError("obstore and fsspec are not installed", where="store", hint=hint) from None
    client = {"allow_http": True} if has_plain_endpoint() else None
    return FsspecStore(place.uri.partition("://")[0], client_options=client)


def _import_duckdb() -> Any:  # noqa: ANN401 - the module, which may be absent
    try:
        import duckdb
    except ImportError:
        hint = install_command("store")
        raise MissingDependencyError("duckdb is not installed", where="store", hint=hint) from None
    return duckdb


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
