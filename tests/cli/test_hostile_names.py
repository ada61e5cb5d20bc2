"""Names from traces, programs, files and machines through every command that prints: they stay text on their line."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from aie_traces import Span, Tile, json_text
from ended import Command, Ended
from fakes import FakeClock, FakeTarget
from hostile_names import TERMINAL
from opscope.api import Settings, profile
from opscope.core.printable import hides, printable
from programs import tiny_program
from traces import Node, encode

if TYPE_CHECKING:
    from pathlib import Path

SHORT = [name for name in TERMINAL if len(name) < 40]
FORGED = "error: all is lost"


@pytest.fixture
def run(command: Command) -> Command:
    """The whole command in this process; whatever it prints is looked at."""

    def run(*arguments: object) -> Ended:
        done = command(*arguments)
        for line in f"{done.stdout}\n{done.stderr}".split("\n"):
            assert line.isprintable(), line[:200]
            assert not line.startswith(FORGED)
        return done

    return run


def trace_file(path: Path, scale: int = 1) -> Path:
    """A trace in which every operator has a hostile name."""
    operators = [
        Node("OPERATOR_CALL", (30_000 - n) * scale, n, children=[Node(name, (29_000 - n) * scale, n)])
        for n, name in enumerate(TERMINAL)
    ]
    root = Node("Method::execute", 400_000 * scale, children=operators)
    path.write_bytes(encode([("Execute", [root])] * 4))
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a trace, a program, a bundle, a log and tiles that are all full of hostile names."""
    place = tmp_path_factory.mktemp("hostile") / "[bold]\x1b[31m\nerror: all is lost"
    place.mkdir()
    trace_file(place / "trace.etdump")
    trace_file(place / "[f32] slow.etdump", 2)
    (place / "x.log").write_text(
        "".join(f"Note (XNNPACK): Using gemm microkernel '{name}'.\n" for name in SHORT if "\n" not in name)
    )
    (place / "model.pte").write_bytes(tiny_program("[/x]\x1b[2J", "[f32]\u202e", "[link=http://x]y[/link]\n" + FORGED))
    spans = [Span(slot, 10 + 40 * n + 3 * slot, 20 + 40 * n + 3 * slot) for n in range(9) for slot in range(8)]
    names = ["INSTR_EVENT_0", "INSTR_EVENT_1", *SHORT[:6]]
    (place / "tiles.json").write_bytes(b"".join(json_text([Tile("core", 2, 4, names, spans)])))
    (place / "[f32] tiles.json").write_bytes((place / "tiles.json").read_bytes())
    (place / "tiny.pte").write_bytes(tiny_program())
    settings = Settings(rounds=6, runs=2, warmup=0)
    profile(str(place / "tiny.pte"), settings=settings, out=place / "bundle", target=FakeTarget(), clock=FakeClock())
    manifest = json.loads((place / "bundle" / "manifest.json").read_text())
    manifest["model"]["name"] = "[/x]\x1b[31m" + FORGED
    manifest["model"]["source"] = "\n[f32]$(reboot)\u202e'"
    manifest["environment"]["cpu"] = "[link=http://x]\ny[/link]"
    manifest["status"] = "incomplete"
    (place / "bundle" / "manifest.json").write_text(json.dumps(manifest))
    return place


