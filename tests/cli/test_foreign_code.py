"""Which commands run code that is not opscope's is said, and the others are watched while they do their work."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aie_traces import Span, Tile, json_text
from audited import MARK
from fakes import FakeClock, FakeTarget
from opscope.api import Settings as Asked
from opscope.api import profile
from opscope.cli.main import ASKS, COMMANDS, RUNS, app, code_notice
from traces import etdump

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
AUDITED = ROOT / "tests" / "support" / "audited.py"
TRACE = "Method::execute 100\n  OPERATOR_CALL @0 60\n    native_call_add.out 50"
SHADOWED = (
    *("types", "json", "zipfile", "pickle", "struct", "typing", "sitecustomize", "usercustomize", "conftest"),
    *("numpy", "polars", "msgspec", "typer", "rich", "opscope", "pyarrow", "duckdb", "altair", "jinja2"),
)
_EVIL = f"# {MARK}\nopen('ran', 'w').close()\nraise SystemExit('foreign code ran')\n"


class Trap:
    """What a pickle does when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Leave a file behind."""
        return os.system, ("touch ran",)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real inputs, in a directory full of traps."""
    place = tmp_path_factory.mktemp("inputs")
    shutil.copy(DATA / "toy_cnn.etdump", place / "toy.etdump")
    (place / "short.etdump").write_bytes(etdump(TRACE, repeat=6))
    names = ["INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR", *["NONE"] * 5]
    calls = [Span(slot, 90 * n + at, 90 * n + at + 1) for n in range(1, 9) for slot, at in ((0, 1), (1, 60))]
    (place / "tiles.json").write_bytes(b"".join(json_text([Tile("core", 2, 4, names, calls)])))
    shutil.copy(DATA / "two_methods.pte", place / "program.pte")
    settings = Asked(rounds=3, runs=4, warmup=0, ceilings=False)
    profile(place / "program.pte", settings=settings, out=place / "bundle", target=FakeTarget(), clock=FakeClock())
    shutil.copytree(place / "bundle", place / "again")
    _set_traps(place)
    _set_traps(place / "bundle")
    return place


def _set_traps(place: Path) -> None:
    """Modules, pickles and libraries that leave a file behind when they are run."""
    for name in SHADOWED:
        (place / f"{name}.py").write_text(_EVIL, "utf-8")
    (place / "models").mkdir(exist_ok=True)
    (place / "models" / "mine.py").write_text(f'"""A model."""\n{_EVIL}', "utf-8")
    loaded = pickle.dumps(Trap())
    (place / "evil.pkl").write_bytes(loaded)
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    for name, members in {
        "evil.npz": {"arr_0.npy": header + loaded},
        "evil.pt": {"archive/data.pkl": loaded},
        "evil.etrecord": {"ETRECORD_V0": b"", "debug_handle_map": loaded, "edge_dialect_exported_program": loaded},
    }.items():
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        (place / name).write_bytes(stream.getvalue())
    for name in ("libc.so.6", "libopscope.so", "evil.so"):
        (place / name).write_bytes(b"\x7fELF" + bytes(100))


WORK = [
    ["analyze", "toy.etdump", "--csv", "out.csv", "--json", "out.json"],
    ["analyze", "bundle", "short.etdump", "--quiet"],
    ["compare", "bundle#baseline", "bundle#accelerated"],
    ["report", "bundle"],
    ["report", "bundle", "again", "--out", "combined"],
    ["convert", "short.etdump", "--to", "perfetto"],
    ["aie", "tiles.json", "--out", "aie"],
    ["preflight", "program.pte"],
    ["validate", "bundle"],
    ["check", "bundle#accelerated", "--against", "bundle#baseline", "--inconclusive", "pass", "--force"],
    ["kernels", "bundle"],
    ["store", "add", "bundle", "--store", "runs"],
    ["store", "list", "--store", "runs"],
    ["history", "latency", "--store", "runs"],
    ["models", "--models", "models"],
    ["init", "--target", "local", "--out", "experiments.toml"],
    ["init", "--model", "another", "--models", "models"],
    ["skills", "list"],
]
"""Of every command that runs no foreign code, what it is for."""
TRAPS = [
    ["analyze", "evil.pkl"],
    ["analyze", "evil.npz"],
    ["analyze", "evil.pt"],
    ["analyze", "evil.so"],
    ["analyze", "types.py"],
    ["analyze", "."],
    ["analyze", "toy.etdump", "--etrecord", "evil.etrecord"],
    ["preflight", "evil.pt"],
    ["validate", "."],
    ["aie", "json.py"],
]
_DIFFERENT = {0, 1, 11, 14, 20}
"""Codes of commands that did their work."""


