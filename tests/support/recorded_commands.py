"""Answers of commands that cost much, as they were once: what pages of the documents run every day.

A directory with a program ``opscope`` stands first on the PATH of a page. Where the answer of a command is recorded, it
prints that and leaves the files that the command left; else it becomes the real one. An answer belongs to the words of
the command and to the models and configurations in its directory, so that it is not taken for another. The nightly
tests run all for real; ``pytest tests/docs/test_docs_run.py -m nightly --record-commands`` records what costs more than
``MOST`` CPU seconds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scrub import scrubbed
from session_files import cpu_seconds

RECORDED = Path(__file__).parents[1] / "data" / "commands"
MOST = 2.5
LARGEST = 400_000
"""Bytes of a recording that is kept; a page with a larger answer is run at night only."""
_RECORDING, _REAL = "RECORD_COMMANDS", "REAL_OPSCOPE"
_INPUTS = (".py", ".toml")


def environment(place: Path, *, record: bool) -> dict[str, str]:
    """Variables by which ``opscope`` on the PATH is this program.

    Args:
        place: a new directory for it.
        record: run everything, and record what is dear.
    """
    place.mkdir()
    script = place / "opscope"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    script.chmod(0o755)
    real = Path(sys.executable).with_name("opscope")
    return {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", _REAL: str(real), _RECORDING: "1" if record else ""}


def recording_of(words: Sequence[str], place: Path) -> Path:
    """Where the answer of a command in a directory is recorded, or would be."""
    plain = [Path(word).name if word.endswith("toy_cnn.pte") else word for word in words]
    said = hashlib.sha256(json.dumps(plain).encode())
    for file in sorted(path for path in place.iterdir() if path.suffix in _INPUTS and path.name != "block.py"):
        said.update(file.name.encode() + file.read_bytes())
    return RECORDED / f"{said.hexdigest()[:16]}.tar.xz"


def answer(recording: Path, place: Path) -> int:
    """Do what a recorded command did; its exit code."""
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(recording) as archive:
            archive.extractall(work, filter="data")
        for path in sorted((Path(work) / "files").rglob("*")):
            target = place / path.relative_to(Path(work) / "files")
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                shutil.move(path, target)
        said = json.loads((Path(work) / "answer.json").read_text("utf-8"))
    sys.stdout.write(said["stdout"])
    sys.stderr.write(said["stderr"])
    return int(said["code"])


def record(command: Sequence[str], recording: Path, place: Path) -> int:
    """Run a command; keep what it printed and left where it cost much."""
    before, cost = _state(place), cpu_seconds()
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    if cpu_seconds() - cost > MOST and "--resume" not in command:
        changed = [path for path, state in _state(place).items() if before.get(path) != state]
        recording.parent.mkdir(exist_ok=True)
        told = {"words": command[1:], "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        files = {f"files/{path}": (place / path).read_bytes() for path in changed if (place / path).is_file()}
        files["answer.json"] = json.dumps(told, indent=1).encode()
        with tarfile.open(recording, "w:xz") as archive:
            for name, data in scrubbed(files).items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        if recording.stat().st_size > LARGEST:
            recording.unlink()
    return done.returncode


def _state(place: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in sorted(place.rglob("*")) if not path.is_symlink())
    return {str(path.relative_to(place)): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


def main(words: list[str]) -> int:
    """Stand in for ``opscope``."""
    place, command = Path.cwd(), [os.environ[_REAL], *words]
    recording = recording_of(words, place)
    if os.environ[_RECORDING]:
        return record(command, recording, place)
    if recording.exists() and "--resume" not in words:
        return answer(recording, place)
    sys.stdout.flush()
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
