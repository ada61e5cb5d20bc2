"""Stores that are damaged, forged or something else, and statements that are no queries."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from many_bundles import Made, Mint, fleet
from opscope.api import add_to_store, query_store, remove_from_store, store_entries
from opscope.core.errors import BundleError, OpscopeError, TraceFormatError, UsageError
from opscope.fleet.bundles import PreparedBundle, prepare_bundle
from opscope.fleet.store import table
from opscope.fleet.store.place import find_place
from opscope.fleet.store.sql import REFUSED_FUNCTIONS
from opscope.fleet.store.table import create_store, open_store
from opscope.fleet.stores import write_bundles
from store_queries import statements, tree_hash

BIN = Path(sys.executable).parent / "opscope"
COUNT = "SELECT count(*) FROM runs"
HARMLESS = {"error", "gen_random_uuid", "random", "uuid", "uuidv4", "uuidv7"}
"""Functions with side effects, as DuckDB has it, that neither wait nor write."""


@pytest.fixture(scope="module")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Mint:
    """What bundles are made from."""
    return Mint(tmp_path_factory.mktemp("mint"), operators=4, rounds=2, runs=2)


@pytest.fixture(scope="module")
def sample(mint: Mint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four bundles in as many commits; never changed."""
    work = tmp_path_factory.mktemp("sample")
    for number in range(4):
        add_to_store([mint.make(work / f"{number}", Made(number, hours=number))], work / "store")
    return work / "store"


@pytest.fixture
def store(sample: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(sample, tmp_path / "store")
    return tmp_path / "store"


def commit_file(store: Path, version: int) -> Path:
    """The commit of a version."""
    return store / "_delta_log" / f"{version:020d}.json"


def cut_middle(file: Path) -> None:
    """End a file in the middle of its last line."""
    file.write_bytes(file.read_bytes()[:-20])


def drop_line(file: Path) -> None:
    """Take the last line of a file."""
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "emptied": lambda file: file.write_bytes(b""),
    "cut": cut_middle,
    "cut between lines": drop_line,
    "missing": Path.unlink,
    "only its beginning": lambda file: file.write_bytes(file.read_bytes().splitlines(keepends=True)[0]),
    "zeros": lambda file: file.write_bytes(b"\0" * 100),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("version", [0, 2])
def test_a_damaged_commit_is_named_by_its_version(damage: str, version: int, store: Path, mint: Mint) -> None:
    """By queries, adds and removals, which change nothing."""
    bundle = store_entries(store)[0].bundle
    DAMAGE[damage](commit_file(store, version))
    before = tree_hash(store)
    for act in (
        lambda: query_store(COUNT, store),
        lambda: add_to_store([mint.original], store),
        lambda: remove_from_store([bundle], store),
    ):
        with pytest.raises(TraceFormatError, match=f"version {version} of the log is damaged") as caught:
            act()
        assert f"{version:020d}.json" in str(caught.value.where)
    assert tree_hash(store) == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Path.unlink, "it is missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "were written"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "the file cannot be read"),
    ],
    ids=["missing", "cut", "zeros"],
)
def test_a_damaged_file_is_named(change: Callable[[Path], object], problem: str, store: Path) -> None:
    """A query that needs it says which; one that does not has its answer."""
    file = sorted(store.glob("table_name=runs/*.parquet"))[1]
    change(file)
    with pytest.raises(TraceFormatError, match=problem) as caught:
        query_store("SELECT min(latency_ns), min(model) FROM runs", store)
    assert str(caught.value.where) == str(file)
    assert query_store("SELECT count(*) FROM findings", store).columns == ["count_star()"]


def forge(store: Path, kind: str, path: str) -> None:
    """Write one more commit, as whoever gives the store to others could."""
    version = DeltaTable(store).version() + 1
    action: dict[str, Any] = {"path": path, "dataChange": True, "partitionValues": {"table_name": "runs"}, "size": 10}
    old = int((time.time() - 30 * 86_400) * 1000)
    if kind == "add":
        action |= {"modificationTime": old, "stats": '{"numRecords": 1}'}
    else:
        action |= {"deletionTimestamp": old, "extendedFileMetadata": True}
    metrics = {"num_added_files": int(kind == "add"), "num_removed_files": int(kind == "remove")}
    lines = [{"commitInfo": {"timestamp": old, "operation": "WRITE", "operationMetrics": metrics}}, {kind: action}]
    commit_file(store, version).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("kind", ["add", "remove"])
