"""``opscope report`` as a command: one directory, several, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import kit_files


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of the kit, in directories of the same name."""
    root = tmp_path_factory.mktemp("report")
    pairs = [kit_files.pair("alpha", "beta")]
    return tuple(kit_files.write_run(root / name / "runs" / "mac", pairs=pairs) for name in ("one", "two"))


def test_one_directory_has_its_report(command, runs, tmp_path):
    """Print the files that were written, one a line; one file by its suffix, of the sides that are named."""
    done = command("report", runs[0], "--format", "md", "--out", tmp_path / "out")
    assert done[:2] == (0, f"{tmp_path / 'out' / 'report.md'}\n")
    file = tmp_path / "answers" / "answer.md"
    done = command("report", runs[0], "--out", file, "--baseline", "beta", "--candidate", "alpha")
    assert done[:2] == (0, f"{file}\n")
    assert "as alpha_t1" in file.read_text().replace("\\", "")
    assert [path.name for path in file.parent.iterdir()] == ["answer.md"]


def test_several_directories_have_one_report(command, runs, tmp_path):
    """Of the formats that were asked for; directories of one name are told apart."""
    done = command("report", *runs, "--format", "md,html", "--out", tmp_path / "both")
    assert (done.returncode, done.stderr) == (0, "")
    assert [Path(line).name for line in done.stdout.splitlines()] == ["combined.md", "combined.html"]
    text = (tmp_path / "both" / "combined.md").read_text()
    assert "| one/runs/mac |" in text
    assert "| two/runs/mac |" in text


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("{one} {two}", 2, "needs an output directory --out DIR"),
        ("{one} {one} --out out", 2, "given twice"),
        ("{one} . --out out", 3, "."),
        ("{one} --baseline beta", 2, "--baseline needs --candidate"),
        ("{one} {two} --out out --baseline beta --candidate nobody", 3, "nobody"),
        ("{one} {two} --out out --program x", 2, "error: --program: it applies to one run"),
    ],
)
def test_what_belongs_to_one_run_or_to_none_is_refused(command, runs, tmp_path, words, code, told):
    """Write a report of several into none of them, and nothing before all are bundles, each given once."""
    done = command("report", *words.format(one=runs[0], two=runs[1]).split(), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert all(word in done.stderr for word in told.split(" ")), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_title_stands_in_place_of_the_usual_one(command, runs, tmp_path):
    """In every format, of one directory and of several, and as text."""
    title = "Our <b>devices</b>"
    one = command("report", runs[0], "--title", title, "--out", tmp_path)
    both = command("report", *runs, "--title", title, "--out", tmp_path)
    assert (one.returncode, both.returncode) == (0, 0)
    for name in ("report", "combined"):
        heading, page = (tmp_path / f"{name}.{ending}" for ending in ("md", "html"))
        assert heading.read_text().splitlines()[0].partition(" · ")[0] == r"# Our \<b\>devices\</b\>"
        assert page.read_text().count("Our &lt;b&gt;devices&lt;/b&gt;") == 2
