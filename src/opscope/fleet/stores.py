"""A store of many runs: adding to it, asking it, and keeping it in order."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.bundle import is_bundle
from opscope.core.errors import ClusterError, InterruptedRunError, OpscopeError
from opscope.fleet.results import QueryResult, StoreCheckResult, StoreEntries
from opscope.fleet.store import compaction, log
from opscope.fleet.store.checking import check_whole, verify
from opscope.fleet.store.entries import EntryStream, StoreEntry, known, listed, next_place
from opscope.fleet.store.place import place_of
from opscope.fleet.store.querying import QueryStream, ask, ask_snapshot, streamed
from opscope.fleet.store.rows import BundleLabels
from opscope.fleet.store.writing import Batch
from opscope.fleet.stored_bundle import Skipped, bundles_in, content_id, framed_together, ready
from opscope.fleet.stored_runs import names_of_machines
from opscope.measurements.notebook import NotebookResult, shown_as
from opscope.workflows.measure.parallel.workers import Lost, Where, calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from opscope.fleet.store.compaction import Compacted
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.stored_bundle import Ready
    from opscope.reports.notebook.card import Card

    _Making = Callable[[str], Ready | Skipped]

_FRAMED_ROWS = 8_192
"""Rows that become data frames together: enough that making a frame costs little, few enough to hold as objects."""
_CHECKED = 400
"""Of so many bundles one more is analysed again: a fleet of edited files is seen, and the rest costs nothing."""
_COMMIT_SECONDS = 30.0
"""Longer than that nothing stays unwritten that is ready."""


class AddReport(NotebookResult, msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-add/1"):
    """What became of the bundles that were to be added.

    Attributes:
        store: where.
        added: bundles that were not there before.
        known: how many were there already.
        skipped: what could not be stored.
        damaged: files of earlier versions that are missing or damaged, which nothing counts from, by their paths.
        checked: how many of the added bundles were analysed again, and would have been skipped if their files told
            anything else: one, and one of 400 more, by chance, unless another version wrote them; all where that was
            asked for.
    """

    store: str
    added: list[StoreEntry]
    known: int
    skipped: list[Skipped]
    damaged: dict[str, str] = {}
    checked: int = 0

    def to_polars(self) -> pl.DataFrame:
        """The bundles that were added, a row each."""
        from opscope.fleet.reports.frames import entries_frame

        return entries_frame(self.added)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import added_card

        return added_card(self.store, self.added, self.known, [f"{one.path}: {one.problem}" for one in self.skipped])


class RemoveReport(NotebookResult, msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-remove/1"):
    """The bundles that were removed."""

    store: str
    removed: list[StoreEntry]

    def to_polars(self) -> pl.DataFrame:
        """The bundles that were removed, a row each."""
        from opscope.fleet.reports.frames import entries_frame

        return entries_frame(self.removed)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import removed_card

        return removed_card(self.store, self.removed)


def _silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


def add_to_store(
    paths: Sequence[str | Path],
    store: str | Path | None = None,
    *,
    given: BundleLabels | None = None,
    where: Where | None = None,
    recompute: bool = False,
    progress: Callable[[int, int], None] = _silent,
) -> AddReport:
    """Add bundles to a store, which is made where there is none.

    A bundle that is there already is not added again. One that cannot be read is left out, and the others go on. What
    was added before an error stays. Analyses that bundles hold are taken as they are where the hashes of their traces
    fit; of a sample, they must be what the traces give.

    Args:
        paths: bundles, results of `opscope aie --out`, or directories with such below them.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        given: name of the device, commit, and whether they are old runs.
        where: in which processes bundles are analysed; None: in this one.
        recompute: analyse the traces, also where a bundle has the analyses already.
        progress: hears how many of how many are done.

    Raises:
        NotFoundError: a path is not there, or holds no bundle.
        BundleError: the store is of another version, or its place holds something else.
        TraceFormatError: a file of the store is damaged; nothing was added.
        ClusterError: the scheduler cannot be reached or was lost.
        StorageError: the system refused to write.
    """
    place = place_of(store)
    found = list(dict.fromkeys(bundle for path in paths for bundle in bundles_in(Path(path))))
    log.create(place)
    damaged = check_whole(place)
    compaction.tidy(place)
    skipped: list[Skipped] = []
    named = _named(found, skipped)
    now = log.snapshot(place)
    there = known(place, now, list(named))
    labels = (given or BundleLabels())._replace(names=names_of_machines(place))
    sources = [str(path.absolute()) for name, path in named.items() if name not in there]
    bundles = [source for source in sources if is_bundle(Path(source))]
    checked = frozenset(random.SystemRandom().sample(bundles, min(len(bundles), 1 + len(bundles) // _CHECKED)))
    make = partial(ready, given=labels, recompute=recompute, checked=checked)
    filling = _Filling(place, None if labels.backfill else next_place(place, now), skipped)
    added = list(filling.stored(sources, make, where or Where(), progress))
    already = len(found) - len(added) - len(skipped)
    return AddReport(place.address, added, already, skipped, damaged, filling.traced)


def store_entries(store: str | Path | None = None, *, last: int | None = None) -> StoreEntries:
    """The bundles of a store, in the order of histories; see :func:`entries_stream`.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        last: only so many, the newest ones; None: all.

    Raises:
        NotFoundError: there is no store.
        OpscopeError: of the kind that fits when it cannot be read.
    """
    with entries_stream(store, last=last) as stream:
        return StoreEntries(list(stream.entries), place_of(store).address)


@contextmanager
def entries_stream(store: str | Path | None = None, *, last: int | None = None) -> Iterator[EntryStream]:
    """The bundles of a store, in the order of histories, a part at a time.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        last: only so many, the newest ones; None: all.
    """
    place = place_of(store)
    with listed(place, log.snapshot(place), last) as stream:
        yield stream


def query_store(sql: str, store: str | Path | None = None, *, as_of: str | None = None) -> QueryResult:
    """The answer of a store to a query.

    Args:
        sql: one SELECT (or WITH, DESCRIBE, SUMMARIZE, EXPLAIN) over the views of a store.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        as_of: an earlier version: its number, or a moment in ISO 8601; None: what the store holds now.

    Raises:
        UsageError: it is wrong, or no query.
        NotFoundError: there is no store, or its earlier version is not kept any more.
        OpscopeError: of the kind that fits when the store cannot be read.
    """
    place = place_of(store)
    answer = ask(place, sql) if as_of is None else ask_snapshot(place, log.snapshot(place, as_of), sql)
    return QueryResult(answer, place.address)


@contextmanager
def query_stream(
    sql: str, store: str | Path | None = None, *, as_of: str | None = None, limit: int | None = None
) -> Iterator[QueryStream]:
    """The answer of a store to a query, a part at a time, in the memory of one part.

    Args:
        sql: one SELECT (or WITH, DESCRIBE, SUMMARIZE, EXPLAIN) over the views of a store.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        as_of: see :func:`query_store`.
        limit: at most so many rows; None: all.
    """
    place = place_of(store)
    with streamed(place, log.snapshot(place, as_of), sql, limit=limit) as stream:
        yield stream


def remove_from_store(
    bundles: Sequence[str], store: str | Path | None = None, *, older_than: int | None = None
) -> RemoveReport:
    """Take bundles out of a store. The bundles themselves are not touched.

    Their rows are in no file of the store afterwards, so that its earlier versions cannot be asked any more.

    Args:
        bundles: their hashes, or the beginnings of them.
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.
        older_than: also those that stand in histories more than so many days ago.

    Raises:
        NotFoundError: there is no store, or not exactly one bundle whose hash begins so.
        OpscopeError: of the kind that fits when the store cannot be read or written.
    """
    place = place_of(store)
    check_whole(place)
    compaction.tidy(place)
    return RemoveReport(place.address, compaction.remove(place, bundles, older_than))


def compact_store(store: str | Path | None = None) -> Compacted:
    """Read small files together into larger ones, and delete what was replaced more than a week ago.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.

    Raises:
        NotFoundError: there is no store.
        TraceFormatError: a file of the store is damaged; nothing was changed.
        OpscopeError: of the kind that fits when the store cannot be read or written.
    """
    place = place_of(store)
    check_whole(place)
    return compaction.compact(place)


def verify_store(store: str | Path | None = None) -> StoreCheckResult:
    """Read every file of a store and compare it with what was written.

    Args:
        store: directory or URL; None: that of OPSCOPE_STORE, else ``opscope-store``.

    Raises:
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    return shown_as(StoreCheckResult, verify(place_of(store)))


