"""What a store holds: one Delta table, whose log says which files count in which version.

All tables of a store are parts of one Delta table, kept apart by its partition ``table_name``. So whatever is added,
removed or compacted is one commit, and is there as a whole or not at all. Each commit is a transaction of one
application, of which Delta Lake lets only one win when two were prepared on the same version: the other one looks at
the store again before it tries again.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.core.errors import BundleError, MissingDependencyError, NotFoundError, UsageError
from opscope.core.json import from_json
from opscope.fleet.store.place import EXTRA, storage_error
from opscope.fleet.store.schema import PARTITION, SCHEMA, STORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.fleet.store.place import StoreLocation

FORMER_HEAD = "store.json"
"""The first file of a store of an opscope that had a log of its own."""
LOG = "_delta_log"
TRIES = 100
"""How often a commit is prepared again when others were faster."""
_FAMILY = "opscope.store/"
_SCHEMA_KEY = "opscope.schema"
_APPLICATION = "opscope.store"
_CONFIGURATION = {
    _SCHEMA_KEY: SCHEMA,
    "delta.checkpointInterval": "20",
    "delta.dataSkippingNumIndexedCols": "0",  # a log without values: what is removed is in no statistics either
}


class File(NamedTuple):
    """A Parquet file that counts.

    Attributes:
        path: within the store.
        table: whose rows it holds.
        month: of its bundles.
        rows: how many.
        size: in bytes.
    """

    path: str
    table: str
    month: str
    rows: int
    size: int


class Snapshot(NamedTuple):
    """A store at one version.

    Attributes:
        version: number of its last commit.
        files: that count.
        delta: the Delta table.
        past: whether an earlier version was asked for, whose files may be deleted.
    """

    version: int
    files: list[File]
    delta: Any
    past: bool = False

    def of(self, table: str) -> list[File]:
        """Files of a table."""
        return [file for file in self.files if file.table == table]


class FormerHead(msgspec.Struct, frozen=True):
    """The first file of a store of an older opscope: its version."""

    schema: str


class OvertakenError(Exception):
    """Somebody else has committed since the snapshot was taken; nothing was changed."""


def create(place: StoreLocation) -> None:
    """Make a store where there is none; two at once make one.

    Raises:
        BundleError: there is a store of another version.
        StorageError: the system refused.
    """
    deltalake = _deltalake()
    if former_version(place) is not None:
        raise _other_version(place, str(former_version(place)))
    fields = [
        deltalake.Field(name, deltalake.schema.PrimitiveType(kind))
        for name, kind in ((*((name, "string") for name in PARTITION), *((n, k.delta) for n, k in STORED.items())))
    ]
    with _faults(place):
        if deltalake.DeltaTable.is_deltatable(place.uri, place.options):
            return
        try:
            deltalake.DeltaTable.create(
                place.uri,
                deltalake.Schema(fields),
                mode="ignore",
                partition_by=list(PARTITION),
                name="opscope",
                configuration=_CONFIGURATION,
                storage_options=place.options,
                raise_if_key_not_exists=False,
            )
        except deltalake.exceptions.CommitFailedError:
            return  # somebody else has made it at the same moment


def snapshot(place: StoreLocation, as_of: str | None = None) -> Snapshot:
    """What a store holds now, or held.

    Args:
        place: of the store.
        as_of: a version, or a moment in ISO 8601; None: now.

    Raises:
        NotFoundError: there is no store.
        BundleError: it is of another version of opscope.
        UsageError: it has no such version.
        StorageError: it cannot be reached.
    """
    delta = _opened(place)
    schema = str(delta.metadata().configuration.get(_SCHEMA_KEY) or "a Delta table of another program")
    if schema != SCHEMA:
        raise _other_version(place, schema)
    if as_of is not None:
        _go_back(place, delta, as_of)
    with _faults(place):
        table = delta.get_add_actions(flatten=True)
        names = ("path", "partition.table_name", "partition.month", "num_records", "size_bytes")
        files = [File(*row) for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
    return Snapshot(delta.version(), sorted(files), delta, past=as_of is not None)


def commit(place: StoreLocation, now: Snapshot, new: Sequence[File], old: Sequence[File] = (), *, data: bool) -> None:
    """Let files count, and others count no more, in one step.

    Args:
        place: of the store.
        now: the snapshot that was looked at.
        new: files, which are there already.
        old: files of the snapshot.
        data: whether rows come or go; compaction says no, so that who follows the changes need not read them.

    Raises:
        OvertakenError: somebody has committed since.
        StorageError: the system refused.
    """
    deltalake = _deltalake()
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

    moment = time.time_ns() // 1_000_000
    actions: list[Any] = [RemoveAction(file.path, data, moment, file.size, _partition(file)) for file in old]
    actions += [AddAction(file.path, file.size, _partition(file), moment, data, _statistics(file)) for file in new]
    number = (now.delta.transaction_version(_APPLICATION) or 0) + 1
    own = CommitProperties(app_transactions=[Transaction(_APPLICATION, number)])
    with _faults(place):
        try:
            now.delta.create_write_transaction(
                actions, "append", now.delta.schema(), list(PARTITION), commit_properties=own
            )
        except deltalake.exceptions.CommitFailedError as error:
            raise OvertakenError from error


def vacuum(place: StoreLocation, hours: int, *, unnamed: bool) -> list[str]:
    """Delete files that count no more in any version of the last hours; their paths.

    Args:
        place: of the store.
        hours: 0: also those that the commit before this one named.
        unnamed: also files as old that no version names: of processes that were killed.
    """
    with _faults(place):
        return list(
            _opened(place).vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=unnamed)
        )


def former_files(place: StoreLocation, now: Snapshot) -> set[str]:
    """Paths of files that counted in an earlier version, where they are kept."""
    with _faults(place):
        return set(now.delta.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))


def former_version(place: StoreLocation) -> str | None:
    """Schema of a store of an opscope that had a log of its own; None where there is no such store.

    Raises:
        BundleError: its first file is damaged.
    """
    try:
        return from_json(place.read(FORMER_HEAD), FormerHead).schema
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BundleError(f"damaged: {error}", where=f"{place.address}/{FORMER_HEAD}") from error


def _opened(place: StoreLocation) -> Any:  # noqa: ANN401 - the package may be absent
    deltalake = _deltalake()
    with _faults(place):
        try:
            return deltalake.DeltaTable(place.uri, storage_options=place.options)
        except deltalake.exceptions.TableNotFoundError:
            pass
    former = former_version(place)
    if former is not None:
        raise _other_version(place, former)
    hint = "make one with `opscope store add PATH...`, or name another with --store"
    raise NotFoundError("there is no store", where=place.address, hint=hint)


def _other_version(place: StoreLocation, schema: str) -> BundleError:
    known = schema.removeprefix(_FAMILY)
    older = known.isdecimal() and int(known) < int(SCHEMA.removeprefix(_FAMILY))
    migrate = f"opscope store migrate --store {place.address} --to {place.address}-2"
    problem = f"written as {schema}, this opscope knows {SCHEMA}"
    return BundleError(problem, where=place.address, hint=migrate if older else "upgrade opscope; nothing was changed")


def _go_back(place: StoreLocation, delta: Any, as_of: str) -> None:  # noqa: ANN401 - likewise
    deltalake = _deltalake()
    try:
        delta.load_as_version(int(as_of) if as_of.isdecimal() else as_of)
    except (deltalake.exceptions.DeltaError, ValueError, OverflowError) as error:
        hint = f"a number from 0 to {delta.version()}, or a moment such as 2026-01-31T12:00:00Z"
        raise UsageError(f"the store has no version {as_of!r}", where=place.address, hint=hint) from error


def _partition(file: File) -> dict[str, str | None]:
    return {"table_name": file.table, "month": file.month}


def _statistics(file: File) -> str:
    return msgspec.json.encode({"numRecords": file.rows}).decode()


@contextmanager
def _faults(place: StoreLocation) -> Iterator[None]:
    """Turn what Delta Lake says of the storage below it into errors of ours.

    Raises:
        StorageError: the storage refused, or the log cannot be read.
    """
    deltalake = _deltalake()
    try:
        yield
    except deltalake.exceptions.TableNotFoundError:
        raise
    except (OSError, deltalake.exceptions.DeltaError) as error:
        raise storage_error(error, place.address) from error


def _deltalake() -> Any:  # noqa: ANN401 - the module, which may be absent
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.schema
    except ImportError:
        raise MissingDependencyError("deltalake is not installed", where="store", hint=EXTRA) from None
    return deltalake
