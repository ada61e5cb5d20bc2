"""A store of many runs: adding to it, asking it, and keeping it in order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import ClusterError, InterruptedRunError, NotFoundError, OpscopeError
from opscope.fleet.store import compaction, log
from opscope.fleet.store.checking import StoreCheck, verify
from opscope.fleet.store.log import StoreEntry
from opscope.fleet.store.migration import Migrated, migrate
from opscope.fleet.store.place import place_of
from opscope.fleet.store.querying import QueryResult, ask
from opscope.fleet.store.rows import BundleLabels
from opscope.fleet.store.writing import Batch
from opscope.fleet.stored_bundle import BundleRequest, Refused, bundles_in, content_id, ready
from opscope.workflows.measure.workers import Lost, Where, calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opscope.fleet.store.compaction import Compacted
    from opscope.fleet.store.place import StoreLocation
    from opscope.fleet.stored_bundle import Ready

DEFAULT_STORE = "opscope-store"
STORE_VARIABLE = "OPSCOPE_STORE"
_COMMIT_SECONDS = 30.0
"""Longer than that nothing stays unwritten that is ready."""


class Skipped(msgspec.Struct, frozen=True):
    """A bundle that was not stored, and why.

    Attributes:
        path: of it.
        problem: as one sentence without a full stop.
        hint: what to do; null when nothing can be advised.
    """

    path: str
    problem: str
    hint: str | None


class AddReport(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-add/1"):
    """What became of the bundles that were to be added.

    Attributes:
        store: where.
        added: bundles that were not there before.
        known: how many were there already.
        skipped: what could not be stored.
    """

    store: str
    added: list[StoreEntry]
    known: int
    skipped: list[Skipped]


class RemoveReport(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-remove/1"):
    """The bundles that were removed."""

    store: str
    removed: list[StoreEntry]


def _silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


def store_address(address: str | Path | None) -> str:
    """The address of the store: as given, else of the environment variable OPSCOPE_STORE, else ``opscope-store``."""
    return str(address or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


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
    was added before an error stays.

    Args:
        paths: bundles, results of `opscope aie --out`, or directories with such below them.
        store: directory or URL; see ``store_address``.
        given: name of the device, and commit.
        where: bundles are analysed; None: in this process.
        recompute: analyse the traces, also where a bundle has the analyses already.
        progress: hears how many of how many are done.

    Raises:
        NotFoundError: a path is not there, or holds no bundle.
        BundleError: the store is of another version.
        ClusterError: the scheduler cannot be reached or was lost.
        StorageError: the system refused to write.
    """
    place = place_of(store_address(store))
    found = list(dict.fromkeys(bundle for path in paths for bundle in bundles_in(Path(path))))
    log.create(place)
    known = _known(place)
    skipped: list[Skipped] = []
    asked = list(_new(found, known, given or BundleLabels(), skipped, recompute=recompute))
    added = list(_stored(place, asked, where or Where(), skipped, progress))
    return AddReport(place.address, added, len(found) - len(added) - len(skipped), skipped)


def store_entries(store: str | Path | None = None) -> list[StoreEntry]:
    """The bundles of a store, in order of time."""
    return log.snapshot(place_of(store_address(store))).entries()


def query_store(sql: str, store: str | Path | None = None) -> QueryResult:
    """The answer of a store to a query; see ``opscope.fleet.store.querying.ask``."""
    return ask(place_of(store_address(store)), sql)


def remove_from_store(bundles: Sequence[str], store: str | Path | None = None) -> RemoveReport:
    """Take bundles out of a store, by their hashes or the beginnings of them."""
    place = place_of(store_address(store))
    return RemoveReport(place.address, compaction.remove(place, bundles))


def compact_store(store: str | Path | None = None) -> Compacted:
    """Read small files together into larger ones."""
    return compaction.compact(place_of(store_address(store)))


def verify_store(store: str | Path | None = None) -> StoreCheck:
    """Read every file of a store and compare it with what was promised."""
    return verify(place_of(store_address(store)))


def migrate_store(store: str | Path | None = None) -> Migrated:
    """Bring a store of an older opscope to the version of this one."""
    return migrate(place_of(store_address(store)))


def _known(place: StoreLocation) -> set[str]:
    now = log.snapshot(place)
    return {one.bundle for source in now.sources() for one in source.entries}


def _new(
    found: Sequence[Path], known: set[str], given: BundleLabels, skipped: list[Skipped], *, recompute: bool
) -> Iterator[BundleRequest]:
    """What is not in the store yet; of two paths with the same content the first."""
    seen = set(known)
    for path in found:
        try:
            name = content_id(path)
        except OpscopeError as error:
            skipped.append(Skipped(str(path), str(error), error.hint))
            continue
        if name not in seen:
            seen.add(name)
            yield BundleRequest(str(path.absolute()), given, recompute)


def _stored(
    place: StoreLocation,
    asked: Sequence[BundleRequest],
    where: Where,
    skipped: list[Skipped],
    progress: Callable[[int, int], None],
) -> Iterator[StoreEntry]:
    """Store what becomes ready, batch by batch; what was stored."""
    batch, began = Batch(), time.monotonic()
    try:
        for number, (one, result) in enumerate(zip(asked, calls(where, ready, asked), strict=True), start=1):
            found = _here_instead(one, result)
            if isinstance(found, Refused):
                skipped.append(Skipped(found.path, found.problem, found.hint))
            else:
                batch.add(found.entry, found.frames)
            if batch.full or time.monotonic() - began > _COMMIT_SECONDS:
                yield from _written(place, batch)
                batch, began = Batch(), time.monotonic()
            progress(number, len(asked))
    except (InterruptedRunError, KeyboardInterrupt, ClusterError):
        batch.write(place)
        raise
    yield from _written(place, batch)


def _here_instead(asked: BundleRequest, result: Ready | Refused | Lost) -> Ready | Refused:
    """What a worker gave; where it does not see the bundle, the bundle is made ready here."""
    if isinstance(result, Lost):
        return Refused(asked.path, result.reason, "add it again, with fewer workers or more memory for each", 1)
    if isinstance(result, Refused) and result.exit_code == NotFoundError.exit_code:
        return ready(asked)
    return result


def _written(place: StoreLocation, batch: Batch) -> list[StoreEntry]:
    batch.write(place)
    now = log.snapshot(place)
    if sum(len(commit.files) for commit in now.commits.values()) > compaction.LOOSE_FILES:
        compaction.compact(place)
    return batch.entries
