"""Packages of the Python index in directories of their own, for tests that download."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
