"""The files that ``opscope convert`` writes as csv and parquet, read again.

Neither is trusted: the columns that follow from others are derived anew and must agree with those in the file.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, ClassVar

import msgspec
import polars as pl

from opscope.core.errors import EmptyTraceError, InvariantError, TraceFormatError
from opscope.core.json import from_json
from opscope.core.printable import CSV_ESCAPED, unescaped
from opscope.core.system.memory import reserve
from opscope.core.table import Clock, EventTable, TraceWarning
from opscope.core.table.schema import COLUMNS, SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.core.table import Column


CLOCK_COLUMN = "clock"
"""Column of a CSV file whose times are not in nanoseconds."""
LEFT_COLUMN = "rows_left"
"""Last column of a CSV file: how many rows follow, so that one that was cut off between two rows is known for it."""
CLOCK_KEY = "opscope.clock"
WARNINGS_KEY = "opscope.warnings"
CHECKSUM_KEY = "opscope.sha256"
"""Keys of a Parquet file's metadata."""
NO_CHECKSUM = b"0" * 64

# polars ends the whole process where it gets no memory, so what it will take is asked for before: a view of text for
# each cell and a value of its column's type, and the file's bytes as they are and in the table.
_CELL_BYTES, _COPIES = 24, 2
_CSV_HEADER = b"process,run,"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_MAGIC = b"PAR1"


class EventsCsvReader:
    """Reads tables of events that were written as CSV; they say which columns by their header line."""

    name: ClassVar[str] = "events-csv"

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts with the header line of a table of events."""
        return head.removeprefix(_BYTE_ORDER_MARK).startswith(_CSV_HEADER)

    def read(self, data: bytes, path: Path) -> EventTable:
        """Return all events of the file, with the warm-up that is marked in it."""
        if bytes(data[-1:]) != b"\n":
            raise TraceFormatError("truncated: the last line is incomplete", where=path, offset=len(data), hint=_AGAIN)
        reserve(_CELL_BYTES * (data.count(b",") + data.count(b"\n")) + _COPIES * len(data))
        try:
            cells = pl.read_csv(io.BytesIO(data), infer_schema=False)
        except pl.exceptions.PolarsError as error:
            raise TraceFormatError(f"not CSV: {_first_line(error)}", where=path, hint=_AGAIN) from error
        clock = _csv_clock(cells, path)
        columns = cells.drop(CLOCK_COLUMN, strict=False)
        cells = columns.drop(LEFT_COLUMN, strict=False)
        _check_columns(cells, path)
        _check_end(columns, path)
        values = {column.name: _parse_column(cells[column.name], column, path) for column in COLUMNS}
        return _derive_table(pl.DataFrame(values), clock, (_WITHOUT_WARNINGS,), path)


class EventsParquetReader:
    """Reads tables of events that were written as Parquet."""

    name: ClassVar[str] = "events-parquet"

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts like Parquet."""
        return head.startswith(_PARQUET_MAGIC)

    def read(self, data: bytes, path: Path) -> EventTable:
        """Return all events of the file, with its warnings and the warm-up that is marked in it."""
        _check_whole(data, path)
        try:
            metadata = pl.read_parquet_metadata(io.BytesIO(data))
            rows = pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item()
            reserve(_CELL_BYTES * len(COLUMNS) * rows + _COPIES * len(data))
            frame = pl.read_parquet(io.BytesIO(data))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise TraceFormatError(f"damaged Parquet: {_first_line(error)}", where=path, hint=_AGAIN) from error
        except pl.exceptions.PanicException as error:
            # polars' decoder asserts where a damaged page contradicts its header, and its panics are no Exception but
            # a BaseException, which no handler of errors would stop. The file is at fault and the decoder holds no
            # state, so it is an answer like any other error; what else is not an Exception (Ctrl-C, exit) passes.
            problem = "damaged Parquet: its pages contradict its header"
            raise TraceFormatError(problem, where=path, hint=_AGAIN) from error
        _check_columns(frame, path)
        typed = frame.select(_cast_column(frame[column.name], column, path) for column in COLUMNS)
        return _derive_table(typed, _only_clock([metadata.get(CLOCK_KEY)], path), _read_warnings(metadata, path), path)


def checksum(content: bytes) -> tuple[int, bytes]:
    """Return the position of the hash in a Parquet file, and the hash that it must have, in hexadecimal."""
    key = content.rindex(CHECKSUM_KEY.encode())
    position = content.index(b"\x18\x40", key) + 2  # in the footer's encoding: a text of 64 bytes
    rest = content[:position], NO_CHECKSUM, content[position + len(NO_CHECKSUM) :]
    return position, hashlib.sha256(b"".join(rest)).hexdigest().encode()