def test_analyze(run: Command, hostile: Path, tmp_path: Path) -> None:
    """Names are whole and literal on the terminal, exact in JSON, and no formula in CSV."""
    out = run("analyze", hostile / "trace.etdump", "--csv", tmp_path, "--json", tmp_path / "a.json").stdout
    shown = [printable(name) for name in SHORT]
    assert sum(name in out for name in shown) >= 6, out
    assert not [name for name in ("[/x]", "[f32]", "[link=http://x]y[/link]", ":smile:") if name not in out]
    assert {one["name"] for one in json.loads((tmp_path / "a.json").read_text())["operators"]} >= set(TERMINAL)
    rows = list(csv.reader(io.StringIO((tmp_path / "operators.csv").read_text(), newline="")))
    assert not [cell for row in rows for cell in row if cell[:1] in set("=+-@\t\r\n")]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("compare {0}/trace.etdump {0}/[f32]_slow.etdump", 0),
        ("check {0}/trace.etdump --against {0}/[f32]_slow.etdump --force --markdown -", 14),
        ("check {0}/bundle#baseline --against {0}/bundle#accelerated --force --junit -", 1),
        ("kernels {0}/x.log --md -", 0),
        ("check {0}/trace.etdump --against {0}/[f32]_slow.etdump --force", 14),
        ("kernels {0}/x.log#[/x] {0}/x.log#[f32]", 0),
        ("kernels {0}/bundle", 0),
        ("preflight {0}/model.pte", 0),
        ("analyze {0}/model.pte", 0),
        ("analyze {0}/bundle {0}/x.log", 0),
        ("analyze {0}/nowhere.etdump", 3),
        ("aie {0}/tiles.json", 0),
        ("compare {0}/tiles.json {0}/tiles.json", 0),
        ("validate {0}/bundle", 15),
        ("validate {0}/bundle --markdown -", 15),
        ("report {0}/bundle --out {1}", 0),
        ("compare {0}/bundle#baseline {0}/bundle#accelerated", 0),
        ("check {0}/bundle --against {0}/bundle --force", 0),
        ("convert {0}/trace.etdump --to perfetto --out {1}/p", 0),
        ("convert {0}/trace.etdump --to speedscope --out -", 0),
        ("convert {0}/bundle --to github-benchmark --out -", 0),
        ("check {0}/bundle --against {0}/bundle --force --annotations -", 0),
        ("convert {0}/trace.etdump --to csv --out {0}/trace.etdump", 19),
    ],
)
def test_commands(run: Command, hostile: Path, tmp_path: Path, arguments: str, code: int) -> None:
    """Every command that prints what it read; a blank in a name stands as _ here."""
    words = [word.format(hostile, tmp_path).replace("]_", "] ") for word in arguments.split(" ")]
    done = run(*words)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("words", ["report {0}/bundle --out {1}", "aie {0}/tiles.json --out {1}"])
def test_files_for_people(run: Command, hostile: Path, tmp_path: Path, words: str) -> None:
    """Reports in Markdown and HTML, read on a terminal, move no cursor either."""
    assert run(*(word.format(hostile, tmp_path) for word in words.split(" "))).returncode == 0
    written = [*tmp_path.rglob("*.md"), *tmp_path.rglob("*.html")]
    assert len(written) >= 2
    for path in written:
        for line in path.read_text(encoding="utf-8").split("\n"):
            assert line.isprintable() or not hides(line), (path.name, line[:300])


def test_a_report_is_not_written_to_where_a_link_in_the_bundle_leads(run: Command, hostile: Path) -> None:
    """Replace none of the user's own files to which a bundle from elsewhere may hold links."""
    victim, report = hostile / "victim", hostile / "bundle" / "report.md"
    victim.write_text("mine")
    report.unlink(missing_ok=True)
    report.symlink_to(victim)
    assert run("report", hostile / "bundle", "--format", "md").returncode == 19
    assert (report.is_symlink(), victim.read_text()) == (True, "mine")


def test_the_store(run: Command, hostile: Path, tmp_path: Path) -> None:
    """Show names of a bundle from a store in answers, lists and histories, as text and as CSV."""
    pytest.importorskip("duckdb")
    store = ["--store", tmp_path / "store"]
    assert run("store", "add", hostile / "bundle", "--device", "[/x]\x1b[31m", *store).returncode == 0
    asked = "SELECT model, device, '=1+1' AS \"[link=http://x]\", '[f32]' FROM runs"
    for words in (("store", "query", asked), ("store", "list"), ("history", "latency")):
        assert "[/x]\\x1b[31m" in run(*words, *store).stdout
    answer = run("store", "query", asked, "--format", "csv", *store).stdout
    assert "'=1+1" in answer
    assert r"'\[/x]\x1b[31m" in answer
    assert run("history", "latency", "--html", "-", *store).returncode == 0
    assert run("store", "report", "--out", tmp_path / "fleet", *store).returncode == 0
    for path in tmp_path.glob("fleet/fleet.*m*"):
        assert not [line for line in path.read_text(encoding="utf-8").split("\n") if hides(line)]
    assert run("store", "query", "SELECT [/x]\x1b[31m FROM nowhere", *store).returncode != 0
