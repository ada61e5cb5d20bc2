"""A store of many runs: what it holds, what it answers, and what no fault may take from it."""

from __future__ import annotations

import csv
import functools
import io
import json
import operator
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import polars as pl
import pytest

from aie_gemm import Gemm
from aie_traces import json_text
from many_bundles import Made, Mint, fleet
from opscope.api import (
    add_to_store,
    entries_stream,
    query_store,
    query_stream,
    remove_from_store,
    store_entries,
    to_json,
)
from opscope.bundle.manifest import Manifest
from opscope.core.errors import NotFoundError, StorageError, UsageError
from opscope.fleet.bundles import BundleLabels
from opscope.fleet.reports.tables import answer_parts
from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import TABLES
from opscope.fleet.store.table import create_store
from opscope.npu.workflows.aie import TilesRequest, analyze_tiles
from stored_rows import stored_rows

BIN = Path(sys.executable).parent / "opscope"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-many-runs.md"


@pytest.fixture(scope="module")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Mint:
    """What bundles are made from: twelve operators, two rounds."""
    return Mint(tmp_path_factory.mktemp("mint"), operators=12, rounds=2, runs=2)


@pytest.fixture
def bundles(mint: Mint, tmp_path: Path) -> Path:
    """A directory with twelve bundles: two models on three devices."""
    for made in fleet(12, models=2, devices=3):
        mint.make(tmp_path / "bundles" / f"{made.number:02d}", made)
    return tmp_path / "bundles"


@pytest.fixture
def store(bundles: Path, tmp_path: Path) -> Path:
    """A store that holds them."""
    add_to_store([bundles], tmp_path / "store")
    return tmp_path / "store"


def counts(store: Path | str) -> dict[str, int]:
    """Rows of every view."""
    return {name: query_store(f"SELECT count(*) FROM {name}", store).rows[0][0] for name in TABLES}


