"""A store that proves itself: every fault in one file is seen, and nothing that counts is ever cleaned."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from opscope.api import (
    add_to_store,
    compact_store,
    query_store,
    remove_from_store,
    store_entries,
    verify_store,
)
from opscope.core.errors import BundleError, NotFoundError, OpscopeError, TraceFormatError, UsageError
from opscope.fleet.store import log
from opscope.fleet.store.anchor import ANCHOR, Anchor, _sealed, advance, begin, checkpoint_path, read_anchor
from opscope.fleet.store.place import place_of
from opscope.fleet.store.querying import PartReader, answered, connected
from opscope.fleet.store.schema import EVERY, SCHEMA
from store_faults import StoreSample, store_sample, tried
from store_queries import statements, tree_hash
from texts import NO_VERSION

BIN = Path(sys.executable).parent / "opscope"
SEEN = (
    ("delete", "anchor"),
    ("flip a bit", "anchor"),
    ("delete", "newest commit"),
    ("empty", "newest commit"),
    ("drop a line", "newest commit"),
    ("drop a line", "earlier commit"),
    ("swap", "earlier commit"),
    ("cut", "checkpoint"),
    ("flip a bit", "checkpoint"),
    ("insert bytes", "pointer to a checkpoint"),
    ("flip a bit", "data"),
    ("swap", "data"),
    ("delete", "replaced data"),
    ("flip a bit", "replaced data"),
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> StoreSample:
    """A store with a file of every kind."""
    return store_sample(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def store(sample: StoreSample, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(sample.store, tmp_path / "store"))


def commits(store: Path) -> list[Path]:
    """The commits of its log, the newest one last."""
    return sorted((store / "_delta_log").glob("*.json"))


def opscope(*words: object) -> subprocess.CompletedProcess[str]:
    """The command, in its own process."""
    return subprocess.run([BIN, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("fault", "kind"), SEEN, ids=lambda word: word.replace(" ", "-"))
def test_a_fault_is_seen_and_costs_nothing_else(fault: str, kind: str, sample: StoreSample, tmp_path: Path) -> None:
    """`verify` and the next `add` name the file, `compact` keeps every other one; `make fuzz` tries a thousand."""
    seen = tried(sample, fault, kind, random.Random(fault + kind), tmp_path)
    assert (seen.verified, seen.told, seen.kept) == (True, True, True), seen


def test_commands_refuse_a_store_that_lost_its_newest_commit(sample: StoreSample, store: Path) -> None:
    """`verify` ends with 15 and names it; list, query, add, compact and remove end with 4, and nothing changes."""
    newest = commits(store)[-1]
    newest.write_bytes(b"")
    held = tree_hash(store)
    done = opscope("store", "verify", "--store", store)
    assert done.returncode == 15
    assert newest.name in done.stdout
    assert newest.name in done.stderr
    for act in (
        lambda: store_entries(store),
        lambda: query_store("SELECT count(*) FROM runs", store),
        lambda: add_to_store([sample.bundle], store),
        lambda: compact_store(store),
        lambda: remove_from_store(["0"], store),
    ):
        with pytest.raises(TraceFormatError, match=newest.name):
            act()
    assert tree_hash(store) == held


def test_nothing_that_counted_is_deleted_when_an_add_is_lost(store: Path) -> None:
    """With files ten days old, which a cleaner that goes by names alone would take for leftovers."""
    newest = commits(store)[-1]
    data = list(store.rglob("table_name=*/**/*.parquet"))
    old = time.time() - 10 * 86_400
    for path in data:
        os.utime(path, (old, old))
    newest.write_text("".join(line for line in newest.read_text().splitlines(keepends=True) if '"add"' not in line))
    with pytest.raises(TraceFormatError):
        compact_store(store)
    assert all(path.exists() for path in data)


def test_leftovers_are_named_and_never_deleted(store: Path) -> None:
    """A file that no commit names: of a command that was killed, or what a fault has left of a store."""
    source = next(store.rglob("table_name=runs/**/*.parquet"))
    left = source.with_name(f"{'0' * 64}-01234567.parquet")
    shutil.copy(source, left)
    os.utime(left, (0, 0))
    compact_store(store)
    assert verify_store(store).leftovers == [left.relative_to(store).as_posix()]
    assert verify_store(store).faults == []


def test_compaction_deletes_what_was_replaced(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week later. The files that count stay, and nothing is missed afterwards."""
    place = place_of(store)
    replaced = log.replaced_files(place, log.snapshot(place))
    assert replaced
    assert compact_store(store).deleted == 0
    now = time.time_ns()
    monkeypatch.setattr("opscope.fleet.store.log.time.time_ns", lambda: now)
    gone = log.delete_replaced(place, 0)
    assert replaced <= set(gone)
    assert not any((store / path).exists() for path in gone)
    assert verify_store(store).faults == []


