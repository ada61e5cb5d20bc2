"""The command line on a real terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_VARIABLES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OnTerminal(NamedTuple):
    """What a command left on a terminal.

    Attributes:
        returncode: of the command.
        raw: all that was written, with escape sequences.
    """

    returncode: int
    raw: str

    @property
    def text(self) -> str:
        """Everything without escape sequences, what was overwritten included."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()


def on_terminal(*arguments: str | Path, columns: int = 80, **variables: str) -> OnTerminal:
    """Run opscope with a pseudo-terminal of this many columns as input, output and errors.

    Args:
        arguments: of the command.
        columns: of the terminal.
        variables: of its environment, beside those that tell nothing of terminals.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-m", "opscope", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **variables},
    )
    os.close(theirs)
    parts = []
    with contextlib.suppress(OSError):  # the end of a terminal on Linux
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    return OnTerminal(process.wait(), b"".join(parts).decode())
