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
        return _check_named_directory(Path(named).absolute()), None
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored when it is relative, says the XDG specification
    if given.is_absolute() and _can_keep_files(given) and not _find_foreign_access(given / "opscope"):
        return given / "opscope", None
    home = home_directory()
    reason = f"{home} is not writable" if home else "there is no home directory"
    if home and os.path.isdir(home):  # noqa: PTH112 - Path.is_dir raises where it may not look
        usual = home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "opscope"
        foreign = _find_foreign_access(usual)
        if _can_keep_files(usual.parent) and not foreign:
            return usual, None
        reason = f"{usual} {foreign}" if foreign else reason
    return _temporary_directory(), reason


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
            made, seal = Path(work) / path.name, Path(work) / _seal_path(path).name
            yield made
            for file in (made, *(made.rglob("*") if made.is_dir() else ())):
                if not file.is_symlink():  # what it leads to is not ours to change
                    file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_OTHERS_WRITE)
            seal.write_text(f"{_hash_entry(made)}\n", encoding="utf-8")
            if made.is_dir() and path.is_dir() and not is_whole(path):
                path.replace(Path(work) / "damaged")
            try:
                made.replace(path)
            except OSError as error:
                if error.errno not in _THERE or not made.is_dir():
                    raise
            else:
                seal.replace(_seal_path(path))


def is_whole(path: Path) -> bool:
    """Return whether an entry exists, belongs to this user and is as it was made; ask it before the entry is used."""
    try:
        is_own = path.lstat().st_uid == os.geteuid()
        return is_own and _seal_path(path).read_text(encoding="utf-8").strip() == _hash_entry(path)
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
            _seal_path(entry).unlink(missing_ok=True)


def remove_beyond(directory: Path, limit: int, seconds: float) -> None:
    """Remove entries of a directory of the cache until all together take at most so many bytes.

    Those go first whose last use, which touches them, is longest ago. Only entries that are as they were made are
    removed, and none that was used within so many seconds.
    """
    entries = sorted(
        (directory_entry for directory_entry in directory.iterdir() if directory_entry.is_dir())
        if directory.is_dir()
        else (),
        key=lambda directory_entry: directory_entry.lstat().st_mtime,
    )
    sizes = {
        directory_entry: sum(file.lstat().st_size for file in _list_files(directory_entry))
        for directory_entry in entries
    }
    total = sum(sizes.values())
    for entry in entries:
        if total <= limit:
            return
        if entry.lstat().st_mtime < time.time() - seconds and is_whole(entry):
            shutil.rmtree(entry)
            _seal_path(entry).unlink(missing_ok=True)
            total -= sizes[entry]


def _seal_path(path: Path) -> Path:
    """Return the path of the hash of an entry."""
    return path.with_name(f"{path.name}.sha256")


def _hash_entry(entry: Path) -> str:
    """Return the hash of an entry: names, modes and contents of all its files."""
    lines = (f"{_describe_content(file)} {file.relative_to(entry)}\n" for file in sorted(_list_files(entry)))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _describe_content(file: Path) -> str:
    """Return a file's hash and mode; of a link, where it leads."""
    return f"-> {file.readlink()}" if file.is_symlink() else f"{sha256_of(file)} {file.stat().st_mode:o}"


def _list_files(entry: Path) -> list[Path]:
    paths = entry.rglob("*") if entry.is_dir() else [entry]
    return [file for file in paths if file.is_symlink() or not file.is_dir()]


def home_directory() -> Path | None:
    """Return the user's home directory, which need not exist; None if the system knows none."""
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor the table of users tells
        return None
    return home if home.is_absolute() and os.environ.get("HOME") != "" else None


def _check_named_directory(directory: Path) -> Path:
    objection = _find_foreign_access(directory) if _can_keep_files(directory) else "cannot be written to"
    if objection:
        hint = f"set {VARIABLE} to a directory that only you can write to, or unset it"
        raise StorageError(f"{VARIABLE} names it, but it {objection}", where=directory, hint=hint)
    return directory


def _can_keep_files(directory: Path) -> bool:
    """Return whether files can be kept there, or the directory can be made."""
    existing = next((p for p in (directory, *directory.parents) if os.access(p, os.F_OK)), directory)
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)  # noqa: PTH112 - likewise


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _find_foreign_access(directory: Path) -> str | None:
    """Return how others could change what is kept in a directory, for the end of a sentence; None if they cannot."""
    if not os.access(directory, os.F_OK):
        return None
    status = directory.stat()
    if status.st_uid != os.geteuid():
        return "belongs to another user, who could replace what is executed"
    if status.st_mode & _OTHERS_WRITE:
        return "is writable by others, who could replace what is executed"
    return None


def _temporary_directory() -> Path:
    with storage_errors(Path(os.environ.get("TMPDIR") or "/tmp")):  # noqa: S108 - only named in the error
        directory = Path(tempfile.gettempdir()) / f"opscope-{os.geteuid()}"
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            return directory if _is_ours_alone(directory) else _private_directory()
        return directory


def _is_ours_alone(directory: Path) -> bool:
    status = directory.lstat()
    private = not stat.S_IMODE(status.st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private


@functools.cache
def _private_directory() -> Path:
    """Return a new directory of a name that nobody can take before us; it goes with this process."""
    directory = Path(tempfile.mkdtemp(prefix="opscope-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