def interrupted(store: Path, act: Callable[[], object]) -> None:
    """A command that commits once and is killed before it can tell the anchor."""
    before = (store / ANCHOR).read_bytes()
    act()
    (store / ANCHOR).write_bytes(before)


def test_an_add_that_was_killed_before_the_anchor_is_complete(sample: StoreSample, store: Path) -> None:
    """Its commit proves itself: it counts, `verify` says so, and the next command tells the anchor."""
    interrupted(store, lambda: add_to_store([sample.bundle], store))
    found = verify_store(store)
    assert (found.faults, found.unanchored > 0, found.bundles) == ([], True, 5)
    assert len(store_entries(store)) == 5
    assert (add_to_store([sample.bundle], store).known, verify_store(store).unanchored) == (1, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [line for line in lines if '"add"' not in line],
        lambda lines: [line.replace('"size":', '"size":1') for line in lines],
        lambda lines: [line for line in lines if '"commitInfo"' not in line],
        lambda lines: [line.replace('opscope.previous":"', 'opscope.previous":"0') for line in lines],
        lambda _lines: [],
    ],
    ids=["no files", "other sizes", "no statement", "other predecessor", "empty"],
)
def test_a_commit_behind_the_anchor_must_prove_itself(
    damage: Callable[[list[str]], list[str]], sample: StoreSample, store: Path
) -> None:
    """Otherwise it is damage: it is named, and nobody goes on from it."""
    interrupted(store, lambda: add_to_store([sample.bundle], store))
    newest = commits(store)[-1]
    newest.write_text("".join(damage(newest.read_text().splitlines(keepends=True))))
    assert [fault.path for fault in verify_store(store).faults] == [f"_delta_log/{newest.name}"]
    with pytest.raises(TraceFormatError):
        add_to_store([sample.bundle], store)


def test_a_commit_of_another_program_is_damage(store: Path) -> None:
    """Only opscope writes a store: what it did not write proves nothing."""
    DeltaTable(store).alter.set_table_properties({"delta.appendOnly": "false"})
    with pytest.raises(TraceFormatError, match="not a commit of opscope"):
        store_entries(store)
    assert "not a commit of opscope" in verify_store(store).faults[0].problem


def test_an_anchor_that_a_slow_writer_set_back_follows(store: Path) -> None:
    """Whoever writes last looks again whether the log has gone on."""
    place = place_of(store)
    whole = read_anchor(place)
    begin(place)
    assert read_anchor(place) == Anchor()
    advance(place)
    found = read_anchor(place)
    assert (found.version, found.commit, found.checkpoints) == (whole.version, whole.commit, whole.checkpoints)


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_that_the_anchor_does_not_know_must_agree(whole: bool, sample: StoreSample, store: Path) -> None:
    """Its writer was killed before the anchor: by what it leads to it is known from then on, or damage."""
    place = place_of(store)
    known = read_anchor(place)
    (version,) = known.checkpoints
    place.write(ANCHOR, _sealed(msgspec.structs.replace(known, checkpoints={})))
    checkpoint = store / checkpoint_path(version)
    if whole:
        assert verify_store(store).faults == []
        add_to_store([sample.bundle], store)
        assert read_anchor(place).checkpoints == known.checkpoints
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:-20])
        assert [fault.path for fault in verify_store(store).faults] == [checkpoint_path(version)]
        with pytest.raises(TraceFormatError, match=checkpoint.name):
            add_to_store([sample.bundle], store)


def test_commits_that_a_checkpoint_took_up_can_go(sample: StoreSample, store: Path) -> None:
    """After their month; what is left is proved as before, and the first one that is left must be there."""
    place = place_of(store)
    log.forget_commits(place, time.time() - 60)
    assert len(commits(store)) == log.snapshot(place).version + 1
    log.forget_commits(place, time.time() + 60)
    assert commits(store)[0].name == f"{19:020d}.json"
    assert verify_store(store).faults == []
    assert len(add_to_store([sample.bundle], store).added) == 1
    assert len(store_entries(store)) == 5
    with pytest.raises(UsageError, match=NO_VERSION):
        query_store("SELECT 1", store, as_of="3")
    commits(store)[0].unlink()
    assert [fault.problem for fault in verify_store(store).faults] == ["it is missing"]


