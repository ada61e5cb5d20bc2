"""Large files without reading them: only the pages that a reader looks at are loaded."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from opscope.core.errors import reading

if TYPE_CHECKING:
    from pathlib import Path


def advise_dontneed(data: memoryview, end: int) -> None:
    """Give the memory of a mapped file up to a byte back; what is looked at again is loaded again."""
    mapping = data.obj
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, 0, end // mmap.PAGESIZE * mmap.PAGESIZE)


def mapped_file(path: Path) -> memoryview:
    """The bytes of a file, mapped into memory. They are valid as long as nobody shortens the file.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
    """
    with reading(path), path.open("rb") as stream:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
