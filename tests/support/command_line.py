"""The command line as a user types it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest


def opscope(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "opscope", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def ended_here(*arguments: str | Path) -> int:
    """The exit code of the command, in this process: what a test has changed in it counts."""
    from opscope.cli.main import main

    before = signal.getsignal(signal.SIGTERM)
    words = mock.patch.object(sys, "argv", ["opscope", *map(str, arguments)])
    hook = mock.patch.object(sys, "unraisablehook", sys.unraisablehook)
    try:
        with words, hook, pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(ended.value.code or 0)
