"""Every output of every command against all that could be in its place: no byte is lost that opscope did not write."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pytest

from aie_traces import Span, Tile, json_text
from opscope.api import add_to_store
from opscope.cli.main import COMMANDS, CommandModules, is_output
from opscope.core.errors import OverwriteError
from opscope.core.outputs import MARKDOWN_MARK, mark_of, write_outputs
from smoke_files import DATA

if TYPE_CHECKING:
    from typer._click import Command

pytest.importorskip("duckdb")
Run: TypeAlias = Callable[..., tuple[int, str]]
MINE = b"mine, and of no format that opscope writes\n"
MEASURES = {
    ("profile", ""),
    ("bisect", ""),
    ("count", ""),
    ("tune", ""),
    ("export", ""),
    ("run", ""),
    ("check", "--out"),
}
"""Commands that measure: what is refused before they begin is tried, and a pipe or /dev/null is not."""


REPORTS = {"analysis.json", "comparison.json", "report.md", "report.html"}
INPUTS = {"trace.pte", "trace.etdump", "bundle", "lab.toml", "tiles.json"}


class Output(NamedTuple):
    """An output of a command: its option, empty for an argument, and what the command is given besides."""

    command: str
    option: str
    words: tuple[str, ...]
    source: str
    is_directory: bool

    @property
    def measures(self) -> bool:
        """Whether the command would begin to measure, once its outputs are found in order."""
        return bool({(self.command, ""), (self.command, self.option)} & MEASURES)

    def __str__(self) -> str:
        return f"{self.command} {self.option}".strip()


class TextParameter(NamedTuple):
    """A parameter of a command that takes a text, so that it may name a file."""

    command: str
    option: str  # empty for an argument
    is_output: bool
    names_path: bool  # whether its metavar or type says that it names a file or directory

    def __str__(self) -> str:
        return f"{self.command} {self.option}".strip()


_WORDS = {
    "profile": ("trace.pte",),
    "analyze": ("trace.etdump",),
    "compare": ("trace.etdump", "other.etdump"),
    "check": ("trace.etdump", "--against", "other.etdump"),
    "report": ("bundle",),
    "export": ("toy_cnn",),
    "run": ("lab.toml",),
    "preflight": ("trace.pte",),
    "count": ("trace.pte",),
    "tune": ("trace.pte",),
    "kernels": ("bundle",),
    "aie": ("tiles.json",),
    "bisect": ("trace.pte", "--versions", "1.0,1.1"),
    "history": ("latency", "--store", "store"),
    "convert": ("trace.etdump", "--to", "csv", "--force"),
    "validate": ("bundle",),
    "store add": ("bundle", "--store", "store"),
    "store query": ("SELECT 1", "--store", "store", "--format", "csv"),
    "store list": ("--store", "store"),
    "store remove": ("nothing", "--store", "store"),
    "store report": ("--store", "store"),
    "doctor": (),
    "init": (),
    "skills install": (),
}
"""What each command with an output is given; the first word is the input that an output must not replace."""


def commands() -> dict[str, Command]:
    """Every command by the words that call it."""
    found: dict[str, Command] = {}
    for name in COMMANDS:
        command = CommandModules()[name]
        below = getattr(command, "commands", None) or {"": command}
        found |= {f"{name} {sub}".strip(): one for sub, one in below.items()}
    return found


def outputs() -> list[Output]:
    """Every output of every command."""
    found = []
    for name, command in commands().items():
        for parameter in filter(is_output, command.params):
            words = _WORDS[name]
            option = max(parameter.opts, key=len) if parameter.param_type_name == "option" else ""
            source = words[0] if words and words[0] in INPUTS else "trace.pte"
            directory = getattr(parameter, "metavar", None) in {"DIR", "DIR|FILE"}
            found.append(Output(name, option, words, source, directory))
    return found


def text_parameters() -> list[TextParameter]:
    """Every parameter of every command that takes a text or a path."""
    parameters = []
    for name, command in commands().items():
        for parameter in command.params:
            if parameter.type.name in {"str", "path"}:
                option = max(parameter.opts, key=len) if parameter.param_type_name == "option" else ""
                metavar = str(getattr(parameter, "metavar", "") or "")
                names_path = parameter.type.name == "path" or bool(re.search(r"FILE|DIR|PATH", metavar))
                parameters.append(TextParameter(name, option, is_output(parameter), names_path))
    return parameters


MEASURING = {"profile", "tune", "export", "run", "bisect", "count", "check", "doctor"}
"""Commands that would measure if a text were a good value: only their parameters that name a path are tried."""
WRITTEN_BELOW = {
    "init --models": "a new file in the directory of models; one that is there is never replaced",
    "store add --store": "a store is a directory of its own",
    "store remove --store": "a store is a directory of its own",
}
"""Parameters that name a directory with files of opscope's own."""


