"""Functions that write files without asking whether something may be lost.

They serve opscope's own places: bundles, stores, the cache, directories of its processes. Files that a user names are
written by :func:`opscope.core.outputs.write_outputs`, which asks first. Import contracts keep this module away from the
command line, and ``tests/house/test_one_writer.py`` lists every module that may use it, and for what.

A reader sees the old content of a file or the new one, and what the system refuses is told with a hint.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from opscope.core.files import descriptor_of, is_stream, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LONGEST_STEM = 32
"""Letters of a file's name in that of its temporary file, which must not be too long where the name itself is not."""


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview], *, follow: bool = True) -> None:
    """Write a file: a regular or new one in one step and durably, anything else directly.

    A file that is there keeps its mode, and its owner where the system allows it. Links are followed, and stay links.
    A device, a FIFO or an open descriptor (``/dev/stdout``, ``/dev/fd/63`` of a process substitution) holds nothing
    that could be replaced: it is opened and written to. Raises StorageError where the system refuses.
    """
    with open_atomically(path, follow=follow) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@contextlib.contextmanager
def open_atomically(
    path: Path, *, follow: bool = True, may_replace: Callable[[Path, Path], None] | None = None
) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its place when the block ends without an error.

    ``may_replace`` is called with the place and the new file just before, and raises to keep what is there.
    """
    with storage_errors(path):
        real = Path(os.path.realpath(path)) if follow else path
        with _open_stream(path) if follow and is_stream(path) else _open_replacement(real, may_replace) as file:
            yield file


def write_new(path: Path, content: bytes) -> bool:
    """Write a file that does not exist yet, with its directories; a stream is written to directly.

    Returns whether it was written. False: something is there, and stays as it is.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _open_stream(path) if is_stream(path) else _create_file(path) as file:
                file.write(content)
        except FileExistsError:
            return False
        return True


@contextlib.contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """Make a directory, and remove it with all that is in it when the block ends."""
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def discard_files(directory: Path, names: Iterable[str]) -> None:
    """Remove files by their names, and their directory when nothing else is in it."""
    with storage_errors(directory):
        for name in names:
            (directory / name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if not any(directory.iterdir()):
                directory.rmdir()


@contextlib.contextmanager
def _open_stream(path: Path) -> Iterator[IO[bytes]]:
    """Open a device, FIFO or descriptor without creating or truncating it; a descriptor goes on where it stands."""
    descriptor = descriptor_of(path)
    if descriptor is None:
        number = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    else:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where they were closed
            stream.flush()
        number = os.dup(descriptor)
    with os.fdopen(number, "wb") as file:
        yield file


@contextlib.contextmanager
def _open_replacement(path: Path, may_replace: Callable[[Path, Path], None] | None) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:_LONGEST_STEM]}.{os.urandom(4).hex()}.tmp")
    with _create_file(temporary, _status_to_keep(path)) as file:
        yield file
    try:
        if may_replace is not None:
            may_replace(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _status_to_keep(path: Path) -> os.stat_result | None:
    """Return the status of the file that will be replaced. None if there is none, or it has no content of its own."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return None
    os.close(os.open(path, os.O_WRONLY))  # replacing asks only the directory whether it may
    return status


@contextlib.contextmanager
def _create_file(path: Path, like: os.stat_result | None = None) -> Iterator[IO[bytes]]:
    """Create a file with the mode and owner of another; nothing is left of one whose block fails."""
    with path.open("xb") as file:
        try:
            yield file
            file.flush()
            if like is not None:
                _copy_owner_and_mode(file.fileno(), like)
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _copy_owner_and_mode(file: int, like: os.stat_result) -> None:
    status = os.fstat(file)
    for owner in (like.st_uid, -1):
        if (status.st_uid, status.st_gid) == (like.st_uid, like.st_gid):
            break
        with contextlib.suppress(PermissionError):  # only root may give files away; the group may be one of ours
            os.fchown(file, owner, like.st_gid)
            break
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(like.st_mode):
        os.fchmod(file, stat.S_IMODE(like.st_mode))
