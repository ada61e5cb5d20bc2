"""The files that ``opscope convert`` writes as csv and parquet, read again.

Neither is trusted: the columns that follow from others are derived anew and must agree with those in the file.

The work is done in ``opscope.read.events_frame``, which is loaded when there is such a file to read: recognising one
must not cost the time of loading polars.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.table import EventTable

CLOCK_COLUMN = "clock"
"""Last column of a CSV file whose times are not in nanoseconds."""
CLOCK_KEY = "opscope.clock"
WARNINGS_KEY = "opscope.warnings"
CHECKSUM_KEY = "opscope.sha256"
"""Keys of a Parquet file's metadata."""
NO_CHECKSUM = b"0" * 64

_CSV_HEADER = b"process,run,"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_MAGIC = b"PAR1"


class EventsCsvReader:
    """Reads tables of events that were written as CSV; they say which columns by their header line."""

    name: ClassVar[str] = "events-csv"

    def sniff(self, head: bytes) -> bool:
        """Whether a file starts with the header line of a table of events."""
        return head.removeprefix(_BYTE_ORDER_MARK).startswith(_CSV_HEADER)

    def read(self, data: bytes, path: Path) -> EventTable:
        """All events of the file, with the warm-up that is marked in it.

        Raises:
            TraceFormatError: columns are missing, a cell is not of its column's type, or the events contradict each
                other.
        """
        from opscope.read.events_frame import table_of_csv  # noqa: PLC0415 - see the module's docstring

        return table_of_csv(data, path)


class EventsParquetReader:
    """Reads tables of events that were written as Parquet."""

    name: ClassVar[str] = "events-parquet"

    def sniff(self, head: bytes) -> bool:
        """Whether a file starts like Parquet."""
        return head.startswith(_PARQUET_MAGIC)

    def read(self, data: bytes, path: Path) -> EventTable:
        """All events of the file, with its warnings and the warm-up that is marked in it.

        Raises:
            TraceFormatError: it is no table of events, is damaged, or its events contradict each other.
        """
        from opscope.read.events_frame import table_of_parquet  # noqa: PLC0415 - see the module's docstring

        return table_of_parquet(data, path)


def checksum(content: bytes) -> tuple[int, bytes]:
    """Where the hash stands in a Parquet file, and what it has to be, in hexadecimal.

    Raises:
        ValueError: the file holds no such hash.
    """
    key = content.rindex(CHECKSUM_KEY.encode())
    place = content.index(b"\x18\x40", key) + 2  # in the footer's encoding: a text of 64 bytes
    rest = content[:place], NO_CHECKSUM, content[place + len(NO_CHECKSUM) :]
    return place, hashlib.sha256(b"".join(rest)).hexdigest().encode()
