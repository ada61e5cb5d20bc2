"""A program ``nice`` that writes down what it was asked for, and gives way to nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SCRIPT = """#!/bin/sh
echo "$1 $2" >> "{asked}"
shift 2
exec "$@"
"""


def writes_down(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put it first on the PATH of processes of this machine; the file that it writes to."""
    script = directory / "bin" / "nice"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(asked=directory / "asked"))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    return directory / "asked"
