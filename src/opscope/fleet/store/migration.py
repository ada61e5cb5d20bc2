"""Bringing a store of an older version to this one.

Version 0 kept each bundle in a folder of its own, ``bundles/HASH/``, with ``bundle.json`` and one Parquet file for each
table, not partitioned; times of ``runs`` were in milliseconds, and there was neither a column ``commit`` nor one
``arm``. Its commit was the appearance of ``bundle.json``.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from opscope.core.errors import BundleError, TraceFormatError
from opscope.fleet.store.log import (
    COMMITS,
    DATA,
    GENERATIONS,
    HEAD,
    Commit,
    File,
    Head,
    StoreEntry,
    check_version,
    commit,
    version_of,
)
from opscope.fleet.store.schema import SCHEMA, TABLES
from opscope.fleet.store.writing import write_partitions

if TYPE_CHECKING:
    from opscope.fleet.store.place import StoreLocation

VERSION_0 = "opscope.store/0"
_FOLDER, _BUNDLE = "bundles", "bundle.json"
_NS = 1e6
_MILLISECONDS = {"latency_ms": "latency_ns", "mean_ms": "mean_ns", "p90_ms": "p90_ns", "p99_ms": "p99_ns"}


class Migrated(NamedTuple):
    """What a migration did: how many bundles, and the versions before and after."""

    bundles: int
    before: str
    after: str


class BundleOf0(msgspec.Struct, frozen=True):
    """What version 0 said of a bundle."""

    bundle: str
    model: str
    device: str
    variants: list[str]
    created: str
    source: str


def migrate(place: StoreLocation) -> Migrated:
    """Bring a store to this version; one that is of this version already stays as it is.

    New files are written beside the old ones. The store is of the new version from the moment its first file says so;
    then the old files are deleted. A migration that was interrupted begins anew.

    Raises:
        BundleError: the store comes from a newer opscope.
        TraceFormatError: a file of it is damaged; nothing was changed.
    """
    before = version_of(place)
    if before != VERSION_0:
        check_version(place)
        _delete(place, _FOLDER)
        return Migrated(0, before, SCHEMA)
    for folder in (COMMITS, GENERATIONS, DATA):
        _delete(place, folder)
    paths = sorted(path for path in place.files(_FOLDER) if path.endswith(f"/{_BUNDLE}"))
    entries: list[StoreEntry] = []
    files: list[File] = []
    for path in paths:
        bundle = _decoded(place, path)
        entries.append(_entry(bundle))
        for name in TABLES:
            files += _rewritten(place, path.removesuffix(_BUNDLE) + f"{name}.parquet", name, bundle)
    if entries:
        commit(place, Commit(entries, files))
    place.write(HEAD, msgspec.json.encode(Head(SCHEMA)) + b"\n")
    _delete(place, _FOLDER)
    return Migrated(len(entries), before, SCHEMA)


def _entry(bundle: BundleOf0) -> StoreEntry:
    """A bundle of version 0, which did not know of resumed runs: each is its own origin."""
    return StoreEntry(
        bundle=bundle.bundle,
        origin=bundle.bundle,
        repetitions=0,
        model=bundle.model,
        device=bundle.device,
        variants=tuple(bundle.variants),
        created=bundle.created,
        added=bundle.created,
        source=bundle.source,
    )


def _rewritten(place: StoreLocation, path: str, table: str, bundle: BundleOf0) -> list[File]:
    if not place.exists(path):
        return []
    where = f"{place.address}/{path}"
    try:
        frame = pl.read_parquet(io.BytesIO(place.read(path)))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TraceFormatError(f"a file of the store is damaged: {error}", where=where) from error
    for old, new in _MILLISECONDS.items():
        if old in frame.columns:
            frame = frame.with_columns((pl.col(old) * _NS).alias(new)).drop(old)
    keys = (
        pl.lit(bundle.bundle).alias("bundle"),
        pl.lit(bundle.model).alias("model"),
        pl.lit(bundle.device).alias("device"),
    )
    frame = frame.with_columns(*keys)
    kinds = TABLES[table].polars
    if unknown := set(frame.columns) - set(kinds):
        raise BundleError(f"a column that no version had: {min(unknown)}", where=where)
    columns = [
        (pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind)).alias(name)
        for name, kind in kinds.items()
    ]
    if table == "runs" and "kind" not in frame.columns:
        columns[list(kinds).index("kind")] = pl.lit("bundle").alias("kind")
    return list(write_partitions(place, table, frame.select(columns)))


def _decoded(place: StoreLocation, path: str) -> BundleOf0:
    try:
        return msgspec.json.decode(place.read(path), type=BundleOf0)
    except msgspec.MsgspecError as error:
        raise TraceFormatError(f"damaged: {error}", where=f"{place.address}/{path}") from error


def _delete(place: StoreLocation, folder: str) -> None:
    for path in place.files(folder):
        place.delete(path)