def input_parameters() -> list[TextParameter]:
    """Parameters that are not declared as outputs, and are tried with files that must stay as they are."""
    return [
        parameter
        for parameter in text_parameters()
        if not parameter.is_output
        and (parameter.names_path or parameter.command not in MEASURING)
        and str(parameter) not in WRITTEN_BELOW
    ]


INPUT_PLACES = ("mine", "model.pte", "bundle/manifest.json", "link")


@pytest.mark.parametrize("parameter", input_parameters(), ids=str)
def test_nothing_is_written_where_an_input_is_named(parameter: TextParameter, run: Run, here: Path) -> None:
    """A file that any text of a command names stays as it is.

    An output that was not declared as one would replace it. Commands that measure are given no program.
    """
    words = [*parameter.command.split(), *_WORDS.get(parameter.command, ())]
    if parameter.command in MEASURING:
        words = ["mine" if word in {"trace.pte", "toy_cnn"} else word for word in words]
    Path("mine").write_bytes(MINE)
    Path("link").symlink_to("mine")
    shutil.copy("trace.pte", "model.pte")
    for place in INPUT_PLACES:
        before = content(here)
        if parameter.option == "--scheduler":
            gc.collect()  # a Dask client that could not connect, collected while another starts, blocks that for 10 s
        code, said = run(*words, *filter(None, [parameter.option]), place)
        after = content(here)
        changed = {name for name, state in before.items() if after.get(name) != state}
        assert changed <= own_files(parameter, here), said
        assert code != 70, said


def test_the_matrix_has_a_cell_for_every_text_and_every_place() -> None:
    """Make every path that a command takes an output or an input of the matrix; ``-rP`` shows how many cells it has.

    An option that names a file or directory and that no command reads is an output; all have words to be tried.
    """
    cells = len(outputs()) * len(PLACES) + len(input_parameters()) * len(INPUT_PLACES)
    shown = f"{len(outputs())} outputs x {len(PLACES)} + {len(input_parameters())} inputs x {len(INPUT_PLACES)}"
    sys.stdout.write(f"{shown} = {cells} cells\n")
    tried = {*map(str, outputs()), *map(str, input_parameters()), *WRITTEN_BELOW}
    assert [
        str(parameter) for parameter in text_parameters() if parameter.names_path and str(parameter) not in tried
    ] == []
    assert "count --receipt" in map(str, outputs())
    assert {name for name, one in commands().items() if any(map(is_output, one.params))} == set(_WORDS)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an input of every kind, a bundle and a store."""
    place = tmp_path_factory.mktemp("room")
    shutil.copytree(DATA / "bundles" / "with-ceilings", place / "bundle")
    shutil.copy(DATA / "toy_cnn.etdump", place / "trace.etdump")
    shutil.copy(DATA / "toy_cnn.etdump", place / "other.etdump")
    shutil.copy(next((place / "bundle" / "model").glob("*.pte")), place / "trace.pte")
    (place / "lab.toml").write_text("not read before outputs are looked at")
    calls = [Span(slot, 1000 * n + 500 * slot, 1000 * n + 500 * slot + 1) for n in range(4) for slot in (0, 1)]
    tile = Tile("core", 2, 4, ("INSTR_EVENT_0", "INSTR_EVENT_1"), calls)
    (place / "tiles.json").write_bytes(b"".join(json_text([tile])))
    add_to_store([place / "bundle"], place / "store")
    return place


def content(directory: Path) -> dict[str, str]:
    """Hash of every regular file, target of every link, and kind of all else."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"  # noqa: PTH115
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = oct(stat.S_IFMT(path.lstat().st_mode))
    return found


