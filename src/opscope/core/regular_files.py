"""Opening files that a user names: regular ones only, and in one way for all readers."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import IO, TYPE_CHECKING

from opscope.core.errors import TraceFormatError, reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