def opscope(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    """The command, in its own process."""
    return subprocess.run([BIN, *map(str, words)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


def test_the_views_hold_what_the_bundles_say(bundles: Path, store: Path) -> None:
    """Latency, speedup and operators of a bundle are those of its analysis and comparison."""
    analysis = json.loads((bundles / "03/analysis.json").read_text())
    comparison = json.loads((bundles / "03/comparison.json").read_text())
    sql = "SELECT bundle, latency_ns, speedup, device FROM runs WHERE source LIKE '%/03' AND variant = 'accelerated'"
    ((bundle, latency, speedup, device),) = query_store(sql, store).rows
    assert latency == analysis["headline_ns"]
    assert speedup == comparison["end_to_end"]["speedup"]
    assert device == "device 1, Linux x86_64"
    sql = f"SELECT name, time_ns FROM operators WHERE bundle = '{bundle}' AND variant = 'accelerated' ORDER BY ALL"
    expected = sorted((one["name"], one["time_ns"]) for one in analysis["operators"])
    assert query_store(sql, store).rows == expected
    assert counts(store) == {
        "runs": 24,
        "methods": 0,
        "latency": 96,
        "operators": 12 * 2 * len(expected),
        "modules": 12 * 2 * len(analysis["modules"]),
        "findings": counts(store)["findings"],
        "kernels": counts(store)["kernels"],
        "tiles": 0,
    }


@pytest.mark.parametrize("filled", [True, False], ids=["filled", "empty"])
def test_every_view_has_the_documented_columns(filled: bool, store: Path, tmp_path: Path) -> None:
    """Names, types and order are those of the schema, whether a view has rows or none."""
    place = store if filled else tmp_path / "none"
    create_store(find_place(place))
    for table in TABLES.values():
        described = query_store(f"DESCRIBE {table.name}", place).rows
        assert [(row[0], row[1]) for row in described] == [(c.name, c.type.sql) for c in table.columns]


def test_what_is_there_already_is_not_added_again(bundles: Path, store: Path, tmp_path: Path) -> None:
    """The content counts: neither the same paths nor a copy elsewhere change anything."""
    shutil.copytree(bundles / "00", tmp_path / "copy")
    done = add_to_store([bundles, tmp_path / "copy"], store)
    assert (len(done.added), done.known, done.skipped) == (0, 13, [])
    assert counts(store)["runs"] == 24


def test_bundles_behind_links_are_found(bundles: Path, tmp_path: Path) -> None:
    """A link to a bundle, and one to a directory of bundles; one that leads back up ends, and nothing counts twice."""
    linked = tmp_path / "linked"
    (linked / "own").mkdir(parents=True)
    (linked / "one").symlink_to(bundles / "00")
    (linked / "own/again").symlink_to(bundles / "00")
    (linked / "own/up").symlink_to(linked)
    shutil.copytree(bundles / "01", tmp_path / "other/01")
    (linked / "many").symlink_to(tmp_path / "other")
    done = add_to_store([linked], tmp_path / "store")
    assert [Path(entry.source).relative_to(linked).as_posix() for entry in done.added] == ["many/01", "one"]
    assert (done.known, done.skipped) == (0, [])


def test_a_resumed_run_takes_the_place_of_its_beginning(mint: Mint, tmp_path: Path) -> None:
    """A bundle that was added unfinished and again when it was finished is one run."""
    path, store = mint.make(tmp_path / "bundle", Made(1)), tmp_path / "store"
    whole = (path / "manifest.json").read_bytes()
    manifest = msgspec.json.decode(whole, type=Manifest)
    begun = msgspec.structs.replace(manifest, repetitions=manifest.repetitions[:6])
    (path / "manifest.json").write_bytes(msgspec.json.encode(begun))
    add_to_store([path], store)
    (path / "manifest.json").write_bytes(whole)
    assert len(add_to_store([path], store).added) == 1
    assert [entry.repetitions for entry in store_entries(store)] == [8]
    assert counts(store)["runs"] == 2


def test_documents_that_do_not_fit_are_computed_from_the_traces(mint: Mint, tmp_path: Path) -> None:
    """A bundle without its analyses, or with those of other traces, is analysed anew."""
    path = mint.make(tmp_path / "bundle", Made(1, factor=3.0))
    (path / "analysis.json").unlink()
    add_to_store([path], tmp_path / "store")
    add_to_store([mint.original], tmp_path / "store")
    rows = query_store("SELECT latency_ns FROM runs WHERE variant = 'accelerated'", tmp_path / "store").rows
    assert rows[0] == rows[1]  # not three times as long: the traces are the same


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "manifest.json").write_text("{"), "manifest is damaged"),
        (
            lambda path: (path / "manifest.json").write_text('{"schema": "opscope.bundle/9"}'),
            "written as opscope.bundle/9",
        ),
        (lambda path: _threads(path, 10**30), "a value that no table can hold"),
        (lambda path: _deep(path / "comparison.json"), None),
        (lambda path: next(path.rglob("*.etdump.zst")).unlink(), "a trace is missing"),
        (lambda path: _cut(next(path.rglob("*.etdump.zst"))), "differs from the one in the manifest"),
        (lambda path: _moved(next(path.rglob("*.etdump.zst")).parent), "a trace outside its bundle"),
        (lambda path: _renamed(path, "variants/../../elsewhere.etdump"), "points outside the bundle"),
        (lambda path: _renamed(path, "/elsewhere.etdump"), "the manifest is damaged"),
    ],
    ids=[
        *("manifest", "newer", "huge number", "deep document", "missing trace", "cut trace"),
        *("linked directory", "climbing path", "absolute path"),
    ],
)
def test_a_damaged_bundle_is_named_and_the_others_are_stored(
    damage, said: str | None, bundles: Path, tmp_path: Path
) -> None:
    """It is left out with its reason; a document that is computed from the traces is not damage."""
    damage(bundles / "05")
    done = add_to_store([bundles], tmp_path / "store")
    assert [one.path for one in done.skipped] == ([] if said is None else [str(bundles / "05")])
    assert all(str(said) in one.problem for one in done.skipped)
    assert len(store_entries(tmp_path / "store")) == 12 - len(done.skipped)


