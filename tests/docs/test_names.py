"""The limits on names and docstrings: what counts, and that more is refused."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import names

SOURCE = '''
def _widened(own, steps):
    """Of all steps."""
    found = 1


def _extend_over_steps(steps):
    """Extend a run by the steps before and after it."""
    length = len(steps)


def total(): """The same as before, in a sum."""
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one room."""
    (tmp_path / "package" / "room").mkdir(parents=True)
    (tmp_path / "package" / "room" / "module.py").write_text(SOURCE)
    monkeypatch.setattr(names, "PACKAGE", tmp_path / "package")
    return tmp_path / "package"


def test_what_counts(package: Path) -> None:
    """One name of one word, two docstrings that point elsewhere, two names that name nothing."""
    slips = list(names.find_slips())
    assert Counter(slip.kind for slip in slips) == {names.ONE_WORD: 1, names.POINTING: 2, names.VAGUE: 2}
    assert {slip.room for slip in slips} == {"room"}
    assert {slip.path for slip in slips} == {package / "room" / "module.py"}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("vague", "code"), [(1, 1), (2, 0)])
def test_more_than_the_limit_is_refused(
    vague: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said of which kind, and with which count; at the limit all is well."""
    monkeypatch.setattr(names, "LIMITS", {names.ONE_WORD: 1, names.POINTING: 2, names.VAGUE: vague})
    monkeypatch.setattr(sys, "argv", ["names.py"])
    assert names.main() == code
    assert capsys.readouterr().out.startswith("2 vague locals, 1 allowed" if code else "")
