"""Small files into few large ones, and bundles out of a store: files are rewritten, and one commit replaces them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from opscope.core.errors import StorageError
from opscope.core.grouping import grouped
from opscope.fleet.store.entries import chosen, older
from opscope.fleet.store.log import (
    TRIES,
    File,
    OvertakenError,
    commit,
    current,
    delete_replaced,
    forget_commits,
    snapshot,
)
from opscope.fleet.store.querying import only_reading, parquet_of, query_errors, reading_connection
from opscope.fleet.store.schema import REPLACED
from opscope.fleet.store.writing import delete_files, read_file, write_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from opscope.fleet.store.entries import StoreEntry
    from opscope.fleet.store.log import Snapshot
    from opscope.fleet.store.place import StoreLocation

MOST_ROWS = 100_000
"""Rows that are read together at most, so that neither memory nor time grows with the store."""
_LARGE_ROWS = MOST_ROWS // 2
"""Rows from which a file is compacted no further: smaller ones fit together, two by two at least."""
_LARGE_SIZE = 8 << 20
"""Bytes from which it is compacted no further either: of long texts fewer rows are held."""
_MOST_BYTES = 64 << 20
"""Of rows that are held at once, as data frames."""
LOOSE_FILES = 96
"""Smaller files from which `add` compacts."""
_TIER = 4
"""`add` leaves a file alone that has so many times the rows of all smaller ones: so rows are rewritten seldom."""
_KEPT_HOURS = 168
"""Files that count no more stay so long, for those who are reading and for earlier versions: Delta Lake's own week."""
_COMMITS_SECONDS = 30 * 86_400.0
"""Commits stay so long, as Delta Lake has it."""


class Compacted(NamedTuple):
    """What compaction did."""

    before: int  # files that were read together
    after: int  # files that took their place
    deleted: int  # files that were replaced more than a week ago


def compact(place: StoreLocation) -> Compacted:
    """Read small files of a table and month together into one; nothing changes for those who query.

    Bundles that were replaced go out of the files. Files are deleted that the log says were replaced a week ago, and no
    others.
    """
    gone = tidy(place)
    purged = _purge(place)
    before, after = _compact_all(place, tiered=False)
    return Compacted(purged[0] + before, purged[1] + after, len(gone))


def tidy(place: StoreLocation) -> list[str]:
    """Delete files that were replaced more than a week ago, and commits that nobody needs any more.

    It comes before commits, which could let the log forget what was replaced.

    Returns paths of the files.
    """
    gone = delete_replaced(place, _KEPT_HOURS)
    forget_commits(place, time.time() - _COMMITS_SECONDS)
    return gone


def compact_loose(place: StoreLocation) -> None:
    """The same when there are many small files; of them only those that are alike in size."""
    if sum(map(_is_small, snapshot(place).files)) > LOOSE_FILES:
        _compact_all(place, tiered=True)
        delete_replaced(place, _KEPT_HOURS)


def remove(place: StoreLocation, bundles: Iterable[str], older_than: int | None = None) -> list[StoreEntry]:
    """Take bundles out of a store; their rows are gone from its files then, those of earlier versions too.

    Returns the bundles that were removed.
    """
    asked = list(bundles)

    def found(now: Snapshot) -> list[StoreEntry]:
        words = [chosen(place, now, word) for word in asked]
        aged = [] if older_than is None else older(place, now, older_than)
        return list({one.bundle: one for one in (*words, *aged)}.values())

    out: list[StoreEntry] = []
    for _ in range(TRIES):
        now = current(place)
        out = found(now)
        if not out or _without(place, now, {one.bundle for one in out}):
            break
    else:
        raise _too_busy(place)
    if out:
        _purge(place)
        delete_replaced(place, 0)
    return out


def _purge(place: StoreLocation) -> tuple[int, int]:
    """Take bundles out that were replaced; how many files were read, and how many took their place."""
    for _ in range(TRIES):
        now = current(place)
        marks = now.of(REPLACED.name)
        if not marks:
            return 0, 0
        sql = f"SELECT bundle FROM {parquet_of([file.path for file in marks])}"  # noqa: S608 - quoted paths
        gone = {name for (name,) in _answer(place, marks, sql, [])}
        changed = _without(place, now, gone, marks)
        if changed:
            return changed
    raise _too_busy(place)


