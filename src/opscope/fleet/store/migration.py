"""From a store of an older opscope to a new one beside it. The old store is read and never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.errors import BundleError, UsageError
from opscope.fleet.store.compaction import compact
from opscope.fleet.store.entries import known
from opscope.fleet.store.former import VERSION_0, VERSION_1, Version0, Version1, chunks
from opscope.fleet.store.log import create, former_version, snapshot
from opscope.fleet.store.rows import moment
from opscope.fleet.store.schema import SCHEMA
from opscope.fleet.store.writing import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opscope.fleet.store.entries import StoreEntry
    from opscope.fleet.store.place import StoreLocation

_FORMER: dict[str, type[Version0 | Version1]] = {VERSION_0: Version0, VERSION_1: Version1}


class Migrated(NamedTuple):
    """What a migration did.

    Attributes:
        bundles: that are in the new store now and were not before.
        before: version of the old store.
        after: version of the new one.
        store: the new one.
    """

    bundles: int
    before: str
    after: str
    store: str


def migrate(old: StoreLocation, new: StoreLocation, progress: Callable[[int, int], None]) -> Migrated:
    """Copy the bundles of an older store to a new one, which is made where there is none.

    What the new store has already is not copied again, so that a migration that was interrupted goes on where it was. A
    bundle stands in histories where it stood before: by the time when its run began.

    Raises:
        NotFoundError: there is no old store.
        UsageError: both are one place.
        BundleError: the old store is of this version, or of a newer opscope.
        TraceFormatError: a file of the old store is damaged.
    """
    if old.uri == new.uri:
        hint = "name another place with --to; the old store stays as it is"
        raise UsageError("a store is not migrated onto itself", where=new.address, hint=hint)
    before = _version(old)
    former = _FORMER[before](old)
    create(new)
    there = known(new, snapshot(new), [one.bundle for one in former.entries])
    todo = [one for one in former.entries if one.bundle not in there]
    copied = sum(_copied(former, todo, new, lambda done: progress(len(there) + done, len(former.entries))))
    compact(new)
    return Migrated(copied, before, SCHEMA, new.address)


def _copied(
    former: Version0 | Version1, todo: list[StoreEntry], new: StoreLocation, progress: Callable[[int], None]
) -> Iterator[int]:
    """Copy bundles, batch by batch; how many came with each. What was read before an interruption is stored."""
    batch, done = Batch(), 0
    try:
        for group in chunks(todo):
            batch.add([_placed(one) for one in group], former.rows(group))
            if batch.full:
                yield len(batch.write(new))
                batch = Batch()
            done += len(group)
            progress(done)
    except KeyboardInterrupt:
        batch.write(new)
        raise
    yield len(batch.write(new))


def _version(old: StoreLocation) -> str:
    """Version of an older store that can be migrated."""
    before = former_version(old)
    if before is None:
        snapshot(old)  # says what is there: nothing, or a store of a newer opscope
        raise BundleError(f"it is of this version, {SCHEMA}", where=old.address, hint="there is nothing to do")
    if before not in _FORMER:
        problem = f"written as {before}, this opscope knows {SCHEMA}"
        raise BundleError(problem, where=old.address, hint="upgrade opscope; nothing was changed")
    return before


def _placed(one: StoreEntry) -> StoreEntry:
    return msgspec.structs.replace(one, placed=one.created if moment(one.created) else one.added)
