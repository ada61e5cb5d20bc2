"""``opscope validate``: what failed first, a code for every outcome, results for programs and pull requests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bundle_damage import ANALYSIS, HashingTarget, delete, manifest, put
from ended import Command
from fakes import FakeClock
from opscope.api import Settings, profile
from programs import write_tiny_program
from pseudo_terminal import on_terminal


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle that nobody may change."""
    directory = tmp_path_factory.mktemp("sound")
    program, settings = write_tiny_program(directory), Settings(rounds=2, runs=2, warmup=1)
    profile(str(program), settings=settings, out=directory / "out", target=HashingTarget(), clock=FakeClock())
    return directory / "out"


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """A copy with a sample changed and a report lost, and a version that would colour a terminal."""
    bundle = shutil.copytree(sound, tmp_path / "damaged")
    put(ANALYSIS, "latency.samples_ns.1", 5)(bundle)
    delete("report.md")(bundle)
    manifest("opscope", "0.1\x1b[31m")(bundle)
    return bundle


def test_a_good_bundle_exits_with_0(command: Command, sound: Path, tmp_path: Path) -> None:
    """Print one line a check, the answer first, and write the JSON beside it."""
    done = command("validate", sound, "--like", sound, "--json", tmp_path / "found.json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "valid: 14 checks passed" in lines
    assert sum(line.startswith("passed ") for line in lines) == 14
    assert max(map(len, on_terminal("validate", sound).lines)) <= 80
    assert json.loads((tmp_path / "found.json").read_text())["valid"] is True


def test_what_failed_comes_first_and_the_code_is_15(command: Command, damaged: Path) -> None:
    """Tell file, place and figures, and what to do; standard error has the same in one line."""
    done = command("validate", damaged)
    assert done.returncode == 15
    text = " ".join(done.stdout.split())
    for words in (
        "not valid: 2 of 12 checks failed: analyses, reports",
        "report.md: is missing; every run that succeeds writes it",
        "failed reports 1 problem in 1 file",
        f"{ANALYSIS} at latency.samples_ns[1]: states 5, it is",
    ):
        assert words in text
    assert text.count("Next: ") == 1
    assert text.index("failed analyses") < text.index("passed manifest")
    assert (
        "not valid: 2 of 12 checks failed: analyses, reports (analysis.json at latency.samples_ns[1]: states 5"
        in done.stderr
    )
    assert "\nhint:  " in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_results_for_programs_and_pull_requests(command: Command, damaged: Path, tmp_path: Path) -> None:
    """Print JSON alone on standard output; Markdown has a table of checks, then what failed with what to do."""
    done = command("validate", damaged, "--markdown", tmp_path / "found.md", "--json", "-")
    failed = [check["name"] for check in json.loads(done.stdout)["checks"] if check["status"] == "failed"]
    assert (done.returncode, failed) == (15, ["analyses", "reports"])
    text = (tmp_path / "found.md").read_text()
    assert text.startswith("## Bundle ")
    assert "| failed | analyses | 1 problem in 1 file |" in text
    assert "### analyses\n\n- analysis.json at latency.samples\\_ns\\[1\\]: states 5" in text
    assert "\nNext: recompute the files from the traces with" in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent"], 3, "nothing exists there"),
        (["."], 8, "not a bundle: it has no manifest.json"),
        ([".", "--json", "-", "--markdown", "-"], 2, "--json is already printed"),
    ],
)
def test_mistakes_have_their_codes(
    command: Command, arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    """Tell a path that is absent, a directory of something else, and two outputs in one place apart."""
    done = command("validate", *arguments, cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
