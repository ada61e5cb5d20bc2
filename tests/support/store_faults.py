"""One fault in one file of a store: made on a copy, and what `verify`, the next `add` and `compact` say and do.

A store is made with every kind of file that one has: commits before and behind a checkpoint, the checkpoint and its
pointer, data that counts, data that compaction replaced, the anchor. Only public functions judge.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

from many_bundles import Made, Mint
from opscope.api import add_to_store, compact_store, verify_store
from opscope.core.errors import OpscopeError
from opscope.fleet.store.log import commit, snapshot
from opscope.fleet.store.place import place_of

_ANCHOR = "_anchor.json"
_POINTER = "_delta_log/_last_checkpoint"


class StoreSample(NamedTuple):
    """A store, and what a fault needs to know of it.

    Attributes:
        store: where it is; never changed.
        bundle: one that is not in it.
        kinds: its files by their kind.
        live: paths of the files that count.
        anchors: contents that the anchor had before.
    """

    store: Path
    bundle: Path
    kinds: dict[str, list[str]]
    live: frozenset[str]
    anchors: list[bytes]


class Seen(NamedTuple):
    """What came of a fault.

    Attributes:
        changed: files that were changed.
        verified: whether `verify` ends with another code than 0 and names one of them.
        told: whether the next `add` names one of them.
        noted: whether `verify` says that commits are newer than the anchor.
        kept: whether every other file that counts is there after `compact`.
        said: by the next `add`.
    """

    changed: list[str]
    verified: bool
    told: bool
    noted: bool
    kept: bool
    said: str


def store_sample(place: Path, adds: int = 4, idle: int = 18) -> StoreSample:
    """A store of so many bundles, each added by itself, compacted before the last few.

    Args:
        place: directory to work in.
        adds: how many.
        idle: further commits, which change nothing and bring the log to its checkpoint.
    """
    mint = Mint(place / "mint", operators=4, rounds=2, runs=2)
    bundles = [mint.make(place / f"bundles/{number}", Made(number, hours=number)) for number in range(adds + 1)]
    anchors, where = [], place_of(place / "store")
    for number, bundle in enumerate(bundles[1:]):
        add_to_store([bundle], place / "store")
        anchors.append((place / "store" / _ANCHOR).read_bytes())
        if number == adds - 3:
            compact_store(place / "store")
            for _ in range(idle):
                commit(where, snapshot(where), [], data=False)
    assert verify_store(place / "store").faults == []
    return StoreSample(place / "store", bundles[0], *_described(place / "store"), anchors[:-1])


def _described(store: Path) -> tuple[dict[str, list[str]], frozenset[str]]:
    delta = DeltaTable(store)
    live = frozenset(delta.get_add_actions(flatten=True).column("path").to_pylist())
    there = sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())
    newest = f"_delta_log/{delta.version():020d}.json"
    kinds: dict[str, list[str]] = {}
    for path in there:
        kinds.setdefault(_kind(path, newest, live), []).append(path)
    return kinds, live


def _kind(path: str, newest: str, live: frozenset[str]) -> str:
    if path == _ANCHOR:
        return "anchor"
    if path == _POINTER:
        return "pointer to a checkpoint"
    if path.endswith(".checkpoint.parquet"):
        return "checkpoint"
    if path.startswith("_delta_log/"):
        return "newest commit" if path == newest else "earlier commit"
    return "data" if path in live else "replaced data"


Fault = Callable[[StoreSample, Path, str, random.Random], list[str]]


def _write(file: Path, content: bytes) -> None:
    """Other content at a name; the copies of a store share their files as hard links."""
    file.unlink()
    file.write_bytes(content)


def _delete(_sample: StoreSample, store: Path, path: str, _rng: random.Random) -> list[str]:
    (store / path).unlink()
    return [path]


def _empty(_sample: StoreSample, store: Path, path: str, _rng: random.Random) -> list[str]:
    _write(store / path, b"")
    return [path]


def _cut(_sample: StoreSample, store: Path, path: str, rng: random.Random) -> list[str]:
    content = (store / path).read_bytes()
    _write(store / path, content[: rng.randrange(1, len(content))])
    return [path]


def _swap(sample: StoreSample, store: Path, path: str, rng: random.Random) -> list[str]:
    content = (store / path).read_bytes()
    others = [other for own in sample.kinds.values() for other in own if (store / other).read_bytes() != content]
    same = [other for other in others if other.partition("/")[0] == path.partition("/")[0]]
    other = rng.choice(same or others)
    held = store / "held"
    (store / path).rename(held)
    (store / other).rename(store / path)
    held.rename(store / other)
    return [path, other]


def _flip(_sample: StoreSample, store: Path, path: str, rng: random.Random) -> list[str]:
    content = bytearray((store / path).read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    _write(store / path, content)
    return [path]


def _edit(_sample: StoreSample, store: Path, path: str, rng: random.Random) -> list[str]:
    content = (store / path).read_bytes()
    at = rng.randrange(len(content) + 1)
    _write(store / path, content[:at] + rng.randbytes(rng.randrange(1, 5)) + content[at:])
    return [path]


def _drop_line(_sample: StoreSample, store: Path, path: str, rng: random.Random) -> list[str]:
    lines = (store / path).read_bytes().splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    _write(store / path, b"".join(lines))
    return [path]


def _roll_back(sample: StoreSample, store: Path, path: str, rng: random.Random) -> list[str]:
    _write(store / path, rng.choice(sample.anchors))
    return [path]


FAULTS: dict[str, Fault] = {
    "delete": _delete,
    "empty": _empty,
    "cut": _cut,
    "swap": _swap,
    "flip a bit": _flip,
    "insert bytes": _edit,
    "drop a line": _drop_line,
    "roll back": _roll_back,
}
KINDS = (
    "anchor",
    "newest commit",
    "earlier commit",
    "checkpoint",
    "pointer to a checkpoint",
    "data",
    "replaced data",
)


def fits(fault: str, kind: str) -> bool:
    """Whether a fault means something for a kind of file: lines are a commit's, earlier contents the anchor's."""
    if fault == "drop a line":
        return kind.endswith("commit")
    return fault != "roll back" or kind == "anchor"


def tried(sample: StoreSample, fault: str, kind: str, rng: random.Random, place: Path) -> Seen:
    """Make a fault on a copy of the store, ask all three commands, and take the copy away."""
    verified, add, compacted = (place / name for name in ("verify", "add", "compact"))
    shutil.copytree(sample.store, verified, copy_function=os.link)
    changed = FAULTS[fault](sample, verified, rng.choice(sample.kinds[kind]), rng)
    for copy in (add, compacted):
        shutil.copytree(verified, copy, copy_function=os.link)
    noted, named = _named_by_verify(verified)
    said = _said_by_add(sample, add)
    seen = Seen(
        changed,
        verified=bool(named & set(changed)),
        told=any(path in said for path in changed),
        noted=noted,
        kept=not (sample.live - set(changed) - _there_after_compact(compacted)),
        said=said,
    )
    for copy in (verified, add, compacted):
        shutil.rmtree(copy)
    return seen


def _named_by_verify(store: Path) -> tuple[bool, set[str]]:
    try:
        found = verify_store(store)
    except OpscopeError as error:
        return False, {str(error.where).removeprefix(f"{store}/")}
    return found.unanchored > 0, {fault.path for fault in found.faults}


def _said_by_add(sample: StoreSample, store: Path) -> str:
    try:
        done = add_to_store([sample.bundle], store)
    except OpscopeError as error:
        return str(error)
    return " ".join(done.damaged)


def _there_after_compact(store: Path) -> set[str]:
    with contextlib.suppress(OpscopeError):
        compact_store(store)
    return {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}
