"""Where a store is and who else reads it: object storage, several writers at once, other programs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from many_bundles import Mint, fleet
from opscope.api import (
    add_to_store,
    query_store,
    remove_from_store,
    store_entries,
)
from opscope.core.errors import NotFoundError, StorageError, UsageError
from opscope.fleet.store.place import make_storage_error
from opscope.fleet.store.schema import TABLES
from s3_server import S3Server
from stored_rows import stored_rows
from texts import NO_VERSION

BIN = Path(sys.executable).parent / "opscope"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """Object storage."""
    pytest.importorskip("moto")
    running = S3Server()
    yield running
    running.stop()


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in it that nothing else uses, which this process and those it starts can reach."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{server.address}/{tmp_path.name}"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twelve bundles: two models on three devices."""
    work = tmp_path_factory.mktemp("bundles")
    mint = Mint(work / "mint", operators=6, rounds=2, runs=2)
    return [mint.make(work / f"all/{made.number:02d}", made) for made in fleet(12, models=2, devices=3)]


def test_a_store_in_object_storage_works_like_a_directory(bucket: str, bundles: list[Path], tmp_path: Path) -> None:
    """Adding, asking, removing."""
    for path in bundles[:3]:
        add_to_store([path], bucket)
    add_to_store(bundles[:3], tmp_path / "here")
    for name in TABLES:
        assert stored_rows(bucket, name) == stored_rows(tmp_path / "here", name)
    (gone,) = remove_from_store([store_entries(bucket)[0].bundle[:9]], bucket).removed
    assert query_store("SELECT count(*) FROM runs", bucket).rows == [(4,)]
    assert gone.bundle not in {one.bundle for one in store_entries(bucket)}


@pytest.mark.parametrize("where", ["directory", "bucket"])
def test_two_writers_at_once_lose_nothing(
    where: str, bundles: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two commands that begin with no store, and have bundles in common: each bundle is there once."""
    store = str(tmp_path / "store") if where == "directory" else request.getfixturevalue("bucket")
    running = [
        subprocess.Popen([str(BIN), "store", "add", *map(str, own), "--store", store, "--quiet"])
        for own in (bundles[:8], bundles[4:])
    ]
    assert [process.wait() for process in running] == [0, 0]
    assert len(store_entries(store)) == 12
    assert query_store("SELECT count(*), count(DISTINCT bundle) FROM runs", store).rows == [(24, 12)]


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "no server answers: check AWS_ENDPOINT_URL"),
        ({"bucket": "s3://missing/runs"}, "create the bucket first"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"},
            "no credentials",
        ),
    ],
    ids=["no endpoint", "no bucket", "no credentials"],
)
def test_what_object_storage_refuses_is_a_storage_error(
    change: dict[str, str], advice: str, bucket: str, bundles: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the step that fits, whether a store is asked or added to."""
    address = change.get("bucket", bucket)
    for name in change.keys() - {"bucket"}:
        if change[name]:
            monkeypatch.setenv(name, change[name])
        else:
            monkeypatch.delenv(name)
    for act in (lambda: query_store("SELECT 1", address), lambda: add_to_store(bundles[:1], address)):
        with pytest.raises(StorageError) as caught:
            act()
        assert advice in str(caught.value.hint)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("GET http://127.0.0.1:9/denied/403 in 403.2ms: tcp connect error, elapsed: 401.5ms", "no server answers"),
        ("GET http://127.0.0.1:9/denied/403 in 1ms: Server returned non-2xx status code: 403 : ", "access denied"),
        ("GET http://127.0.0.1:9/denied/403 in 1ms: HTTP status client error (401 Unauthorized)", "access denied"),
    ],
)
def test_advice_follows_what_the_storage_says_of_itself(text: str, advice: str) -> None:
    """Neither the time that an attempt took nor the name of a bucket decides."""
    assert str(make_storage_error(OSError(text), "s3://denied/403").hint).startswith(advice)


class Denying(BaseHTTPRequestHandler):
    """Whatever is asked, the user may not."""

    def do_GET(self) -> None:
        """As S3 says it."""
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")

    do_PUT = do_GET  # noqa: N815 - named by http.server

    def log_message(self, *_words: object) -> None:
        """Print nothing."""


