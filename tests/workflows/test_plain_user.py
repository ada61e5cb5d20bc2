"""Commands of a user without rights: a folder that is read-only, no compiler, a full disk, Ctrl-C in an export.

Root becomes another user for them, since nothing is forbidden to root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from opscope.core.errors import EXIT_INTERRUPTED, StorageError
from waiting import HANG

ROOT = os.geteuid() == 0
_SOMEBODY = 54321
_SOURCE = Path(__file__).parents[2] / "src"
NETWORK = """import torch


def build():
    return torch.nn.Conv2d(3, 8, 3).eval(), (torch.ones(1, 3, 16, 16),)
"""


class User(NamedTuple):
    """Somebody with a Python, a home of their own, and a directory that they may only read."""

    python: str
    home: Path
    readable: Path

    def start(self, *words: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        """Begin a command, in a group of processes of its own."""
        path = os.pathsep.join([str(_SOURCE), sysconfig.get_path("purelib")])
        given = {"HOME": str(self.home), "PATH": os.defpath, "PYTHONPATH": path, "TMPDIR": str(self.home)}
        return subprocess.Popen(
            [self.python, "-m", "opscope", *words],
            cwd=cwd,
            env=given | {"PYTHONDONTWRITEBYTECODE": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **_identity(),
        )

    def run(self, *words: str, cwd: Path, **variables: str) -> tuple[int, str]:
        """The exit code of a command, and all that it says."""
        process = self.start(*words, cwd=cwd, **variables)
        said, _ = process.communicate(timeout=HANG)
        assert "Traceback" not in said
        return process.returncode, said


def _identity() -> dict[str, object]:
    return {"user": _SOMEBODY, "group": _SOMEBODY, "extra_groups": []} if ROOT else {}


@pytest.fixture(scope="module")
def user(toy_program: Path) -> Iterator[User]:
    """Another user than root, who has a Python like this one; the directories of pytest are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="opscope-test-"))
    home, readable = place / "home", place / "readable"
    for directory in (place, home, readable):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
    shutil.copyfile(toy_program, readable / "model.pte")
    (readable / "my_net.py").write_text(NETWORK)
    readable.chmod(0o555)
    if ROOT:
        os.chown(home, _SOMEBODY, _SOMEBODY)
    try:
        yield User(_python(home, readable), home, readable)
    finally:
        readable.chmod(0o755)
        shutil.rmtree(place)


def _python(home: Path, readable: Path) -> str:
    """One of this version that the user may start, with all that is installed here."""
    usual = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, usual):
        if _starts(User(python, home, readable)):
            return python
    pytest.skip("no Python of this version that another user may start")


def _starts(user: User) -> bool:
    try:
        return user.run("--version", cwd=user.home)[0] == 0
    except OSError:  # it lies where nobody but root may look
        return False


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("profile model.pte --quick", "opscope-out"),
        ("export my_net.py", "opscope-out"),
        ("init --model net", "opscope-models"),
        ("preflight model.pte --json found.json", "found.json"),
    ],
)
def test_a_read_only_directory_is_named(user: User, words: str, file: str) -> None:
    """With its exit code and the way out; nothing is left in it."""
    before = sorted(user.readable.iterdir())
    code, said = user.run(*words.split(), cwd=user.readable)
    assert code == StorageError.exit_code, said
    assert f"error: {file}" in said
    assert "cannot be written: permission denied" in said
    assert "hint:  choose a place that you can write to" in said
    assert sorted(user.readable.iterdir()) == before


@pytest.mark.runtime
def test_without_a_compiler_models_run_from_python(user: User) -> None:
    """Say so, with what to install, by doctor and in the report.

    A directory that is read-only is fine, with the result in one that is not.
    """
    bare = user.home / "bin"
    bare.mkdir(mode=0o755)
    code, said = user.run("doctor", cwd=user.home, PATH=str(bare))
    assert code == 0, said
    assert "there is no C++ compiler: cannot build the native runner" in said
    assert "-> install a C++17 compiler (Debian: apt install g++, macOS: xcode-select --install)" in said
    words = ("profile", "model.pte", "--quick", "--out", str(user.home / "plain"))
    code, said = user.run(*words, cwd=user.readable, PATH=str(bare))
    assert code == 0, said
    assert "C++" in (user.home / "plain" / "report.html").read_text("utf-8")


@pytest.mark.runtime
def test_an_interrupted_export_leaves_nothing_in_its_way(user: User) -> None:
    """No program that could be taken for a whole one; the same command then exports."""
    words = ("export", str(user.readable / "my_net.py"), "--out", "exported")
    process = user.start(*words, cwd=user.home)
    assert process.stdout
    for line in process.stdout:
        if "torch.export" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=HANG)
    assert process.returncode == EXIT_INTERRUPTED
    assert list(user.home.glob("exported/**/*.pte")) == []
    code, said = user.run(*words, cwd=user.home)
    assert code == 0, said
    assert len(list(user.home.glob("exported/**/*.pte"))) == 1


@pytest.mark.skipif(not ROOT, reason="needs root to mount a file system")
def test_a_full_disk_is_named(user: User) -> None:
    """What has no room is named, and so is what to do."""
    full = user.home / "full"
    full.mkdir()
    options = f"size=64k,mode=700,uid={_SOMEBODY}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", full], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        (full / "fill").write_bytes(bytes(60 << 10))
        code, said = user.run("profile", str(user.readable / "model.pte"), "--quick", cwd=full)
    finally:
        subprocess.run(["umount", full], check=True)
    assert code == StorageError.exit_code, said
    assert "cannot be written: no space left on the file system" in said
    assert "hint:  free some space or choose another place" in said