@pytest.mark.parametrize(
    "path",
    [
        "../victim.parquet",
        "{victim}",
        "file://{victim}",
        "%2E%2E/victim.parquet",
        "..%2Fvictim.parquet",
        "mine/notes.txt",
        "_delta_log/00000000000000000000.json",
        "table_name=runs/../../victim.parquet",
        "table_name=runs/victim.parquet",
    ],
)
def test_a_forged_log_opens_and_deletes_nothing(kind: str, path: str, store: Path, mint: Mint) -> None:
    """Its path is refused, with the version, by whatever command; a file of the user stays."""
    victim = store.parent / "victim.parquet"
    victim.write_bytes(b"PAR1 precious")
    forge(store, kind, path.format(victim=victim))
    before = tree_hash(store, victim)
    for act in (
        lambda: query_store(COUNT, store),
        lambda: add_to_store([mint.original], store),
        lambda: remove_from_store([], store, older_than=1),
    ):
        with pytest.raises(TraceFormatError, match="version 5 of the log names a file that is none of a store's"):
            act()
    assert tree_hash(store, victim) == before


@pytest.mark.parametrize("kind", ["pipe", "link to a file", "link to a directory", "pipe in the log", "linked log"])
def test_only_regular_files_are_opened(kind: str, store: Path) -> None:
    """A pipe does not hang, and a link leads nowhere."""
    data, log = next(store.glob("table_name=runs/*.parquet")), store / "_delta_log"
    if kind == "pipe":
        data.unlink()
        os.mkfifo(data)
    elif kind == "link to a file":
        data.rename(store.parent / "elsewhere")
        data.symlink_to(store.parent / "elsewhere")
    elif kind == "link to a directory":
        data.parent.rename(store.parent / "elsewhere")
        data.parent.symlink_to(store.parent / "elsewhere")
    elif kind == "pipe in the log":
        commit_file(store, 3).unlink()
        os.mkfifo(commit_file(store, 3))
    else:
        log.rename(store.parent / "log")
        log.symlink_to(store.parent / "log")
    with pytest.raises(TraceFormatError, match=r"not a regular file|a link stands in place of a directory"):
        query_store(COUNT, store)


@pytest.mark.parametrize("kind", ["bundle", "file", "file below", "hidden file", "another table", "newer store"])
def test_add_refuses_what_is_no_store(kind: str, sample: Path, mint: Mint, tmp_path: Path) -> None:
    """With its own error, and leaves it as it is."""
    place = tmp_path / "place"
    if kind == "bundle":
        mint.make(place, Made(7))
    elif kind == "file":
        place.write_text("mine")
    elif kind in {"file below", "hidden file"}:
        place.mkdir()
        (place / (".mine" if kind == "hidden file" else "mine")).write_text("mine")
    else:
        shutil.copytree(sample, place)
        first, schema = commit_file(place, 0), table.SCHEMA
        first.write_text(first.read_text().replace(schema, "opscope.store/7" if kind == "newer store" else "other"))
    before = tree_hash(tmp_path)
    with pytest.raises(BundleError, match=r"not a store and not empty|written as"):
        add_to_store([mint.original], place)
    assert tree_hash(tmp_path) == before