def test_denied_access_is_a_storage_error(bundles: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with its exit code and the step that fits, and is not a bug in opscope."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as denying:
        threading.Thread(target=denying.serve_forever).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{denying.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        words = [str(BIN), "store", "add", str(bundles[0]), "--store", "s3://bucket/runs"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        denying.shutdown()
    assert done.returncode == StorageError.exit_code
    assert "access denied" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_is_not_there_is_said(bucket: str) -> None:
    """In a bucket as in a directory."""
    with pytest.raises(NotFoundError, match="there is no store"):
        query_store("SELECT 1", bucket)


def test_polars_reads_the_table_by_its_own_means(bundles: list[Path], tmp_path: Path) -> None:
    """``scan_delta``: the rows of each view are those of one ``table_name``."""
    store = tmp_path / "store"
    for path in bundles[:4]:
        add_to_store([path], store)
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        found = pl.scan_delta(str(store)).filter(pl.col("table_name") == table.name).select(names).collect()
        expected = query_store(f"SELECT count(*) FROM {table.name}", store).rows[0][0]
        assert found.height == expected
    runs = pl.scan_delta(str(store)).filter(pl.col("table_name") == "runs").select("bundle", "latency_ns").collect()
    assert sorted(runs.rows()) == sorted(query_store("SELECT bundle, latency_ns FROM runs", store).rows)


def test_duckdb_reads_the_files_of_a_version(bundles: list[Path], tmp_path: Path) -> None:
    """By the list of files that the Delta log gives, an earlier version's too, without any extension."""
    store = tmp_path / "store"
    add_to_store(bundles[:2], store)
    version = DeltaTable(store).version()
    add_to_store(bundles[2:4], store)
    for table, count in ((DeltaTable(store), 4), (DeltaTable(store, version=version), 2)):
        files = table.file_uris(file_pruning_predicate=[("table_name", "=", "runs")])
        rows = duckdb.sql(f"SELECT count(DISTINCT bundle) FROM read_parquet({files})").fetchall()
        assert rows == [(count,)]
        own = query_store("SELECT count(DISTINCT bundle) FROM runs", store, as_of=str(table.version())).rows
        assert own == [(count,)]


def test_an_earlier_version_answers_until_a_bundle_is_removed(bundles: list[Path], tmp_path: Path) -> None:
    """By number or moment; a removal takes its files."""
    store = tmp_path / "store"
    add_to_store(bundles[:2], store)
    before = DeltaTable(store).version()
    add_to_store(bundles[2:4], store)
    assert query_store("SELECT count(*) FROM runs", store, as_of=str(before)).rows == [(4,)]
    assert query_store("SELECT count(*) FROM runs", store, as_of="2999-01-01T00:00:00Z").rows == [(8,)]
    for word in ("99", "yesterday"):
        with pytest.raises(UsageError, match=NO_VERSION):
            query_store("SELECT 1", store, as_of=word)
    remove_from_store([store_entries(store)[0].bundle], store)
    with pytest.raises(NotFoundError, match=f"the files of version {before} are deleted"):
        query_store("SELECT count(*) FROM runs", store, as_of=str(before))


def test_what_is_removed_is_in_no_file(bundles: list[Path], tmp_path: Path) -> None:
    """Neither its rows nor where it was; those of the others are."""
    store = tmp_path / "a store"
    for path in bundles[:3]:
        add_to_store([path], store)
    add_to_store(bundles[3:4], store)
    first, *others = store_entries(store)
    remove_from_store([first.bundle], store)
    held = [str(pl.read_parquet(path, hive_partitioning=False).rows()) for path in store.rglob("*.parquet")]
    assert not any(first.bundle in text or first.source in text for text in held)
    assert all(any(one.bundle in text for text in held) for one in others)


def test_retention_is_by_the_time_of_adding(bundles: list[Path], tmp_path: Path) -> None:
    """A run that began long ago, or on a device whose clock says so, was added today and stays."""
    store = tmp_path / "store"
    add_to_store(bundles[:2], store)
    assert remove_from_store([], store, older_than=30).removed == []
    assert len(store_entries(store)) == 2
