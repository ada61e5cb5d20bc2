"""What is kept for later runs, when several runs make it at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import StorageError
from opscope.core.system.cache import made_in_place


def make(place: Path, text: str) -> None:
    """A folder with one file, made in its place."""
    with made_in_place(place) as made:
        made.mkdir()
        (made / "file").write_text(text, "utf-8")


def test_a_folder_that_two_make_at_once_is_that_of_the_first(tmp_path: Path) -> None:
    """Both go on; nothing of the second one is left behind."""
    place = tmp_path / "kept"
    with made_in_place(place) as made:
        made.mkdir()
        (made / "file").write_text("second", "utf-8")
        make(place, "first")
    assert (place / "file").read_text("utf-8") == "first"
    assert list(tmp_path.iterdir()) == [place]


def test_a_file_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    """The last one counts."""
    for text in ("first", "second"):
        with made_in_place(tmp_path / "kept") as made:
            made.write_text(text, "utf-8")
    assert (tmp_path / "kept").read_text("utf-8") == "second"


def test_a_file_does_not_take_the_place_of_a_folder(tmp_path: Path) -> None:
    """That is not a race but an error, and says where."""
    make(tmp_path / "kept", "folder")
    with pytest.raises(StorageError, match="kept"), made_in_place(tmp_path / "kept") as made:
        made.touch()
