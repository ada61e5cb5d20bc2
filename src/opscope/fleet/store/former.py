"""Stores of an older opscope, read only: version 1, which had a log of its own, and version 0, which had none.

Version 1 kept ``commits/HASH.json``, bundles that were added in one step with their files; ``generations/NUMBER.json``,
everything up to some moment, of which the newest counts; and one Parquet file for each table and model, device and
variant. Version 0 kept each bundle in a folder of its own, ``bundles/HASH/``, with ``bundle.json`` and one Parquet file
for each table; times of ``runs`` were in milliseconds.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec
import polars as pl

from opscope.core.errors import BundleError, TraceFormatError
from opscope.core.json import from_json
from opscope.fleet.store.entries import StoreEntry
from opscope.fleet.store.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.fleet.store.place import StoreLocation

VERSION_0, VERSION_1 = "opscope.store/0", "opscope.store/1"
_Document = TypeVar("_Document", bound=msgspec.Struct)
_NUMBER = re.compile(r"generations/(\d{12})\.json\Z")
_COMMIT = re.compile(r"commits/[0-9a-f]{16}\.json\Z")
_BUNDLE = "bundle.json"
_NS = 1e6
_MILLISECONDS = {"latency_ms": "latency_ns", "mean_ms": "mean_ns", "p90_ms": "p90_ns", "p99_ms": "p99_ns"}
_CHUNK = 64
"""Bundles of one model and device that are read together."""


class FormerFile(msgspec.Struct, frozen=True):
    """A Parquet file of version 1: whose rows it holds, and of which model, device and variant."""

    path: str
    table: str
    partition: tuple[str, str, str]


class FormerSource(msgspec.Struct, frozen=True):
    """A commit or a generation of version 1.

    Attributes:
        entries: bundles.
        files: with their rows.
        dropped: commits that it has taken up.
    """

    entries: list[StoreEntry] = []
    files: list[FormerFile] = []
    dropped: list[str] = []


class FormerBundle(msgspec.Struct, frozen=True):
    """What version 0 said of a bundle."""

    bundle: str
    model: str
    device: str
    variants: list[str]
    created: str
    source: str


def chunks(entries: Sequence[StoreEntry]) -> Iterator[list[StoreEntry]]:
    """Bundles in groups of one model and device, which stand in the same files of an older store."""
    ordered = sorted(entries, key=lambda one: (one.device, one.model, one.created, one.bundle))
    group: list[StoreEntry] = []
    for one in ordered:
        if group and ((one.device, one.model) != (group[0].device, group[0].model) or len(group) == _CHUNK):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


class Version1:
    """A store of version 1.

    Args:
        place: of it.

    Raises:
        TraceFormatError: a file of its log is damaged.
    """

    def __init__(self, place: StoreLocation) -> None:
        self._place = place
        sources = list(_sources(place))
        self.entries = _counting(sources)
        self._files: dict[tuple[str, str], list[tuple[FormerFile, frozenset[str]]]] = {}
        for file, without in _parts(sources, {one.bundle for one in self.entries}):
            self._files.setdefault((file.partition[1], file.partition[2]), []).append((file, without))

    def rows(self, own: Sequence[StoreEntry]) -> dict[str, pl.DataFrame]:
        """Rows of bundles of one model and device, by the names of their tables."""
        variants = {variant for one in own for variant in one.variants}
        files = [pair for name in sorted(variants) for pair in self._files.get((own[0].device, name), [])]
        first = [pair for pair in files if pair[0].partition[0] == own[0].model]
        found = self._of(first, own)
        missing = {one.bundle for one in own if not _has_all(found, one)}
        if missing:  # a variant may be of another program than its bundle
            others = [pair for pair in files if pair not in first]
            more = self._of(others, [one for one in own if one.bundle in missing])
            for name, frame in more.items():
                found[name] = pl.concat([found[name], frame]) if name in found else frame
        return found

    def _of(
        self, files: Iterable[tuple[FormerFile, frozenset[str]]], own: Sequence[StoreEntry]
    ) -> dict[str, pl.DataFrame]:
        names, parts = {one.bundle for one in own}, dict[str, list[pl.DataFrame]]()
        for file, without in files:
            frame = _frame(self._place, file.path)
            kept = frame.filter(pl.col("bundle").is_in(list(names - without)))
            if kept.height:
                parts.setdefault(file.table, []).append(_completed(kept, file.table))
        return {name: pl.concat(frames) for name, frames in parts.items()}


class Version0:
    """A store of version 0.

    Args:
        place: of it.

    Raises:
        TraceFormatError: what it says of a bundle is damaged.
    """

    def __init__(self, place: StoreLocation) -> None:
        self._place = place
        paths = sorted(path for path in place.files("bundles") if path.endswith(f"/{_BUNDLE}"))
        bundles = {path: _decoded(place, path, FormerBundle) for path in paths}
        self._folders = {bundle.bundle: path.removesuffix(_BUNDLE) for path, bundle in bundles.items()}
        self.entries = [_entry(bundle) for bundle in bundles.values()]

    def rows(self, own: Sequence[StoreEntry]) -> dict[str, pl.DataFrame]:
        """Rows of some bundles, by the names of their tables."""
        parts: dict[str, list[pl.DataFrame]] = {}
        for one in own:
            for name in TABLES:
                path = f"{self._folders[one.bundle]}{name}.parquet"
                if self._place.exists(path):
                    frame = _in_nanoseconds(_frame(self._place, path))
                    keys = (pl.lit(getattr(one, key)).alias(key) for key in ("bundle", "model", "device"))
                    parts.setdefault(name, []).append(_completed(frame.with_columns(*keys), name, path))
        return {name: pl.concat(frames) for name, frames in parts.items()}


def _sources(place: StoreLocation) -> Iterator[FormerSource]:
    """The newest generation, and the commits that it has not taken up."""
    numbers = [int(match[1]) for match in map(_NUMBER.match, place.files("generations")) if match]
    newest = f"generations/{max(numbers, default=0):012d}.json"
    generation = _decoded(place, newest, FormerSource) if numbers else FormerSource()
    yield generation
    for path in sorted(place.files("commits")):
        if _COMMIT.match(path) and path not in set(generation.dropped):
            yield _decoded(place, path, FormerSource)


def _counting(sources: Iterable[FormerSource]) -> list[StoreEntry]:
    """Bundles that count: of each origin the fullest, in order of time."""
    known: dict[str, StoreEntry] = {}
    for one in (entry for source in sources for entry in source.entries):
        other = known.get(one.origin)
        if other is None or (one.repetitions, one.bundle) > (other.repetitions, other.bundle):
            known[one.origin] = one
    return sorted(known.values(), key=lambda one: (one.created, one.bundle))


def _parts(sources: Iterable[FormerSource], counting: set[str]) -> Iterator[tuple[FormerFile, frozenset[str]]]:
    """All files, with the bundles whose rows in them do not count: two processes may have added one at a moment."""
    seen: set[str] = set()
    for source in sources:
        names = {one.bundle for one in source.entries}
        without = frozenset(names & seen | names - counting)
        yield from ((file, without) for file in source.files)
        seen |= names


def _has_all(found: dict[str, pl.DataFrame], one: StoreEntry) -> bool:
    """Whether every variant of a bundle has its row among the runs."""
    runs = found.get("runs")
    return runs is not None and set(one.variants) <= set(runs.filter(pl.col("bundle") == one.bundle)["variant"])


def _entry(bundle: FormerBundle) -> StoreEntry:
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


def _in_nanoseconds(frame: pl.DataFrame) -> pl.DataFrame:
    for old, new in _MILLISECONDS.items():
        if old in frame.columns:
            frame = frame.with_columns((pl.col(old) * _NS).alias(new)).drop(old)
    return frame


def _completed(frame: pl.DataFrame, table: str, where: str = "") -> pl.DataFrame:
    """Rows with all columns that their table has now."""
    kinds = TABLES[table].polars
    if unknown := set(frame.columns) - set(kinds):
        raise BundleError(f"a column that no version had: {min(unknown)}", where=where)
    columns = [
        (pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind)).alias(name)
        for name, kind in kinds.items()
    ]
    if table == "runs" and "kind" not in frame.columns:
        columns[list(kinds).index("kind")] = pl.lit("bundle").alias("kind")
    return frame.select(columns)


def _frame(place: StoreLocation, path: str) -> pl.DataFrame:
    where = f"{place.address}/{path}"
    hint = "take the file from a copy of the store, or remove its bundles with the opscope that wrote it"
    try:
        return pl.read_parquet(io.BytesIO(place.read(path)))
    except FileNotFoundError:
        raise TraceFormatError("a file of the store is missing", where=where, hint=hint) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TraceFormatError(f"a file of the store is damaged: {error}", where=where, hint=hint) from error


def _decoded(place: StoreLocation, path: str, kind: type[_Document]) -> _Document:
    try:
        return from_json(place.read(path), kind)
    except FileNotFoundError:
        hint = "the store must not change while it is migrated: run the command again"
        raise TraceFormatError("it is gone", where=f"{place.address}/{path}", hint=hint) from None
    except msgspec.MsgspecError as error:
        raise TraceFormatError(f"damaged: {error}", where=f"{place.address}/{path}") from error
