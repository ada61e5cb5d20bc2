"""Files that the workers share: made once, whole, and made again after a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import session_files
from session_files import begin_session, end_session, made_once, session_directory

ASK = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from session_files import made_once

def make(place):
    time.sleep(0.2)
    (place / "made").write_text("")
    with pathlib.Path(sys.argv[2]).open("a") as told:
        told.write("made\\n")

print((made_once("programs/one", make) / "made").exists())
"""


@pytest.fixture(autouse=True)
def own_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session of the test's own."""
    monkeypatch.setenv("OPSCOPE_TEST_SESSION", str(tmp_path / "session"))


def test_several_processes_make_it_once(tmp_path: Path) -> None:
    """Those that come later wait until it is whole."""
    told = tmp_path / "told"
    command = [sys.executable, "-c", ASK, str(Path(session_files.__file__).parent), str(told)]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in asking] == ["True\n"] * 3
    assert told.read_text() == "made\n"


def test_what_failed_is_not_kept() -> None:
    """The next who asks does not get half of it."""

    def fails(place: Path) -> None:
        (place / "half").touch()
        raise LookupError

    with pytest.raises(LookupError):
        made_once("one", fails)
    assert list(made_once("one", lambda place: (place / "whole").touch()).iterdir()) == [
        session_directory() / "one" / "whole"
    ]


def test_a_session_begins_empty_and_leaves_nothing() -> None:
    """Two sessions never share a file."""
    begin_session()
    first = made_once("one", lambda place: (place / "made").touch())
    end_session()
    begin_session()
    second = session_directory()
    end_session()
    assert not first.exists()
    assert not second.exists()
    assert first.parent != second