def test_every_bundle_with_a_value_that_no_table_can_hold_is_named(bundles: Path, tmp_path: Path) -> None:
    """Rows of many bundles become tables together: those in the way are found, and cost no other one its rows."""
    for number in (0, 4, 5, 11):
        _threads(bundles / f"{number:02d}", 10**30)
    done = add_to_store([bundles], tmp_path / "store")
    assert [Path(one.path).name for one in done.skipped] == ["00", "04", "05", "11"]
    assert {one.problem.partition(": ")[0] for one in done.skipped} == {one.path for one in done.skipped}
    assert counts(tmp_path / "store")["runs"] == 16
    add_to_store([bundles / f"{n:02d}" for n in (1, 2, 3, 6, 7, 8, 9, 10)], tmp_path / "one by one")
    for table in TABLES:
        assert stored_rows(tmp_path / "store", table) == stored_rows(tmp_path / "one by one", table)


def test_the_command_names_what_it_left_out(bundles: Path, tmp_path: Path) -> None:
    """On standard error, with the exit code of an incomplete result; the others are stored."""
    (bundles / "05/manifest.json").write_text("{")
    done = opscope("store", "add", bundles, "--store", tmp_path / "store")
    assert done.returncode == 11
    assert f"left out: {bundles / '05/manifest.json'}: the manifest is damaged" in done.stderr
    assert "11 added, 0 already there, 1 left out" in done.stdout


def _threads(path: Path, number: int) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["variants"][0]["threads"] = number
    (path / "manifest.json").write_text(json.dumps(manifest))


def _moved(folder: Path) -> None:
    """Put a directory outside of its bundle, and a link to it in its place."""
    outside = folder.parents[3] / f"outside {folder.name}"
    folder.rename(outside)
    folder.symlink_to(outside)


def _renamed(path: Path, trace: str) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    next(one for one in manifest["repetitions"] if one["trace"])["trace"] = trace
    (path / "manifest.json").write_text(json.dumps(manifest))


def _deep(path: Path) -> None:
    path.unlink()
    path.write_text("[" * 100_000)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # a hard link: the others keep theirs
    path.write_bytes(content[:-10])


def test_a_killed_add_leaves_whole_runs_or_none(mint: Mint, tmp_path: Path) -> None:
    """Killed while it writes files, before its commit: nothing half is seen, and the same command completes it."""
    for made in fleet(40, models=8, devices=5):
        mint.make(tmp_path / "bundles" / f"{made.number}", made)
    command = [BIN, "store", "add", tmp_path / "bundles", "--store", tmp_path / "store", "--quiet"]
    process = subprocess.Popen([str(word) for word in command])
    data = tmp_path / "store"
    while process.poll() is None and sum(1 for _ in data.rglob("*.parquet")) < 3:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert counts(tmp_path / "store")["runs"] in {0, 80}
    subprocess.run([str(word) for word in command], check=True)
    assert counts(tmp_path / "store")["runs"] == 80
    assert len(store_entries(tmp_path / "store")) == 40


def test_removed_bundles_are_gone_from_every_view(store: Path) -> None:
    """By the beginning of the hash; the others stay, and the removed one can be added again."""
    entry = store_entries(store)[4]
    assert remove_from_store([entry.bundle[:10]], store).removed == [entry]
    assert counts(store)["runs"] == 22
    assert query_store(f"SELECT count(*) FROM operators WHERE bundle = '{entry.bundle}'", store).rows == [(0,)]
    add_to_store([entry.source], store)
    assert counts(store)["runs"] == 24


@pytest.mark.parametrize("word", ["zz", ""])
def test_removing_what_is_not_there_changes_nothing(word: str, store: Path) -> None:
    """An unknown hash, or one that fits all bundles."""
    with pytest.raises(NotFoundError, match="no such bundle"):
        remove_from_store([word], store)
    assert counts(store)["runs"] == 24