Prepared: TypeAlias = "tuple[str, list[str]] | None"
"""The place of an output, and more words for the call; None where that cannot be for this output."""


def _linked(to: str) -> Prepared:
    Path("link").symlink_to(to)
    return "link", []


def _hard_link(output: Output, _names: list[str]) -> Prepared:
    if output.source == "bundle":
        return None
    os.link(output.source, "link")
    return "link", []


def _other(output: Output, _names: list[str]) -> Prepared:
    others = [one for one in outputs() if one.command == output.command and one != output and not one.is_directory]
    return ("both", [others[0].option, "both"]) if others and not output.is_directory else None


def _foreign_file(content: bytes) -> Prepared:
    Path("file").write_bytes(content)
    return "file", []


def _foreign_directory(_output: Output, names: list[str]) -> Prepared:
    for name in ("mine", *names):
        Path("place", name).parent.mkdir(parents=True, exist_ok=True)
        Path("place", name).write_bytes(MINE)
    return "place", []


def _pipe(output: Output, _names: list[str]) -> Prepared:
    if output.measures or output.is_directory:
        return None
    os.mkfifo("pipe")
    threading.Thread(target=Path("pipe").read_bytes, daemon=True).start()
    return "pipe", []


PLACES: dict[str, Callable[[Output, list[str]], Prepared]] = {
    "input": lambda output, _: (output.source, []),
    "link to the input": lambda output, _: _linked(output.source),
    "hard link to the input": _hard_link,
    "part of the bundle": lambda *_: ("bundle/manifest.json", []),
    "link to a part of the bundle": lambda *_: _linked("bundle/analysis.json"),
    "other output": _other,
    "foreign file": lambda *_: _foreign_file(MINE),
    "foreign JSON": lambda *_: _foreign_file(b'{"mine": 1, "schema": "opscope.analysis/3"}'),
    "foreign directory": _foreign_directory,
    "pipe": _pipe,
    "/dev/null": lambda output, _: None if output.measures or output.is_directory else ("/dev/null", []),
}
"""What is where an output shall go; directories of devices are those of tests/hosts/test_own_directory.py."""


def call(output: Output, place: str, more: list[str]) -> list[str]:
    """The words of a call."""
    named = [output.option, place] if output.option else [place]
    return [*output.command.split(), *output.words, *named, *more]


