"""What a store holds: one Delta table, whose log says which files count in which version.

All tables of a store are parts of one Delta table, kept apart by its partition ``table_name``. So whatever is added or
removed is one commit, and is there as a whole or not at all.

A log may be damaged, or a stranger's. So it is examined before Delta Lake reads it: its files are regular, its versions
contiguous, and each commit adds or removes at least one file and holds as many of them as it says. Then each path that
the log names must be one that Delta Lake gives a file of a store. Only such files are read, rewritten or deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from opscope.core.errors import BundleError, NotFoundError, StorageError, TraceFormatError, UsageError
from opscope.core.json import from_json
from opscope.fleet.store.place import RESTORE, import_extra, open_object_store, translate_storage_errors
from opscope.fleet.store.schema import PARTITION, SCHEMA, STORED, make_stored_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import polars as pl

    from opscope.fleet.store.place import StorePlace

Result = TypeVar("Result")
LOG = "_delta_log"
TRIES = 100
"""How often a change is prepared again when others were faster."""
SMALL_FILES = 96
"""Files below half of the target size from which `add` merges them."""
_TARGET_BYTES = 16 << 20
"""Size of a merged file: larger ones are not rewritten, so that the work of `add` does not grow with the store."""
_SCHEMA_KEY = "opscope.schema"
_CONFIGURATION = {
    _SCHEMA_KEY: SCHEMA,
    "delta.checkpointInterval": "20",  # so many commits at most are examined by each command
    "delta.dataSkippingNumIndexedCols": "0",  # a log without values: what is removed is in no statistics either
}
_PROTOCOL = (1, 2)
"""Versions of Delta Lake's protocol for readers and writers: the oldest, without files that name further files."""
_COMMIT = re.compile(rf"{LOG}/(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}/(\d{{20}})\.checkpoint\.parquet")
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DATA_FILE = re.compile(rf"{PARTITION}=([a-z]+)/part-\d{{5}}-{_UUID}-c\d{{3}}\.zstd\.parquet")
"""Paths of data as Delta Lake writes them: below the store, without links, escapes or steps upwards."""


class StoredFile(NamedTuple):
    """A Parquet file that counts."""

    path: str  # within the store
    table: str  # whose rows it holds
    size: int  # bytes


class Snapshot(NamedTuple):
    """A store at one version."""

    place: StorePlace
    delta: Any  # the Delta table
    files: list[StoredFile]  # that count
    is_past: bool = False  # whether it is an earlier version, whose files may be deleted

    def files_of(self, tables: Collection[str] | None = None) -> list[StoredFile]:
        """Return the files of some tables; None: of all.

        Raises TraceFormatError naming a file that is missing, of another size, or no regular file; NotFoundError where
        files of an earlier version were deleted.
        """
        selected = [file for file in self.files if tables is None or file.table in tables]
        sizes: dict[str, int] = {}
        for table in {file.table for file in selected}:
            sizes |= self.place.list_sizes(f"{PARTITION}={table}")
        for file in selected:
            size = sizes.get(file.path)
            if size is None and self.is_past:
                hint = "files stay for a week after they were replaced, or until a bundle is removed"
                problem = f"the files of version {self.delta.version()} are deleted"
                raise NotFoundError(problem, where=self.place.address, hint=hint)
            if size != file.size:
                problem = "it is missing" if size is None else f"it has {size:,} bytes; {file.size:,} were written"
                raise TraceFormatError(problem, where=self.place.file_address(file.path), hint=RESTORE)
        return selected


def open_store(place: StorePlace, as_of: str | None = None) -> Snapshot:
    """Return what a store holds now, or held.

    Args:
        place: of the store.
        as_of: an earlier version: its number, or a moment in ISO 8601; None: what it holds now.

    Raises:
        NotFoundError: there is no store.
        TraceFormatError: its log is damaged, or names files that no store has; the message names the version.
        BundleError: it is of another version of opscope, or of another program.
        UsageError: it has no such earlier version.
    """
    _check_log(place, _list_log(place))
    deltalake = import_extra("deltalake")
    try:
        delta = deltalake.DeltaTable(place.uri, storage_options=place.options)
    except deltalake.exceptions.DeltaError as error:
        problem = f"the log cannot be read: {str(error).splitlines()[0]}"
        raise TraceFormatError(problem, where=place.file_address(LOG), hint=RESTORE) from error
    _check_kind(place, delta)
    if as_of is not None:
        try:
            delta.load_as_version(int(as_of) if as_of.isdecimal() else as_of)
        except (deltalake.exceptions.DeltaError, ValueError, OverflowError) as error:
            hint = f"a number from 0 to {delta.version()}, or a moment such as 2026-01-31T12:00:00Z"
            raise UsageError(f"the store has no version {as_of!r}", where=place.address, hint=hint) from error
    actions = delta.get_add_actions(flatten=True)
    columns = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
    files = [
        StoredFile(path, _table_of(place, path, delta.version()), size) for path, size in zip(*columns, strict=True)
    ]
    return Snapshot(place, delta, sorted(files), is_past=as_of is not None)


