"""Reading regular files, what paths mean, and what the system's refusals mean to a user."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from typing import IO, TYPE_CHECKING

from opscope.core.errors import StorageError, TraceFormatError, reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_MORE_SPACE = "free some space or choose another place; what was already measured is kept"
_ELSEWHERE = "choose another place; what was already measured is kept"
_SAID = {
    errno.EISDIR: ("it is a directory", "name a file, for example one in this directory"),
    errno.EEXIST: ("that name already exists", "choose another name"),
    errno.EROFS: ("the file system is read-only", "choose a place on another file system, or mount it for writing"),
    errno.ENOSPC: ("no space left on the file system", _MORE_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _MORE_SPACE),
    errno.EFBIG: ("it would exceed the maximum file size", "raise the limit (`ulimit -f`), or choose another place"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter name"),
    errno.ELOOP: ("its links form a cycle", "name the file itself"),
    errno.EPIPE: ("the program reading it has exited", "let that program read to the end"),
}
"""Problem and hint where something was to be written, by the number of the system's error."""
_HINTS = {
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EACCES: "ask for access to it, or choose another place",
    errno.EPERM: "ask for access to it, or choose another place",
    errno.ENOTDIR: "part of the path is a file, not a directory",
    errno.ELOOP: "its symbolic links form a cycle",
    errno.ENOSPC: "free some space, or choose another place",
}
"""Hint where it is not known what was to be done; it may have been reading."""


def refusal(error: OSError, path: Path) -> tuple[str, str]:
    """Problem and hint for what the system refused to write."""
    if error.errno in {errno.ENOTDIR, errno.EEXIST} and (file := _not_a_directory(path)):
        return f"{file} is not a directory", "choose a place in a directory"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "permission denied", f"choose a place that you can write to; {_find_denied_path(path)} denies it"
    return _SAID.get(error.errno or 0, (error.strerror or str(error), _ELSEWHERE))


def unknown_refusal(error: OSError) -> tuple[str, str | None]:
    """Problem and hint for what the system refused, where it is not known whether something was read or written."""
    return f"the system refused it: {error.strerror}", _HINTS.get(error.errno or 0)


def _not_a_directory(path: Path) -> Path | None:
    """Return the first part of a path that exists and is no directory; None if there is none."""
    existing = (part for part in reversed(path.parents) if os.path.lexists(part))
    return next((part for part in existing if not os.path.isdir(part)), None)  # noqa: PTH112 - Path.is_dir may raise


def _find_denied_path(path: Path) -> Path:
    """Return the path that denies access: the file if it exists, else the directory that it would be in."""
    if os.path.lexists(path) and not os.access(path, os.W_OK):
        return path
    return next((part for part in path.parents if os.path.lexists(part)), path)


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_HINT = "write its content to a file first: opscope reads inputs more than once and keeps their hash"


@contextlib.contextmanager
def opened(path: Path, hint: str | None = None) -> Iterator[IO[bytes]]:
    """Open a regular file for reading within the block.

    Pipes, process substitutions among them, are refused as devices are: the first bytes of a file are read before the
    rest, its hash beside it, and a gate or a validation reads it again; and opening a pipe that nobody writes to never
    ends.
    """
    with reading(path, hint), open_regular(path) as file:
        yield file


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading; the caller closes it.

    Raises:
        TraceFormatError: it is a pipe, a device or a socket.
    """
    kind = _special_kind(path.stat().st_mode)
    if kind is None:
        # A pipe that took the file's place meanwhile is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = _special_kind(os.fstat(descriptor).st_mode)
        if kind is None:
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    raise TraceFormatError(f"{kind}, not a regular file", where=path, hint=_HINT)


def _special_kind(mode: int) -> str | None:
    """Return what a pipe, device or socket is, in words; None for files and directories."""
    return _KINDS.get(stat.S_IFMT(mode))


_BLOCK = 1 << 20
_DESCRIPTORS = ("/dev/fd", "/proc/self/fd", "/proc/thread-self/fd")


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into StorageError with a hint."""
    try:
        yield
    except OSError as error:
        problem, hint = refusal(error, path)
        raise StorageError(f"cannot be written: {problem}", where=path, hint=hint) from error


def text_of(path: Path) -> str:
    """Return the text of a small file of the system, without blanks at its ends; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def is_stream(path: Path) -> bool:
    """Return whether a path is written to directly: a device, a FIFO, a socket, an open descriptor."""
    if descriptor_of(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def descriptor_of(path: Path) -> int | None:
    """Return the descriptor of this process that a path stands for, such as 1 for ``/dev/stdout``; else None."""
    homes = {os.path.realpath(home) for home in _DESCRIPTORS}
    for _ in range(8):  # links to links: /dev/stdout leads to /proc/self/fd/1
        if path.name.isdecimal() and os.path.lexists(path) and os.path.realpath(path.parent) in homes:
            return int(path.name)
        if not os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises where it may not look
            return None
        path = path.parent / os.readlink(path)  # noqa: PTH115 - text, which joins with a directory
    return None


def place_beside(file: Path, program: Path) -> str:
    """Return where a file goes that is copied with a program: as it lies below that directory, else beside."""
    below = file.is_relative_to(program.parent) and file.parent != program.parent
    return file.relative_to(program.parent).as_posix() if below else file.name


def leads_out(name: str) -> bool:
    """Return whether an archive member's or remote file's name could lead outside the directory it is put into."""
    climbs = name.startswith("/") or ".." in name.split("/")
    return climbs or "\\" in name or "\0" in name or name[1:2] == ":"


def head_of(path: Path, count: int) -> bytes:
    """The first bytes of a file, by which formats are told; raises as ``opscope.core.files.open_regular``."""
    with open_regular(path) as file:
        return file.read(count)


def blocks_of(path: Path) -> Iterator[bytes]:
    """The content of a file of any size, in parts; raises as ``opscope.core.files.open_regular``."""
    with open_regular(path) as file:
        while block := file.read(_BLOCK):
            yield block


def sha256_of(path: Path) -> str:
    """Hash of a file's content, in hexadecimal; raises as ``opscope.core.files.open_regular``."""
    digest = hashlib.sha256()
    for block in blocks_of(path):
        digest.update(block)
    return digest.hexdigest()


def labels(places: Sequence[Path]) -> list[str]:
    """A name for each directory: the last part of its path, with as many parts before it as make all names differ."""
    parts = [place.resolve().parts for place in places]
    depths = [1] * len(places)
    for _ in range(max(map(len, parts))):
        names = ["/".join(own[-depth:]) for own, depth in zip(parts, depths, strict=True)]
        alike = [names.count(name) > 1 for name in names]
        if not any(alike):
            break
        depths = [min(d + again, len(own)) for d, again, own in zip(depths, alike, parts, strict=True)]
    return names