@pytest.fixture
def here(room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the room, as the current directory, with a cache of its own."""
    shutil.copytree(room, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "here"


def own_files(output: Output | TextParameter, here: Path) -> set[str]:
    """Files that a command is there to write again: the reports of a bundle."""
    if output.command == "report":
        return {path.relative_to(here).as_posix() for path in (here / "bundle").rglob("*") if path.name in REPORTS}
    return set()


def written_by(output: Output, run: Run, here: Path) -> list[str]:
    """Names of the files that a command leaves in a directory of its own."""
    if not output.is_directory or output.measures:
        return []
    run(*call(output, "clean", []))
    names = [path.relative_to(here / "clean").as_posix() for path in (here / "clean").rglob("*") if path.is_file()]
    shutil.rmtree(here / "clean", ignore_errors=True)
    return names


@pytest.mark.parametrize("output", outputs(), ids=str)
def test_no_output_loses_a_byte(output: Output, run: Run, here: Path) -> None:
    """Whatever is there stays as it is, unless opscope wrote it; what would be lost is refused with an exit code."""
    names = written_by(output, run, here)
    untouched = content(here)
    for what, prepared in PLACES.items():
        tried = prepared(output, names)
        if tried is None:
            continue
        place, more = tried
        before = content(here)
        code, said = run(*call(output, place, more))
        after = content(here)
        lost = {name for name, state in before.items() if after.get(name) != state}
        assert lost <= own_files(output, here), (what, said)
        assert "Traceback" not in said, what
        if what in {"pipe", "/dev/null"}:
            assert code not in {OverwriteError.exit_code, 70}, (what, said)
        elif (here / place).resolve() != here / "bundle" and (not output.is_directory or names):
            assert code not in {0, 70}, (what, said)
        for name in set(after) - set(untouched):
            path = here / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def test_outputs_of_ours_are_replaced(run: Run, here: Path) -> None:
    """Call the same command again; an output of another kind may not take its place.

    Of a set with one foreign file in its place none is written.
    """
    for _ in range(2):
        assert run("analyze", "trace.etdump", "--json", "a.json", "--csv", "tables")[0] == 0
        assert run("validate", "bundle", "--markdown", "v.md", "--json", "v.json")[0] == 0
        assert run("convert", "bundle", "--to", "github-benchmark", "--out", "flames", "--force")[0] == 0
    code, said = run("validate", "bundle", "--json", "a.json")
    assert (code, "opscope.analysis, not opscope.validation" in said) == (19, True)
    (here / "flames").write_bytes((here / "flames").read_bytes() + b"mine 1\n")
    assert run("convert", "bundle", "--to", "github-benchmark", "--out", "flames", "--force")[0] == 19
    (here / "foreign").mkdir()
    (here / "foreign" / "categories.csv").write_bytes(MINE)
    assert run("analyze", "trace.etdump", "--csv", "foreign")[0] == 19
    assert [path.name for path in (here / "foreign").iterdir()] == ["categories.csv"]


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (b'{"schema":"opscope.analysis/3"}', "opscope.analysis"),
        (b'[\n {"schema": "opscope.analysis/3"}]', "opscope.analysis"),
        (b'{"mine": {"schema":"opscope.analysis/3"}}', None),
        (b'{"schema":"other.analysis/1"}', None),
        (f"# a\n\n{MARKDOWN_MARK}\n".encode(), "Markdown"),
        (f"# about {MARKDOWN_MARK}\nand more\n".encode(), None),
        (b'<!doctype html>\n<head><meta name="generator" content="opscope 1">', "HTML"),
        (b"<!doctype html>\n<p>opscope", None),
        (b"name,time_ns,share\n", "CSV of name,time_ns,share"),
        (b"model_id,name,type\n", None),
        (b"", None),
    ],
)
def test_marks(text: bytes, mark: str | None, tmp_path: Path) -> None:
    """What tells that opscope wrote a file; the kit's tables have the kit's header."""
    (tmp_path / "file").write_bytes(text)
    assert mark_of(tmp_path / "file") == mark


def test_a_block_device_is_refused(tmp_path: Path) -> None:
    """Writing to one would replace a file system."""
    place = tmp_path / "disk"
    try:
        os.mknod(place, stat.S_IFBLK | 0o600, os.makedev(7, 250))
    except OSError:
        pytest.skip("no right to make a device")
    with pytest.raises(OverwriteError, match="block device"):
        write_outputs({place: json.dumps({}).encode()})


def test_what_was_refused_is_not_remembered_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes in a file of the user's stay the user's."""
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    ours, mine = tmp_path / "a.json", tmp_path / "flames"
    ours.write_bytes(b'{"schema":"opscope.analysis/3"}')
    mine.write_bytes(b"main;conv 1\n")
    with pytest.raises(OverwriteError, match="has other content"):
        write_outputs({ours: mine.read_bytes()})
    with pytest.raises(OverwriteError, match="did not write it"):
        write_outputs({mine: b"main;conv 2\n"})
    write_outputs({tmp_path / "written": mine.read_bytes()})
    write_outputs({tmp_path / "written": b"main;conv 2\n"})
