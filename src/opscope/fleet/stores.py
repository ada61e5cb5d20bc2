"""A store of many runs: adding to it, asking it, and removing from it."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.bundle.bundle import is_bundle
from opscope.core.errors import NotFoundError, OpscopeError
from opscope.core.json import from_json
from opscope.fleet.bundles import BundleLabels, PreparedBundle, Skipped, bundle_hash, find_bundles, prepare_bundle
from opscope.fleet.results import AddReport, QueryResult, RemoveReport, StoreEntries
from opscope.fleet.runs import find_machine_names
from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import (
    BUNDLES,
    ENTRY_MOMENTS,
    EVERY,
    REPLACED,
    RUN_ORDER,
    TABLES,
    StoreEntry,
    entries_frame,
)
from opscope.fleet.store.sql import QueryStream, ask_snapshot, stream_answer
from opscope.fleet.store.table import (
    append_rows,
    change_store,
    create_store,
    delete_bundles,
    merge_small_files,
    open_store,
)
from opscope.workflows.measure.parallel.workers import UnfinishedTask, Where, run_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from opscope.fleet.store.place import StorePlace
    from opscope.fleet.store.table import Snapshot

_COLUMNS = ", ".join(StoreEntry.__struct_fields__)
_MOST_ROWS = 20_000
"""Rows that are written together: what bounds the memory."""
_COMMIT_SECONDS = 30.0
"""Time after which what is ready is written."""
_SAMPLE = 400
"""Of so many bundles one more is analysed again: a fleet of edited files is seen, and the rest costs nothing."""


def add_to_store(  # noqa: PLR0913 - the one call a notebook makes; all but the first two are by name
    paths: Sequence[str | Path],
    store: str | Path | None = None,
    *,
    given: BundleLabels | None = None,
    where: Where | None = None,
    recompute: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    notify: Callable[[str], None] = lambda _text: None,
) -> AddReport:
    """Add bundles to a store, which is made where there is none.

    A bundle that is there already is not added again. One that cannot be read is left out, and the others go on. What
    was added before an error stays. Analyses that bundles hold are taken as they are where the hashes of their traces
    fit; of a sample, they must be what the traces give.

    Args:
        paths: bundles, results of `opscope aie --out`, or directories with such below them.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        given: names of the device and the commit.
        where: in which processes bundles are analysed; None: in this one.
        recompute: analyse the traces, also where a bundle has the analyses already.
        progress: hears how many of how many are done.
        notify: hears of workers that died, a sentence each; the bundle of such a worker is analysed once more.

    Raises:
        NotFoundError: a path is not there, or holds no bundle.
        BundleError: the store is of another version, or its place holds something else.
        TraceFormatError: a file of the store is missing or damaged; the message names it.
        ClusterError: the scheduler cannot be reached or was lost.
        StorageError: the system refused to write.
    """
    place = find_place(store)
    paths_below = list(dict.fromkeys(bundle for path in paths for bundle in find_bundles(Path(path))))
    create_store(place)
    paths_by_hash: dict[str, Path] = {}
    skipped: list[Skipped] = []
    for path in paths_below:
        name = _hash_or_skip(path)
        if isinstance(name, Skipped):
            skipped.append(name)
        else:
            paths_by_hash.setdefault(name, path)  # of two paths with one content the first
    snapshot = open_store(place)
    known = _find_known(snapshot, paths_by_hash)
    sources = [str(path.absolute()) for name, path in paths_by_hash.items() if name not in known]
    bundles = [source for source in sources if is_bundle(Path(source))]
    sample = frozenset(random.SystemRandom().sample(bundles, min(len(bundles), 1 + len(bundles) // _SAMPLE)))
    labels = (given or BundleLabels())._replace(names=find_machine_names(snapshot))
    prepare = partial(prepare_bundle, labels=labels, recompute=recompute, sample=sample)
    added: list[StoreEntry] = []
    ready: list[PreparedBundle] = []
    began = time.monotonic()
    try:
        results = zip(sources, run_calls(where or Where(), prepare, sources, notify), strict=True)
        for number, (source, result) in enumerate(results, start=1):
            prepared = _retry_here(source, prepare, result)
            if isinstance(prepared, Skipped):
                skipped.append(prepared)
            else:
                ready.append(prepared)
            if _count_rows(ready) >= _MOST_ROWS or time.monotonic() - began > _COMMIT_SECONDS:
                batch, ready, began = ready, [], time.monotonic()
                added += write_bundles(place, batch)
            progress(number, len(sources))
    finally:  # what is ready stays, whatever ends the work
        added += write_bundles(place, ready)
    checked = sum(entry.checked for entry in added)
    return AddReport(place.address, added, len(paths_below) - len(added) - len(skipped), skipped, checked)


def _hash_or_skip(path: Path) -> str | Skipped:
    try:
        return bundle_hash(path)
    except OpscopeError as error:
        return Skipped(str(path), str(error), error.hint)


def _retry_here(
    source: str, prepare: Callable[[str], PreparedBundle | Skipped], result: PreparedBundle | Skipped | UnfinishedTask
) -> PreparedBundle | Skipped:
    """Return what a worker gave; a bundle that it does not see is prepared here where that helps."""
    if isinstance(result, UnfinishedTask):
        return Skipped(source, result.reason, "add it again, with fewer workers or more memory for each")
    return prepare(source) if isinstance(result, Skipped) else result


def _count_rows(bundles: Sequence[PreparedBundle]) -> int:
    return sum(len(rows) for bundle in bundles for rows in bundle.rows.values())


def write_bundles(place: StorePlace, bundles: Sequence[PreparedBundle]) -> list[StoreEntry]:
    """Add bundles in one commit; return those that were added.

    One that is already there, or of whose run a fuller one is there, is left out.
    """
    if not bundles:
        return []

    def write(snapshot: Snapshot) -> list[StoreEntry]:
        stored = _find_same_runs(snapshot, [bundle.entry.origin for bundle in bundles])
        known = _find_known(snapshot, [bundle.entry.bundle for bundle in bundles])
        fullest: dict[str, PreparedBundle] = {}
        for bundle in bundles:
            origin = bundle.entry.origin
            rival = fullest[origin].entry if origin in fullest else stored.get(origin)
            if bundle.entry.bundle not in known and _fullness(bundle.entry) > _fullness(rival):
                fullest[origin] = bundle
        entries = [bundle.entry for bundle in fullest.values()]
        if entries:
            rows = {name: [row for bundle in fullest.values() for row in bundle.rows.get(name, ())] for name in TABLES}
            rows[REPLACED.name] = [(stored[origin].bundle,) for origin in fullest if origin in stored]
            frames = {name: EVERY[name].make_frame(table_rows) for name, table_rows in rows.items() if table_rows}
            append_rows(snapshot, frames | {BUNDLES.name: entries_frame(entries)})
        return entries

    added = change_store(place, write)
    change_store(place, merge_small_files)
    return added


def _fullness(entry: StoreEntry | None) -> tuple[int, str]:
    return (-1, "") if entry is None else (entry.repetitions, entry.bundle)


def store_entries(store: str | Path | None = None, *, last: int | None = None) -> StoreEntries:
    """Return the bundles of a store, in the order of histories; see :func:`entries_stream`.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        last: only so many, the newest ones; None: all.

    Raises:
        NotFoundError: there is no store.
        OpscopeError: of the kind that fits when it cannot be read.
    """
    with entries_stream(store, last=last) as stream:
        return StoreEntries(stream.entries, find_place(store).address)


class EntryStream(NamedTuple):
    """Bundles of a store, some at a time."""

    total: int  # how many count
    entries: Iterator[StoreEntry]  # those that were asked for, in the order of histories


@contextmanager
def entries_stream(store: str | Path | None = None, *, last: int | None = None) -> Iterator[EntryStream]:
    """Give the bundles of a store, in the order of histories, some at a time.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        last: only so many, the newest ones; None: all.
    """
    snapshot = open_store(find_place(store))
    ((total,),) = ask_snapshot(snapshot, "SELECT count(*) FROM bundles")
    backwards = ", ".join(f"{name} DESC NULLS FIRST" for name in RUN_ORDER.split(", "))
    newest = f"ORDER BY {backwards} LIMIT {total if last is None else last}"
    sql = f"SELECT {_COLUMNS} FROM (SELECT * FROM bundles {newest}) ORDER BY {RUN_ORDER}"  # noqa: S608 - names of ours, a number
    with stream_answer(snapshot, sql) as stream:
        yield EntryStream(total, (_entry_of_row(row) for rows in stream.parts() for row in rows))


def query_store(
    sql: str, store: str | Path | None = None, *, as_of: str | None = None, limit: int | None = None
) -> QueryResult:
    """Return the answer of a store to a query.

    Args:
        sql: one SELECT (or WITH, DESCRIBE, SUMMARIZE, EXPLAIN) over the views of a store.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        as_of: an earlier version: its number, or a moment in ISO 8601; None: what the store holds now.
        limit: at most so many rows; None: all.

    Raises:
        UsageError: it is wrong, or no query.
        NotFoundError: there is no store, or its earlier version is not kept any more.
        OpscopeError: of the kind that fits when the store cannot be read.
    """
    with query_stream(sql, store, as_of=as_of, limit=limit) as stream:
        rows = [row for part in stream.parts() for row in part]
        return QueryResult(stream.columns, stream.types, rows, find_place(store).address)


@contextmanager
def query_stream(
    sql: str, store: str | Path | None = None, *, as_of: str | None = None, limit: int | None = None
) -> Iterator[QueryStream]:
    """Give the answer of a store to a query, some rows at a time, in the memory of these.

    Args:
        sql: one SELECT (or WITH, DESCRIBE, SUMMARIZE, EXPLAIN) over the views of a store.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        as_of: see :func:`query_store`.
        limit: at most so many rows; None: all.
    """
    with stream_answer(open_store(find_place(store), as_of), sql, limit=limit) as stream:
        yield stream


def remove_from_store(
    bundles: Sequence[str], store: str | Path | None = None, *, older_than: int | None = None
) -> RemoveReport:
    """Take bundles out of a store. The bundles themselves are not touched.

    Their rows are in no file of the store afterwards, so that its earlier versions cannot be asked any more.

    Args:
        bundles: their hashes, or the beginnings of them.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        older_than: also those that were added more than so many days ago.

    Raises:
        NotFoundError: there is no store, or not exactly one bundle whose hash begins so.
        OpscopeError: of the kind that fits when the store cannot be read or written.
    """
    place = find_place(store)

    def remove(snapshot: Snapshot) -> list[StoreEntry]:
        entries = _find_entries(snapshot, bundles, older_than)
        if entries:
            delete_bundles(snapshot, [entry.bundle for entry in entries])
        return entries

    return RemoveReport(place.address, change_store(place, remove))


def _find_same_runs(snapshot: Snapshot, origins: Sequence[str]) -> dict[str, StoreEntry]:
    """Return the bundles of a store whose runs began as some others did, by their origin."""
    return {entry.origin: entry for entry in _ask_entries(snapshot, "origin IN (SELECT unnest(?))", origins)}


def _find_known(snapshot: Snapshot, bundles: Collection[str]) -> set[str]:
    """Return those of some hashes that a store has seen, also of bundles that were replaced since."""
    seen = "SELECT bundle FROM bundles UNION ALL SELECT bundle FROM replaced"
    sql = f"SELECT bundle FROM ({seen}) WHERE bundle IN (SELECT unnest(?))"  # noqa: S608 - a text of ours
    return {row[0] for row in ask_snapshot(snapshot, sql, [list(bundles)])}


def _find_entries(snapshot: Snapshot, beginnings: Sequence[str], older_than: int | None) -> list[StoreEntry]:
    """Return the bundles whose hashes begin so, and those that were added more than so many days ago.

    Raises NotFoundError where not exactly one hash begins like one of these texts.
    """
    entries = {}
    for text in beginnings:
        matches = _ask_entries(snapshot, "starts_with(bundle, ?)", text) if text else []
        if len(matches) != 1:
            problem = "several bundles start with this" if matches else "the store has no such bundle"
            raise NotFoundError(problem, where=text, hint="`opscope store list` shows all of them")
        entries[matches[0].bundle] = matches[0]
    if older_than is not None:
        before = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(days=older_than)
        entries |= {entry.bundle: entry for entry in _ask_entries(snapshot, "added < ?", before)}
    return list(entries.values())


def _ask_entries(snapshot: Snapshot, condition: str, value: object) -> list[StoreEntry]:
    sql = f"SELECT {_COLUMNS} FROM bundles WHERE {condition} ORDER BY {RUN_ORDER}"  # noqa: S608 - texts of ours
    return [_entry_of_row(row) for row in ask_snapshot(snapshot, sql, [value])]


def _entry_of_row(row: tuple[Any, ...]) -> StoreEntry:
    moments = (cell.replace(tzinfo=timezone.utc).isoformat() if isinstance(cell, datetime) else cell for cell in row)
    fields: dict[str, Any] = dict(zip(StoreEntry.__struct_fields__, moments, strict=True))
    fields |= {name: fields[name] or "" for name in ENTRY_MOMENTS}
    fields |= {"variants": from_json(fields["variants"], tuple[str, ...]), "checked": bool(fields["checked"])}
    return StoreEntry(**fields)