_AGAIN = "convert the trace again; a table that was edited must keep all columns and rows"
# What EventTable derives; in a file they are checked, not believed.
_DERIVED = frozenset({"process", "inference", "warmup", "position", "self_time", "depth"})
_TEXT = (pl.String, pl.Categorical, pl.Enum)
_TRUTH = {"true": True, "false": False}


_WITHOUT_WARNINGS = TraceWarning(
    "warnings_not_kept",
    "a CSV file of events does not keep the warnings of its first reader",
    "convert to parquet to keep the warnings, or analyse the original trace",
)


def _check_end(cells: pl.DataFrame, path: Path) -> None:
    """Refuse a file whose rows do not count down to the last one."""
    if LEFT_COLUMN not in cells.columns:
        raise TraceFormatError(
            f"not an event table: missing columns {_shorten_text(LEFT_COLUMN)}", where=path, hint=_AGAIN
        )
    rows_left = cells[LEFT_COLUMN].cast(pl.Int64, strict=False)
    expected = pl.int_range(cells.height - 1, -1, -1, eager=True)
    if not rows_left.eq_missing(expected).all():
        last = rows_left[-1] if cells.height else None
        text = f"truncated: {last:,} rows are missing" if last else f"damaged: {LEFT_COLUMN} does not match its rows"
        raise TraceFormatError(text, where=path, hint=_AGAIN)


def _csv_clock(cells: pl.DataFrame, path: Path) -> Clock:
    """Return the clock of the times in a CSV file."""
    if CLOCK_COLUMN not in cells.columns:
        return Clock.NS
    return _only_clock(cells[CLOCK_COLUMN].unique().to_list(), path)


def _only_clock(clocks: list[str | None], path: Path) -> Clock:
    """Return the clock if there is one, which is known; raise an error if not."""
    known = [clock.value for clock in Clock]
    if len(clocks) != 1 or clocks[0] not in known:
        raise TraceFormatError(f"its clock is not one of {', '.join(known)}", where=path, hint=_AGAIN)
    return Clock(clocks[0])


def _parse_column(cells: pl.Series, column: Column, path: Path) -> pl.Series:
    """Return a column of text as values of the column's type; guards against formulas are taken off."""
    text = pl.col(column.name)
    if column.dtype == pl.Binary:
        values = text.str.strip_prefix("0x").str.decode("hex", strict=False)
    elif column.dtype == pl.Boolean:
        values = text.str.to_lowercase().replace_strict(_TRUTH, default=None, return_dtype=pl.Boolean)
    elif column.dtype == pl.Categorical:
        values = text.map_batches(_unescape_texts, return_dtype=pl.String).str.strip_prefix("'").cast(column.dtype)
    else:
        values = text.cast(column.dtype, strict=False)
    parsed = cells.to_frame().select(values).to_series()
    wrong = (parsed.is_null() & cells.is_not_null()).arg_true()
    if len(wrong):
        row = wrong[0]
        problem = (
            f"{_shorten_text(cells[row])} does not have the type {column.dtype} (event {row:,}, column {column.name})"
        )
        raise TraceFormatError(problem, where=path, hint=_AGAIN)
    return parsed


def _unescape_texts(text: pl.Series) -> pl.Series:
    """Return escaped texts as they were, with the apostrophe of all that are guarded."""
    names = text.filter(text.str.starts_with(CSV_ESCAPED)).unique().to_list()
    return text.replace(names, ["'" + unescaped(name[len(CSV_ESCAPED) :]) for name in names]) if names else text


def _check_whole(data: bytes, path: Path) -> None:
    """Refuse a file that is not, byte for byte, as it was written, before anything is decoded.

    polars' decoder trusts the lengths in a file: on a damaged one it can end the whole process.
    """
    try:
        position, expected = checksum(data)
    except ValueError:
        hint = f"truncated, or not written by opscope convert; {_AGAIN}"
        raise TraceFormatError("not an opscope Parquet file: its hash is missing", where=path, hint=hint) from None
    if data[position : position + len(expected)] != expected:
        raise TraceFormatError("damaged: its content does not match its hash", where=path, hint=_AGAIN)


