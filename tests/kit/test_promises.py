"""The published documents row by row: docs/promises.toml against their text, and what the rows say against what runs.

Commands are those that stand here in place of the documents' own; they run one after the other in one directory, with
the names that it has there. Checks are the documents' own, letter by letter.
"""

from __future__ import annotations

import ast
import csv
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aie_published
import kit_files
from aie_traces import json_text
from beside import DOCUMENTS, reads_documents
from command_line import ended_here

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))
import promises  # noqa: E402  (a script beside the pages)

ALL = [(document, kind, row) for document, kind, row in promises.promises().rows()]
PLACEHOLDERS = {
    "<model>": "toy",
    "<model_name>": "toy",
    "<experiment>": "mac_sme2_on",
    "<experiment_off>": "mac_sme2_off",
}
RUNS = "model_profiling/out_toy/runs/mac", "model_profiling/out_toy/runs/android"


def rows(kind: str) -> list[Any]:
    """Rows of a kind that the test of the kind tries, as parameters."""
    return [
        pytest.param(row, id=f"{document.key}-{number}")
        for number, (document, own, row) in enumerate(ALL)
        if own == kind and not row.test
    ]


def filled(text: str) -> str:
    """Words of a document with names in place of what stands for names."""
    for word, name in PLACEHOLDERS.items():
        text = text.replace(word, name)
    return text


@reads_documents
def test_rows_and_documents_agree() -> None:
    """Everything that a document quotes has its row, and every row is in its document."""
    texts = promises.texts(DOCUMENTS)
    for document in promises.promises().documents:
        assert promises.differences(document, texts[document.sha256]) == []


def test_no_quotation_was_changed_since_it_was_compared() -> None:
    """By its hash, so that a misquotation is found without the documents."""
    for document in promises.promises().documents:
        assert document.quoted == document.hash_of_quotations(), (
            f"compare anew: python docs/promises.py ({document.key})"
        )


@functools.cache
def functions(path: Path) -> list[str]:
    """Names of the functions of a file."""
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


def test_every_row_names_a_test_that_is_there() -> None:
    """Its own, or that of its kind; statements have none in common."""
    missing = []
    for document, kind, row in ALL:
        file, _, name = (row.test or promises.TESTS[kind]).partition("::")
        defined = functions(ROOT / "tests" / file)
        if (name and name not in defined) or not any(one.startswith("test_") for one in defined):
            missing.append((document.key, row.quote, row.test))
    assert missing == []


def test_options_that_rows_name_are_there() -> None:
    """Of commands and their options, those that the help of the command lists."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference/cli").glob("*.md"))
    helps = dict(re.findall(r"^##? opscope ([\w -]+)\n(.*?)(?=^##? |\Z)", pages, re.DOTALL | re.MULTILINE))
    named = 0
    for _, _, row in ALL:
        for command, rest in re.findall(r"`opscope ([a-z-]+)([^`]*)`", row.here):
            own = "".join(text for name, text in helps.items() if name.split()[0] == command)
            assert own or command == "--version", row.here
            for option in re.findall(r"--[a-zA-Z][\w-]*", rest):
                named += 1
                assert option in own, row.here
    assert named > 50


def write_recorded(directory: Path, platform: str) -> None:
    """What the kit's pipeline leaves: traces and logs of two experiments, and what it lists of them."""
    names = f"{platform}_sme2_off", f"{platform}_sme2_on"
    for name, text in zip(names, (kit_files.BASELINE, kit_files.CANDIDATE), strict=True):
        kit_files.write_experiment(directory, name, text, nested=True)
    results = [kit_files.result(name, median) for name, median in zip(names, (4.0, 2.0), strict=True)]
    manifest = {"generated_at": "2025-12-20T00:00:00Z", "model": kit_files.MODEL, "results": results}
    kit_files.write_json(directory / "manifest.json", manifest)


def write_logs(directory: Path) -> None:
    """What the kit's trace-enabled runs leave in the directories of experiments, once these are there."""
    for experiment in directory.glob("*_sme2_*"):
        if experiment.is_dir():
            (experiment / f"toy_fp32_{experiment.name}_t1_xnntrace.log").write_text(kit_files.KERNEL_LOG)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which all commands of the rows ran, in their order; what they ended with is in ``codes.json``."""
    directory = tmp_path_factory.mktemp("published")
    write_recorded(directory / "recorded" / "mac", "mac")
    write_recorded(directory / RUNS[1], "android")
    (directory / "examples").symlink_to(ROOT / "examples")
    codes = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for _, kind, row in ALL:
            if kind == "command" and not row.test:
                codes[row.quote] = ended_here(*words(row.here))
                for run in RUNS:
                    write_logs(directory / run)
    (directory / "codes.json").write_text(json.dumps(codes))
    return directory


def words(here: str) -> list[str]:
    """Arguments of the first command in a row's text, as a shell gives them."""
    command = re.search(r"`opscope ([^`]+)`", filled(here))
    assert command, here
    found: list[str] = []
    for word in shlex.split(command[1]):
        found += [str(path) for path in sorted(Path().glob(word))] if "*" in word else [word]
    return found


@pytest.mark.parametrize("row", rows("command"))
def test_the_command_here_runs(row: Any, place: Path) -> None:
    """It ends with 0."""
    assert json.loads((place / "codes.json").read_text())[row.quote] == 0


@pytest.mark.parametrize("row", rows("check"))
def test_a_quoted_check_passes(row: Any, place: Path, tmp_path: Path) -> None:
    """In a real shell; those that the document has wrong fail, here as there."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash")
    (tmp_path / "python").symlink_to(sys.executable)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-o", "pipefail", "-c", filled(row.quote)]
    done = subprocess.run(command, executable=shell, cwd=place, env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) is (row.answer == "kept"), done.stderr
    assert row.answer == "wrong" or done.stdout


def named_files(row: Any, place: Path) -> list[Path]:
    """Files that the first code in a row's text stands for."""
    pattern = re.search(r"`([^`]+)`", filled(row.here))
    assert pattern, row.here
    return sorted(place.glob(pattern[1]))


@pytest.mark.parametrize("row", rows("file"))
def test_a_quoted_file_is_written(row: Any, place: Path, tiles: Path) -> None:
    """It is there, and not empty."""
    found = named_files(row, tiles if row.here.startswith("`tiles/") else place)
    assert found
    assert all(path.stat().st_size for path in found)


def keys(value: Any) -> set[str]:
    """All names of fields in a document."""
    if isinstance(value, dict):
        return {*value, *(key for own in value.values() for key in keys(own))}
    return {key for own in value for key in keys(own)} if isinstance(value, list) else set()


@pytest.mark.parametrize("row", rows("field"))
def test_a_quoted_field_is_in_its_file(row: Any, place: Path, tiles: Path) -> None:
    """A column of a table, or a name anywhere in a JSON file."""
    files = named_files(row, tiles if row.here.startswith("`tiles/") else place)
    assert files
    for file in files:
        if file.suffix == ".csv":
            assert row.quote in next(csv.reader(file.read_text().splitlines()))
        else:
            assert row.quote in keys(json.loads(file.read_text()))


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what ``opscope aie`` writes, told all that the post-processor wants to be told."""
    directory = tmp_path_factory.mktemp("published-tiles")
    (directory / "trace.json").write_bytes(b"".join(json_text([aie_published.Clean().tile()])))
    told = "--M 16 --K 24 --N 8 --m 8 --k 8 --n 8 --row 1 --col 1 --hwid single_core --warmup 1 --iterations 3"
    assert ended_here("aie", directory / "trace.json", *told.split(), "--out", directory / "tiles") == 0
    return directory
