"""What a store holds, by the files that say so: commits, and generations that hold many of them.

A bundle is in the store from the moment its commit appears, one file, whole. Commits are never changed. From time to
time they are taken up by a generation, a numbered file which can be made only once: whoever comes second reads the
first one's and tries again with the next number. What the newest generation does not know is in the commits beside it.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.core.errors import BundleError, NotFoundError, StorageError, TraceFormatError
from opscope.fleet.store.schema import SCHEMA

if TYPE_CHECKING:
    from opscope.fleet.store.place import StoreLocation

HEAD = "store.json"
COMMITS, GENERATIONS, DATA = "commits", "generations", "data"
_FAMILY = "opscope.store/"
_Document = TypeVar("_Document", bound=msgspec.Struct)
_TRIES = 100
_NUMBER = re.compile(rf"{GENERATIONS}/(\d{{12}})\.json\Z")
_COMMIT = re.compile(rf"{COMMITS}/[0-9a-f]{{16}}\.json\Z")


class File(msgspec.Struct, frozen=True):
    """A Parquet file.

    Attributes:
        path: within the store.
        table: whose rows it holds.
        partition: model, device and variant of all its rows.
        rows: how many.
        size: in bytes.
        sha256: of its content.
    """

    path: str
    table: str
    partition: tuple[str, str, str]
    rows: int
    size: int
    sha256: str


class StoreEntry(msgspec.Struct, frozen=True):
    """A bundle that the store holds.

    Attributes:
        bundle: its hash, by which it is known.
        origin: hash of what stays the same when a run is resumed: of two bundles of one origin the fuller one counts.
        repetitions: that succeeded.
        model: its name.
        device: its name.
        variants: their names.
        created: when the run began, ISO 8601.
        added: when it was added, likewise.
        source: where it was.
        kind: ``bundle`` or ``tiles``.
    """

    bundle: str
    origin: str
    repetitions: int
    model: str
    device: str
    variants: tuple[str, ...]
    created: str
    added: str
    source: str
    kind: str = "bundle"


class Commit(msgspec.Struct, frozen=True):
    """Bundles that were added in one step, and their files."""

    entries: list[StoreEntry]
    files: list[File]


class Generation(msgspec.Struct, frozen=True):
    """Everything up to some moment.

    Attributes:
        entries: bundles.
        files: with their rows.
        dropped: commits that it has taken up, or were removed: they count no more where they are still there.
    """

    entries: list[StoreEntry] = []
    files: list[File] = []
    dropped: list[str] = []


class Head(msgspec.Struct, frozen=True):
    """The first file of a store: the version of all others."""

    schema: str


class StorePart(NamedTuple):
    """Files, and bundles whose rows in them do not count."""

    files: tuple[File, ...]
    without: frozenset[str]


class Snapshot(NamedTuple):
    """A store at one moment.

    Attributes:
        number: of its newest generation; 0 when there is none.
        generation: it.
        commits: beside it, by path.
    """

    number: int
    generation: Generation
    commits: dict[str, Commit]

    def sources(self) -> list[Generation | Commit]:
        """What says which bundles and files there are, in a fixed order."""
        return [self.generation, *(own for _, own in sorted(self.commits.items()))]

    def entries(self) -> list[StoreEntry]:
        """Bundles that count: of each origin the fullest, in order of time."""
        known: dict[str, StoreEntry] = {}
        for one in (entry for source in self.sources() for entry in source.entries):
            other = known.get(one.origin)
            if other is None or (one.repetitions, one.bundle) > (other.repetitions, other.bundle):
                known[one.origin] = one
        return sorted(known.values(), key=lambda one: (one.created, one.bundle))

    def files(self) -> list[File]:
        """Every file."""
        return [file for part in self.parts() for file in part.files]

    def parts(self) -> list[StorePart]:
        """All files, with the bundles whose rows in them do not count: those of each file, in a fixed order.

        Rows do not count where a fuller bundle of the same origin is there, or where the bundle stands in an earlier
        part: two processes may add one at the same moment.
        """
        counting, seen = {one.bundle for one in self.entries()}, set[str]()
        found = []
        for source in self.sources():
            names = {one.bundle for one in source.entries}
            found.append(StorePart(tuple(source.files), frozenset(names & seen | names - counting)))
            seen |= names
        return found


def snapshot(place: StoreLocation) -> Snapshot:
    """What a store holds now.

    Raises:
        NotFoundError: there is no store.
        BundleError: it is of another version.
        StorageError: it changes faster than it can be read.
        TraceFormatError: a file of it is damaged.
    """
    check_version(place)
    for _ in range(_TRIES):
        numbers = generation_numbers(place)
        number = max(numbers, default=0)
        try:
            generation = _decoded(place, generation_path(number), Generation) if number else Generation()
            paths = [p for p in sorted(place.files(COMMITS)) if _COMMIT.match(p) and p not in set(generation.dropped)]
            commits = {path: _decoded(place, path, Commit) for path in paths}
        except FileNotFoundError:
            continue  # compacted while it was being read: there is a newer generation
        if max(generation_numbers(place), default=0) == number:
            return Snapshot(number, generation, commits)
    raise StorageError("it changes faster than it can be read", where=place.address, hint="try again")


def check_version(place: StoreLocation) -> None:
    """Make sure that a store can be read.

    Raises:
        NotFoundError: there is no store.
        BundleError: it is of another version.
    """
    schema = version_of(place)
    if schema != SCHEMA:
        problem = f"written as {schema}, this opscope knows {SCHEMA}"
        known = schema.removeprefix(_FAMILY)
        older = known.isdecimal() and int(known) < int(SCHEMA.removeprefix(_FAMILY))
        hint = f"opscope store migrate --store {place.address}" if older else "upgrade opscope; nothing was changed"
        raise BundleError(problem, where=place.address, hint=hint)


def version_of(place: StoreLocation) -> str:
    """Schema of a store, whichever version it is.

    Raises:
        NotFoundError: there is no store.
        TraceFormatError: its first file is damaged.
    """
    try:
        return _decoded(place, HEAD, Head).schema
    except FileNotFoundError:
        hint = "make one with `opscope store add PATH...`, or name another with --store"
        raise NotFoundError("there is no store", where=place.address, hint=hint) from None


def create(place: StoreLocation) -> None:
    """Make a store where there is none; two at once make one."""
    if not place.exists(HEAD):
        place.write_new(HEAD, msgspec.json.encode(Head(SCHEMA)) + b"\n")


def commit(place: StoreLocation, found: Commit) -> str:
    """Let bundles be in the store, whose files are there already; the path of the commit."""
    while True:
        path = f"{COMMITS}/{secrets.token_hex(8)}.json"
        if place.write_new(path, msgspec.json.encode(found) + b"\n"):
            return path


def next_generation(place: StoreLocation, number: int, found: Generation) -> bool:
    """Make the generation of that number; False when somebody else has made it in the meantime."""
    return place.write_new(generation_path(number), msgspec.json.encode(found) + b"\n")


def generation_path(number: int) -> str:
    """Path of a generation."""
    return f"{GENERATIONS}/{number:012d}.json"


def generation_numbers(place: StoreLocation) -> list[int]:
    """Numbers of the generations that are there."""
    return [int(match[1]) for match in map(_NUMBER.match, place.files(GENERATIONS)) if match]


def commit_paths(place: StoreLocation) -> set[str]:
    """Commits that are there, those that a generation has taken up too."""
    return {path for path in place.files(COMMITS) if _COMMIT.match(path)}


def _decoded(place: StoreLocation, path: str, kind: type[_Document]) -> _Document:
    try:
        return msgspec.json.decode(place.read(path), type=kind)
    except msgspec.MsgspecError as error:
        hint = "take it from a copy of the store, or add its bundles to a new one"
        raise TraceFormatError(f"damaged: {error}", where=f"{place.address}/{path}", hint=hint) from error
