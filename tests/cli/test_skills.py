"""``opscope skills``: the skills come with the package, are listed, and are written where they are wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opscope.api import install_skills, skills
from opscope.core.errors import BundleError, NotFoundError, OverwriteError, StorageError, TraceFormatError
from opscope.workflows.agent_skills import parsed

NAMES = {
    "opscope-setup-workspace",
    "opscope-native-runners",
    "opscope-export-model",
    "opscope-run-profiling",
    "opscope-analyse-results",
    "opscope-generate-report",
    "opscope-validate-workflow",
    "opscope-onboard-model",
    "opscope-analyse-npu-trace",
    "opscope-profile-language-model",
    "opscope-gate-in-ci",
}


def opscope(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "opscope", "skills", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_skill_is_listed_in_the_order_of_a_first_project() -> None:
    """Setting up comes first, a gate last; each line says when to use it."""
    done = opscope("list")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert set(names) == NAMES
    assert (names[0], names[-1]) == ("opscope-setup-workspace", "opscope-gate-in-ci")
    assert all("Use " in line for line in done.stdout.splitlines())


def test_skills_are_installed_as_the_open_format_wants_them(tmp_path: Path) -> None:
    """A directory of the skill's name with SKILL.md in it; what was written is named."""
    place = tmp_path / ".agents" / "skills"
    done = opscope("install", place)
    assert done.returncode == 0, done.stderr
    assert {path.parent.name for path in place.glob("*/SKILL.md")} == NAMES
    assert done.stdout.splitlines()[0] == str(place / "opscope-setup-workspace" / "SKILL.md")
    for path in place.glob("*/SKILL.md"):
        assert parsed(path.read_text()).name == path.parent.name


def test_installing_twice_changes_nothing(tmp_path: Path) -> None:
    """Files that are there as they are stay."""
    assert install_skills(tmp_path) == install_skills(tmp_path)


def test_only_the_named_skills_are_installed(tmp_path: Path) -> None:
    """One name, one directory."""
    assert opscope("install", tmp_path, "opscope-gate-in-ci", "--quiet").stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["opscope-gate-in-ci"]


def test_a_changed_skill_is_not_overwritten(tmp_path: Path) -> None:
    """The user's own changes stay, and no other file is written; --overwrite replaces them."""
    mine = tmp_path / "opscope-gate-in-ci" / "SKILL.md"
    mine.parent.mkdir()
    changed = next(skill.text for skill in skills() if skill.name == "opscope-gate-in-ci") + "mine"
    mine.write_text(changed)
    done = opscope("install", tmp_path)
    assert done.returncode == BundleError.exit_code
    assert "differs" in done.stderr
    assert "--overwrite" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["opscope-gate-in-ci"]
    assert opscope("install", tmp_path, "--overwrite").returncode == 0
    assert mine.read_text() != changed


def test_a_file_that_is_no_skill_of_ours_is_never_overwritten(tmp_path: Path) -> None:
    """Not with --overwrite either, and no other file is written."""
    mine = tmp_path / "opscope-gate-in-ci" / "SKILL.md"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = opscope("install", tmp_path, "--overwrite")
    assert (done.returncode, mine.read_text()) == (OverwriteError.exit_code, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["opscope-gate-in-ci"]


def test_an_unknown_skill_is_told_with_near_names(tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(NotFoundError, match="unknown skill 'opscope-gate'") as raised:
        install_skills(tmp_path, ["opscope-gate"])
    assert "opscope-gate-in-ci" in str(raised.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    """A file where the directory should be."""
    (tmp_path / "skills").write_text("")
    with pytest.raises(StorageError):
        install_skills(tmp_path / "skills")


@pytest.mark.parametrize("text", ["# no front matter\n", "---\nname: x\n---\n", "---\nname: x\ndescription: y\n"])
def test_a_skill_without_its_front_matter_is_refused(text: str) -> None:
    """Name and description are what an assistant chooses by."""
    with pytest.raises(TraceFormatError):
        parsed(text)


def test_no_skill_builds_executorch_from_source() -> None:
    """Source builds are ExecuTorch's own matter; the skills point to its documentation."""
    for skill in skills():
        assert "cmake --build" not in skill.text
        assert "git clone https://github.com/pytorch/executorch" not in skill.text
