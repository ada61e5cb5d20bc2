"""The program that make demo profiles: what lies in demo/, how it was made, and what its make target installs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT
from exports import served
from opscope.core.files import sha256_of
from opscope.program.model import ProgramModel
from opscope.runtimes.executorch.etrecord import read_etrecord, slim_etrecord
from opscope.runtimes.exports import record_of_export
from opscope.runtimes.registry import read_model
from plans import outline
from texts import CXX_DOES_NOT_WORK

DEMO = ROOT / "demo"
PROGRAM = DEMO / "mobilenet_v3_small_xnnpack_fp32.pte"
ETRECORD = PROGRAM.with_suffix(".etrecord")
LARGEST = 11_000_000


def test_the_page_and_the_record_state_the_files_that_are_there() -> None:
    """State sizes and hashes of files that together are small enough to be cloned by everybody.

    The record is slim: layers and source lines, as seen from a checkout that stands anywhere.
    """
    page = (DEMO / "README.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| `(.+)` \| ([\d,]+) \| `([0-9a-f]{64})` \|$", page, re.MULTILINE)
    files = {name: (int(size.replace(",", "")), sha256) for name, size, sha256 in stated}
    paths = (PROGRAM, ETRECORD, DEMO / "export.json")
    assert files == {path.name: (path.stat().st_size, sha256_of(path)) for path in paths}
    assert sum(size for size, _ in files.values()) < LARGEST
    record = record_of_export(PROGRAM)
    kept = [(file.name, (file.size, file.sha256)) for file in (record.program, record.etrecord)]
    assert kept == list(files.items())[:2]
    for package in ("executorch", "torch", "torchao", "numpy"):
        assert f"{package} {record.versions[package]}" in page
    assert ETRECORD.read_bytes() == slim_etrecord(ETRECORD)
    frames = [frame for graph in read_etrecord(ETRECORD).graphs for node in graph.nodes for frame in node.frames]
    assert {Path(frame.file).parts[:2] for frame in frames} == {("/", "opscope")}
    assert any(frame.file.endswith("models/mobilenet_v3.py") for frame in frames)


def operators(model: ProgramModel) -> dict[str, object]:
    """What a program computes: its instructions, the nodes and shapes of its delegates, and their layers."""
    assert model.record is not None
    return {
        "instructions": outline(model.executable),
        "nodes": [found.graph.nodes for found in model.graphs],
        "shapes": [[(value.dtype, value.dims) for value in found.graph.values] for found in model.graphs],
        "layers": [
            (node.target, node.inputs, node.outputs, node.modules, node.handles)
            for graph in model.record.graphs
            for node in graph.nodes
        ],
    }


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_exporting_it_anew_gives_the_same_operators(tmp_path: Path) -> None:
    """Not the same bytes: those may change with the version of a package."""
    found = operators(read_model(PROGRAM, ETRECORD))
    assert all(found.values())
    anew = served(tmp_path, "mobilenet_v3_small")
    assert operators(read_model(anew.program, anew.etrecord)) == found


def installed_by(*words: str, venv: Path) -> list[str]:
    """What ``make`` would surely install into a new environment."""
    command = ["make", "--dry-run", f"VENV={venv}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if " pip " in line and "||" not in line]
    return re.findall(r'"(\S+)"', " ".join(lines))


def test_the_demo_installs_torch_for_a_model_to_export_only(tmp_path: Path) -> None:
    """A program that is there needs the runtime alone."""
    assert installed_by("demo", venv=tmp_path) == [".[runtime]", "executorch==1.5.1"]
    assert installed_by("demo", "MODEL=my.pte", venv=tmp_path) == [".[runtime]", "executorch==1.5.1"]
    assert set(installed_by("demo", "MODEL=toy_cnn", venv=tmp_path)) > {".[runtime]", "torch==2.13.0"}
    assert installed_by("check", venv=tmp_path)[0] == "torch==2.13.0"


@pytest.mark.runtime
def test_where_no_compiler_works_the_demo_asks_for_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say why in one line; with a compiler nothing is said."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [sys.executable, str(DEMO / "runner.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, CXX_DOES_NOT_WORK in refused.stderr) == (1, True)
    assert "models run from Python here, with torch" in refused.stderr
