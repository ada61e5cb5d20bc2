"""The Makefile refuses a Python that opscope does not support before it makes anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(target: str, python: Path, venv: Path) -> subprocess.CompletedProcess[str]:
    """Run a target with a Python and a directory for the environment."""
    environment = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL"}}
    command = ["make", target, f"PYTHON={python}", f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def write_python(path: Path, version: str) -> Path:
    """Write a program that says of itself that it is a version of Python, as macOS's own is 3.9."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["demo", "test"])
def test_an_old_python_is_refused_and_nothing_is_made(target: str, tmp_path: Path) -> None:
    """The message says what to type."""
    done = make(target, write_python(tmp_path / "bin" / "python3", "3.9"), tmp_path / "venv")
    assert done.returncode == 2
    assert "is Python 3.9; opscope needs Python 3.10 to 3.14" in done.stderr
    assert f"make {target} PYTHON=python3.1" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_an_environment_of_an_old_python_is_to_be_removed(tmp_path: Path) -> None:
    """Whoever made it before is told, whatever PYTHON is now."""
    write_python(tmp_path / "venv" / "bin" / "python", "3.9")
    done = make("demo", tmp_path / "python3.12", tmp_path / "venv")
    assert done.returncode == 2
    assert "type: make clean; " in done.stderr


def test_a_python_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    """No venv is left behind."""
    done = make("demo", tmp_path / "python3", tmp_path / "venv")
    assert done.returncode == 2
    assert "cannot be run; opscope needs Python 3.10 to 3.14" in done.stderr
    assert not (tmp_path / "venv").exists()
