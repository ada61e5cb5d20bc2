"""The command line as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def opscope(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "opscope", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
