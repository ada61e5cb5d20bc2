"""Questions to a store in SQL: DuckDB on the files of a version, through one view a table.

A query cannot write, for reasons that do not rest on each other: DuckDB's own parser must find nothing in it but one
query, without functions that sleep, write or read files; and DuckDB may open no file but those of the views.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import tempfile
from typing import TYPE_CHECKING, Any

from opscope.core.errors import TraceFormatError, UsageError
from opscope.fleet.store.place import RESTORE, import_extra, open_file_system
from opscope.fleet.store.schema import EVERY, REPLACED, STORED, Type, column_as_sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

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


class QueryStream:
    """What a query gives, some rows at a time.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        is_cut: whether there were more rows than the limit; known when all parts were taken.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, limit: int | None) -> None:
        description = connection.description or []
        self.columns, self.types = [column[0] for column in description], [str(column[1]) for column in description]
        self.is_cut = False
        self._connection, self._limit = connection, limit

    def parts(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some thousands at a time."""
        left = math.inf if self._limit is None else self._limit
        while left > 0 and (rows := self._connection.fetchmany(int(min(_FETCHED_ROWS, left)))):
            left -= len(rows)
            yield rows
        self.is_cut = bool(left <= 0 and self._connection.fetchmany(1))


def ask_snapshot(snapshot: Snapshot, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of the answer of one version of a store."""
    with stream_answer(snapshot, sql, values) as stream:
        return [row for rows in stream.parts() for row in rows]


@contextlib.contextmanager
def stream_answer(
    snapshot: Snapshot, sql: str, values: Sequence[Any] = (), *, limit: int | None = None
) -> Iterator[QueryStream]:
    """Give the answer of one version of a store, some rows at a time.

    DuckDB sees the views that the text names, reads their files, and nothing else.

    Raises:
        UsageError: the text is wrong, or is not one query that only reads the views.
        TraceFormatError: a file is missing or damaged; the message names it.
    """
    place = snapshot.place
    tables = [table for table in EVERY.values() if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE)]
    files = snapshot.files_of({table.name for table in tables} | ({REPLACED.name} if tables else set()))
    addresses = {file: "'" + place.file_address(file.path).replace("'", "''") + "'" for file in files}
    spilled = f"{tempfile.gettempdir()}/opscope-{secrets.token_hex(8)}"
    config = {"memory_limit": MEMORY, "temp_directory": spilled, "max_temp_directory_size": SPILLED}
    with contextlib.closing(import_extra("duckdb").connect(config=config)) as connection:
        if place.is_remote:
            connection.register_filesystem(open_file_system(place))
        connection.execute(f"SET allowed_paths = [{', '.join(addresses.values())}]")
        for setting, value in _LOCKED.items():
            connection.execute(f"SET {setting} = {value}")
        with _translate_query_errors(connection, {}):
            query = _check_query(connection, sql)
        with _translate_query_errors(connection, {place.file_address(file.path): addresses[file] for file in files}):
            for table in tables:
                connection.execute(f"CREATE VIEW {table.name} AS {_select_rows(table, addresses)}")
            yield QueryStream(connection.execute(query, list(values)), limit)


@contextlib.contextmanager
def _translate_query_errors(connection: duckdb.DuckDBPyConnection, files: dict[str, str]) -> Iterator[None]:
    """Tell a mistake in a query from a file that is damaged: by reading each file, since any text may name one.

    ``files``: as SQL quotes them, by their addresses.
    """
    try:
        yield
    except import_extra("duckdb").Error as error:
        message = _first_line(error)
        for address, quoted in files.items():
            _check_file(connection, address, quoted)
        raise UsageError(message, where="SQL", hint=_HINT) from error


def _check_file(connection: duckdb.DuckDBPyConnection, address: str, quoted: str) -> None:
    """Raise TraceFormatError for a file of which not all rows can be read."""
    try:
        connection.execute(f"SELECT max(COLUMNS(*)::VARCHAR) FROM {_read_files([quoted])}").fetchall()  # noqa: S608 - a quoted path
    except import_extra("duckdb").Error as error:
        problem = f"the file cannot be read: {_first_line(error)}"
        raise TraceFormatError(problem, where=address, hint=RESTORE) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _select_rows(table: Table, addresses: dict[StoredFile, str]) -> str:
    """Return SQL for the rows of a table that count, from all files that have some.

    Older files may lack columns that were added since, perhaps all of them.
    """
    files, marks = (
        [quoted for file, quoted in addresses.items() if file.table == name] for name in (table.name, REPLACED.name)
    )
    if not files:
        empty = ", ".join(f'NULL::{column.type.sql} AS "{column.name}"' for column in table.columns)
        return f"SELECT {empty} WHERE false"
    columns = ", ".join(column_as_sql(column) for column in table.columns)
    absent = ", ".join(
        f'NULL::{STORED[column.name].sql} AS "{column.name}"'
        for column in table.columns
        if column.type is not Type.MOMENT
    )
    stored = _read_files(files, ", union_by_name = true")
    rows = f"SELECT {columns} FROM (SELECT * FROM {stored} UNION ALL BY NAME SELECT {absent} WHERE false)"  # noqa: S608 - names of ours, quoted paths
    if not marks or table is REPLACED:
        return rows
    return f"{rows} WHERE bundle NOT IN (SELECT bundle FROM {_read_files(marks)})"  # noqa: S608 - quoted paths


def _read_files(quoted: Sequence[str], options: str = "") -> str:
    return f"read_parquet([{', '.join(quoted)}], hive_partitioning = false{options})"


def _check_query(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
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
        problem = f"a query only reads the views, but this one has {', '.join(refused)}"
        raise UsageError(problem, where="SQL", hint=_HINT)
    return prefix + text


def _statement_kinds(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    return [statement.type.name for statement in connection.extract_statements(sql)]


def _find_refused(parsed: Any) -> Iterator[str]:  # noqa: ANN401 - a tree of JSON
    """Yield what no query may hold of what DuckDB's parser made of a text."""
    if isinstance(parsed, list):
        for branch in parsed:
            yield from _find_refused(branch)
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