def test_small_files_are_merged_and_what_they_replace_is_kept_a_week(
    mint: Mint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers stay; files that no commit marks as removed are never deleted."""
    store = tmp_path / "store"
    monkeypatch.setattr(table, "SMALL_FILES", 12)
    for number in range(5):
        add_to_store([mint.make(tmp_path / f"{number}", Made(number, hours=number))], store)
        (store / "table_name=runs" / "left by a killed command.parquet").touch()
    assert query_store("SELECT count(*), count(DISTINCT bundle) FROM runs", store).rows == [(10, 5)]
    live = {file.path for file in open_store(find_place(store)).files}
    there = {path.relative_to(store).as_posix() for path in store.rglob("*.parquet") if "_delta_log" not in path.parts}
    assert live < there
    assert "table_name=runs/left by a killed command.parquet" in there
    assert len(live) <= 20


def test_several_writers_at_one_moment_store_a_bundle_once(mint: Mint, tmp_path: Path) -> None:
    """All have looked and found no store, and then no bundle."""
    place = find_place(tmp_path / "store")
    prepared = prepare_bundle(str(mint.original))
    assert isinstance(prepared, PreparedBundle)
    waiting = threading.Barrier(4)

    def write(_: int) -> int:
        waiting.wait()
        create_store(place)
        return len(write_bundles(place, [prepared]))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(write, range(4))) == [0, 0, 0, 1]
    assert query_store(COUNT, place.address).rows == [(2,)]


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.nightly)])
def test_a_killed_add_leaves_a_store_that_counts_nothing_twice(rounds: int, mint: Mint, tmp_path: Path) -> None:
    """Killed at any moment; afterwards the same command completes it."""
    rng, store = random.Random(rounds), tmp_path / "store"
    for made in fleet(12, models=4, devices=3):
        mint.make(tmp_path / "bundles" / f"{made.number}", made)
    command = [str(BIN), "store", "add", str(tmp_path / "bundles"), "--store", str(store), "--quiet"]
    for _ in range(rounds):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 2.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if any(store.glob("_delta_log/*.json")):
            ((rows, bundles),) = query_store("SELECT count(*), count(DISTINCT bundle) FROM runs", store).rows
            assert (rows, bundles) in {(0, 0), (24, 12)}
    subprocess.run(command, check=True)
    assert len(store_entries(store)) == 12


def test_no_statement_writes_or_reads_another_file(store: Path, tmp_path: Path) -> None:
    """Of generated statements queries answer, all others are refused, and no file changes."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "secret.csv").write_text("a,b\n1,2\n")
    before = tree_hash(store, beside)
    generated = statements(random.Random(4), store, beside)
    for _ in range(60):
        statement = next(generated)
        if statement.refused:
            with pytest.raises(OpscopeError):
                query_store(statement.sql, store)
        else:
            query_store(statement.sql, store)
    assert tree_hash(store, beside) == before


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELEC",
        "SELECT nothing FROM runs",
        "SELECT 1; SELECT 2",
        "COPY runs TO '/tmp/x.csv'",
        "SET enable_external_access = true",
        "CREATE TABLE t AS SELECT 1",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM 'file:///etc/hostname'",
        "SELECT sleep_ms(100000)",
        "SELECT pg_sleep(100)",
        "SELECT write_log('x')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('runs')",
        "CALL enable_logging()",
        "IMPORT DATABASE '/tmp'",
        "PRAGMA import_database('/tmp')",
        "CALL import_database('/tmp')",
        "SELECT import_database('/tmp')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/x.csv'",
        "SELECT error('parquet magic bytes')",
    ],
)
def test_what_is_no_query_is_a_usage_error(sql: str, store: Path) -> None:
    """And never a damaged store."""
    with pytest.raises(UsageError):
        query_store(sql, store)


def test_a_query_of_too_much_memory_is_a_usage_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where the limit is, and the process goes on."""
    monkeypatch.setattr("opscope.fleet.store.sql.MEMORY", "50MB")
    monkeypatch.setattr("opscope.fleet.store.sql.SPILLED", "1MB")
    with pytest.raises(UsageError, match=r"[Mm]emory|temp"):
        query_store("SELECT list(range) FROM range(100000000)", store)
    assert query_store(COUNT, store).rows == [(8,)]


def test_functions_with_side_effects_are_known() -> None:
    """A new version of DuckDB with another one must be looked at."""
    sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE has_side_effects"
    assert {name for (name,) in duckdb.sql(sql).fetchall()} <= REFUSED_FUNCTIONS | HARMLESS


def test_views_are_listed_by_the_query_command() -> None:
    """All of them, or the columns of one; without a store."""
    words = [str(BIN), "store", "query", "--views"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()[:8]][:3] == ["runs", "methods", "latency"]
    columns = subprocess.run([*words, "operators"], capture_output=True, text=True, check=True).stdout
    assert "time_ns" in columns
    assert subprocess.run([*words, "nothing"], capture_output=True, check=False).returncode == 3
