"""The program on 64-bit Arm Linux, as ``.ci/arm64`` prepares it: every process is one for Arm, under QEMU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_ENVIRONMENT = "OPSCOPE_ARM64"
PLACE = Path(os.environ.get(_ENVIRONMENT, "."))
MARKS = [
    pytest.mark.skipif(_ENVIRONMENT not in os.environ, reason="make test-arm64 prepares what this needs"),
    pytest.mark.timeout(3600),
]


def opscope(*words: object, name: str, code: int = 0) -> str:
    """What a command prints, also kept in the directory ``output`` under a name; its exit code is as expected."""
    command = [str(PLACE / "python"), "-m", "opscope", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    (PLACE / "output").mkdir(exist_ok=True)
    (PLACE / "output" / f"{name}.txt").write_text(said, encoding="utf-8")
    assert "Traceback" not in said, said
    assert done.returncode == code, said
    return done.stdout if code == 0 else said
