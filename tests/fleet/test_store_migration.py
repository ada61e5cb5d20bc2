"""Stores of an older opscope: said to be such, copied to a new one, and answering as before."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opscope.api import (
    compact_store,
    migrate_store,
    query_store,
    remove_from_store,
    store_entries,
    stored_history,
    verify_store,
)
from opscope.core.errors import BundleError, NotFoundError, TraceFormatError, UsageError

DATA = Path(__file__).parents[1] / "data"
V0 = DATA / "store-v0"
V1 = DATA / "store-v1"
ANSWERS = json.loads((DATA / "store-v1.answers.json").read_text())
"""What the opscope that wrote the store of version 1 answered: of each view the rows, and some histories."""


def contents(store: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def points_of(history: Any) -> Any:
    """What a history is of: its series with their points. Which changes they show is a matter of the method."""
    series = [
        (one["subject"], [{k: v for k, v in point.items() if k != "placed"} for point in one["points"]])
        for one in history["series"]
    ]
    return history["metric"], history["order"], history["left_out"], series


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of version 1 as this version has it."""
    new = tmp_path_factory.mktemp("migrated") / "new"
    assert migrate_store(V1, new).bundles == 14
    return new


@pytest.mark.parametrize("view", list(ANSWERS["views"]))
def test_a_migrated_store_has_the_rows_it_had(view: str, migrated: Path) -> None:
    """Of 14 bundles, some compacted, one of them added unfinished and once more when it was finished."""
    expected = ANSWERS["views"][view]
    columns = ", ".join(f'"{name}"' for name in expected["columns"])
    rows = query_store(f"SELECT {columns} FROM {view} ORDER BY ALL", migrated).rows
    assert len(rows) == expected["rows"]
    assert hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest() == expected["sha256"]


@pytest.mark.parametrize("asked", list(ANSWERS["histories"]))
def test_a_migrated_store_tells_the_histories_it_told(asked: str, migrated: Path) -> None:
    """Point by point, by date, commit and version, with the same series."""
    metric, _, by = asked.partition(" by ")
    found = json.loads(msgspec.json.encode(stored_history(metric, migrated, by=by)))
    assert points_of(found) == points_of(ANSWERS["histories"][asked])


def test_a_migrated_store_can_be_kept_like_any_other(tmp_path: Path) -> None:
    """Compacted, verified, and emptied of a bundle."""
    migrate_store(V1, tmp_path / "new")
    compact_store(tmp_path / "new")
    remove_from_store([store_entries(tmp_path / "new")[0].bundle], tmp_path / "new")
    found = verify_store(tmp_path / "new")
    assert (found.bundles, found.faults, found.leftovers) == (13, [], [])


def test_a_store_of_version_0_is_migrated_too(tmp_path: Path) -> None:
    """Its milliseconds are nanoseconds then."""
    assert migrate_store(V0, tmp_path / "new") == (2, "opscope.store/0", "opscope.store/2", str(tmp_path / "new"))
    sql = "SELECT bundle[:2], device, variant, kind, latency_ns, arm FROM runs ORDER BY created, variant"
    device = "Old CPU, Linux x86_64"
    assert query_store(sql, tmp_path / "new").rows == [
        ("a1", device, "accelerated", "bundle", 1_500_000.0, None),
        ("a1", device, "baseline", "bundle", 3_000_000.0, None),
        ("b2", device, "accelerated", "bundle", 1_250_000.0, None),
        ("b2", device, "baseline", "bundle", 3_100_000.0, None),
    ]
    assert query_store("SELECT count(*) FROM operators", tmp_path / "new").rows == [(4,)]


@pytest.mark.parametrize("old", [V0, V1])
def test_the_old_store_stays_as_it_is(old: Path, tmp_path: Path) -> None:
    """Every byte; the new one stands beside it when no name is given."""
    shutil.copytree(old, tmp_path / "runs")
    migrate_store(tmp_path / "runs")
    assert contents(tmp_path / "runs") == contents(old)
    assert store_entries(tmp_path / "runs-2")


@pytest.mark.parametrize("old", [V0, V1])
def test_an_old_store_says_how_to_migrate(old: Path, tmp_path: Path) -> None:
    """Whoever opens it; nothing is written into it."""
    store = tmp_path / "runs"
    shutil.copytree(old, store)
    for act in (lambda: query_store("SELECT 1", store), lambda: compact_store(store), lambda: store_entries(store)):
        with pytest.raises(BundleError) as caught:
            act()
        assert caught.value.hint == f"opscope store migrate --store {store} --to {store}-2"
    assert contents(store) == contents(old)


def test_an_interrupted_migration_goes_on_where_it_was(tmp_path: Path) -> None:
    """What is in the new store is not copied again, and nothing is there twice."""

    def stop(done: int, _total: int) -> None:
        if done >= 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate_store(V1, tmp_path / "new", progress=stop)
    there = len(store_entries(tmp_path / "new"))
    assert 0 < there < 14
    assert migrate_store(V1, tmp_path / "new").bundles == 14 - there
    assert query_store("SELECT count(*) FROM runs", tmp_path / "new").rows == [(28,)]


def test_what_cannot_be_migrated_is_said(tmp_path: Path) -> None:
    """No store, a store of this version, one onto itself, and one of which a file is missing."""
    with pytest.raises(NotFoundError, match="there is no store"):
        migrate_store(tmp_path / "none", tmp_path / "new")
    with pytest.raises(UsageError, match="onto itself"):
        migrate_store(V1, V1)
    migrate_store(V0, tmp_path / "current")
    with pytest.raises(BundleError, match="it is of this version"):
        migrate_store(tmp_path / "current", tmp_path / "new")
    shutil.copytree(V1, tmp_path / "damaged")
    next((tmp_path / "damaged/data/operators").rglob("*.parquet")).unlink()
    with pytest.raises(TraceFormatError, match="is missing"):
        migrate_store(tmp_path / "damaged", tmp_path / "other")