def _cast_column(values: pl.Series, column: Column, path: Path) -> pl.Series:
    """Return a column in its type; text may come in any of its encodings."""
    if column.dtype in _TEXT and values.dtype in _TEXT:
        typed: pl.Series = values.cast(pl.String).cast(column.dtype, strict=False)
        if typed.null_count() == values.null_count():
            return typed
    elif values.dtype == column.dtype:
        return values
    raise TraceFormatError(f"column {column.name} does not have the type {column.dtype}", where=path, hint=_AGAIN)


def _read_warnings(metadata: dict[str, str], path: Path) -> tuple[TraceWarning, ...]:
    """Return the warnings in the metadata of a Parquet file."""
    try:
        return from_json(metadata.get(WARNINGS_KEY, ""), tuple[TraceWarning, ...])
    except msgspec.DecodeError as error:
        raise TraceFormatError(f"its warnings cannot be read: {error}", where=path, hint=_AGAIN) from error


def _check_columns(frame: pl.DataFrame, path: Path) -> None:
    """Refuse a table with missing or unknown columns."""
    missing = [name for name in SCHEMA if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in SCHEMA]
    for names, problem in ((missing, "missing"), (unknown, "unknown")):
        if names:
            listed = ", ".join(_shorten_text(name) for name in names[:5])
            raise TraceFormatError(f"not an event table: {problem} columns {listed}", where=path, hint=_AGAIN)


def _derive_table(frame: pl.DataFrame, clock: Clock, warnings: tuple[TraceWarning, ...], path: Path) -> EventTable:
    """Return the table that follows from a file's own columns, when it agrees with the columns that imply nothing."""
    if frame.is_empty():
        raise EmptyTraceError("the table holds no events", where=path, hint=_AGAIN)
    _check_nulls(frame, path)
    process = frame["process"]
    if process[0] != 0 or not process.diff().drop_nulls().is_in([0, 1]).all():
        raise TraceFormatError("its processes are not numbered from 0 in order", where=path, hint=_AGAIN)
    try:
        parts = frame.partition_by("process", maintain_order=True)
        table = EventTable.concat([_build_process(part, clock, row, path) for part, row in _with_first_rows(parts)])
    except InvariantError as error:
        raise TraceFormatError(error.problem, where=path, hint=_AGAIN) from error
    table = table.with_warmup([part.filter(pl.col("warmup"))["inference"].n_unique() for part in parts]).with_warnings(
        *warnings
    )
    _check_agreement(frame, table.frame, path)
    return table


def _check_nulls(frame: pl.DataFrame, path: Path) -> None:
    """Refuse a table with an empty cell in a column that has a value for every event."""
    for column in COLUMNS:
        if not column.nullable and frame[column.name].null_count():
            row = frame[column.name].is_null().arg_true()[0]
            raise TraceFormatError(f"event {row:,} has no {column.name}", where=path, hint=_AGAIN)


def _with_first_rows(parts: list[pl.DataFrame]) -> list[tuple[pl.DataFrame, int]]:
    """Return the tables of processes, each with the number of its first row."""
    rows, numbered = 0, []
    for part in parts:
        numbered.append((part, rows))
        rows += part.height
    return numbered


def _build_process(part: pl.DataFrame, clock: Clock, first_row: int, path: Path) -> EventTable:
    """Return the table of one process, from the columns that nothing else implies."""
    parent = (part["parent"] - first_row).fill_null(-1)
    is_inside = parent.is_between(0, part.height - 1) | part["parent"].is_null()
    if not is_inside.all():
        row = first_row + int((~is_inside).arg_true()[0])
        raise TraceFormatError(f"the parent of event {row:,} is not an event of its process", where=path, hint=_AGAIN)
    columns = {name: part[name] for name in SCHEMA if name not in _DERIVED}
    return EventTable.build({**columns, "parent": parent}, clock)


def _check_agreement(frame: pl.DataFrame, derived: pl.DataFrame, path: Path) -> None:
    """Refuse a table with a column that differs from the one that is derived."""
    for name in SCHEMA:
        differs = frame[name].ne_missing(derived[name]).arg_true()
        if len(differs):
            row = differs[0]
            problem = f"event {row:,} says {name} {frame[name][row]}, its other columns {derived[name][row]}"
            raise TraceFormatError(problem, where=path, hint=_AGAIN)


def _first_line(error: Exception) -> str:
    """Return the first line of an error."""
    return str(error).strip().partition("\n")[0]


def _shorten_text(text: str) -> str:
    """Return a text in quotes, shortened to fit into a message."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")  # noqa: PLR2004 - enough to find it in the file
