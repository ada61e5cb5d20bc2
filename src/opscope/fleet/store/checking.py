"""Whether a store is what it says: every file there, whole, with the rows that its log promises."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.fleet.store.log import former_files, snapshot
from opscope.fleet.store.schema import BUNDLES, EVERY, REPLACED, SCHEMA, stored_types
from opscope.fleet.store.writing import hash_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.fleet.store.log import File, Snapshot
    from opscope.fleet.store.place import StoreLocation

_PARQUET = ".parquet"


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
        leftovers: files that no version names: of processes that were killed, or at work now.
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
        if _changed(file, content):
            return f"its content has changed: {len(content):,} bytes, {file.size:,} were written"
        try:
            frame = pl.read_parquet(io.BytesIO(content))
        except (pl.exceptions.PolarsError, OSError) as error:
            return f"it is not Parquet file: {error}"
        wanted = stored_types(EVERY[file.table]) if file.table in EVERY else {}
        if {name: frame.schema.get(name) for name in wanted} != wanted or frame.height != file.rows:
            return "its columns or its rows are not those that it should have"
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
    """Read every file of a store and compare it with what was written.

    Raises:
        OpscopeError: of the kind that fits when there is no store that can be read.
    """
    now, read = snapshot(place), _Read()
    problems = [(file, problem) for file in now.files if (problem := read.problem(place, file))]
    return StoreCheck(
        version=SCHEMA,
        bundles=read.counted(),
        files=len(now.files) - len(problems),
        rows=sum(file.rows for file in now.files),
        size=sum(file.size for file in now.files),
        faults=[StoreFault(file.path, problem, read.lost(file)) for file, problem in problems],
        leftovers=_leftovers(place, now),
        commits=now.version,
        store=place.address,
    )


def _changed(file: File, content: bytes) -> bool:
    """Whether it has another size or hash; the files of another program, which compacted the table, have no hash."""
    written = hash_in(file.path)
    return len(content) != file.size or (written is not None and hashlib.sha256(content).hexdigest() != written)


def _leftovers(place: StoreLocation, now: Snapshot) -> list[str]:
    there = {path for path in place.files("") if path.endswith(_PARQUET) and not path.startswith("_")}
    return sorted(there - {file.path for file in now.files} - former_files(place, now))


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set[str]().union(*sets)
