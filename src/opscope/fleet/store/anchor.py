"""What proves that a store is whole: a chain of hashes through the Delta log, and an anchor that holds its end.

Each commit states the hash of the commit before it, and the hash of the list of files that count with it. The anchor
states the hash of the newest commit and of the checkpoints. It is replaced after each commit. A commit that it does not
know yet, and that follows the one it knows, is of a command that was interrupted between the two, or is at work.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.fleet.store.place import StoreLocation

ANCHOR = "_anchor.json"
"""Other programs take a file whose name begins with ``_`` for none of the table's, and leave it alone."""
LOG = "_delta_log"
POINTER = f"{LOG}/_last_checkpoint"
CHECKPOINT_INTERVAL = 20
"""Commits from one checkpoint to the next."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""How msgspec says that bytes are not JSON of the type that was asked for."""
_LOGGED = re.compile(rf"{LOG}/(\d{{20}})\.(?:json|checkpoint\.parquet)")
DAMAGE_HINT = "`opscope store verify` names every such file; restore it from a copy, or add the bundles to a new store"


class StoreDamageError(TraceFormatError):
    """A file of a store is not as it was written.

    ``place``: of the store; ``path``: of the file, within the store; ``damage``: what is wrong with it, as one sentence
    without a full stop.
    """

    def __init__(self, place: StoreLocation, path: str, damage: str) -> None:
        super().__init__(f"a file of the store is damaged: {damage}", where=place.url(path), hint=DAMAGE_HINT)
        self.path, self.damage = path, damage


class Statement(
    msgspec.Struct,
    frozen=True,
    rename={"previous": "opscope.previous", "files": "opscope.files", "live": "opscope.live"},
):
    """What a commit says of the store."""

    previous: str  # SHA-256 of the commit before it; empty for the first one
    files: int  # how many files count with it
    live: str  # SHA-256 of the list of them


class RemovedFile(msgspec.Struct, frozen=True):
    """A file that counts no more from a commit on, and when that was, in milliseconds since the epoch."""

    path: str
    moment: int = msgspec.field(name="deletionTimestamp")


class _Line(msgspec.Struct, frozen=True):
    statement: Statement | None = msgspec.field(default=None, name="commitInfo")
    removed: RemovedFile | None = msgspec.field(default=None, name="remove")


class Commit(NamedTuple):
    """A commit as it is there."""

    sha256: str  # of its content
    statement: Statement | None  # what it says of the store; None when it cannot be read, or is not of opscope
    removed: list[RemovedFile]  # files that count no more from it on


class CheckpointHash(msgspec.Struct, frozen=True):
    """SHA-256 of a checkpoint, and of the pointer that names it; null when it names another one."""

    file: str
    pointer: str | None


