"""What the operating system refused: in words, with what to do about it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
