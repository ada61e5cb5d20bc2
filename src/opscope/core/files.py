"""Writing files so that a reader sees the old content or the new one, and that what the system refuses is said.

Files of opscope's own places (bundles, stores, the cache) are written by :func:`write_atomically` or
:func:`write_new`, what a user asked for by :func:`opscope.core.outputs.write_outputs`, which asks whether it may
replace what is there. Scratch files of its own processes are the exception. ``tests/house/test_one_writer.py`` holds
the sources against it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from opscope.core.errors import StorageError, TraceFormatError, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
        return "permission denied", f"choose a place that you can write to; {_denying(path)} denies it"
    return _SAID.get(error.errno or 0, (error.strerror or str(error), _ELSEWHERE))


def unknown_refusal(error: OSError) -> tuple[str, str | None]:
    """Problem and hint for what the system refused, where it is not known whether something was read or written."""
    return f"the system refused it: {error.strerror}", _HINTS.get(error.errno or 0)


def _not_a_directory(path: Path) -> Path | None:
    """The first part of a path that is there and no directory."""
    there = (part for part in reversed(path.parents) if os.path.lexists(part))
    return next((part for part in there if not os.path.isdir(part)), None)  # noqa: PTH112 - Path.is_dir may raise


def _denying(path: Path) -> Path:
    """What denies it: the file that is there, or the directory that it would be in."""
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
    """A regular file, open for reading.

    Pipes, process substitutions among them, are refused as devices are: the first bytes of a file are read before the
    rest, its hash beside it, and a gate or a validation reads it again; and opening a pipe that nobody writes to never
    ends.
    """
    with reading(path, hint), open_regular(path) as file:
        yield file


def open_regular(path: Path) -> IO[bytes]:
    """The same as a plain file object."""
    kind = _kind(path.stat().st_mode)
    if kind is None:
        # A pipe that took the file's place meanwhile is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = _kind(os.fstat(descriptor).st_mode)
        if kind is None:
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    raise TraceFormatError(f"{kind}, not a regular file", where=path, hint=_HINT)


def _kind(mode: int) -> str | None:
    """What something is that is not read; None for a file, and for a directory, which the system refuses to read."""
    return _KINDS.get(stat.S_IFMT(mode))


_BLOCK = 1 << 20
_LONGEST_STEM = 32
"""Letters of a file's name in that of its temporary file, which must not be too long where the name itself is not."""
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
    """The text of a small file of the system's, without blanks at its ends; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview], *, follow: bool = True) -> None:
    """Write a file: a regular or new one in one step and durably, anything else directly.

    A file that is there keeps its mode, and its owner where the system allows it. Links are followed, and stay links.
    A device, a FIFO or an open descriptor (``/dev/stdout``, ``/dev/fd/63`` of a process substitution) holds nothing
    that could be replaced: it is opened and written to.
    """
    with written_atomically(path, follow=follow) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@contextlib.contextmanager
def written_atomically(
    path: Path, *, follow: bool = True, may_replace: Callable[[Path, Path], None] | None = None
) -> Iterator[IO[bytes]]:
    """A file to write to, as by :func:`write_atomically`: it comes to its place when the block ends without error."""
    with storage_errors(path):
        real = Path(os.path.realpath(path)) if follow else path
        with _stream(path) if follow and is_stream(path) else _replacement(real, may_replace) as file:
            yield file


def write_new(path: Path, content: bytes) -> bool:
    """Write a file that is not there yet; anything but a regular file is written to directly.

    Returns whether it was written; False: something is there, and stays as it is.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _stream(path) if is_stream(path) else _created(path) as file:
                file.write(content)
        except FileExistsError:
            return False
        return True


def is_stream(path: Path) -> bool:
    """Whether a path names what is written to directly: a device, a FIFO, a socket, an open descriptor."""
    if descriptor_of(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def descriptor_of(path: Path) -> int | None:
    """The descriptor of this process that a path stands for, as ``/dev/stdout`` does for 1; None for all others."""
    homes = {os.path.realpath(home) for home in _DESCRIPTORS}
    for _ in range(8):  # links to links: /dev/stdout leads to /proc/self/fd/1
        if path.name.isdecimal() and os.path.lexists(path) and os.path.realpath(path.parent) in homes:
            return int(path.name)
        if not os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises where it may not look
            return None
        path = path.parent / os.readlink(path)  # noqa: PTH115 - text, which joins with a directory
    return None


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[IO[bytes]]:
    """What is there, neither created nor truncated; an open descriptor goes on where it stands."""
    descriptor = descriptor_of(path)
    if descriptor is None:
        opened = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    else:
        for printed in filter(None, (sys.stdout, sys.stderr)):  # None where they were closed
            printed.flush()
        opened = os.dup(descriptor)
    with os.fdopen(opened, "wb") as file:
        yield file


@contextlib.contextmanager
def _replacement(path: Path, may_replace: Callable[[Path, Path], None] | None) -> Iterator[IO[bytes]]:
    """A file that takes the place of what is there at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:_LONGEST_STEM]}.{os.urandom(4).hex()}.tmp")
    with _created(temporary, _replaceable(path)) as file:
        yield file
    try:
        if may_replace is not None:
            may_replace(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _replaceable(path: Path) -> os.stat_result | None:
    """The file that will be replaced; None where there is none, or what has no content of its own."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return None
    os.close(os.open(path, os.O_WRONLY))  # replacing asks only the directory whether it may
    return status


@contextlib.contextmanager
def _created(path: Path, like: os.stat_result | None = None) -> Iterator[IO[bytes]]:
    """A file that must not be there, with the mode and owner of another; of one that fails nothing is left."""
    with path.open("xb") as file:
        try:
            yield file
            file.flush()
            if like is not None:
                _keep_owner_and_mode(file.fileno(), like)
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _keep_owner_and_mode(file: int, like: os.stat_result) -> None:
    made = os.fstat(file)
    for owner in (like.st_uid, -1):
        if (made.st_uid, made.st_gid) == (like.st_uid, like.st_gid):
            break
        with contextlib.suppress(PermissionError):  # only root may give files away; the group may be one of ours
            os.fchown(file, owner, like.st_gid)
            break
    if stat.S_IMODE(made.st_mode) != stat.S_IMODE(like.st_mode):
        os.fchmod(file, stat.S_IMODE(like.st_mode))


@contextlib.contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """A directory that is made here, and removed with all that is in it when the block ends."""
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def discard(directory: Path, names: Iterable[str]) -> None:
    """Remove files of opscope's by their names, and their directory when nothing else is in it."""
    with storage_errors(directory):
        for name in names:
            (directory / name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if not any(directory.iterdir()):
                directory.rmdir()


def place_beside(file: Path, program: Path) -> str:
    """Where a file goes that is copied along with a program: as it lies below the program's directory, else beside."""
    below = file.is_relative_to(program.parent) and file.parent != program.parent
    return file.relative_to(program.parent).as_posix() if below else file.name


def leads_out(name: str) -> bool:
    """Whether the name of an archive's member, or of a file that another machine sent, is not one below a directory."""
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
