"""The order in which CI runs the nightly tests until its time is over."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from quick import list_changed_files, run_git, tests_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def changed_rooms() -> set[str]:
    """Return the folders of tests of all rooms that changed since the last commit that is a day older than the newest.

    A branch lands as many commits at once, and a clone does not tell where it began.
    """
    newest = int(run_git("show", "--no-patch", "--format=%ct", "HEAD")[0])
    older = run_git("rev-list", "--max-count=1", f"--before={newest - 24 * 3600}", "HEAD")
    return {str(room) for room in map(tests_of, list_changed_files(older[0] if older else "HEAD")) if room}


def order_units(units: Iterable[str], rooms: Collection[str], commit: str) -> list[str]:
    """Order units of tests: those of changed rooms first; within both groups each commit shuffles anew.

    Args:
        units: files of tests, or node identifiers, by their paths within the repository.
        rooms: folders of tests.
        commit: decides the shuffle.
    """

    def key(unit: str) -> tuple[bool, str]:
        room = "/".join(Path(unit.partition("::")[0]).parts[:2])
        return room not in rooms, sha256(f"{commit} {unit}".encode()).hexdigest()

    return sorted(set(units), key=key)
