"""Commands in the process of a test, with what they wrote to each of their streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import ended_here
from ended import Command, Ended
from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from programs import write_tiny_program


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in this process, in a directory ``cwd`` where one is given; no traceback may be shown."""

    def run(*words: object, cwd: Path | None = None) -> Ended:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capfd.readouterr()
        done = Ended(ended_here(*words), *capfd.readouterr())
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle of a machine with AVX-512, on and off, of which tests may only write the reports again."""
    directory = tmp_path_factory.mktemp("bundle")
    program, settings = write_tiny_program(directory), Settings(rounds=8, runs=4, warmup=1)
    return profile(program, settings=settings, out=directory / "out", target=FakeTarget(), clock=FakeClock()).path
