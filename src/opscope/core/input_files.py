"""The content of files that a user names, of as much memory as reading may take."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opscope.core.files import opened
from opscope.core.system.memory import limited, memory_limit, too_large

if TYPE_CHECKING:
    from pathlib import Path


def file_bytes(path: Path, hint: str | None = None) -> bytes:
    """All bytes of a file."""
    with opened(path, hint) as file, limited(path):
        if os.fstat(file.fileno()).st_size > memory_limit():
            raise too_large(path)
        return file.read()