def audited(commands: list[list[str]], inputs: Path, directory: Path) -> dict[str, int]:
    """The exit code of each command, all run in one process that ends when foreign code runs."""
    file = directory / "commands.json"
    file.write_text(json.dumps(commands), "utf-8")
    command = [sys.executable, str(AUDITED), str(file), str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line[2:].partition(" ") for line in done.stdout.splitlines() if line.startswith("@@")]
    return {words: int(code) for code, _, words in told}


def test_commands_that_only_read_run_nothing_foreign(inputs: Path, tmp_path: Path) -> None:
    """Each does its whole work meanwhile; no trap was sprung."""
    codes = audited(WORK, inputs, tmp_path)
    assert {words: code for words, code in codes.items() if code not in _DIFFERENT} == {}
    assert codes.keys() == {json.dumps(words) for words in WORK}
    assert not (inputs / "ran").exists()
    quiet = set(COMMANDS) - RUNS.keys() - ASKS.keys()
    assert quiet <= {words[0] for words in WORK}


def test_files_that_are_code_are_refused_and_not_run(inputs: Path, tmp_path: Path) -> None:
    """Pickles, archives with pickles, libraries and modules, where a trace or a program is expected."""
    codes = audited(TRAPS, inputs, tmp_path)
    assert codes.keys() == {json.dumps(words) for words in TRAPS}
    assert not (inputs / "ran").exists()


@pytest.mark.parametrize(
    "trap",
    [
        ["-c", "exec(open('types.py').read())"],
        ["-c", "import pickle; pickle.load(open('evil.pkl', 'rb'))"],
        ["-c", "import subprocess; subprocess.run(['true'])"],
        ["-c", "import runpy; runpy.run_path('json.py')"],
    ],
    ids=["compile", "pickle", "process", "file"],
)
def test_the_watch_sees_what_it_watches_for(trap: list[str], inputs: Path) -> None:
    """Otherwise the tests above could not fail."""
    watch = f"import sys, os; sys.path[:] = [p for p in sys.path if p]; sys.path.append({str(AUDITED.parent)!r})\n"
    watch += "import audited, pickle, subprocess, runpy, sysconfig\n"
    watch += "installed = (*sysconfig.get_paths().values(), sys.base_prefix)\n"
    watch += "sys.addaudithook(audited.Watch(os.getcwd(), installed))\n"
    done = subprocess.run([sys.executable, "-c", watch + trap[1]], cwd=inputs, capture_output=True, check=False)
    assert done.returncode == 99, done.stderr
    assert not (inputs / "ran").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_page_say_what_a_command_runs(command: str) -> None:
    """Whether any in the help, what in all of the help, one row on the page."""
    short = " ".join(CliRunner().invoke(app, [command, "--help"]).stdout.split())
    assert code_notice(command).partition(":")[0] in short
    whole = short if command in {"store", "skills"} else CliRunner().invoke(app, [command, "--help-all"]).stdout
    assert code_notice(command) in " ".join(whole.split())
    page = (ROOT / "docs" / "concepts" / "foreign-code.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    (row,) = [line for line in rows if f"`{command}`" in line.split("|")[1]]
    assert (row.split("|")[2].strip() == "nothing") == (command not in RUNS and command not in ASKS)
