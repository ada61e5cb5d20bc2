"""``--timeout`` bounds whole runs: whatever hangs is ended with what it started, and not tried over and over.

A limit of these tests is more than ten times what they take on a quiet machine, and less than the usual limit of one
question to a runner, which is a minute.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import RunError
from opscope.experiment.target import RunTarget
from opscope.runtimes.executorch.runners.python import python_here
from processes import has_ended
from programs import write_tiny_program
from runners import write_runner
from waiting import eventually

LIMIT = 55.0
HANGS = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path({pids!r}, str(os.getpid())).touch(); time.sleep(600)"
)
IN_NATIVE_CODE = (
    "import ctypes, os, pathlib; pathlib.Path({pids!r}, str(os.getpid())).touch(); ctypes.PyDLL(None).sleep(600)"
)


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """A directory in which each process that hangs leaves a file with its number as the name."""
    directory = tmp_path / "pids"
    directory.mkdir()
    return directory


def _profile(directory: Path, name: str, target: RunTarget | None = None) -> tuple[str, float]:
    """Return why a run of one-second processes failed, and how many seconds it took."""
    settings, began = Settings(target=name, timeout=1.0, rounds=6), time.monotonic()
    with pytest.raises(RunError) as caught:
        profile(write_tiny_program(directory), settings=settings, out=directory / "out", target=target)
    return str(caught.value), time.monotonic() - began


def test_a_runner_that_hangs_when_it_is_asked_for_its_flags(tmp_path: Path, pids: Path) -> None:
    """It is asked once, for as long as one process may take."""
    runner = write_runner(tmp_path)
    text = runner.read_text()
    runner.write_text(
        text.replace('if words == ["--help"]:', f'if words == ["--help"]:\n    {HANGS.format(pids=str(pids))}')
    )
    reason, seconds = _profile(tmp_path, f"runner:{runner}")
    assert "did not answer --help within 1 s" in reason
    assert seconds < LIMIT
    assert len(list(pids.iterdir())) == 1
    assert all(eventually(lambda path=path: has_ended(int(path.name))) for path in pids.iterdir())


def test_a_runner_that_hangs_in_every_run(tmp_path: Path, pids: Path) -> None:
    """Two processes of the six rounds show that it does, although it ignores a polite request to end."""
    runner = write_runner(tmp_path, HANGS.format(pids=str(pids)))
    reason, seconds = _profile(tmp_path, f"runner:{runner}")
    assert "timed out after 1 s" in reason
    assert seconds < LIMIT
    failures = [one.failure for one in Bundle.open(tmp_path / "out").manifest.failures()]
    assert [failure.kind for failure in failures if failure] == [FailureKind.TIMEOUT] * 2
    assert len(list(pids.iterdir())) == 2
    assert all(eventually(lambda path=path: has_ended(int(path.name))) for path in pids.iterdir())


def test_a_python_that_hangs_in_native_code(tmp_path: Path, pids: Path) -> None:
    """It does when it is asked for the CPU's features, and in every run, with the interpreter's lock held."""
    target = python_here([sys.executable, "-c", IN_NATIVE_CODE.format(pids=str(pids))])
    reason, seconds = _profile(tmp_path, "local", target)
    assert "timed out after 1 s" in reason
    assert seconds < LIMIT
    assert all(eventually(lambda path=path: has_ended(int(path.name))) for path in pids.iterdir())


@pytest.mark.runtime
def test_a_native_runner_that_hangs(tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler at hand makes one that starts, and answers no question."""
    compiler = tmp_path / "compiler"
    runner = rf'#!/bin/sh\n[ "$1" = --help ] \&\& exit 0\ntrap "" TERM\n: >{pids}/$$\nexec sleep 600\n'.replace(
        "\\&", "&"
    )
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "cc 1.0" && exit 0\n'
        f'for out; do :; done\nprintf \'{runner}\' >"$out"; chmod +x "$out"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    reason, seconds = _profile(tmp_path, "native")
    assert "timed out after 1 s" in reason
    assert seconds < LIMIT
    assert all(eventually(lambda path=path: has_ended(int(path.name))) for path in pids.iterdir())