def test_a_full_disk_is_said_and_takes_nothing(mint: Mint, store: Path, tmp_path: Path) -> None:
    """The system refuses to write: exit code 9, and what was stored before answers as before."""
    more = mint.make(tmp_path / "more", Made(99))
    before = counts(store)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))  # noqa: E731 - runs in the child
    ignore = {"preexec_fn": lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), limit())}
    done = opscope("store", "add", more, "--store", store, **ignore)
    assert done.returncode == StorageError.exit_code
    assert "the storage refused" in done.stderr
    assert "Traceback" not in done.stderr
    assert counts(store) == before
    assert len(add_to_store([more], store).added) == 1


def test_a_url_of_a_file_is_a_directory(bundles: Path, tmp_path: Path) -> None:
    """``file://`` and the path name one store."""
    add_to_store([bundles / "00"], f"file://{tmp_path}/store")
    assert len(store_entries(tmp_path / "store")) == 1


def test_a_kind_of_url_that_nobody_knows_is_refused(bundles: Path) -> None:
    """With those that are known."""
    with pytest.raises(UsageError, match="unknown kind of storage: 'ftp'") as caught:
        add_to_store([bundles], "ftp://host/store")
    assert "s3://" in str(caught.value.hint)


def test_an_answer_comes_as_table_csv_json_or_parquet(store: Path, tmp_path: Path) -> None:
    """The same rows in every form; a text that a spreadsheet would run is guarded."""
    sql = "SELECT model, speedup, '=1+1' AS trap, created FROM runs WHERE variant = 'accelerated' ORDER BY ALL"
    answer = query_store(sql, store)
    given = answer.columns, answer.types, [answer.rows]
    forms = {form: b"".join(answer_parts(*given, form)) for form in ("csv", "json", "parquet")}
    rows = list(csv.reader(io.StringIO(forms["csv"].decode())))
    assert rows[0] == ["model", "speedup", "trap", "created"]
    assert [(row[0], float(row[1]), row[2]) for row in rows[1:]] == [(m, s, f"'{t}") for m, s, t, _ in answer.rows]
    objects = json.loads(forms["json"])
    assert [(one["model"], one["speedup"]) for one in objects] == [(m, s) for m, s, _, _ in answer.rows]
    assert pl.read_parquet(forms["parquet"]).rows() == answer.rows
    words = ("store", "query", sql, "--store", store)
    assert opscope(*words).stdout.splitlines()[0].split() == ["model", "speedup", "trap", "created"]
    assert opscope(*words, "--format", "csv", "--out", tmp_path / "a.csv").returncode == 0
    assert (tmp_path / "a.csv").read_bytes() == forms["csv"]


def test_an_answer_ends_at_its_limit_and_says_so(store: Path) -> None:
    """10,000 rows unless told otherwise; the note is on standard error, beside an answer that is whole."""
    words = ("store", "query", "SELECT range AS n FROM range(25000)", "--store", store, "--format")
    for form, lines in (("csv", 10_001), ("json", 3 * 10_000 + 2)):
        done = opscope(*words, form)
        assert len(done.stdout.splitlines()) == lines
        assert "stopped after 10,000 rows; --limit 0 writes all of them" in done.stderr
    assert json.loads(done.stdout)[-1] == {"n": 9_999}
    whole = opscope(*words, "csv", "--limit", 0)
    assert (len(whole.stdout.splitlines()), whole.stderr) == (25_001, "")
    assert opscope(*words, "csv", "--limit", 25_000).stderr == ""


def test_a_long_answer_is_held_a_part_at_a_time(store: Path) -> None:
    """Of 40 million rows the first ones are there before the others are computed."""
    with query_stream("SELECT range AS n FROM range(40000000)", store) as stream:
        parts = stream.parts()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert [next(parts)[0], next(parts)[0]] == [(0,), (10_000,)]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; all rows are 300 MiB


