"""Bundles into a store: their rows as Parquet files, one a table and month, and one commit for all of them."""

from __future__ import annotations

import io
import secrets
from typing import TYPE_CHECKING

import polars as pl

from opscope.core.errors import StorageError
from opscope.core.grouping import grouped
from opscope.fleet.store.anchor import StoreDamageError, sha256_of_bytes
from opscope.fleet.store.entries import entry_rows, relatives
from opscope.fleet.store.log import TRIES, File, OvertakenError, commit, current
from opscope.fleet.store.rows import moment
from opscope.fleet.store.schema import BUNDLES, EVERY, KEYS, REPLACED, TABLES, as_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opscope.fleet.store.entries import StoreEntry
    from opscope.fleet.store.place import StoreLocation

MOST_ROWS = 50_000
"""Rows of a batch: what bounds its memory."""
ROW_GROUP = 50_000
"""Rows that a query can pass over together, when they are of other models."""


class Batch:
    """Bundles that are added in one step."""

    def __init__(self) -> None:
        self.entries: list[StoreEntry] = []
        self._frames: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
        self._rows = 0

    def add(self, entries: Iterable[StoreEntry], frames: Mapping[str, pl.DataFrame]) -> None:
        """More bundles, with their rows together by the names of their tables; nothing is written yet."""
        self.entries.extend(entries)
        for name, frame in frames.items():
            self._frames[name].append(frame)
            self._rows += frame.height

    @property
    def full(self) -> bool:
        """Whether it should be written before more is added."""
        return self._rows >= MOST_ROWS

    def write(self, place: StoreLocation) -> list[StoreEntry]:
        """Write the files, then the commit.

        A bundle that is already there, or of whose run a fuller one is there, is left out. When somebody else commits
        in between, what is there is looked up again.

        Returns the bundles that are in the store now.
        """
        wanted: tuple[list[StoreEntry], list[str]] = [], []
        files: list[File] = []
        for _ in range(TRIES if self.entries else 0):
            now = current(place)
            there = relatives(place, now, self.entries)
            fullest: dict[str, StoreEntry] = {}
            for one in self.entries:
                if _fullness(one) > _fullness(fullest.get(one.origin) or there.get(one.origin)):
                    fullest[one.origin] = one
            kept = [one for one in self.entries if fullest.get(one.origin) is one]
            found = kept, [there[one.origin].bundle for one in kept if one.origin in there]
            if found != wanted or not files:
                delete_files(place, files)
                wanted, files = found, self._files(place, *found)
            if not files:
                return []
            try:
                commit(place, now, files, data=True)
            except OvertakenError:
                continue
            return wanted[0]
        if self.entries:
            raise StorageError("other writers keep changing the store", where=place.address, hint="try again")
        return []

    def _files(self, place: StoreLocation, kept: list[StoreEntry], replaced: list[str]) -> list[File]:
        """Write the rows of some bundles; all files or none."""
        files: list[File] = []
        try:
            for month, entries in grouped(kept, lambda one: one.month).items():
                files.append(write_file(place, BUNDLES.name, month, entry_rows(entries)))
                every = len(entries) == len(self.entries)
                for name, frames in self._frames.items():
                    rows = _rows_of(frames, None if every else entries, self.entries)
                    if rows is not None:
                        files.append(write_file(place, name, month, rows))
            if replaced:
                marks = REPLACED.frame([(bundle,) for bundle in sorted(replaced)])
                files.append(write_file(place, REPLACED.name, kept[0].month, marks))
        except BaseException:
            delete_files(place, files)
            raise
        return files


def write_file(place: StoreLocation, table: str, month: str, frame: pl.DataFrame) -> File:
    """Write rows of one table to a file of a new name, which holds the hash of its content."""
    keys = [name for name in KEYS[1:] if name in frame.columns]
    rows, buffer = frame.height, io.BytesIO()
    frame = as_stored(EVERY[table], frame.sort(keys, maintain_order=True) if keys else frame)
    frame.write_parquet(buffer, compression="zstd", row_group_size=ROW_GROUP)
    content = buffer.getvalue()
    path = path_of(table, month, sha256_of_bytes(content))
    place.write(path, content)
    return File(path, table, month, rows, len(content))


def read_file(place: StoreLocation, file: File) -> pl.DataFrame:
    """The rows of a file, with the columns of its table."""
    try:
        content = place.read(file.path)
    except FileNotFoundError:
        raise StoreDamageError(place, file.path, "it is missing") from None
    problem = damage_of(file, content)
    if problem:
        raise StoreDamageError(place, file.path, problem)
    try:
        return as_stored(EVERY[file.table], pl.read_parquet(io.BytesIO(content)))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise StoreDamageError(place, file.path, f"{error}") from error


def damage_of(file: File, content: bytes) -> str | None:
    """What is wrong with the content of a file; None: it is as it was written."""
    if len(content) != file.size:
        return f"its content has changed: {len(content):,} bytes, {file.size:,} were written"
    if sha256_of_bytes(content) != hash_in(file.path):
        return "its content has changed: it does not match its hash"
    return None


def path_of(table: str, month: str, sha256: str) -> str:
    """Path of a new file. Two processes may write the same content, of which one is deleted: so no two names agree."""
    return f"table_name={table}/month={month}/{sha256}-{secrets.token_hex(4)}.parquet"


def hash_in(path: str) -> str:
    """Hash of the content that a file had when it was written, by its name."""
    return path.rpartition("/")[2].partition("-")[0]


def _fullness(one: StoreEntry | None) -> tuple[int, str]:
    return (-1, "") if one is None else (one.repetitions, one.bundle)


def _rows_of(
    frames: list[pl.DataFrame], entries: list[StoreEntry] | None, every: list[StoreEntry]
) -> pl.DataFrame | None:
    """Rows of one table and of some bundles, None: of all; None when there are none.

    Nothing is copied that need not be: the rows of a batch are most of the memory that adding takes.
    """
    if not frames:
        return None
    rows = pl.concat(frames)
    if entries is not None:
        rows = rows.filter(pl.col("bundle").is_in([one.bundle for one in entries]))
    if "placed" in rows.columns:
        places = {one.bundle: moment(one.placed) for one in every}
        said = pl.Series([places[bundle] for bundle in rows["bundle"]], dtype=pl.Datetime("us"))
        rows = rows.with_columns(pl.coalesce("placed", said).alias("placed"))
    return rows if rows.height else None


def delete_files(place: StoreLocation, files: list[File]) -> None:
    """Delete files that were written and are in no commit."""
    for file in files:
        place.delete(file.path)
