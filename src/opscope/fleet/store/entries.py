"""The bundles that a store holds, by its own table of them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.core.errors import NotFoundError
from opscope.core.json import from_json
from opscope.fleet.store.rows import parse_moment
from opscope.fleet.store.schema import BUNDLES
from opscope.fleet.store.sql import ask_snapshot, stream_answer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import polars as pl

    from opscope.fleet.store.table import Snapshot

RUN_ORDER = "placed, created, bundle"
"""Order of histories in SQL: oldest first."""
_MOMENTS = ("created", "added", "placed")


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
        added: when it was added, ISO 8601.
        source: where it was.
        kind: ``bundle`` or ``tiles``.
        placed: its place in a history, ISO 8601: when it began, or was added where that is not known.
        checked: whether its figures were compared with its traces, or computed from them, when it was added.
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
    checked: bool = False


class EntryStream(NamedTuple):
    """Bundles of a store, some at a time."""

    total: int  # how many count
    entries: Iterator[StoreEntry]  # those that were asked for, in the order of histories


_COLUMNS = ", ".join(StoreEntry.__struct_fields__)


@contextlib.contextmanager
def stream_entries(snapshot: Snapshot, last: int | None = None) -> Iterator[EntryStream]:
    """Give the bundles that count, or the last so many of them, in the order of histories."""
    ((total,),) = ask_snapshot(snapshot, "SELECT count(*) FROM bundles")
    skipped = 0 if last is None else max(total - last, 0)
    sql = f"SELECT {_COLUMNS} FROM bundles ORDER BY {RUN_ORDER} OFFSET {skipped}"  # noqa: S608 - names of ours, a number
    with stream_answer(snapshot, sql) as stream:
        yield EntryStream(total, (_entry_of_row(row) for rows in stream.parts() for row in rows))


def find_same_runs(snapshot: Snapshot, origins: Sequence[str]) -> dict[str, StoreEntry]:
    """Return the bundles of a store whose runs began as some others did, by their origin."""
    return {entry.origin: entry for entry in _ask_entries(snapshot, "origin IN (SELECT unnest(?))", origins)}


def find_known(snapshot: Snapshot, bundles: Collection[str]) -> set[str]:
    """Return those of some hashes that a store has seen, also of bundles that were replaced since."""
    seen = "SELECT bundle FROM bundles UNION ALL SELECT bundle FROM replaced"
    sql = f"SELECT bundle FROM ({seen}) WHERE bundle IN (SELECT unnest(?))"  # noqa: S608 - a text of ours
    return {row[0] for row in ask_snapshot(snapshot, sql, [list(bundles)])}


def find_entries(snapshot: Snapshot, beginnings: Sequence[str], older_than: int | None) -> list[StoreEntry]:
    """Return the bundles whose hashes begin so, and those that were added more than so many days ago.

    Raises NotFoundError where not exactly one hash begins like one of these texts.
    """
    entries = {}
    for text in beginnings:
        matches = _ask_entries(snapshot, "starts_with(bundle, ?)", text) if text else []
        if len(matches) != 1:
            problem = "several bundles start with this" if matches else "the store has no such bundle"
            raise NotFoundError(problem, where=text, hint="`opscope store list` shows all of them")
        entries[matches[0].bundle] = matches[0]
    if older_than is not None:
        before = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(days=older_than)
        entries |= {entry.bundle: entry for entry in _ask_entries(snapshot, "added < ?", before)}
    return list(entries.values())


def _ask_entries(snapshot: Snapshot, condition: str, value: object) -> list[StoreEntry]:
    sql = f"SELECT {_COLUMNS} FROM bundles WHERE {condition} ORDER BY {RUN_ORDER}"  # noqa: S608 - texts of ours
    return [_entry_of_row(row) for row in ask_snapshot(snapshot, sql, [value])]


def _entry_of_row(row: tuple[Any, ...]) -> StoreEntry:
    moments = (cell.replace(tzinfo=timezone.utc).isoformat() if isinstance(cell, datetime) else cell for cell in row)
    fields: dict[str, Any] = dict(zip(StoreEntry.__struct_fields__, moments, strict=True))
    fields |= {name: fields[name] or "" for name in _MOMENTS}
    fields |= {"variants": from_json(fields["variants"], tuple[str, ...]), "checked": bool(fields["checked"])}
    return StoreEntry(**fields)


def entries_frame(entries: Iterable[StoreEntry]) -> pl.DataFrame:
    """Return bundles as rows of the store's table of them; times in UTC."""
    rows = []
    for entry in entries:
        fields = msgspec.structs.asdict(entry) | {"variants": msgspec.json.encode(entry.variants).decode()}
        fields |= {name: parse_moment(fields[name]) for name in _MOMENTS}
        rows.append(tuple(fields[name] for name in BUNDLES.names))
    return BUNDLES.make_frame(rows)