def create_store(place: StorePlace) -> None:
    """Make a store where there is none; two at once make one.

    Raises BundleError where the place holds something else.
    """
    present = _find_first_entry(place)
    if any(_COMMIT.fullmatch(path) for path in place.list_sizes(LOG)):  # also one that somebody else has just made
        return
    if present is not None:
        hint = "name an empty or new directory; nothing was changed"
        raise BundleError(f"not a store and not empty: it contains {present}", where=place.address, hint=hint)
    deltalake = import_extra("deltalake")
    kinds = {PARTITION: "string", **{name: kind.delta for name, kind in STORED.items()}}
    fields = [deltalake.Field(name, deltalake.schema.PrimitiveType(kind)) for name, kind in kinds.items()]
    with translate_storage_errors(place.address), contextlib.suppress(deltalake.exceptions.CommitFailedError):
        deltalake.DeltaTable.create(
            place.uri,
            deltalake.Schema(fields),
            mode="ignore",
            partition_by=[PARTITION],
            name="opscope",
            configuration=_CONFIGURATION,
            storage_options=place.options,
            commit_properties=_commit_once(),
            raise_if_key_not_exists=False,
        )


def change_store(place: StorePlace, change: Callable[[Snapshot], Result]) -> Result:
    """Return what a change of a store gives, which is prepared again when others commit meanwhile.

    On this machine writers wait for each other; on object storage the one that commits second prepares its change anew.
    """
    _list_log(place)  # that there is no store can be said without the packages that a store needs
    overtaken = import_extra("deltalake").exceptions.CommitFailedError
    for _ in range(TRIES):
        with translate_storage_errors(place.address), contextlib.suppress(overtaken), _one_writer(place):
            return change(open_store(place))
    raise StorageError("others keep changing the store", where=place.address, hint="try again")


def append_rows(snapshot: Snapshot, frames: Mapping[str, pl.DataFrame]) -> None:
    """Add rows of several tables, by the tables' names, in one commit; a change of :func:`change_store`."""
    deltalake = import_extra("deltalake")
    deltalake.write_deltalake(
        snapshot.delta,
        make_stored_frame(frames),
        mode="append",
        schema_mode="merge",
        commit_properties=_commit_once(),
        writer_properties=deltalake.WriterProperties(compression="ZSTD"),
    )


def delete_bundles(snapshot: Snapshot, bundles: Collection[str]) -> None:
    """Rewrite the files that hold rows of some bundles without them, and delete what they replace."""
    snapshot.files_of()
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(bundles))
    snapshot.delta.delete(f"bundle IN ({names})", commit_properties=_commit_once())
    _vacuum(snapshot, hours=0)


