"""Whether a store is what it says: every file there, whole, with the rows that its commit promises."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.fleet.store.log import COMMITS, DATA, commit_paths, snapshot
from opscope.fleet.store.schema import SCHEMA, TABLES

if TYPE_CHECKING:
    from opscope.fleet.store.log import File, Snapshot
    from opscope.fleet.store.place import StoreLocation


class StoreFault(msgspec.Struct, frozen=True):
    """A file of a store that is not as it should be.

    Attributes:
        path: within the store.
        problem: what is wrong, as one sentence without a full stop.
        bundles: that have rows in it, as far as commits tell; their hashes.
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
        leftovers: files that no commit names: of processes that were killed, or at work now.
    """

    version: str
    bundles: int
    files: int
    rows: int
    size: int
    faults: list[StoreFault]
    leftovers: list[str]


def verify(place: StoreLocation) -> StoreCheck:
    """Read every file of a store and compare it with what was promised.

    Raises:
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    now = snapshot(place)
    files = now.files()
    faults = [StoreFault(f.path, problem, _bundles(now, f)) for f in files if (problem := _problem(place, f))]
    known = {file.path for file in files}
    lost = [path for path in place.files(DATA) if path not in known]
    lost += [path for path in place.files(COMMITS) if path not in now.commits and path not in commit_paths(place)]
    return StoreCheck(
        version=SCHEMA,
        bundles=len(now.entries()),
        files=len(files) - len(faults),
        rows=sum(file.rows for file in files),
        size=sum(file.size for file in files),
        faults=faults,
        leftovers=sorted(lost),
    )


def _problem(place: StoreLocation, file: File) -> str | None:
    try:
        content = place.read(file.path)
    except FileNotFoundError:
        return "it is missing"
    if hashlib.sha256(content).hexdigest() != file.sha256:
        return f"its content has changed: {len(content):,} bytes, {file.size:,} were written"
    try:
        frame = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError) as error:
        return f"it is no Parquet file: {error}"
    if dict(frame.schema) != TABLES[file.table].polars or frame.height != file.rows:
        return "its columns or its rows are not those that it should have"
    return None


def _bundles(now: Snapshot, file: File) -> list[str]:
    for source in now.sources():
        if file in source.files:
            return [
                one.bundle
                for one in source.entries
                if (one.model, one.device) == file.partition[:2] and file.partition[2] in one.variants
            ]
    return []