def _without(
    place: StoreLocation, now: Snapshot, bundles: Collection[str], also: Sequence[File] = ()
) -> tuple[int, int] | None:
    """Write the files that hold some bundles anew, without them; None when somebody was faster."""
    old = [file for file in now.files if file.table != REPLACED.name]
    old = list(_holding(place, old, bundles))
    gone = pl.Series(sorted(bundles), dtype=pl.String)
    kept = ((file, read_file(place, file).filter(~pl.col("bundle").is_in(gone.implode()))) for file in old)
    new = [write_file(place, file.table, file.month, rows) for file, rows in kept if rows.height]
    if _replaced_by(place, now, new, [*old, *also], data=True):
        return len(old) + len(also), len(new)
    return None


def _compact_all(place: StoreLocation, *, tiered: bool) -> tuple[int, int]:
    """Small files of each table and month in as few as their size allows; how many there were, and are."""
    for _ in range(TRIES):
        now = current(place)
        pairs = [pair for small in _small(now, tiered=tiered) for pair in read_together(place, small)]
        if not pairs:
            return 0, 0
        old, new = [file for files, _ in pairs for file in files], [made for _, made in pairs]
        if _replaced_by(place, now, new, old, data=False):
            return len(old), len(new)
    raise _too_busy(place)


def _small(now: Snapshot, *, tiered: bool) -> Iterator[list[File]]:
    """Small files of each table and month."""
    for small in grouped(filter(_is_small, now.files), lambda file: (file.table, file.month)).values():
        chosen = alike(small) if tiered else small
        if len(chosen) > 1:
            yield chosen


def _is_small(file: File) -> bool:
    return file.rows < _LARGE_ROWS and file.size < _LARGE_SIZE


def _replaced_by(place: StoreLocation, now: Snapshot, new: list[File], old: list[File], *, data: bool) -> bool:
    """Let new files count for old ones. Others may add meanwhile; False when one of the old ones counts no more.

    Whether a commit that ends in another error is in the log, nobody knows: the new files stay.
    """
    for _ in range(TRIES):
        if not set(old) <= set(now.files):
            delete_files(place, new)
            return False
        try:
            commit(place, now, new, old, data=data)
        except OvertakenError:
            now = snapshot(place)
            continue
        return True
    delete_files(place, new)
    raise _too_busy(place)


def alike(files: list[File]) -> list[File]:
    """The smaller ones of some files: without those that are much larger than all smaller ones together."""
    found = sorted(files, key=lambda one: one.rows)
    below = list(itertools.accumulate((one.rows for one in found), initial=0))
    while found and found[-1].rows > _TIER * below[len(found) - 1]:
        found.pop()
    return found


def read_together(place: StoreLocation, files: Sequence[File]) -> Iterator[tuple[list[File], File]]:
    """Make one file of several of a table and month, and so on: of as many as may be held at once.

    Returns the files that were read, and the one that has their rows. What stays alone is left out.
    """
    held: list[tuple[File, pl.DataFrame]] = []
    for file in files:
        one = file, read_file(place, file)
        if not _fits([*held, one]):
            yield from _joined(place, held)
            held = []
        held.append(one)
    yield from _joined(place, held)


def _fits(held: Sequence[tuple[File, pl.DataFrame]]) -> bool:
    rows = sum(file.rows for file, _ in held)
    return rows <= MOST_ROWS and sum(frame.estimated_size() for _, frame in held) <= _MOST_BYTES


def _joined(place: StoreLocation, held: list[tuple[File, pl.DataFrame]]) -> Iterator[tuple[list[File], File]]:
    if len(held) > 1:
        files = [file for file, _ in held]
        rows = [pl.concat([frame for _, frame in held])]
        held.clear()  # nobody holds them any more while they are sorted, which takes as much again
        yield files, write_file(place, files[0].table, files[0].month, rows.pop())


def _holding(place: StoreLocation, files: Sequence[File], bundles: Collection[str]) -> Iterator[File]:
    """Those of some files that hold rows of some bundles."""
    by_path = {file.path: file for file in files}
    for table in sorted({file.table for file in files}):
        own = [file for file in files if file.table == table]
        rows = parquet_of([file.path for file in own], ", filename = true")
        sql = f"SELECT DISTINCT filename FROM {rows} WHERE bundle IN (SELECT unnest(?)) ORDER BY ALL"  # noqa: S608
        yield from (by_path[name.partition("://")[2]] for (name,) in _answer(place, own, sql, [sorted(bundles)]))


def _answer(place: StoreLocation, own: Sequence[File], sql: str, values: list[list[str]]) -> list[tuple[str, ...]]:
    """The answer of a connection that reads files which no view may show."""
    files = only_reading(place, own)
    with reading_connection(files) as connection, query_errors(place, files):
        return list(connection.execute(sql, values).fetchall())


def _too_busy(place: StoreLocation) -> StorageError:
    return StorageError("it changes faster than it can be rewritten", where=place.address, hint="try again")
