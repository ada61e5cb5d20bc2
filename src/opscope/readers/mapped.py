"""Large files without reading them: only the pages that a reader looks at are loaded."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

from opscope.core.regular_files import opened

if TYPE_CHECKING:
    from pathlib import Path

_LARGE = 1 << 26


def advise_dontneed(data: memoryview, end: int) -> None:
    """Give the memory of a mapped file up to a byte back; what is looked at again is loaded again."""
    mapping = data.obj
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, 0, end // mmap.PAGESIZE * mmap.PAGESIZE)


def mapped_file(path: Path) -> memoryview:
    """The bytes of a file, mapped into memory. They are valid as long as nobody shortens the file."""
    with opened(path) as stream:
        if not os.fstat(stream.fileno()).st_size:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError from error
            raise


def file_view(path: Path) -> bytes | memoryview:
    """The bytes of a file: of a small one a copy, which nobody changes, a large one mapped."""
    with opened(path) as stream:
        if os.fstat(stream.fileno()).st_size < _LARGE:
            return stream.read(_LARGE)
    return mapped_file(path)