def test_damage_of_earlier_versions_is_told_and_stops_nothing(sample: StoreSample, store: Path) -> None:
    """What `--as-of` would need: `add` stores its bundles and says so, `verify` ends with 15."""
    gone = store / sample.kinds["replaced data"][0]
    gone.unlink()
    done = opscope("store", "add", sample.bundle, "--store", store)
    assert done.returncode == 0
    assert f"{gone.name}: it is missing; only earlier versions need it" in done.stderr
    assert [fault.path for fault in verify_store(store).faults] == [gone.relative_to(store).as_posix()]


def test_a_copy_is_a_store(sample: StoreSample, tmp_path: Path) -> None:
    """All times of change are new there: its files are read once more, and then not again."""
    copy = tmp_path / "copy"
    shutil.copytree(sample.store, copy)
    assert len(add_to_store([sample.bundle], copy).added) == 1
    assert verify_store(copy).faults == []


@pytest.mark.parametrize("kind", ["bundle", "directory", "file below", "hidden file", "Delta table"])
def test_add_makes_no_store_of_what_is_something_else(kind: str, sample: StoreSample, tmp_path: Path) -> None:
    """A directory that is not empty: refused with its own error, by `add` and by `compact`, and left as it is."""
    place = tmp_path / "place"
    if kind == "bundle":
        shutil.copytree(sample.bundle, place)
    elif kind == "Delta table":
        DeltaTable.create(place, DeltaTable(sample.store).schema())
    else:
        names = {"directory": "notes.txt", "file below": "some/where/notes.txt", "hidden file": ".profile"}
        (place / names[kind]).parent.mkdir(parents=True)
        (place / names[kind]).write_text("mine")
    before = tree_hash(place)
    with pytest.raises(BundleError, match=f"not a store and not empty|this opscope reads {SCHEMA}"):
        add_to_store([sample.bundle], place)
    with pytest.raises((NotFoundError, BundleError)):
        compact_store(place)
    assert tree_hash(place) == before


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that the user is in, with a file and a directory as DuckDB would use it."""
    (tmp_path / "beside/.tmp").mkdir(parents=True)
    (tmp_path / "beside/notes.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path / "beside")
    return tmp_path / "beside"


def test_no_statement_writes_or_reads_another_file(store: Path, beside: Path) -> None:
    """Two hundred generated statements on one connection: queries answer, all others are refused, no file changes.

    `make fuzz` tries thousands, each as a query of its own.
    """
    place = place_of(store)
    before = tree_hash(store, beside)
    asked = list(itertools.islice(statements(random.Random(7), store, beside), 200))

    def refusal(sql: str) -> type[Exception] | None:
        try:
            list(answered(place, connection, sql).parts())
        except OpscopeError as error:
            return type(error)
        return None

    with connected(place, log.snapshot(place), " ".join(EVERY)) as connection:
        found = [(one.sql, refusal(one.sql)) for one in asked]
    assert found == [(one.sql, UsageError if one.refused else None) for one in asked]
    assert sum(one.refused for one in asked) > 100
    assert tree_hash(store, beside) == before


def test_threads_that_read_one_file_get_what_they_asked_for(tmp_path: Path) -> None:
    """DuckDB seeks and reads in two steps, and several of its threads have one file."""
    content = bytes(number % 251 for number in range(100_000))
    (tmp_path / "file").write_bytes(content)
    file = PartReader(place_of(tmp_path).ranges("file", len(content)), len(content))

    def read(number: int) -> list[int]:
        rng = random.Random(number)
        wrong = []
        for at in (rng.randrange(len(content)) for _ in range(500)):
            file.seek(at)
            if file.read(1_000) != content[at : at + 1_000]:
                wrong.append(at)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(8))) == [[]] * 8


def test_the_query_of_a_write_is_a_usage_error(store: Path) -> None:
    """As somebody tried it: the commit stays, the exit code is 2, and the list is whole."""
    newest = commits(store)[-1]
    before = newest.read_bytes()
    for sql in (
        f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{newest}'",
        f"WITH a AS (COPY (SELECT 1) TO '{newest}') SELECT 1",
    ):
        done = opscope("store", "query", sql, "--store", store)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
    assert newest.read_bytes() == before
    assert verify_store(store).faults == []
