r"""All events as one tidy CSV file or as a Parquet file: one row an event, the columns of the event table.

How cells of CSV are written, so that ``opscope.readers.events_table`` gives the same table back:

- A text that starts with one of ``= + - @ '`` has an apostrophe in front, so that a spreadsheet shows it and computes
  nothing. Taking one leading apostrophe away gives the text back.
- A text with control or direction characters or ends of lines begins with an apostrophe and a backslash, behind which
  they are escaped as Python does, backslashes too: ``'\x1b[31m``.
- Null is an empty cell; an empty text is ``""``.
- Bytes are hexadecimal behind ``0x``, so that a spreadsheet takes none for a number.
- Truth is ``true`` or ``false``.
- Times are integers of the table's clock. One that is not in nanoseconds is named in a column ``clock``, the same in
  every row.
- The last column, ``rows_left``, counts the rows that follow: a file whose last row does not say 0 was cut off.

The reader's warnings have no place in such a file; Parquet keeps them.

In Parquet, columns have their types, and the rest is key-value metadata: ``opscope.clock`` is the unit of the time
columns, ``opscope.warnings`` a JSON list of objects with ``code``, ``message`` and ``hint``, ``opscope.sha256`` the
hash of the file with zeros in place of that hash. The format's own checks do not cover its pages, so a reader could
not tell a damaged file from a good one otherwise.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.core.printable import CSV_ESCAPED, escaped
from opscope.core.table import COLUMNS, Clock
from opscope.readers.events_table import (
    CHECKSUM_KEY,
    CLOCK_COLUMN,
    CLOCK_KEY,
    LEFT_COLUMN,
    NO_CHECKSUM,
    WARNINGS_KEY,
    checksum,
)
from opscope.reports.document.text import GUARDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.core.table import Column, EventTable


_PART = 1 << 15
_GUARD = f"^[{re.escape(GUARDED)}]"
_HIDDEN = r"[\p{C}\p{Zl}\p{Zp}]"


def events_csv(table: EventTable) -> Iterator[bytes]:
    """Yield the events as a CSV file, in parts."""
    cells = [_cell_column(column) for column in COLUMNS]
    if table.clock is not Clock.NS:
        cells.append(pl.lit(table.clock.value).alias(CLOCK_COLUMN))
    rows_left = table.frame.height
    yield table.frame.clear().select(*cells, pl.lit(rows_left).alias(LEFT_COLUMN)).write_csv().encode()
    for part in table.frame.iter_slices(_PART):
        text = io.BytesIO()
        rows = pl.int_range(rows_left - 1, rows_left - 1 - part.height, -1, dtype=pl.Int64).alias(LEFT_COLUMN)
        part.select(*cells, rows).write_csv(text, include_header=False)
        rows_left -= part.height
        yield text.getvalue()


def guard_cells(text: pl.Expr) -> pl.Expr:
    """Return a column of text as :func:`opscope.reports.document.text.csv_cell` writes it; nulls stay."""
    hidden = pl.when(text.str.contains(_HIDDEN)).then(text.map_batches(_escape_hidden, return_dtype=pl.String))
    return hidden.when(text.str.contains(_GUARD)).then("'" + text).otherwise(text)


def _escape_hidden(text: pl.Series) -> pl.Series:
    """Escape the texts that hold characters that no terminal shows."""
    names = text.filter(text.str.contains(_HIDDEN)).unique().to_list()
    return text.replace(names, [CSV_ESCAPED + escaped(name) for name in names]) if names else text


def _cell_column(column: Column) -> pl.Expr:
    values = pl.col(column.name)
    if column.dtype == pl.Categorical:
        return guard_cells(values.cast(pl.String)).alias(column.name)
    if column.dtype == pl.Binary:
        return ("0x" + values.bin.encode("hex")).alias(column.name)
    return values


def parquet(table: EventTable) -> bytes:
    """Return the events as a Parquet file."""
    metadata = {
        CLOCK_KEY: table.clock.value,
        WARNINGS_KEY: msgspec.json.encode(table.warnings).decode(),
        CHECKSUM_KEY: NO_CHECKSUM.decode(),
    }
    file = io.BytesIO()
    table.frame.write_parquet(file, metadata=metadata)
    return sign_file(file.getvalue())


def sign_file(content: bytes) -> bytes:
    """Return the file with its hash filled in; the footer stores text verbatim, so that its place can be searched."""
    position, digest = checksum(content)
    return content[:position] + digest + content[position + len(digest) :]