def test_the_list_shows_the_newest_and_how_many_there_are(store: Path, tmp_path: Path) -> None:
    """In the order of histories, the newest at the end; JSON is whole unless told otherwise."""
    every = store_entries(store)
    assert [one.bundle for one in store_entries(store, last=5)] == [one.bundle for one in every[-5:]]
    assert store_entries(store, last=50) == every

    def shown(text: str) -> list[str]:
        return re.findall(r"^[0-9a-f]{12}\b", text, re.MULTILINE)

    done = opscope("store", "list", "--store", store, "--limit", 5)
    assert shown(done.stdout) == [one.bundle[:12] for one in every[-5:]]
    assert "the newest 5 of 12 bundles; --limit 0 lists all of them" in done.stderr
    done = opscope("store", "list", "--store", store)
    assert (len(shown(done.stdout)), done.stderr) == (12, "")
    done = opscope("store", "list", "--store", store, "--json", "-")
    assert (done.stdout.encode(), done.stderr) == (to_json(every), "")
    done = opscope("store", "list", "--store", store, "--limit", 2, "--json", tmp_path / "two.json")
    assert (tmp_path / "two.json").read_bytes() == to_json(every[-2:])
    assert len(shown(done.stdout)) == 2


def test_a_list_is_held_a_part_at_a_time(store: Path) -> None:
    """Entries are read as they are taken, and the store may go on meanwhile."""
    with entries_stream(store) as stream:
        assert stream.total == 12
        first = next(stream.entries)
        assert [first, *stream.entries] == store_entries(store)
    with entries_stream(store, last=0) as stream:
        assert (stream.total, list(stream.entries)) == (12, [])


def test_the_queries_of_the_page_have_answers(store: Path) -> None:
    """Every query that docs/how-to/keep-many-runs.md and ask-many-runs.md give."""
    queries = re.findall(r'[`"](SELECT [^`"]+)[`"]', PAGE.read_text() + PAGE.with_name("ask-many-runs.md").read_text())
    assert len(queries) == 6
    for sql in queries:
        query_store(sql, store)


def test_an_empty_answer_has_its_columns(store: Path) -> None:
    """No row: a CSV with its head, an empty list, and a Parquet file of these columns."""
    answer = query_store("SELECT tile, calls FROM tiles", store)
    assert b"".join(answer_parts(answer.columns, answer.types, [answer.rows], "csv")) == b"tile,calls\n"
    assert json.loads(b"".join(answer_parts(answer.columns, answer.types, [answer.rows], "json"))) == []
    assert pl.read_parquet(b"".join(answer_parts(answer.columns, answer.types, [answer.rows], "parquet"))).columns == [
        "tile",
        "calls",
    ]


def test_names_of_any_form_stay_in_the_store(mint: Mint, tmp_path: Path) -> None:
    """A model called like a way out of the directory, or of any length, is a name and no path."""
    names = ["../../out", "..", "a/b", "x" * 300, "'; DROP VIEW runs; --", "mobile=net", "ü \N{SNOWMAN}"]
    for number, name in enumerate(names):
        mint.make(tmp_path / f"bundles/{number}", Made(number, model=name, cpu=name))
    add_to_store([tmp_path / "bundles"], tmp_path / "store")
    assert {entry.model for entry in store_entries(tmp_path / "store")} == set(names)
    assert {path.name for path in tmp_path.iterdir()} == {"bundles", "store"}
    assert query_store("SELECT count(DISTINCT model) FROM operators", tmp_path / "store").rows == [(len(names),)]