def merge_small_files(snapshot: Snapshot) -> None:
    """Merge small files where there are many, and delete files that were replaced a week ago."""
    if sum(file.size < _TARGET_BYTES // 2 for file in snapshot.files) > SMALL_FILES:
        snapshot.files_of()
        properties = _commit_once()
        snapshot.delta.optimize.compact(target_size=_TARGET_BYTES, max_concurrent_tasks=1, commit_properties=properties)
        _vacuum(snapshot, hours=None)


def _vacuum(snapshot: Snapshot, hours: int | None) -> None:
    """Delete files that the log has marked as removed so many hours ago; None: Delta Lake's own retention, a week."""
    enforced = hours is None
    marked = snapshot.delta.vacuum(hours, dry_run=True, enforce_retention_duration=enforced)
    for table in {_table_of(snapshot.place, path, snapshot.delta.version()) for path in marked}:
        snapshot.place.list_sizes(f"{PARTITION}={table}")  # raises where a link leads elsewhere
    if marked:
        snapshot.delta.vacuum(hours, dry_run=False, enforce_retention_duration=enforced, full=False)


def _list_log(place: StorePlace) -> dict[str, int]:
    """Return the sizes of the files of a store's log by path; raise NotFoundError where there is no store."""
    sizes = place.list_sizes(LOG)
    if not any(_COMMIT.fullmatch(path) for path in sizes):
        hint = "create one with `opscope store add PATH...`, or name another with --store"
        raise NotFoundError("there is no store", where=place.address, hint=hint)
    return sizes


class _FileAction(msgspec.Struct):
    path: str


class _CommitInfo(msgspec.Struct):
    operation: str = ""
    operationMetrics: dict[str, Any] = {}  # noqa: N815 - as Delta Lake spells it


class _Action(msgspec.Struct):
    """A line of a commit, as far as it is examined."""

    add: _FileAction | None = None
    remove: _FileAction | None = None
    commitInfo: _CommitInfo | None = None  # noqa: N815 - as Delta Lake spells it
    metaData: dict[str, Any] | None = None  # noqa: N815 - as Delta Lake spells it


_COUNTS = {"add": ("num_added_files", "numFilesAdded"), "remove": ("num_removed_files", "numFilesRemoved")}
"""How Delta Lake says in a commit how many files it adds and removes."""


def _check_log(place: StorePlace, sizes: Mapping[str, int]) -> None:
    """Raise TraceFormatError naming the first version of the log that is missing or damaged.

    Commits up to the newest checkpoint need only be there: Delta Lake reads the checkpoint in their place.
    """
    versions, checkpoints = (
        {int(match[1]) for path in sizes if (match := name.fullmatch(path))} for name in (_COMMIT, _CHECKPOINT)
    )
    newest = max(checkpoints, default=-1)
    expected = range(min(*versions, newest + 1), max(*versions, newest) + 1)
    for version in expected:
        path = f"{LOG}/{version:020d}.json"
        problem = None if version in versions else "it is missing"
        if problem is None and (version > newest or not sizes[path]):
            problem = _find_damage(place, version, place.read_file(path))
        if problem:
            where = place.file_address(path)
            raise TraceFormatError(f"version {version} of the log is damaged: {problem}", where=where, hint=RESTORE)


def _find_damage(place: StorePlace, version: int, content: bytes) -> str | None:
    """Return what is wrong with a commit as one sentence; None if nothing is."""
    try:
        actions = [from_json(line, _Action) for line in content.splitlines()]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"a line cannot be read ({error})"
    info = next((action.commitInfo for action in actions if action.commitInfo), _CommitInfo())
    paths = {kind: [file.path for action in actions if (file := getattr(action, kind))] for kind in _COUNTS}
    for path in (*paths["add"], *paths["remove"]):
        _table_of(place, path, version)
    if version == 0:
        return None if any(action.metaData for action in actions) else "it describes no table"
    if not any(paths.values()):
        return None if info.operation.startswith("VACUUM ") else "it adds and removes no file"
    for kind, names in _COUNTS.items():
        stated = next((info.operationMetrics[name] for name in names if name in info.operationMetrics), None)
        if stated != len(paths[kind]):
            return f"it says {kind} {stated} files and names {len(paths[kind])}"
    return None


def _check_kind(place: StorePlace, delta: Any) -> None:  # noqa: ANN401 - of a package that may be absent
    schema = str(delta.metadata().configuration.get(_SCHEMA_KEY) or "a Delta table of another program")
    protocol = delta.protocol()
    if schema != SCHEMA or (protocol.min_reader_version, protocol.min_writer_version) != _PROTOCOL:
        hint = "upgrade opscope, or add the bundles to a new store; nothing was changed"
        raise BundleError(f"written as {schema}; this opscope reads {SCHEMA}", where=place.address, hint=hint)


def _table_of(place: StorePlace, path: str, version: int) -> str:
    """Return the table whose rows a file of data holds, by its path."""
    match = _DATA_FILE.fullmatch(path)
    if match is None:
        problem = f"version {version} of the log names a file that is none of a store's: {path[:200]!r}"
        raise TraceFormatError(problem, where=place.address, hint="it is not as opscope wrote it; do not use it")
    return match[1]


def _find_first_entry(place: StorePlace) -> str | None:
    """Return the name of one file or directory at the place of a new store; None where there is none."""
    if place.is_remote:
        with translate_storage_errors(place.address):
            return next((str(object_["path"]) for page in open_object_store(place).list() for object_ in page), None)
    root = Path(place.uri)
    if not root.exists():
        return None
    if not root.is_dir():
        return "a file"
    return min((entry.name for entry in root.iterdir() if entry.name != LOG), default=None)


@contextlib.contextmanager
def _one_writer(place: StorePlace) -> Iterator[None]:
    """Wait until no other process of this machine changes a store in a directory."""
    if place.is_remote or not Path(place.uri).is_dir():
        yield
        return
    directory = os.open(place.uri, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: commits are still one at a time
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _commit_once() -> Any:  # noqa: ANN401 - of a package that may be absent
    """Return properties of a commit that fails when somebody else was faster, in place of following their commit."""
    return import_extra("deltalake").CommitProperties(max_commit_retries=0)
