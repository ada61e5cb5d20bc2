"""What is on disk in a bundle: regular files, and what must not be there. Links that lead out are never followed."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.bundle import VARIANTS
from opscope.bundle.consistency import path_fault, values_paths
from opscope.bundle.manifest import Status, TracingMode
from opscope.bundle.validation import Problem
from opscope.core.system.memory import file_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from opscope.bundle.manifest import Manifest

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp\Z")
_TRACE = re.compile(r".*(\.etdump|trace\.\w+\.json)(\.zst)?\Z")
"""The name of a trace, whatever runtime leaves it."""
TALK = {"request.json", "answer.json", "ended.json"}
"""What a process is asked and answers, while it runs."""
# A run that was killed leaves its reserve and its last talk with a process; --resume clears them away.
_PASSING = {Status.COMPLETE: TALK | {".reserve"}, Status.INCOMPLETE: TALK, Status.RUNNING: set[str]()}
_ATTEMPT = re.compile(r"(?P<arm>round|timed)-(?P<round>\d+)(?:-attempt-(?P<attempt>\d+))?\Z")
_ARMS = {"round": TracingMode.TRACED, "timed": TracingMode.TIMED}


class Inventory(NamedTuple):
    """Everything below the directory of a bundle."""

    root: Path  # the directory
    sizes: dict[str, int]  # of every regular file within the bundle, in bytes, by its path
    # paths that are no such file, with the reason: a link that leads out, a pipe, a directory that is closed
    unusable: dict[str, str]
    directories: list[str]  # paths of all directories

    def fault(self, path: str) -> str | None:
        """Why the file at a path cannot be read; None when it can."""
        return path_fault(path) or self.unusable.get(path) or self._absent(path)

    def _absent(self, path: str) -> str | None:
        if path in self.sizes:
            return None
        parents = [path[:at] for at, character in enumerate(path) if character == "/"]
        closed = next((self.unusable[parent] for parent in parents if parent in self.unusable), None)
        return f"is in a directory that {closed}" if closed else "is missing"

    def content(self, path: str) -> bytes:
        """Bytes of a file that has no fault."""
        return file_bytes(self.root / path)


def inventory(root: Path) -> Inventory:
    """Look through a bundle; links to directories are not followed."""
    found = Inventory(root, {}, {}, [])
    _walk(found, root.resolve(), "")
    return found


def _walk(found: Inventory, home: Path, directory: str) -> None:
    try:
        entries = sorted(os.scandir(found.root / directory), key=lambda entry: entry.name)
    except OSError as error:
        found.unusable[directory] = f"cannot be read: {error.strerror}"
        return
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        if entry.is_dir(follow_symlinks=False):
            found.directories.append(path)
            _walk(found, home, path)
        else:
            _note(found, home, path)


def _note(found: Inventory, home: Path, path: str) -> None:
    file = found.root / path
    try:
        resolved = file.resolve(strict=True)
        state = resolved.stat()
    except (OSError, RuntimeError):
        found.unusable[path] = "is a broken link"
        return
    if not resolved.is_relative_to(home):
        found.unusable[path] = "is a link that points outside the bundle"
    elif not stat.S_ISREG(state.st_mode):
        found.unusable[path] = "is not a regular file"
    elif not os.access(file, os.R_OK):
        found.unusable[path] = "cannot be read: no permission"
    else:
        found.sizes[path] = state.st_size


def stated_paths(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Every path that a manifest states, with its place in the manifest."""
    for at, model in manifest.models.items():
        yield f"{at}.program", model.program
        if model.etrecord is not None:
            yield f"{at}.etrecord", model.etrecord
        if model.data is not None:
            yield f"{at}.data", model.data
    yield from ((at, path) for at, path in values_paths(manifest) if path is not None)
    for number, repetition in enumerate(manifest.repetitions):
        yield f"repetitions[{number}].directory", repetition.directory
        if repetition.trace is not None:
            yield f"repetitions[{number}].trace", repetition.trace
        for name in repetition.files_sha256:
            yield f"repetitions[{number}].files_sha256", f"{repetition.directory}/{name}"


def path_problems(manifest: Manifest, found: Inventory) -> Iterator[Problem]:
    """Stated paths that cannot be ones of this bundle, and what lies in it that is no file of it."""
    for at, path in stated_paths(manifest):
        fault = path_fault(path)
        if fault:
            yield Problem("manifest.json", at, f"{path} {fault}")
    for path, fault in found.unusable.items():
        yield Problem(path, "", fault)


def leftovers(manifest: Manifest, found: Inventory, homes: Collection[str]) -> Iterator[Problem]:
    """What no run that ended well leaves: half-written files, and directories and traces that no record names."""
    traces = {repetition.trace for repetition in manifest.repetitions}
    recorded = {repetition.directory for repetition in manifest.repetitions}
    for path in found.sizes:
        name = path.rpartition("/")[2]
        if _TEMPORARY.match(name) or name in _PASSING[manifest.status]:
            yield Problem(path, "", "is a temporary file of a killed run or report")
        elif _TRACE.match(name) and path.rpartition("/")[0] in recorded and path not in traces:
            yield Problem(path, "", "is a trace without a repetition in the manifest")
    for path in found.directories:
        match path.split("/"):
            case ["variants", name] if name not in homes:
                yield Problem(path, "", "is a directory without a variant in the manifest")
            case ["variants", name, attempt] if name in homes and not _explained(manifest, name, attempt):
                yield Problem(path, "", "is a directory without a repetition in the manifest")


def _explained(manifest: Manifest, variant: str, name: str) -> bool:
    """Whether a record names it, or it was left by a run that was killed and whose place was run again or is open."""
    if any(r.directory == f"{VARIANTS}/{variant}/{name}" for r in manifest.repetitions):
        return True
    match = _ATTEMPT.match(name)
    if match is None:
        return False
    place = int(match["round"]), variant, _ARMS[match["arm"]]
    attempt = int(match["attempt"] or 1)
    recorded = [r.attempt for r in manifest.repetitions if tuple(r.place) == place]
    return any(other > attempt for other in recorded) or (not recorded and place in map(tuple, manifest.planned()))
