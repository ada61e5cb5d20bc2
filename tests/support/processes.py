"""Processes that a test started, seen from outside."""

from __future__ import annotations

from pathlib import Path


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
