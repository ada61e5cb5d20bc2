"""For which libraries a mechanism was shown to change nothing: what is kept, and where nothing can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.system.cache import VARIABLE
from opscope.machine.switch.switch import is_shown, keep_shown

LIBRARIES = "ab12"


def test_it_is_shown_once_for_the_same_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache: with another cache, or for other libraries, nothing was shown."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    assert not is_shown(LIBRARIES)
    keep_shown(LIBRARIES)
    assert (is_shown(LIBRARIES), is_shown("cd34")) == (True, False)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "another"))
    assert not is_shown(LIBRARIES)


def test_a_cache_that_cannot_be_used_has_shown_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps nothing, without an error: it is shown again by the next bundle."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file/cache"))
    keep_shown(LIBRARIES)
    assert not is_shown(LIBRARIES)
