"""All events as a Parquet file: the columns of the event table with their types, the rest as key-value metadata.

``opscope.clock`` is the unit of the time columns, ``opscope.warnings`` a JSON list of objects with ``code``,
``message`` and ``hint``, ``opscope.sha256`` the hash of the file with zeros in place of that hash. The format's own
checks do not cover its pages, so a reader could not tell a damaged file from a good one otherwise.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec

from opscope.readers.events_table import CHECKSUM_KEY, CLOCK_KEY, NO_CHECKSUM, WARNINGS_KEY, checksum

if TYPE_CHECKING:
    from opscope.core.table import EventTable


def parquet(table: EventTable) -> bytes:
    """The file."""
    metadata = {
        CLOCK_KEY: table.clock.value,
        WARNINGS_KEY: msgspec.json.encode(table.warnings).decode(),
        CHECKSUM_KEY: NO_CHECKSUM.decode(),
    }
    file = io.BytesIO()
    table.frame.write_parquet(file, metadata=metadata)
    return signed(file.getvalue())


def signed(content: bytes) -> bytes:
    """The file with its hash filled in; the footer holds text as it is, so that the place is found by looking."""
    place, digest = checksum(content)
    return content[:place] + digest + content[place + len(digest) :]
