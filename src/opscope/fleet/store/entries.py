"""The bundles that a store holds, by its own table of them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.core.errors import NotFoundError
from opscope.core.json import from_json
from opscope.fleet.store.querying import ask_snapshot, streamed
from opscope.fleet.store.rows import moment
from opscope.fleet.store.schema import BUNDLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

    from opscope.fleet.store.log import Snapshot
    from opscope.fleet.store.place import StoreLocation


class StoreEntry(msgspec.Struct, frozen=True):
    """A bundle that the store holds.

    Attributes:
        bundle: its hash, by which it is known.
        origin: hash of what stays the same when a run is resumed: of two bundles of one origin the fuller one counts.
        repetitions: that succeeded.
        model: its name.
        device: its name.
        variants: their names.
        created: when the run began, ISO 8601; empty where that is not known.
        added: when it was added, likewise.
        source: where it was.
        kind: ``bundle`` or ``tiles``.
        placed: its place in a history, ISO 8601; null before it is stored.
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
    placed: str | None = None

    @property
    def month(self) -> str:
        """Month of the place in history, by which its files are kept apart."""
        found = moment(self.placed) or moment(self.added)
        return f"{found:%Y-%m}" if found else "unknown"


_COLUMNS = ", ".join(StoreEntry.__struct_fields__)


class EntryStream(NamedTuple):
    """Bundles of a store, a part at a time."""

    total: int  # how many count
    entries: Iterator[StoreEntry]  # those that were asked for, in the order of histories


@contextlib.contextmanager
def listed(place: StoreLocation, now: Snapshot, last: int | None = None) -> Iterator[EntryStream]:
    """The bundles that count, or the last so many of them in the order of histories."""
    ((total,),) = ask_snapshot(place, now, "SELECT count(*) FROM bundles").rows
    order = "placed, created, bundle"
    chosen = "bundles"
    if last is not None:
        backwards = ", ".join(f"{name} DESC NULLS FIRST" for name in order.split(", "))
        chosen = f"(SELECT * FROM bundles ORDER BY {backwards} LIMIT {last:d})"  # noqa: S608 - names of ours, a number
    sql = f"SELECT {_COLUMNS} FROM {chosen} ORDER BY {order}"  # noqa: S608 - likewise
    with streamed(place, now, sql) as stream:
        yield EntryStream(total, (_entry(row) for part in stream.parts() for row in part))


def relatives(place: StoreLocation, now: Snapshot, entries: Iterable[StoreEntry]) -> dict[str, StoreEntry]:
    """The bundles of a store that are of the same run as one of some bundles, by their origin."""
    sql = f"SELECT {_COLUMNS} FROM bundles WHERE origin IN (SELECT unnest(?))"  # noqa: S608 - columns of ours
    found = (_entry(row) for row in ask_snapshot(place, now, sql, [[one.origin for one in entries]]).rows)
    return {one.origin: one for one in found}


def known(place: StoreLocation, now: Snapshot, bundles: list[str]) -> set[str]:
    """Those of some hashes that a store has seen, those of bundles that were replaced since too."""
    seen = "SELECT bundle FROM bundles UNION ALL SELECT bundle FROM replaced"
    sql = f"SELECT bundle FROM ({seen}) WHERE bundle IN (SELECT unnest(?))"  # noqa: S608 - a text of ours
    return {row[0] for row in ask_snapshot(place, now, sql, [bundles]).rows}


def chosen(place: StoreLocation, now: Snapshot, word: str) -> StoreEntry:
    """The bundle whose hash begins with a word."""
    sql = f"SELECT {_COLUMNS} FROM bundles WHERE starts_with(bundle, ?) LIMIT 2"  # noqa: S608 - columns of ours
    found = ask_snapshot(place, now, sql, [word]).rows if word else []
    if len(found) != 1:
        problem = "several bundles start with this" if found else "the store has no such bundle"
        raise NotFoundError(problem, where=word, hint="`opscope store list` shows all of them")
    return _entry(found[0])


def older(place: StoreLocation, now: Snapshot, days: int) -> list[StoreEntry]:
    """The bundles that stand in histories more than some days ago."""
    before = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(days=days)
    sql = f"SELECT {_COLUMNS} FROM bundles WHERE placed < ? ORDER BY placed, created, bundle"  # noqa: S608 - ours
    return [_entry(row) for row in ask_snapshot(place, now, sql, [before]).rows]


def next_place(place: StoreLocation, now: Snapshot) -> str:
    """Where bundles stand that are added now: behind all others, whatever the clock says. ISO 8601."""
    ((last,),) = ask_snapshot(place, now, "SELECT max(placed) FROM bundles").rows
    clock = datetime.now(timezone.utc).replace(tzinfo=None)
    return _text(clock if last is None else max(clock, last + timedelta(microseconds=1)))


def entry_rows(entries: Iterable[StoreEntry]) -> pl.DataFrame:
    """Bundles as rows of the store's table of them."""
    rows = []
    for one in entries:
        variants = msgspec.json.encode(one.variants).decode()
        about = one.bundle, one.model, one.device, one.kind, one.origin, one.repetitions, variants
        rows.append((*about, moment(one.created), moment(one.added), moment(one.placed), one.source))
    return BUNDLES.frame(rows)


def _entry(row: tuple[Any, ...]) -> StoreEntry:
    found = dict(zip(StoreEntry.__struct_fields__, row, strict=True))
    times = {name: _text(found[name]) for name in ("created", "added", "placed")}
    return StoreEntry(**found | times | {"variants": from_json(found["variants"], tuple[str, ...])})


def _text(found: datetime | None) -> str:
    return found.replace(tzinfo=timezone.utc).isoformat() if found is not None else ""
