"""Whether a store is what it says: every file of its log and its data there, whole, as it was written."""

from __future__ import annotations

import contextlib
import io
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import polars as pl

from opscope.core.errors import BundleError, StorageError, UsageError
from opscope.fleet.store.anchor import (
    ANCHOR,
    LOG,
    POINTER,
    StoreDamageError,
    advance,
    anchor_of,
    checkpoint_path,
    commit_path,
    pointed,
    read_anchor,
    read_commit,
    sha256_of_bytes,
    version_of,
    with_checkpoint,
)
from opscope.fleet.store.log import replaced_files, snapshot
from opscope.fleet.store.schema import BUNDLES, EVERY, REPLACED, SCHEMA, stored_types
from opscope.fleet.store.writing import damage_of, hash_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from opscope.core.errors import OpscopeError
    from opscope.fleet.store.anchor import Anchor, RemovedFile
    from opscope.fleet.store.log import File, Snapshot
    from opscope.fleet.store.place import StoredFile, StoreLocation

_TRIES = 3
_PARQUET = ".parquet"
_UNFIT = "its content has changed: it does not match its hash"
_LOST_PAST = "it is missing; only earlier versions need it"
Faults: TypeAlias = dict[str, str]
"""What is wrong with files, by their paths."""


class StoreFault(msgspec.Struct, frozen=True):
    """A file of a store that is not as it should be.

    Attributes:
        path: within the store.
        problem: what is wrong, as one sentence without a full stop.
        bundles: that may have rows in it: those of its month that no other file of its table holds; their hashes.
    """

    path: str
    problem: str
    bundles: list[str]


