"""``opscope validate``: what failed first, a code for every outcome, results for programs and pull requests."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bundle_damage import ANALYSIS, HashingTarget, delete, manifest, put
from fakes import FakeClock
from opscope.api import Settings, profile
from programs import write_tiny_program
from pseudo_terminal import on_terminal

CODE = """
import sys
from opscope.cli.main import main
try:
    main()
finally:
    assert not {"torch", "executorch", "pandas"} & set(sys.modules)
"""


def opscope(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process, which must load neither torch nor executorch."""
    command = [sys.executable, "-c", CODE, "validate", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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


def test_a_good_bundle_exits_with_0(sound: Path, tmp_path: Path) -> None:
    """One line a check, the answer first; the JSON beside it."""
    done = opscope(sound, "--like", sound, "--json", tmp_path / "found.json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "valid: 23 checks passed" in lines
    assert sum(line.startswith("passed ") for line in lines) == 23
    assert max(map(len, on_terminal("validate", sound).lines)) <= 80
    assert json.loads((tmp_path / "found.json").read_text())["valid"] is True


def test_what_failed_comes_first_and_the_code_is_15(damaged: Path) -> None:
    """With file, place and figures, and what to do; the same in one line on standard error."""
    done = opscope(damaged)
    assert done.returncode == 15
    text = " ".join(done.stdout.split())
    assert "not valid: 2 of 21 checks failed: files, analyses" in text
    assert "report.md: is missing; every run that succeeds writes it" in text
    assert "failed files 1 problem in 1 file" in text
    assert text.count("Next: ") == 2
    assert f"{ANALYSIS} at latency.samples_ns[1]: states 5, it is" in text
    assert text.index("failed analyses") < text.index("passed manifest")
    assert "not valid: 2 of 21 checks failed: files, analyses (report.md: is missing" in done.stderr
    assert "\nhint:  " in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_results_for_programs_and_pull_requests(damaged: Path, tmp_path: Path) -> None:
    """JSON alone on standard output; Markdown with a table of checks, then what failed with what to do."""
    done = opscope(damaged, "--markdown", tmp_path / "found.md", "--json", "-")
    found = json.loads(done.stdout)
    assert done.returncode == 15
    assert [check["name"] for check in found["checks"] if check["status"] == "failed"] == ["files", "analyses"]
    text = (tmp_path / "found.md").read_text()
    assert text.startswith("## Bundle ")
    assert "| failed | analyses | 1 problem in 1 file |" in text
    assert "### analyses\n\n- analysis.json at latency.samples\\_ns\\[1\\]: states 5" in text
    assert "\nNext: restore the file from a copy of the bundle, or measure again" in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent"], 3, "nothing exists there"),
        (["."], 8, "not a bundle: it has no manifest.json"),
        ([".", "--json", "-", "--markdown", "-"], 2, "--json is already printed"),
    ],
)
def test_mistakes_have_their_codes(
    arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error line and a hint, no traceback."""
    monkeypatch.chdir(tmp_path)
    done = opscope(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
