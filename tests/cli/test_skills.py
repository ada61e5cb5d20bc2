"""``opscope skills``: the skills come with the package, are listed, and are written where they are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ended import Command
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
    "opscope-tune-settings",
    "opscope-gate-in-ci",
}


def test_every_skill_is_listed_in_the_order_of_a_first_project(command: Command) -> None:
    """Setting up comes first, a gate last; each line says when to use it."""
    done = command("skills", "list")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert set(names) == NAMES
    assert (names[0], names[-1]) == ("opscope-setup-workspace", "opscope-gate-in-ci")
    assert all("Use " in line for line in done.stdout.splitlines())


def test_skills_are_installed_as_the_open_format_wants_them(command: Command, tmp_path: Path) -> None:
    """Write SKILL.md into a directory of the skill's name, and name what was written; a second time is no change."""
    place = tmp_path / ".agents" / "skills"
    done = command("skills", "install", place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(place / "opscope-setup-workspace" / "SKILL.md")
    names = {path.parent.name: parsed(path.read_text()).name for path in place.glob("*/SKILL.md")}
    assert names == {name: name for name in NAMES}
    assert install_skills(place) == install_skills(place)
    assert command("skills", "install", tmp_path / "one", "opscope-gate-in-ci", "--quiet").stdout == ""
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["opscope-gate-in-ci"]


def test_a_changed_skill_is_not_overwritten(command: Command, tmp_path: Path) -> None:
    """Keep the user's own changes, and write no other file, unless --overwrite replaces them.

    A file that is no skill of ours is never replaced.
    """
    mine = tmp_path / "opscope-gate-in-ci" / "SKILL.md"
    mine.parent.mkdir()
    changed = next(skill.text for skill in skills() if skill.name == "opscope-gate-in-ci") + "mine"
    for text, more, code in ((changed, [], BundleError.exit_code), ("mine", ["--overwrite"], OverwriteError.exit_code)):
        mine.write_text(text)
        done = command("skills", "install", tmp_path, *more)
        assert (done.returncode, mine.read_text()) == (code, text)
        assert [path.name for path in tmp_path.iterdir()] == ["opscope-gate-in-ci"]
        assert more or "--overwrite" in done.stderr
    mine.write_text(changed)
    assert command("skills", "install", tmp_path, "--overwrite").returncode == 0
    assert mine.read_text() != changed


def test_an_unknown_skill_is_told_with_near_names(tmp_path: Path) -> None:
    """Write nothing then, nor where a file stands in place of the directory."""
    with pytest.raises(NotFoundError, match="unknown skill 'opscope-gate'") as raised:
        install_skills(tmp_path, ["opscope-gate"])
    assert "opscope-gate-in-ci" in str(raised.value.hint)
    assert list(tmp_path.iterdir()) == []
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
