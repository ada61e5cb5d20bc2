"""Writing files so that a reader sees the old content or the new one, and that a full disk is said."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from opscope.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


_BLOCK = 1 << 20


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into StorageError with a hint.

    Raises:
        StorageError: naming the path and what the system said.
    """
    try:
        yield
    except OSError as error:
        hint = "free some space or choose another place; what was already measured is kept"
        raise StorageError(f"cannot be written: {error.strerror or error}", where=path, hint=hint) from error


def text_of(path: Path) -> str:
    """The text of a small file of the system's, without blanks at its ends; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Replace a file by new content in one step, durably.

    Args:
        path: the file; its directory is made when it is missing.
        content: all bytes, or parts of them that are written as they come.

    Raises:
        StorageError: the system refused; the old content is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def head_of(path: Path, count: int) -> bytes:
    """The first bytes of a file, by which formats are told."""
    with path.open("rb") as file:
        return file.read(count)


def sha256_of(path: Path) -> str:
    """Hash of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
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
