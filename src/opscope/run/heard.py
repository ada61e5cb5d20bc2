"""A process that is heard while it runs: its lines, and its end."""

from __future__ import annotations

import contextlib
import queue
import subprocess

_END_SECONDS = 5.0


class HeardLines:
    """The lines that a process printed and nobody has taken yet, in order."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()  # None: there is no more

    def put(self, line: str) -> None:
        """Add a line that was heard."""
        self._lines.put(line)

    def close(self) -> None:
        """Say that no line follows."""
        self._lines.put(None)

    def take(self, timeout: float) -> str | None:
        """The next line; None when there is none within so many seconds, or none follows."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
        return line


def end_process(process: subprocess.Popen[bytes] | None, seconds: float = _END_SECONDS) -> None:
    """Close the standard input of a process and wait for it; kill it when it has not ended after so many seconds."""
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
