"""What a store holds: one Delta table, whose log says which files count in which version.

All tables of a store are parts of one Delta table, kept apart by its partition ``table_name``. So whatever is added,
removed or compacted is one commit, and is there as a whole or not at all. Each commit is a transaction of one
application, of which Delta Lake lets only one win when two were prepared on the same version: the other one looks at
the store again before it tries again. After each commit the anchor follows: ``opscope.fleet.store.anchor``.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.core.errors import BundleError, MissingDependencyError, NotFoundError, StorageError, UsageError
from opscope.core.install import install_command
from opscope.fleet.store.anchor import (
    ANCHOR,
    CHECKPOINT_INTERVAL,
    LOG,
    StoreDamageError,
    advance,
    anchor_of,
    begin,
    commit_path,
    followed,
    live_hash,
    read_anchor,
    read_commit,
    statement,
    version_of,
)
from opscope.fleet.store.place import storage_error
from opscope.fleet.store.schema import PARTITION, SCHEMA, STORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.fleet.store.anchor import Anchor
    from opscope.fleet.store.place import StoreLocation

TRIES = 100
"""How often a commit is prepared again when others were faster."""
_SCHEMA_KEY = "opscope.schema"
_COLUMNS_KEY = "opscope.columns"
_APPLICATION = "opscope.store"
_AT_ONCE = 0  # Delta Lake's own retries would put a commit, even that of a new store, behind one that it has not read
_CONFIGURATION = {
    _SCHEMA_KEY: SCHEMA,
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.enableExpiredLogCleanup": "false",  # what the anchor knows is deleted by who writes the anchor
    "delta.deletedFileRetentionDuration": "interval 2 weeks",  # replaced files are deleted before that
    "delta.dataSkippingNumIndexedCols": "0",  # a log without values: what is removed is in no statistics either
}


class File(NamedTuple):
    """A Parquet file that counts."""

    path: str  # within the store
    table: str  # whose rows it holds
    month: str  # of its bundles
    rows: int  # how many
    size: int  # in bytes


class Snapshot(NamedTuple):
    """A store at one version."""

    version: int  # number of its last commit
    files: list[File]  # that count
    delta: Any  # the Delta table
    tip: str  # SHA-256 of its last commit
    past: bool = False  # whether an earlier version was asked for, whose files may be deleted
    grown: bool = False  # whether columns were added since it was made, or are still to be added

    def of(self, table: str) -> list[File]:
        """Files of a table."""
        return [file for file in self.files if file.table == table]


class OvertakenError(Exception):
    """Somebody else has committed since the snapshot was taken; nothing was changed."""


def current(place: StoreLocation) -> Snapshot:
    """What a store holds now, to write to it: columns that this opscope has and the store has not are added first."""
    for _ in range(TRIES):
        now = snapshot(place)
        there = {field.name for field in now.delta.schema().fields}
        missing = [field for field in _fields() if field.name not in there]
        if not missing:
            return now
        with contextlib.suppress(OvertakenError), _faults(place), _first():
            now.delta.alter.add_columns(missing, commit_properties=_prepared(now, now.files))
        advance(place)
    raise StorageError("others write faster than this can", where=place.address, hint="try again")


def create(place: StoreLocation) -> None:
    """Make a store where there is none; two at once make one."""
    try:
        anchor = read_anchor(place)
    except StoreDamageError:
        snapshot(place)  # says it, unless the anchor is one of another version
        raise
    if anchor is None:
        _check_empty(place)
        begin(place)
    if anchor is None or anchor.version < 0:
        _create_table(place)
        advance(place)


def _check_empty(place: StoreLocation) -> None:
    """Whether a store may be made here."""
    there = [path for path in place.files("") if not path.startswith(f".{ANCHOR}")]  # of a command that was killed
    if not there or read_anchor(place) is not None:  # somebody else makes it at this moment
        return
    try:
        snapshot(place)
    except NotFoundError:
        pass
    else:
        return  # likewise
    hint = "name an empty or new directory; nothing was changed"
    raise BundleError(f"not a store and not empty: it contains {min(there)}", where=place.address, hint=hint)


def _create_table(place: StoreLocation) -> None:
    deltalake = _deltalake()
    from deltalake.transaction import CommitProperties

    with _faults(place), contextlib.suppress(deltalake.exceptions.CommitFailedError):  # somebody else has made it
        if deltalake.DeltaTable.is_deltatable(place.uri, place.options):
            return
        deltalake.DeltaTable.create(
            place.uri,
            deltalake.Schema(_fields()),
            mode="ignore",
            partition_by=list(PARTITION),
            name="opscope",
            configuration={**_CONFIGURATION, _COLUMNS_KEY: _columns()},
            storage_options=place.options,
            commit_properties=CommitProperties(statement("", []), _AT_ONCE),
            raise_if_key_not_exists=False,
        )


def _fields() -> list[Any]:
    """The columns of the one table, as Delta Lake has them."""
    deltalake = _deltalake()
    kinds = {**dict.fromkeys(PARTITION, "string"), **{name: kind.delta for name, kind in STORED.items()}}
    return [deltalake.Field(name, deltalake.schema.PrimitiveType(kind)) for name, kind in kinds.items()]


def _columns() -> str:
    """What a store is told of its columns when it is made, by which it is known that some were added since."""
    return hashlib.sha256(" ".join(sorted(STORED)).encode()).hexdigest()


def snapshot(place: StoreLocation, as_of: str | None = None) -> Snapshot:
    """What a store holds now, or held."""
    anchor, damage = None, StoreDamageError(place, ANCHOR, "it is missing")
    try:
        anchor = read_anchor(place)  # before the log: what it knows must be there afterwards
    except StoreDamageError as error:
        damage = error
    delta = _opened(place, anchor)
    schema = str(delta.metadata().configuration.get(_SCHEMA_KEY) or "a Delta table of another program")
    if schema != SCHEMA:
        hint = "upgrade opscope, or add the bundles to a new store; nothing was changed"
        raise BundleError(f"written as {schema}; this opscope reads {SCHEMA}", where=place.address, hint=hint)
    if anchor is None:
        raise damage
    if as_of is not None:
        _go_back(place, delta, as_of)
    with _faults(place):
        table = delta.get_add_actions(flatten=True)
        names = ("path", "partition.table_name", "partition.month", "num_records", "size_bytes")
        files = [File(*row) for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
    grown = delta.metadata().configuration.get(_COLUMNS_KEY) != _columns()
    found = Snapshot(delta.version(), sorted(files), delta, "", past=as_of is not None, grown=grown)
    return found._replace(tip=_proved(place, anchor, found))


def _proved(place: StoreLocation, anchor: Anchor, found: Snapshot) -> str:
    """Hash of the last commit of a snapshot that holds what the log and the anchor promise."""
    last = found.version if found.past else max(found.version, anchor.version)
    own = read_commit(place, last)
    if own is None or found.version < last:
        raise StoreDamageError(place, commit_path(last), "it is missing or truncated")
    if own.statement is None:
        raise StoreDamageError(place, commit_path(last), "it is not a commit of opscope")
    if last == anchor.version and own.sha256 != anchor.commit:
        raise StoreDamageError(place, commit_path(last), "its content has changed")
    if own.statement.live != live_hash(found.files):
        problem = f"it counts {len(found.files)} files, its last commit has {own.statement.files} or different ones"
        raise StoreDamageError(place, commit_path(last) if last > anchor.version else LOG, problem)
    if not found.past and last > anchor.version:
        followed(place, anchor)
    return own.sha256


def commit(place: StoreLocation, now: Snapshot, new: Sequence[File], old: Sequence[File] = (), *, data: bool) -> None:
    """Let files count, and others count no more, in one step."""
    from deltalake.transaction import AddAction, RemoveAction

    moment = time.time_ns() // 1_000_000
    live = [file for file in now.files if file not in set(old)] + list(new)
    actions: list[Any] = [RemoveAction(file.path, data, moment, file.size, _partition(file)) for file in old]
    actions += [
        AddAction(file.path, file.size, _partition(file), moment, data, f'{{"numRecords":{file.rows}}}') for file in new
    ]
    with _faults(place), _first():
        now.delta.create_write_transaction(
            actions, "append", now.delta.schema(), list(PARTITION), commit_properties=_prepared(now, live)
        )
    advance(place)


def _prepared(now: Snapshot, live: Sequence[File]) -> Any:  # noqa: ANN401 - of a package that may be absent
    """What a commit behind a snapshot says: which files count after it, and that it is the next one."""
    from deltalake.transaction import CommitProperties, Transaction

    number = (now.delta.transaction_version(_APPLICATION) or 0) + 1
    return CommitProperties(statement(now.tip, live), _AT_ONCE, [Transaction(_APPLICATION, number)])


@contextmanager
def _first() -> Iterator[None]:
    """Say when somebody else was faster."""
    deltalake = _deltalake()
    try:
        yield
    except deltalake.exceptions.CommitFailedError as error:
        raise OvertakenError from error


def replaced_files(place: StoreLocation, now: Snapshot, hours: int = 0) -> set[str]:
    """Paths of the files that the log says count no more, for some hours at least; some may be deleted already."""
    with _faults(place):
        named = now.delta.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
    return set(named) - {file.path for file in now.files}


def delete_replaced(place: StoreLocation, hours: int) -> list[str]:
    """Delete files that the log says count no more, and no others; their paths."""
    gone = sorted(replaced_files(place, snapshot(place), hours) & place.files("").keys())
    until = time.time_ns() // 1_000_000 - hours * 3_600_000
    if gone:
        advance(place, lambda anchor: msgspec.structs.replace(anchor, deleted=max(anchor.deleted, until)))
    for path in gone:
        place.delete(path)
    return gone


def forget_commits(place: StoreLocation, before: float) -> None:
    """Delete commits that a checkpoint has taken up, all of which are older than a moment, and older checkpoints."""
    there = place.files(LOG)
    old = [
        version
        for version in anchor_of(place).checkpoints
        if (stored_file := there.get(commit_path(version))) is not None and stored_file.changed < before
    ]
    if old:
        advance(place, lambda anchor: _beginning_at(anchor, max(old)))
    first = anchor_of(place).first
    for path in there:
        if (version := version_of(path)) is not None and version < first:
            place.delete(path)


def _beginning_at(anchor: Anchor, version: int) -> Anchor:
    first = max(anchor.first, version)
    kept = {number: checkpoint_hash for number, checkpoint_hash in anchor.checkpoints.items() if number >= first}
    return msgspec.structs.replace(anchor, first=first, checkpoints=kept)


def _opened(place: StoreLocation, anchor: Anchor | None) -> Any:  # noqa: ANN401 - the package may be absent
    deltalake = _deltalake()
    with _faults(place):
        try:
            return deltalake.DeltaTable(place.uri, storage_options=place.options)
        except deltalake.exceptions.TableNotFoundError:
            pass
    if anchor is not None and anchor.version >= 0:
        raise StoreDamageError(place, LOG, "it is missing")
    hint = "create one with `opscope store add PATH...`, or name another with --store"
    raise NotFoundError("there is no store", where=place.address, hint=hint)


def _go_back(place: StoreLocation, delta: Any, as_of: str) -> None:  # noqa: ANN401 - likewise
    deltalake = _deltalake()
    try:
        delta.load_as_version(int(as_of) if as_of.isdecimal() else as_of)
    except (deltalake.exceptions.DeltaError, ValueError, OverflowError) as error:
        hint = f"a number from 0 to {delta.version()}, or a moment such as 2026-01-31T12:00:00Z"
        raise UsageError(f"the store has no version {as_of!r}", where=place.address, hint=hint) from error


def _partition(file: File) -> dict[str, str | None]:
    return {"table_name": file.table, "month": file.month}


@contextmanager
def _faults(place: StoreLocation) -> Iterator[None]:
    """Turn what Delta Lake says of the storage below it into errors of ours."""
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
        raise MissingDependencyError(
            "deltalake is not installed", where="store", hint=install_command("store")
        ) from None
    return deltalake