class StoreCheck(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-check/1"):
    """What `opscope store verify` found.

    Attributes:
        version: schema of the store.
        bundles: that it holds.
        files: that were read whole.
        rows: in them.
        size: bytes of these files.
        faults: files that are missing or damaged.
        leftovers: files that no version names: of processes that were killed, or at work now. They are never deleted.
        unanchored: commits that the anchor does not know yet, proved by the one before them: of a command that was
            interrupted or is at work. The next `add` lets the anchor know them.
        commits: number of the store's last commit.
        store: where it is.
    """

    version: str
    bundles: int
    files: int
    rows: int
    size: int
    faults: list[StoreFault]
    leftovers: list[str]
    unanchored: int = 0
    commits: int = 0
    store: str = ""


class _Read:
    """What the files that were read hold: bundles by table and month."""

    def __init__(self) -> None:
        self.bundles: dict[tuple[str, str], set[str]] = {}

    def problem(self, place: StoreLocation, file: File) -> str | None:
        """What is wrong with a file; None: nothing, and its bundles are noted."""
        try:
            content = place.read(file.path)
        except FileNotFoundError:
            return "it is missing"
        problem = damage_of(file, content)
        if problem:
            return problem
        try:
            frame = pl.read_parquet(io.BytesIO(content))
        except (pl.exceptions.PolarsError, OSError) as error:
            return f"it is not Parquet file: {error}"
        wanted = stored_types(EVERY[file.table]) if file.table in EVERY else {}
        # Columns that were added to the store since are in none of its older files.
        if any(frame.schema.get(name, kind) != kind for name, kind in wanted.items()) or frame.height != file.rows:
            return "its columns or rows are not the expected ones"
        self.bundles.setdefault((file.table, file.month), set()).update(frame["bundle"].unique())
        return None

    def lost(self, file: File) -> list[str]:
        """Bundles of a file's month that no file of its table holds."""
        own = (found for (_, month), found in self.bundles.items() if month == file.month)
        return sorted(_union(own) - self.bundles.get((file.table, file.month), set()))

    def counted(self) -> int:
        """Bundles that count."""
        named, replaced = (
            _union(found for (table, _), found in self.bundles.items() if table == name)
            for name in (BUNDLES.name, REPLACED.name)
        )
        return len(named - replaced)


def verify(place: StoreLocation) -> StoreCheck:
    """Read every file of a store and compare it with what was written; nothing is changed."""
    examination, read = _examined(place, whole=True), _Read()
    files = examination.now.files if examination.now else []
    problems = [(file, problem) for file in files if (problem := read.problem(place, file))]
    data = {file.path for file, _ in problems}
    faults = [
        StoreFault(path, problem, [])
        for path, problem in {**examination.faults, **examination.past}.items()
        if path not in data
    ]
    faults += [StoreFault(file.path, problem, read.lost(file)) for file, problem in problems]
    return StoreCheck(
        version=SCHEMA,
        bundles=read.counted(),
        files=len(files) - len(problems),
        rows=sum(file.rows for file in files),
        size=sum(file.size for file in files),
        faults=faults,
        leftovers=examination.leftovers(place),
        unanchored=examination.unanchored,
        commits=examination.now.version if examination.now else -1,
        store=place.address,
    )


def check_whole(place: StoreLocation) -> Faults:
    """Whether every file of the log and of the data is there, of its size, and those that changed are as they were.

    A file that has not changed since the last such check, by the clock of the storage, is not read again. Then the
    anchor learns of commits of commands that were interrupted before they could tell it.

    Returns what is wrong with files that count no more and are kept for earlier versions.
    """
    examination = _examined(place, whole=False)
    for path, problem in examination.faults.items():
        more = f" (and {len(examination.faults) - 1} more)" if len(examination.faults) > 1 else ""
        raise StoreDamageError(place, path, problem + more)
    now = max((file.changed for file in examination.there.values()), default=0.0)

    def checked(anchor: Anchor) -> Anchor:
        for version in examination.unknown:
            anchor = with_checkpoint(place, anchor, version)
        return msgspec.structs.replace(anchor, checked=max(anchor.checked, now))

    advance(place, checked)
    return examination.past


class _Examination(NamedTuple):
    """What was found."""

    now: Snapshot | None  # the store; None when its log cannot be read
    anchor: Anchor | None  # None when it is damaged
    there: dict[str, StoredFile]  # every file of the store
    faults: Faults  # files of the log and of the data that are not as they were written
    past: Faults  # likewise files that count no more and are kept for earlier versions
    unknown: list[int]  # versions of checkpoints that the anchor does not know, and that agree with the log

    @property
    def unanchored(self) -> int:
        """Commits that the anchor does not know."""
        return max(0, self.now.version - self.anchor.version) if self.now and self.anchor else 0

    def leftovers(self, place: StoreLocation) -> list[str]:
        """Files of data that no version names."""
        if self.now is None:
            return []
        named = {file.path for file in self.now.files} | replaced_files(place, self.now)
        named |= {gone.path for gone in _removed(place, self.there)}
        return sorted({path for path in self.there if path.endswith(_PARQUET) and path[0] not in "_."} - named)


def _examined(place: StoreLocation, *, whole: bool) -> _Examination:
    """A store and its faults; somebody who works in it at the same moment is none."""
    examination = _examined_once(place, whole=whole)
    for _ in range(_TRIES):
        if not examination.faults and not examination.past:
            break
        before, examination = examination, _examined_once(place, whole=whole)
        if examination.anchor == before.anchor:
            break
    return examination


def _examined_once(place: StoreLocation, *, whole: bool) -> _Examination:
    anchor, now, faults, other = _opened(place)
    there = place.files("")
    since = 0.0 if whole or anchor is None else anchor.checked
    faults |= _log_faults(place, anchor, there, since)
    unknown: list[int] = []
    if anchor is not None:
        unknown, problems = _checkpoint_faults(place, anchor, there, since)
        faults |= problems
    if other is not None and not faults:  # else it is what came of them
        if isinstance(other, BundleError):
            raise other
        faults[LOG] = other.damage if isinstance(other, StoreDamageError) else other.problem
    past: Faults = {}
    if whole:
        past = _past_faults(place, anchor, there)
    elif now is not None and anchor is not None:
        faults |= {file.path: problem for file in now.files if (problem := _problem(place, file, there, since))}
        past = _new_past_faults(place, now, anchor, there)
    return _Examination(now, anchor, there, faults, past, unknown)


def _opened(place: StoreLocation) -> tuple[Anchor | None, Snapshot | None, Faults, OpscopeError | None]:
    """The anchor and the store as far as they can be read, a file that is at fault, and an error that names none."""
    try:
        now = snapshot(place)
        return anchor_of(place), now, {}, None
    except StoreDamageError as error:
        if error.path == ANCHOR:
            return None, None, {ANCHOR: error.damage}, None
        faults, other = ({}, error) if error.path == LOG else ({error.path: error.damage}, None)
        return anchor_of(place), None, faults, other
    except (BundleError, StorageError) as error:
        anchor = None
        with contextlib.suppress(StoreDamageError):
            anchor = read_anchor(place)
        if anchor is None:
            raise
        return anchor, None, {}, error


def _log_faults(place: StoreLocation, anchor: Anchor | None, there: dict[str, StoredFile], since: float) -> Faults:
    """Commits that are missing or are not those of which their followers, or the anchor, state the hash."""
    versions = _versions(there, commit_path)
    first = anchor.first if anchor else min(versions, default=0)
    last = max([*versions, anchor.version if anchor else -1])
    faults = {commit_path(number): "it is missing" for number in range(first, last + 1) if number not in versions}
    changed = [version for version, path in versions.items() if there[path].changed >= since and version >= first]
    expected: str | None = None
    for number in range(last, min(changed, default=last + 1) - 1, -1):
        if anchor is not None and number == anchor.version:
            expected = anchor.commit
        commit = read_commit(place, number)
        problem = None
        if commit is None or commit.statement is None:
            problem = "it is missing" if commit is None else "it is not a commit of opscope"
        elif expected not in {None, commit.sha256}:
            problem = _UNFIT
        if problem:
            faults[commit_path(number)] = problem
        # What a damaged commit says of the one before it is not believed.
        expected = commit.statement.previous if commit and commit.statement and not problem else None
    return faults


def _checkpoint_faults(
    place: StoreLocation, anchor: Anchor, there: dict[str, StoredFile], since: float
) -> tuple[list[int], Faults]:
    """Checkpoints that the anchor does not know yet, and what is wrong with the others and with the pointer."""
    faults: Faults = {}
    for number, known in anchor.checkpoints.items():
        path = checkpoint_path(number)
        if path not in there:
            faults[path] = "it is missing"
        elif there[path].changed >= since and _hash_of(place, path) != known.file:
            faults[path] = _UNFIT
    named = _versions(there, checkpoint_path)
    unknown = sorted(version for version in named.keys() - anchor.checkpoints.keys() if version >= anchor.first)
    faults |= {checkpoint_path(version): problem for version in unknown if (problem := _disagrees(place, version))}
    return unknown, faults | _pointer_faults(place, anchor, there, named)


def _disagrees(place: StoreLocation, version: int) -> str | None:
    """What is wrong with a version that is read by its checkpoint."""
    try:
        snapshot(place, str(version))
    except (StoreDamageError, StorageError, UsageError) as error:
        return f"it does not agree with the log: {error.problem}"
    return None


def _pointer_faults(
    place: StoreLocation, anchor: Anchor, there: dict[str, StoredFile], named: Collection[int]
) -> Faults:
    if POINTER not in there:
        lost = any(known.pointer for known in anchor.checkpoints.values())
        return {POINTER: "it is missing"} if lost else {}
    content = place.read(POINTER)
    version = pointed(content)
    known = None if version is None else anchor.checkpoints.get(version)
    if version not in named or (known is not None and known.pointer not in {None, sha256_of_bytes(content)}):
        return {POINTER: "its content has changed"}
    return {}


def _past_faults(place: StoreLocation, anchor: Anchor | None, there: dict[str, StoredFile]) -> Faults:
    """Files that count no more and are kept for earlier versions: by every commit, each read whole."""
    faults: Faults = {}
    for gone in _removed(place, there):
        if gone.path in there:
            if _hash_of(place, gone.path) != hash_in(gone.path):
                faults[gone.path] = _UNFIT
        elif anchor is not None and gone.moment > anchor.deleted:
            faults[gone.path] = _LOST_PAST
    return faults


def _new_past_faults(place: StoreLocation, now: Snapshot, anchor: Anchor, there: dict[str, StoredFile]) -> Faults:
    """The same by what the log says now, of those that changed since the last check, and to the hour."""
    gone = replaced_files(place, now)
    hours = (time.time_ns() // 1_000_000 - anchor.deleted) // 3_600_000
    faults = dict.fromkeys(gone - replaced_files(place, now, hours) - there.keys(), _LOST_PAST)
    changed = [path for path in sorted(gone & there.keys()) if there[path].changed >= anchor.checked]
    return faults | {path: _UNFIT for path in changed if _hash_of(place, path) != hash_in(path)}


def _removed(place: StoreLocation, there: dict[str, StoredFile]) -> Iterator[RemovedFile]:
    """What the commits that are there say of files that count no more."""
    for version in sorted(_versions(there, commit_path)):
        commit = read_commit(place, version)
        yield from commit.removed if commit is not None else ()


def _versions(there: Iterable[str], named: Callable[[int], str]) -> dict[int, str]:
    """Paths of all commits, or of all checkpoints, by version."""
    found = ((version_of(path), path) for path in there)
    return {version: path for version, path in found if version is not None and path == named(version)}


def _problem(place: StoreLocation, file: File, there: dict[str, StoredFile], since: float) -> str | None:
    """What is wrong with a file that counts, by its size, and by its content where that may have changed."""
    stored_file = there.get(file.path)
    if stored_file is None:
        return "it is missing"
    if stored_file.size != file.size:
        return f"its content has changed: {stored_file.size:,} bytes, {file.size:,} were written"
    try:
        return damage_of(file, place.read(file.path)) if stored_file.changed >= since else None
    except FileNotFoundError:
        return "it is missing"


def _hash_of(place: StoreLocation, path: str) -> str | None:
    try:
        return sha256_of_bytes(place.read(path))
    except FileNotFoundError:
        return None


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set[str]().union(*sets)
