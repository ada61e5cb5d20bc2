"""Whether a run is active in a bundle."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

from opscope.bundle.bundle import LOCK

if TYPE_CHECKING:
    from pathlib import Path


def is_held(path: Path) -> bool:
    """Whether a run holds the bundle now; nothing is changed, and a run that is about to begin is not hindered."""
    try:
        with (path / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
