"""Where opscope keeps what it can make again: built runners, unpacked wheels, counters.

The first of these that can be used: the directory that ``OPSCOPE_CACHE`` names; ``opscope`` below ``XDG_CACHE_HOME``;
``opscope`` where the system keeps such things in the home directory; a temporary directory that only this user can
reach. Whoever can write there chooses what runs here: a directory of another user, or one that others may write to, is
never used.

Beside each entry stands its SHA-256, with the modes of its files. Whoever uses an entry asks :func:`is_whole` before:
one that was cut, edited or emptied is made again.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import OpscopeError, StorageError
from opscope.core.files import sha256_of, storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "OPSCOPE_CACHE"
KEPT = "10GiB"
"""What kept environments may take, unless another limit is named."""


def cache_directory() -> Path:
    """The directory of the cache, see above; made for this user alone where it is missing."""
    directory, _ = find_cache()
    if not os.path.lexists(directory):
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def find_cache() -> tuple[Path, str | None]:
    """The directory of the cache, which need not exist yet, and why it goes with a restart; None where it lasts."""
    named = os.environ.get(VARIABLE)
    if named:
        return _named(Path(named).absolute()), None
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored when it is relative, says the XDG specification
    if given.is_absolute() and _usable(given) and not _foreign(given / "opscope"):
        return given / "opscope", None
    home = home_directory()
    reason = f"{home} is not writable" if home else "there is no home directory"
    if home and os.path.isdir(home):  # noqa: PTH112 - Path.is_dir raises where it may not look
        usual = home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "opscope"
        foreign = _foreign(usual)
        if _usable(usual.parent) and not foreign:
            return usual, None
        reason = f"{usual} {foreign}" if foreign else reason
    return _temporary(), reason


_THERE = (errno.ENOTEMPTY, errno.EEXIST)


@contextlib.contextmanager
def made_in_place(path: Path) -> Iterator[Path]:
    """Make an entry, a file or a directory, under another name, from which it comes to its place in one step.

    A directory that another process has put there meanwhile stays: whatever is kept is named by what it is made of.
    One that is not whole makes room.

    Yields the other name, in a directory that is removed afterwards.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            made, seal = Path(work) / path.name, Path(work) / _seal(path).name
            yield made
            for file in (made, *(made.rglob("*") if made.is_dir() else ())):
                if not file.is_symlink():  # what it leads to is not ours to change
                    file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_OTHERS_WRITE)
            seal.write_text(f"{_digest(made)}\n", encoding="utf-8")
            if made.is_dir() and path.is_dir() and not is_whole(path):
                path.replace(Path(work) / "damaged")
            try:
                made.replace(path)
            except OSError as error:
                if error.errno not in _THERE or not made.is_dir():
                    raise
            else:
                seal.replace(_seal(path))


def is_whole(path: Path) -> bool:
    """Whether an entry is there, and is this user's, as it was made: what to ask before it is used."""
    try:
        own = path.lstat().st_uid == os.geteuid()
        return own and _seal(path).read_text(encoding="utf-8").strip() == _digest(path)
    except (OSError, ValueError, OpscopeError):
        return False


def remove_unused(directory: Path, seconds: float) -> None:
    """Remove entries of a directory of the cache, files, that were not used, which touches them, for so long.

    Only those that are as they were made: what else has come to lie there is nobody's to remove.
    """
    limit = time.time() - seconds
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.lstat().st_mtime < limit and is_whole(entry):
            entry.unlink(missing_ok=True)
            _seal(entry).unlink(missing_ok=True)


def remove_beyond(directory: Path, limit: int, seconds: float) -> None:
    """Remove entries of a directory of the cache until all together take at most so many bytes.

    Those go first whose last use, which touches them, is longest ago. Only entries that are as they were made are
    removed, and none that was used within so many seconds.
    """
    entries = sorted(
        (one for one in directory.iterdir() if one.is_dir()) if directory.is_dir() else (),
        key=lambda one: one.lstat().st_mtime,
    )
    sizes = {one: sum(file.lstat().st_size for file in _files(one)) for one in entries}
    taken = sum(sizes.values())
    for entry in entries:
        if taken <= limit:
            return
        if entry.lstat().st_mtime < time.time() - seconds and is_whole(entry):
            shutil.rmtree(entry)
            _seal(entry).unlink(missing_ok=True)
            taken -= sizes[entry]


def _seal(path: Path) -> Path:
    """Where the hash of an entry stands."""
    return path.with_name(f"{path.name}.sha256")


def _digest(entry: Path) -> str:
    """Hash of an entry: names, modes and contents of all its files."""
    lines = (f"{_content(file)} {file.relative_to(entry)}\n" for file in sorted(_files(entry)))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _content(file: Path) -> str:
    """A file's hash and mode; of a link, where it leads."""
    return f"-> {file.readlink()}" if file.is_symlink() else f"{sha256_of(file)} {file.stat().st_mode:o}"


def _files(entry: Path) -> list[Path]:
    found = entry.rglob("*") if entry.is_dir() else [entry]
    return [file for file in found if file.is_symlink() or not file.is_dir()]


def home_directory() -> Path | None:
    """The user's home directory, which need not exist; None where the system knows of none."""
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor the table of users tells
        return None
    return home if home.is_absolute() and os.environ.get("HOME") != "" else None


def _named(directory: Path) -> Path:
    objection = _foreign(directory) if _usable(directory) else "cannot be written to"
    if objection:
        hint = f"set {VARIABLE} to a directory that only you can write to, or unset it"
        raise StorageError(f"{VARIABLE} names it, but it {objection}", where=directory, hint=hint)
    return directory


def _usable(directory: Path) -> bool:
    """Whether files can be kept there, or it can be made for them."""
    there = next((p for p in (directory, *directory.parents) if os.access(p, os.F_OK)), directory)
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)  # noqa: PTH112 - likewise


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _foreign(directory: Path) -> str | None:
    """How others could change what is kept in a directory, for the end of a sentence; None where they cannot."""
    if not os.access(directory, os.F_OK):
        return None
    status = directory.stat()
    if status.st_uid != os.geteuid():
        return "belongs to another user, who could replace what is executed"
    if status.st_mode & _OTHERS_WRITE:
        return "is writable by others, who could replace what is executed"
    return None


def _temporary() -> Path:
    with storage_errors(Path(os.environ.get("TMPDIR") or "/tmp")):  # noqa: S108 - only named in the error
        place = Path(tempfile.gettempdir()) / f"opscope-{os.geteuid()}"
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            return place if _is_ours_alone(place) else _unpredictable()
        return place


def _is_ours_alone(place: Path) -> bool:
    status = place.lstat()
    private = not stat.S_IMODE(status.st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private


@functools.cache
def _unpredictable() -> Path:
    """A new directory of a name that nobody can take before us; it goes with this process."""
    place = Path(tempfile.mkdtemp(prefix="opscope-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place
