"""For which libraries a bundle has shown that a mechanism itself changes nothing: kept by hash, in the user's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import StorageError
from opscope.core.files import write_atomically
from opscope.core.system.cache import cache_directory

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY = "switch-shown"


def is_shown(libraries: str) -> bool:
    """Whether that was shown for libraries; a cache that cannot be used has shown nothing."""
    try:
        return _file(libraries).exists()
    except (StorageError, OSError):
        return False


def keep_shown(libraries: str) -> None:
    """Keep that it was shown; where nothing can be kept, it is shown again by the next bundle."""
    try:
        file = _file(libraries)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, b"")
    except (StorageError, OSError):
        return


def _file(libraries: str) -> Path:
    return cache_directory() / _DIRECTORY / libraries