def _named(paths: Sequence[Path], skipped: list[Skipped]) -> dict[str, Path]:
    """Bundles by their hashes; of two paths with the same content the first."""
    named: dict[str, Path] = {}
    for path in paths:
        try:
            name = content_id(path)
        except OpscopeError as error:
            skipped.append(Skipped(str(path), str(error), error.hint))
            continue
        named.setdefault(name, path)
    return named


class _Filling:
    """Bundles on their way into a store.

    Args:
        place: of the store.
        at: where they stand in histories, ISO 8601; None: each where it began.
        skipped: where what cannot be stored is noted.

    Attributes:
        traced: how many of those that were taken had their traces analysed.
    """

    def __init__(self, place: StoreLocation, at: str | None, skipped: list[Skipped]) -> None:
        self._place, self._at, self._skipped = place, at, skipped
        self._waiting: list[Ready] = []
        self._batch, self._began = Batch(), time.monotonic()
        self.traced = 0

    def stored(
        self, sources: Sequence[str], make: _Making, where: Where, progress: Callable[[int, int], None]
    ) -> Iterator[StoreEntry]:
        """Store what becomes ready, batch by batch; what was stored."""
        try:
            for number, (one, result) in enumerate(zip(sources, calls(where, make, sources), strict=True), start=1):
                self._take(_here_instead(one, make, result))
                if self._batch.full or time.monotonic() - self._began > _COMMIT_SECONDS:
                    yield from self._written()
                progress(number, len(sources))
        except (InterruptedRunError, KeyboardInterrupt, ClusterError):
            self._frame()
            self._batch.write(self._place)
            raise
        yield from self._written()

    def _take(self, found: Ready | Skipped) -> None:
        if isinstance(found, Skipped):
            self._skipped.append(found)
            return
        self.traced += found.traced
        at = self._at or found.entry.created or found.entry.added
        self._waiting.append(found._replace(entry=msgspec.structs.replace(found.entry, placed=at)))
        if sum(one.size for one in self._waiting) >= _FRAMED_ROWS:
            self._frame()

    def _frame(self) -> None:
        waiting, self._waiting = self._waiting, []
        for found in framed_together(waiting):
            if isinstance(found, Skipped):
                self._skipped.append(found)
            else:
                self._batch.add(*found)

    def _written(self) -> list[StoreEntry]:
        self._frame()
        stored = self._batch.write(self._place)
        self._batch, self._began = Batch(), time.monotonic()
        compaction.compact_loose(self._place)
        return stored


def _here_instead(source: str, make: _Making, result: Ready | Skipped | Lost) -> Ready | Skipped:
    """What a worker gave; a bundle that it cannot make ready, or does not see, is made ready here where that helps."""
    if isinstance(result, Lost):
        return Skipped(source, result.reason, "add it again, with fewer workers or more memory for each")
    return make(source) if isinstance(result, Skipped) else result
