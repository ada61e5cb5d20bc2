"""The content of files that a user names, of as much memory as reading may take."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opscope.core.regular_files import opened
from opscope.core.system.memory import limited, memory_limit, too_large

if TYPE_CHECKING:
    from pathlib import Path


def file_bytes(path: Path, hint: str | None = None) -> bytes:
    """All bytes of a file.

    Args:
        path: of the file.
        hint: the next step where it is missing.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is not a regular file.
        MemoryLimitError: it is larger than what reading may take.
    """
    with opened(path, hint) as file, limited(path):
        if os.fstat(file.fileno()).st_size > memory_limit():
            raise too_large(path)
        return file.read()
