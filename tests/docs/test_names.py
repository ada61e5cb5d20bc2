"""The ratchet on names and docstrings: what counts, and that limits only fall."""

from __future__ import annotations

import sys
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
    """A package with one room, and no limits yet."""
    (tmp_path / "package" / "room").mkdir(parents=True)
    (tmp_path / "package" / "room" / "module.py").write_text(SOURCE)
    monkeypatch.setattr(names, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(names, "LIMITS", tmp_path / "names.toml")
    return tmp_path / "package"


def test_what_counts(package: Path) -> None:
    """One name of one word, two docstrings that point elsewhere, two names that name nothing."""
    counts = names.count_slips()
    assert counts["room"] == {names.ONE_WORD: 1, names.POINTING: 2, names.VAGUE: 2}
    assert counts["opscope"] == dict.fromkeys(names.KINDS, 0)
    assert {slip.path for slip in names.find_slips()} == {package / "room" / "module.py"}


def test_limits_only_fall(package: Path) -> None:
    """A count above its limit is refused, and writing does not raise it; one below has to be written down."""
    counts = names.count_slips()
    names.write_limits(counts, {})
    assert list(names.find_changes(counts, names.read_limits())) == []
    module = package / "room" / "module.py"
    module.write_text(SOURCE + "\n\ndef _again(): pass\n")
    more = names.count_slips()
    names.write_limits(more, names.read_limits())
    assert list(names.find_changes(more, names.read_limits())) == [("room: 2 one-word names, 1 allowed", True)]
    module.write_text("")
    none = names.count_slips()
    assert {is_above for _, is_above in names.find_changes(none, names.read_limits())} == {False}
    names.write_limits(none, names.read_limits())
    assert names.read_limits()["room"] == dict.fromkeys(names.KINDS, 0)
