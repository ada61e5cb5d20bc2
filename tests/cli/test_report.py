"""``opscope report`` as a command: one directory, several, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kit_files


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of the kit, in directories of the same name."""
    root = tmp_path_factory.mktemp("report")
    pairs = [kit_files.pair("alpha", "beta")]
    return tuple(kit_files.write_run(root / name / "runs" / "mac", pairs=pairs) for name in ("one", "two"))


def opscope(*words: object) -> subprocess.CompletedProcess[str]:
    """The command in its own process."""
    command = [sys.executable, "-m", "opscope", "report", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_directory_has_its_report(runs, tmp_path):
    """The files that were written, one a line."""
    done = opscope(runs[0], "--format", "md", "--out", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'report.md'}\n")


def test_one_file_and_named_sides(runs, tmp_path):
    """A file by its suffix; the sides and the program of one run cannot be those of several."""
    file, sides = tmp_path / "answer.md", ("--baseline", "beta", "--candidate", "alpha")
    done = opscope(runs[0], "--out", file, *sides)
    assert (done.returncode, done.stdout) == (0, f"{file}\n")
    assert "as alpha_t1" in file.read_text().replace("\\", "")
    assert [path.name for path in tmp_path.iterdir()] == ["answer.md"]
    for given in (sides, ("--program", file)):
        done = opscope(*runs, "--out", tmp_path / "both", *given)
        assert (done.returncode, f"error: {given[0]}: it applies to one run" in done.stderr) == (2, True)
    done = opscope(runs[0], "--baseline", "beta")
    assert (done.returncode, "--baseline needs --candidate" in done.stderr) == (2, True)


def test_several_directories_have_one_report(runs, tmp_path):
    """Of the formats that were asked for; directories of one name are told apart."""
    done = opscope(*runs, "--format", "md,html", "--out", tmp_path / "both")
    assert (done.returncode, done.stderr) == (0, "")
    assert [Path(line).name for line in done.stdout.splitlines()] == ["combined.md", "combined.html"]
    text = (tmp_path / "both" / "combined.md").read_text()
    assert "| one/runs/mac |" in text
    assert "| two/runs/mac |" in text


def test_several_directories_need_a_place(runs):
    """Their report belongs to none of them, so it is not written into one."""
    done = opscope(*runs)
    assert done.returncode == 2
    assert "needs an output directory" in done.stderr
    assert "--out DIR" in done.stderr


def test_the_same_directory_twice_is_refused(runs, tmp_path):
    """Before anything is written."""
    done = opscope(runs[0], runs[0], "--out", tmp_path / "out")
    assert (done.returncode, "given twice" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_what_is_no_bundle_is_refused(runs, tmp_path):
    """With its path."""
    done = opscope(runs[0], tmp_path, "--out", tmp_path / "out")
    assert (done.returncode, str(tmp_path) in done.stderr) == (3, True)
    assert not (tmp_path / "out").exists()


def test_a_title_stands_in_place_of_the_usual_one(runs, tmp_path):
    """In every format, of one directory and of several, and as text."""
    title = "Our <b>devices</b>"
    one = opscope(runs[0], "--title", title, "--out", tmp_path)
    both = opscope(*runs, "--title", title, "--out", tmp_path)
    assert (one.returncode, both.returncode) == (0, 0)
    for name in ("report", "combined"):
        heading, page = (tmp_path / f"{name}.{ending}" for ending in ("md", "html"))
        assert heading.read_text().splitlines()[0].partition(" · ")[0] == r"# Our \<b\>devices\</b\>"
        assert page.read_text().count("Our &lt;b&gt;devices&lt;/b&gt;") == 2