def test_a_result_of_tiles_has_rows_of_its_own(tmp_path: Path) -> None:
    """What ``opscope aie --out`` writes: a run, and a row for every trace unit with its cycles."""
    split = {"vector": 60, "memory_stall": 5, "stream_stall": 0, "cascade_stall": 0, "lock_stall": 0, "other": 10}
    counted = dict.fromkeys(("first_call", "last_call", "start", "end", "cycles"), 1)
    iteration = {"number": 1, "phase": "measured", "complete": True, "calls": 4, "macs": None, "mac_per_cycle": None}
    iteration |= counted
    tile = {
        "tile": "2,1",
        "unit": "core",
        "calls": {"paired": 8, "dropped": 1, "ambiguous": 0},
        "window_cycles": 150,
        "cycles": {"in_call": split, "between_calls": split | {"lock_stall": 20}, "overlapping": 0, "missing": []},
        "mac_per_cycle": 62.5,
        "utilisation": 0.49,
        "coverage": None,
        "bound": {"by": "B input stream"},
        "iterations": [iteration, iteration],
    }
    (tmp_path / "aie").mkdir()
    trace = tmp_path / "gemm.perfetto.json"
    trace.write_bytes(b"".join(json_text([Gemm().tile()])))
    result = json.loads(to_json(analyze_tiles(trace, TilesRequest(dtype="bf16", arch="npu1")).analysis))
    (whole,) = result["tiles"]
    tile["bound"] |= {name: whole["bound"][name] for name in whole["bound"].keys() - {"by"}}
    result["tiles"] = [whole | tile]
    (tmp_path / "aie/analysis.json").write_text(json.dumps(result))
    add_to_store([tmp_path / "aie"], tmp_path / "store", given=BundleLabels(commit="abc"))
    assert query_store("SELECT kind, model, device, variant, commit FROM runs", tmp_path / "store").rows == [
        ("tiles", "gemm", "npu1", "bf16", "abc")
    ]
    sql = "SELECT tile, calls, vector_cycles, lock_stall_cycles, utilisation, bound_by, iterations FROM tiles"
    assert query_store(sql, tmp_path / "store").rows == [("2,1", 8, 120, 20, 0.49, "B input stream", 2)]


@pytest.mark.parametrize("package", ["duckdb", "deltalake"])
def test_without_the_extra_the_command_to_give_is_named(package: str, store: Path) -> None:
    """In an environment without one of its packages, asking says exactly what to install."""
    script = (
        f"import sys\nsys.modules[{package!r}] = None\n"
        f"sys.argv = ['opscope', 'store', 'query', 'SELECT 1', '--store', {str(store)!r}]\n"
        "from opscope.cli.main import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "[store]'" in done.stderr


@pytest.mark.parametrize("jobs", [2])
def test_processes_of_this_machine_give_the_same(jobs: int, bundles: Path, store: Path, tmp_path: Path) -> None:
    """``--jobs 2`` stores what one process stores."""
    done = opscope("store", "add", bundles, "--store", tmp_path / "other", "--jobs", jobs)
    assert done.returncode == 0, done.stderr
    for name in TABLES:
        assert stored_rows(tmp_path / "other", name) == stored_rows(store, name)


def test_an_edited_analysis_is_found_by_the_sample(tmp_path: Path) -> None:
    """One bundle at least is analysed again whenever some are added; one whose figures were edited is left out."""
    original = Mint(tmp_path / "mint", operators=12, rounds=2, runs=2).original
    honest = add_to_store([original], tmp_path / "honest")
    assert (len(honest.added), honest.checked, honest.skipped) == (1, 1, [])
    other = add_to_store([Mint(tmp_path / "other").make(tmp_path / "old", Made(1))], tmp_path / "honest")
    assert (len(other.added), other.checked) == (1, 0), "of another version, which cannot be told"
    edits = (
        ("analysis.json", (), "headline_ns"),
        ("analysis.json", ("latency",), "mean_ns"),
        ("comparison.json", ("end_to_end",), "speedup"),
    )
    for number, (file, place, figure) in enumerate(edits):
        edited = tmp_path / f"edited-{number}"
        shutil.copytree(original, edited)
        document = json.loads((edited / file).read_text())
        functools.reduce(operator.getitem, place, document)[figure] *= 0.9
        (edited / file).write_text(json.dumps(document))
        done = add_to_store([edited], tmp_path / f"store-{number}")
        assert done.added == []
        assert "is not what its traces give" in done.skipped[0].problem
        again = add_to_store([edited], tmp_path / f"store-{number}", recompute=True)
        assert (len(again.added), again.checked) == (1, 1)
