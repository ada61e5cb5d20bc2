"""What is kept for later runs: made by several at the same time, damaged meanwhile, in directories of others."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.core.errors import StorageError
from opscope.core.system.cache import (
    VARIABLE,
    cache_directory,
    find_cache,
    is_whole,
    made_in_place,
    remove_beyond,
    remove_unused,
)


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
    assert sorted(tmp_path.iterdir()) == [place, tmp_path / "kept.sha256"]


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


def kept_file(place: Path) -> Path:
    """An entry that is one file, such as a built library."""
    with made_in_place(place / "lib.so") as made:
        made.write_bytes(b"\x7fELF" + bytes(5000))
    return place / "lib.so"


def kept_folder(place: Path) -> Path:
    """One that is a folder, such as an unpacked wheel."""
    with made_in_place(place / "wheel") as made:
        (made / "sub").mkdir(parents=True)
        for name in ("sub/lib.so", "other.h"):
            (made / name).write_bytes(b"content of " + name.encode())
    return place / "wheel"


def inside(entry: Path) -> Path:
    """The file that is damaged."""
    return entry / "sub/lib.so" if entry.is_dir() else entry


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda entry: inside(entry).write_bytes(inside(entry).read_bytes()[:7]),
    "emptied": lambda entry: inside(entry).write_bytes(b""),
    "edited": lambda entry: inside(entry).write_bytes(inside(entry).read_bytes()[:-1] + b"!"),
    "its mode changed": lambda entry: inside(entry).chmod(0o777),
    "a file replaced by a pipe": lambda entry: (inside(entry).unlink(), os.mkfifo(inside(entry))),
    "a file added or the entry removed": lambda entry: (entry / "new").touch() if entry.is_dir() else entry.unlink(),
    "without its hash": lambda entry: entry.with_name(f"{entry.name}.sha256").unlink(),
    "its hash cut": lambda entry: entry.with_name(f"{entry.name}.sha256").write_bytes(b"\xff"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("make_entry", [kept_file, kept_folder])
def test_a_damaged_entry_is_seen_and_made_again(
    tmp_path: Path, make_entry: Callable[[Path], Path], damage: str
) -> None:
    """Before it is loaded, which would end in SIGBUS or in another program than was built."""
    entry = make_entry(tmp_path)
    assert is_whole(entry)
    DAMAGE[damage](entry)
    assert not is_whole(entry)
    assert is_whole(make_entry(tmp_path))
    assert {file.name for file in tmp_path.iterdir()} == {entry.name, f"{entry.name}.sha256"}


def test_an_entry_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Its hash may be right: that user wrote both."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    entry = kept_file(tmp_path)
    os.chown(entry, 65534, 65534)
    assert not is_whole(entry)


def test_others_cannot_write_to_what_is_made(tmp_path: Path) -> None:
    """Whatever the user's mask lets them."""
    mask = os.umask(0)
    try:
        entry = kept_folder(tmp_path)
    finally:
        os.umask(mask)
    assert not any(file.stat().st_mode & 0o022 for file in (entry, *entry.rglob("*")))


def foreign(place: Path, how: str) -> Path:
    """A directory that is there already, and is not this user's alone."""
    place.mkdir(mode=0o700, parents=True)
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root gives directories away")
        os.chown(place, 65534, 65534)
    else:
        place.chmod(0o777 if how == "open to all" else 0o770)
    return place


@pytest.mark.parametrize("how", ["another user's", "open to all", "open to a group"])
def test_a_named_cache_that_is_not_ours_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Others could choose what is executed here."""
    place = foreign(tmp_path / "cache", how)
    monkeypatch.setenv(VARIABLE, str(place))
    with pytest.raises(StorageError, match="who could replace what is executed") as caught:
        cache_directory()
    assert caught.value.where == str(place)
    assert VARIABLE in str(caught.value.hint)


@pytest.mark.parametrize("how", ["another user's", "open to all", "open to a group"])
def test_a_usual_cache_that_is_not_ours_alone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """XDG's, then that of the home; the temporary one says why."""
    foreign(tmp_path / "xdg/opscope", how)
    monkeypatch.delenv(VARIABLE, raising=False)
    for variable, name in (("XDG_CACHE_HOME", "xdg"), ("HOME", "home"), ("TMPDIR", "")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "home").mkdir()
    directory, temporary = find_cache()
    assert (tmp_path / "home" in directory.parents, temporary) == (True, None)
    usual = foreign(directory, how)
    directory, temporary = find_cache()
    assert directory == tmp_path / f"opscope-{os.geteuid()}"
    assert str(temporary).startswith(f"{usual} ")
    assert "who could replace what is executed" in str(temporary)


def test_the_cache_is_made_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be used the next time, whatever the user's mask."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "some/where"))
    mask = os.umask(0)
    try:
        assert cache_directory() == cache_directory() == tmp_path / "some/where"
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "some/where").stat().st_mode) == 0o700


def test_entries_that_nobody_used_go_and_nothing_else(tmp_path: Path) -> None:
    """Only what the cache made, and only after the time."""
    old, new, foreign = (tmp_path / name for name in ("old", "new", "foreign"))
    for path in (old, new):
        with made_in_place(path) as made:
            made.write_text(path.name)
    foreign.write_text("not ours")
    sealed = tmp_path / "sealed"
    sealed.write_text("somebody else's model")
    sealed.with_name("sealed.sha256").write_text(f"{hashlib.sha256(sealed.read_bytes()).hexdigest()}  sealed\n")
    for path in (old, foreign, sealed, sealed.with_name("sealed.sha256")):
        os.utime(path, (1.0, 1.0))
    remove_unused(tmp_path, 1000.0)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["foreign", "new", "new.sha256", "sealed", "sealed.sha256"]
    assert is_whole(new)


def test_links_of_an_entry_are_kept_and_what_they_lead_to_is_not_touched(tmp_path: Path) -> None:
    """An environment links to the Python that it was made of, which others own."""
    python = tmp_path / "python"
    python.write_text("somebody's")
    python.chmod(0o666)
    with made_in_place(tmp_path / "kept") as made:
        made.mkdir()
        (made / "python").symlink_to(python)
    assert stat.S_IMODE(python.stat().st_mode) == 0o666
    assert is_whole(tmp_path / "kept")
    python.write_text("newer")
    assert is_whole(tmp_path / "kept")
    (tmp_path / "kept" / "python").unlink()
    (tmp_path / "kept" / "python").symlink_to(tmp_path)
    assert not is_whole(tmp_path / "kept")


def test_the_oldest_entries_make_room(tmp_path: Path) -> None:
    """Until all take at most the limit; none that was just used goes, and nothing that the cache did not make."""
    for number, name in enumerate(("a", "b", "c", "d")):
        make(tmp_path / name, "x" * 1000)
        os.utime(tmp_path / name, (number, number))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("y" * 1000)
    os.utime(tmp_path / "foreign", (0.0, 0.0))
    os.utime(tmp_path / "a")
    remove_beyond(tmp_path, 3500, 1000.0)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["a", "a.sha256", "d", "d.sha256", "foreign"]
    for name in ("d", "foreign"):
        os.utime(tmp_path / name)
    remove_beyond(tmp_path, 0, 1000.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == left
