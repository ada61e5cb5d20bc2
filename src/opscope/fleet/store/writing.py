"""Rows into Parquet files: one for each table and each model, device and variant."""

from __future__ import annotations

import hashlib
import io
import re
import secrets
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

import polars as pl

from opscope.fleet.store.log import DATA, Commit, File, StoreEntry, commit
from opscope.fleet.store.schema import PARTITION, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opscope.fleet.store.place import StoreLocation

_LONGEST_NAME = 80
_UNSAFE = re.compile(r"\A\.*\Z")
MOST_ROWS = 200_000
"""Rows of a batch, and of a file that is compacted no further: what bounds memory."""


class Batch:
    """Bundles that are added in one step.

    Attributes:
        entries: so far.
    """

    def __init__(self) -> None:
        self.entries: list[StoreEntry] = []
        self._frames: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
        self._rows = 0

    def add(self, entry: StoreEntry, frames: Mapping[str, pl.DataFrame]) -> None:
        """One more bundle, with its rows by the names of their tables; nothing is written yet."""
        self.entries.append(entry)
        for name, own in frames.items():
            self._frames[name].append(own)
            self._rows += own.height

    @property
    def full(self) -> bool:
        """Whether it should be written before more is added."""
        return self._rows >= MOST_ROWS

    def write(self, place: StoreLocation) -> str | None:
        """Write the files, then the commit; the path of the commit, None when there is nothing to write.

        Raises:
            StorageError: the system refused; nothing of the batch is in the store.
        """
        if not self.entries:
            return None
        files: list[File] = []
        try:
            for name, frames in self._frames.items():
                for file in write_partitions(place, name, pl.concat(frames)) if frames else ():
                    files.append(file)  # noqa: PERF402 - those that are written are known when the next one fails
        except BaseException:
            for file in files:
                place.delete(file.path)
            raise
        # From here on nothing is deleted: when writing the commit fails, nobody knows whether it is there.
        return commit(place, Commit(self.entries, files))


def write_partitions(place: StoreLocation, table: str, frame: pl.DataFrame) -> Iterator[File]:
    """Write rows of one table, each partition to a file of its own."""
    for values, own in frame.partition_by(PARTITION, as_dict=True, maintain_order=True).items():
        yield write_file(place, table, (str(values[0]), str(values[1]), str(values[2])), own)


def write_file(place: StoreLocation, table: str, partition: tuple[str, str, str], frame: pl.DataFrame) -> File:
    """Write rows of one partition to a file of a new name."""
    content = parquet(frame)
    folders = [f"{name}={folder_name(value)}" for name, value in zip(PARTITION, partition, strict=True)]
    path = str(PurePosixPath(DATA, table, *folders, f"{secrets.token_hex(8)}.parquet"))
    place.write(path, content)
    return File(path, table, partition, frame.height, len(content), hashlib.sha256(content).hexdigest())


def parquet(frame: pl.DataFrame) -> bytes:
    """A data frame as Parquet."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=True)
    return buffer.getvalue()


def folder_name(value: str) -> str:
    """A value as a part of a path: escaped as in a URL; one that is too long, or no name, is replaced by its hash."""
    name = quote(value, safe=" ,()+@")
    if len(name) > _LONGEST_NAME or _UNSAFE.match(name):
        return f"sha256-{hashlib.sha256(value.encode(errors='surrogatepass')).hexdigest()[:16]}"
    return name
