"""What is on disk in a bundle: regular files, and what must not be there. Links that lead out are never followed."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.bundle import EXCHANGED_FILES, MANIFEST, SCRATCH, SWITCH_SCRATCH, TEMPORARY, VARIANTS
from opscope.bundle.consistency import path_fault, stated_paths
from opscope.bundle.manifest import PlanSlot, Status, TracingMode
from opscope.bundle.validation import Problem
from opscope.core.system.memory import file_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from opscope.bundle.manifest import Manifest

_TRACE = re.compile(r".*(\.etdump|trace\.\w+\.json)(\.zst)?\Z")
"""The name of a trace, whatever runtime leaves it."""
_SCRATCH = {SCRATCH, SWITCH_SCRATCH}
MISSING = "is missing"
# A run that was killed leaves its reserve and its last talk with a process; --resume clears them away.
_TEMPORARY_NAMES = {
    Status.COMPLETE: EXCHANGED_FILES | {".reserve"},
    Status.INCOMPLETE: EXCHANGED_FILES,
    Status.RUNNING: set[str](),
}
_ATTEMPT = re.compile(r"(?P<arm>round|timed)-(?P<round>\d+)(?:-attempt-(?P<attempt>\d+))?\Z")
_ARMS = {"round": TracingMode.TRACED, "timed": TracingMode.TIMED}


class Inventory(NamedTuple):
    """Everything below the directory of a bundle."""

    root: Path
    sizes: dict[str, int]  # sizes of every regular file within the bundle, in bytes, by its path
    unusable: dict[str, str]  # reason by path: a link that leads out, a pipe, a directory that is closed
    directories: list[str]  # paths of all directories

    def fault(self, path: str) -> str | None:
        """Return why the file at a path cannot be read. None if it can."""
        if path in self.sizes:
            return None
        closed = (fault for parent, fault in self.unusable.items() if path.startswith(f"{parent}/"))
        if (fault := next(closed, None)) is not None:
            return f"is in a directory that {fault}"
        return path_fault(path) or self.unusable.get(path, MISSING)

    def content(self, path: str) -> bytes:
        """Return the bytes of a file that has no fault."""
        return file_bytes(self.root / path)


def read_inventory(root: Path) -> Inventory:
    """List the entries of a bundle. Links to directories are not followed."""
    inventory = Inventory(root, {}, {}, [])
    _list_directory(inventory, root.resolve(), "")
    return inventory


def _list_directory(inventory: Inventory, home: Path, directory: str) -> None:
    try:
        entries = sorted(os.scandir(inventory.root / directory), key=lambda entry: entry.name)
    except OSError as error:
        inventory.unusable[directory] = f"cannot be read: {error.strerror}"
        return
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        if entry.is_dir(follow_symlinks=False):
            inventory.directories.append(path)
            _list_directory(inventory, home, path)
            continue
        size, fault = _measure_file(inventory.root / path, home)
        if fault:
            inventory.unusable[path] = fault
        else:
            inventory.sizes[path] = size


def _measure_file(file: Path, home: Path) -> tuple[int, str]:
    """Return the size of a file in bytes, and why it cannot be read; "" if it can."""
    try:
        resolved = file.resolve(strict=True)
        state = resolved.stat()
    except (OSError, RuntimeError):
        return 0, "is a broken link"
    if not resolved.is_relative_to(home):
        return 0, "is a link that points outside the bundle"
    if not stat.S_ISREG(state.st_mode):
        return 0, "is not a regular file"
    return state.st_size, "" if os.access(file, os.R_OK) else "cannot be read: no permission"


def path_problems(manifest: Manifest, inventory: Inventory) -> Iterator[Problem]:
    """Yield stated paths that cannot be ones of a bundle, and entries of its directory that are no regular files."""
    for at, path in stated_paths(manifest):
        if fault := path_fault(path):
            yield Problem(MANIFEST, at, f"{path} {fault}")
    yield from (Problem(path, "", fault) for path, fault in inventory.unusable.items())


def leftovers(manifest: Manifest, inventory: Inventory, homes: Collection[str]) -> Iterator[Problem]:
    """Yield what no run that ended well leaves.

    That is half-written files, scratch directories, and variants, repetitions and traces that the manifest does not
    name. A directory of an attempt that was killed may stay, if its place was run again or is still open.

    Args:
        manifest: manifest of the bundle.
        inventory: inventory of its directory.
        homes: names of directories that variants have.
    """
    traces = {repetition.trace for repetition in manifest.repetitions}
    recorded = {repetition.directory for repetition in manifest.repetitions}
    for path in inventory.sizes:
        directory, _, name = path.rpartition("/")
        if TEMPORARY.match(name) or name in _TEMPORARY_NAMES[manifest.status]:
            yield Problem(path, "", "is a temporary file of a killed run or report")
        elif _TRACE.match(name) and directory in recorded and path not in traces:
            yield Problem(path, "", "is a trace without a repetition in the manifest")
    for path in inventory.directories:
        match path.split("/"):
            case ["variants", name] if name not in homes:
                yield Problem(path, "", "is a directory without a variant in the manifest")
            case ["variants", name, attempt] if name in homes and not _is_attempt(manifest, name, attempt):
                yield Problem(path, "", "is a directory without a repetition in the manifest")
            case ["variants", _, _, name] if name in _SCRATCH and manifest.status is Status.COMPLETE:
                yield Problem(path, "", "is a scratch directory of a killed run")


def _is_attempt(manifest: Manifest, variant: str, name: str) -> bool:
    """Return whether a record names the directory, or its attempt was killed and its place run again or is open."""
    if any(repetition.directory == f"{VARIANTS}/{variant}/{name}" for repetition in manifest.repetitions):
        return True
    match = _ATTEMPT.match(name)
    if match is None:
        return False
    slot = PlanSlot(int(match["round"]), variant, _ARMS[match["arm"]])
    attempt = int(match["attempt"] or 1)
    recorded = [repetition.attempt for repetition in manifest.repetitions if repetition.place == slot]
    return max(recorded, default=0) > attempt or (not recorded and slot in manifest.planned())
