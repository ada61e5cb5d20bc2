"""Where opscope keeps what it can make again: built runners, unpacked wheels, counters.

The first of these that can be used: the directory that ``OPSCOPE_CACHE`` names; ``opscope`` below ``XDG_CACHE_HOME``;
``opscope`` where the system keeps such things in the home directory; a temporary directory that only this user can
reach. A directory of a well-known name in ``/tmp`` could be another user's, who would then choose what runs here: one
that is not this user's alone is never used.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import StorageError
from opscope.core.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "OPSCOPE_CACHE"


class Cache(NamedTuple):
    """Where things are kept.

    Attributes:
        directory: for all of them; it need not exist yet.
        temporary: why it is a temporary one, which goes when the machine is restarted; None for one that lasts.
    """

    directory: Path
    temporary: str | None = None


def cache_directory() -> Path:
    """The directory of the cache, see above.

    Raises:
        StorageError: the directory that ``OPSCOPE_CACHE`` names cannot be used, or there is none at all.
    """
    return find_cache().directory


def find_cache() -> Cache:
    """The directory of the cache, and whether it lasts.

    Raises:
        StorageError: as for :func:`cache_directory`.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Cache(_named(Path(named).absolute()))
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored when it is relative, says the XDG specification
    if given.is_absolute() and _usable(given):
        return Cache(given / "opscope")
    home = home_directory()
    if home and os.path.isdir(home):  # noqa: PTH112 - Path.is_dir raises where it may not look
        usual = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        if _usable(usual):
            return Cache(usual / "opscope")
    reason = f"{home} cannot be written to" if home else "there is no home directory"
    return Cache(_temporary(), reason)


_THERE = (errno.ENOTEMPTY, errno.EEXIST)


@contextlib.contextmanager
def made_in_place(path: Path) -> Iterator[Path]:
    """Make a file or directory under another name, from which it comes to its place in one step.

    A directory that another process has put there meanwhile stays: whatever is kept is named by what it is made of.

    Args:
        path: its place; the directory is made when it is missing.

    Yields:
        The other name, in a directory that is removed afterwards.

    Raises:
        StorageError: the system refused.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            made = Path(work) / path.name
            yield made
            try:
                made.replace(path)
            except OSError as error:
                if error.errno not in _THERE or not made.is_dir():
                    raise


def home_directory() -> Path | None:
    """The user's home directory, which need not exist; None where the system knows of none."""
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor the table of users tells
        return None
    return home if home.is_absolute() and os.environ.get("HOME") != "" else None


def _named(directory: Path) -> Path:
    if not _usable(directory):
        hint = f"name a directory that can be written to in {VARIABLE}, or leave the variable out"
        raise StorageError(f"{VARIABLE} names it, and it cannot be written to", where=directory, hint=hint)
    return directory


def _usable(directory: Path) -> bool:
    """Whether files can be kept there, or it can be made for them."""
    there = next((p for p in (directory, *directory.parents) if os.access(p, os.F_OK)), directory)
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)  # noqa: PTH112 - likewise


def _temporary() -> Path:
    with storage_errors(Path(os.environ.get("TMPDIR") or "/tmp")):  # noqa: S108 - only named in the error
        place = Path(tempfile.gettempdir()) / f"opscope-{os.geteuid()}"
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            return place if _is_ours_alone(place) else _unpredictable()
        return place


def _is_ours_alone(place: Path) -> bool:
    found = place.lstat()
    private = not stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and private


@functools.cache
def _unpredictable() -> Path:
    """A new directory of a name that nobody can take before us; it goes with this process."""
    place = Path(tempfile.mkdtemp(prefix="opscope-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place
