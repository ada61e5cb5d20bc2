"""Compaction of many small files into few, and removal of bundles: what makes a new generation."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from opscope.core.errors import NotFoundError, TraceFormatError
from opscope.fleet.store.log import DATA, Generation, commit_paths, generation_path, next_generation, snapshot
from opscope.fleet.store.schema import TABLES
from opscope.fleet.store.writing import MOST_ROWS, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from opscope.fleet.store.log import File, Snapshot, StoreEntry
    from opscope.fleet.store.place import StoreLocation

    _Lessened: TypeAlias = tuple[File, frozenset[str]]
    """A file, and bundles whose rows in it do not count."""

LOOSE_FILES = 2_000
"""Files of commits beside the newest generation from which `add` compacts them."""
_EMPTY = msgspec.json.encode(Generation()) + b"\n"
_LEFTOVER_SECONDS = 86_400.0
"""Files that nothing names may belong to a process that has not committed yet; none takes a day."""


class Compacted(NamedTuple):
    """What compaction did.

    Attributes:
        before: files that were read together.
        after: files that took their place.
        leftovers: files of processes that were killed, which were deleted.
    """

    before: int
    after: int
    leftovers: int


class _Rewritten(NamedTuple):
    kept: list[File]
    new: list[File]
    old: list[File]


def compact(place: StoreLocation) -> Compacted:
    """Read small files of a partition together into one; nothing changes for those who query.

    Files of 200,000 rows or more stay as they are, so that neither memory nor time grows with the store. Afterwards
    files are deleted that no commit names and that are older than a day.

    Raises:
        OpscopeError: of the kind that fits; the store is as it was.
    """
    while True:
        now = snapshot(place)
        rewritten = _compacted(place, now)
        if not rewritten.old and not now.commits:
            return Compacted(0, 0, _sweep(place, now))
        if _put(place, now, now.entries(), rewritten):
            return Compacted(len(rewritten.old), len(rewritten.new), _sweep(place, snapshot(place)))


def remove(place: StoreLocation, bundles: Iterable[str]) -> list[StoreEntry]:
    """Take bundles out of a store; their rows are gone from its files then.

    Args:
        place: of the store.
        bundles: hashes, or beginnings of them that fit one bundle only.

    Returns:
        The bundles that were removed.

    Raises:
        NotFoundError: there is no such bundle, or several begin so; nothing was removed.
    """
    asked = list(bundles)
    while True:
        now = snapshot(place)
        out = [chosen(now.entries(), word) for word in asked]
        origins = {one.origin for one in out}
        left = [one for one in now.entries() if one.origin not in origins]
        rewritten = _without(place, now, out)
        if _put(place, now, left, rewritten):
            return out


def chosen(entries: Iterable[StoreEntry], word: str) -> StoreEntry:
    """The bundle whose hash begins with a word.

    Raises:
        NotFoundError: there is none, or several.
    """
    found = [one for one in entries if word and one.bundle.startswith(word)]
    if len(found) != 1:
        problem = "several bundles begin with this" if found else "there is no such bundle in the store"
        raise NotFoundError(problem, where=word, hint="`opscope store list` shows all of them")
    return found[0]


def read_file(place: StoreLocation, file: File) -> pl.DataFrame:
    """Rows of a file.

    Raises:
        TraceFormatError: it is missing or damaged.
    """
    where = f"{place.address}/{file.path}"
    hint = "take the file from a copy of the store, or remove its bundles and add them again"
    try:
        frame = pl.read_parquet(io.BytesIO(place.read(file.path)))
    except FileNotFoundError:
        raise TraceFormatError("a file of the store is missing", where=where, hint=hint) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TraceFormatError(f"a file of the store is damaged: {error}", where=where, hint=hint) from error
    return frame.select(list(TABLES[file.table].polars))


def _compacted(place: StoreLocation, now: Snapshot) -> _Rewritten:
    """Small files of a partition in one, and no rows that do not count."""
    result = _Rewritten([], [], [])
    for files in _partitions(now).values():
        small = [(file, without) for file, without in files if without or file.rows < MOST_ROWS]
        worth = len(small) > 1 or any(without for _, without in small)
        _rewrite(place, files, small if worth else [], result)
    return result


def _without(place: StoreLocation, now: Snapshot, out: Iterable[StoreEntry]) -> _Rewritten:
    """The files without the rows of some bundles; others stay as they are."""
    gone: dict[tuple[str, str, str], frozenset[str]] = {}
    for one in out:
        for variant in one.variants:
            partition = (one.model, one.device, variant)
            gone[partition] = gone.get(partition, frozenset()) | {one.bundle}
    result = _Rewritten([], [], [])
    for (_, partition), files in _partitions(now).items():
        lessened = [(file, without | gone.get(partition, frozenset())) for file, without in files]
        _rewrite(place, lessened, [pair for pair in lessened if pair[1]], result)
    return result


def _partitions(now: Snapshot) -> dict[tuple[str, tuple[str, str, str]], list[_Lessened]]:
    """Files of each table and partition, with the bundles whose rows in them do not count."""
    groups: dict[tuple[str, tuple[str, str, str]], list[_Lessened]] = {}
    for part in now.parts():
        for file in part.files:
            groups.setdefault((file.table, file.partition), []).append((file, part.without))
    return groups


def _rewrite(place: StoreLocation, files: list[_Lessened], chosen_ones: list[_Lessened], result: _Rewritten) -> None:
    """Write some files of a partition anew, together; note what is kept, new and old."""
    old = [file for file, _ in chosen_ones]
    result.kept.extend(file for file, _ in files if file not in old)
    result.old.extend(old)
    result.new.extend(_merged(place, chosen_ones))


def _merged(place: StoreLocation, files: list[_Lessened]) -> list[File]:
    """The rows of files of one partition in as few new ones as their size allows."""
    found: list[File] = []
    waiting: list[pl.DataFrame] = []
    rows = 0
    for file, without in files:
        frame = read_file(place, file)
        frame = frame.filter(~pl.col("bundle").is_in(list(without))) if without else frame
        waiting, rows = [*waiting, frame], rows + frame.height
        if rows >= MOST_ROWS:
            found.append(write_file(place, files[0][0].table, files[0][0].partition, pl.concat(waiting)))
            waiting, rows = [], 0
    if rows:
        found.append(write_file(place, files[0][0].table, files[0][0].partition, pl.concat(waiting)))
    return found


def _put(place: StoreLocation, now: Snapshot, entries: list[StoreEntry], rewritten: _Rewritten) -> bool:
    """Make the next generation, then delete what it replaces; False when another one was made in the meantime."""
    there = commit_paths(place)
    still = [path for path in now.generation.dropped if path in there]
    made = Generation(entries, [*rewritten.kept, *rewritten.new], [*still, *now.commits])
    if not next_generation(place, now.number + 1, made):
        for file in rewritten.new:
            place.delete(file.path)
        return False
    for path in (*now.commits, *still, *(file.path for file in rewritten.old)):
        place.delete(path)
    if now.number:
        # Its number stays taken: somebody who has slept since must not make it a second time.
        place.write(generation_path(now.number), _EMPTY)
    return True


def _sweep(place: StoreLocation, now: Snapshot) -> int:
    """Delete old files that nothing names; their number."""
    known, oldest = {file.path for file in now.files()}, time.time() - _LEFTOVER_SECONDS
    lost = [path for path, (_, changed) in place.files(DATA).items() if path not in known and changed < oldest]
    for path in lost:
        place.delete(path)
    return len(lost)