class Anchor(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-anchor/1"):
    """What the log of a store held when the anchor was written."""

    version: int = -1  # of the newest commit; -1 before the first one
    commit: str = ""  # SHA-256 of that commit
    first: int = 0  # the first commit that is kept
    checkpoints: dict[int, CheckpointHash] = {}  # hashes by version
    deleted: int = 0  # replaced files are deleted that count no more since this moment, in milliseconds since the epoch
    # files that changed before this moment were compared with their hashes, in seconds since the epoch by the
    # clock of the storage
    checked: float = 0.0


class _Pointer(msgspec.Struct, frozen=True):
    version: int


class _Sealed(msgspec.Struct, frozen=True):
    anchor: Anchor
    sha256: str


def sha256_of_bytes(content: bytes) -> str:
    """Hash of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def commit_path(version: int) -> str:
    """Where a commit is."""
    return f"{LOG}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Where a checkpoint is."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def version_of(path: str) -> int | None:
    """Version of a commit or a checkpoint by its path; None for anything else."""
    match = _LOGGED.fullmatch(path)
    return int(match[1]) if match else None


def live_hash(files: Sequence[Any]) -> str:
    """Hash of a list of files, in whatever order they are given."""
    return sha256_of_bytes(msgspec.json.encode(sorted(files)))


def statement(previous: str, files: Sequence[Any]) -> dict[str, Any]:
    """What a commit says, as Delta Lake takes it."""
    found: dict[str, Any] = msgspec.to_builtins(Statement(previous, len(files), live_hash(files)))
    return found


def read_commit(place: StoreLocation, version: int) -> Commit | None:
    """A commit; None when it is not there."""
    try:
        content = place.read(commit_path(version))
    except FileNotFoundError:
        return None
    try:
        lines = [from_json(line, _Line) for line in content.splitlines()]
    except _UNREADABLE:
        return Commit(sha256_of_bytes(content), None, [])
    said = next((line.statement for line in lines if line.statement is not None), None)
    return Commit(sha256_of_bytes(content), said, [line.removed for line in lines if line.removed is not None])


def read_anchor(place: StoreLocation) -> Anchor | None:
    """The anchor of a store; None when it is not there."""
    try:
        content = place.read(ANCHOR)
    except FileNotFoundError:
        return None
    try:
        anchor = from_json(content, _Sealed).anchor
    except _UNREADABLE as error:
        raise StoreDamageError(place, ANCHOR, f"{error}") from error
    if content != _sealed(anchor):
        raise StoreDamageError(place, ANCHOR, "its content does not match its hash")
    return anchor


def begin(place: StoreLocation) -> None:
    """Write the anchor of a store without a commit; where somebody was faster, :func:`advance` makes good for it."""
    place.write(ANCHOR, _sealed(Anchor()))


def advance(place: StoreLocation, change: Callable[[Anchor], Anchor] = lambda anchor: anchor) -> None:
    """Let the anchor know all commits that are there, and what else is to be known.

    Of several writers at once the last one looks again after it wrote. So when all are done, the anchor knows the
    newest commit, without a lock.
    """
    while True:
        known = anchor_of(place)
        new = followed(place, change(known))
        if new == known:
            return
        for version in range(known.version + 1, new.version + 1):
            place.settle(commit_path(version))
        place.write(ANCHOR, _sealed(new))


def anchor_of(place: StoreLocation) -> Anchor:
    """The anchor of a store that must have one."""
    anchor = read_anchor(place)
    if anchor is None:
        raise StoreDamageError(place, ANCHOR, "it is missing")
    return anchor


def followed(place: StoreLocation, anchor: Anchor) -> Anchor:
    """The anchor that knows the commits behind its own, too."""
    while (commit := read_commit(place, anchor.version + 1)) is not None:
        path = commit_path(anchor.version + 1)
        if commit.statement is None:
            raise StoreDamageError(place, path, "it is not a commit of opscope")
        if commit.statement.previous != anchor.commit:
            raise StoreDamageError(place, path, "it does not follow the commit before it")
        anchor = msgspec.structs.replace(anchor, version=anchor.version + 1, commit=commit.sha256)
        if (anchor.version + 1) % CHECKPOINT_INTERVAL == 0:
            anchor = with_checkpoint(place, anchor, anchor.version)
    return anchor


def with_checkpoint(place: StoreLocation, anchor: Anchor, version: int) -> Anchor:
    """The anchor that knows a checkpoint, where that is there."""
    if version in anchor.checkpoints:
        return anchor
    try:
        checkpoint_hash = CheckpointHash(
            sha256_of_bytes(place.read(checkpoint_path(version))), _pointer(place, version)
        )
    except FileNotFoundError:
        return anchor
    return msgspec.structs.replace(anchor, checkpoints={**anchor.checkpoints, version: checkpoint_hash})


def pointed(content: bytes) -> int | None:
    """Version of the checkpoint that a pointer names; None when it cannot be read."""
    try:
        return from_json(content, _Pointer).version
    except _UNREADABLE:
        return None


def _pointer(place: StoreLocation, version: int) -> str | None:
    try:
        content = place.read(POINTER)
    except FileNotFoundError:
        return None
    return sha256_of_bytes(content) if pointed(content) == version else None


def _sealed(anchor: Anchor) -> bytes:
    return msgspec.json.encode(_Sealed(anchor, sha256_of_bytes(msgspec.json.encode(anchor)))) + b"\n"
