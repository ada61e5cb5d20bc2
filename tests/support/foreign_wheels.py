"""Wheels of others from the Python index, each by its version and hash, for tests that download."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 27, 28, 35)]
"""Of the wheels that are asked for; one of 3.11 is read by any Python."""


class ForeignWheel(NamedTuple):
    """A wheel of the Python index."""

    name: str
    version: str
    sha256: str


def downloaded(wheel: ForeignWheel, directory: Path) -> Path:
    """The file of a wheel, downloaded once to a directory; where that cannot be the test is skipped."""
    pattern = f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl"
    found = next(directory.glob(pattern), None)
    if found is None:
        asked = f"{wheel.name}=={wheel.version}"
        places = [word for platform in _PLATFORMS for word in ("--platform", platform)]
        places += ["--python-version", "3.11", "--only-binary", ":all:", "--no-deps", "-d", str(directory)]
        _pip("download", *places, asked)
        found = next(directory.glob(pattern))
    assert hashlib.sha256(found.read_bytes()).hexdigest() == wheel.sha256
    return found


def installed(packages: Sequence[str], directory: Path, *, whole: bool = False) -> Path:
    """A directory for ``PYTHONPATH`` with packages, and with what they need where that is wanted."""
    _pip("install", *([] if whole else ["--no-deps"]), "--target", str(directory), *packages)
    return directory


def _pip(*words: str) -> None:
    # All other tests forbid pip the index.
    variables = {name: value for name, value in os.environ.items() if name != "PIP_NO_INDEX"}
    command = [sys.executable, "-m", "pip", words[0], "--quiet", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=variables)
    if done.returncode:
        pytest.skip(f"pip {words[0]} of {words[-1]} failed: {done.stderr[-200:]}")
