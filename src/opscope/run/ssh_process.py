"""A command on a device that ssh started, heard while it runs."""

from __future__ import annotations

import re
import subprocess
import threading
from typing import TYPE_CHECKING

from opscope.errors import DeviceError
from opscope.run.heard import HeardLines, end_process
from opscope.run.ssh_errors import connection_error

if TYPE_CHECKING:
    from collections.abc import Sequence

BEGAN, ENDED = "opscope-began", "opscope-ended"
"""Lines before and after what a command prints; the second holds its exit code."""
_END_SECONDS = 5.0


class SshProcess:
    """A command on a device, heard while it runs.

    Args:
        command: ssh with all its arguments.
        where: the device, for messages.
        host: as ssh knows it, likewise.

    Raises:
        DeviceError: ssh cannot be started.
    """

    def __init__(self, command: Sequence[str], where: str, host: str) -> None:
        self._where, self._host = where, host
        self._lines = HeardLines()
        self._code: int | None = None
        self._errors = b""
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise DeviceError(f"ssh cannot be started: {error.strerror}", where=where) from error
        self._complaints = threading.Thread(target=self._listen_to_complaints, daemon=True)
        self._complaints.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def alive(self) -> bool:
        """Whether the connection to it still stands."""
        return self._process.poll() is None

    def read_line(self, timeout: float) -> str | None:
        """The next line that it prints; None when there is none in time or it has ended."""
        return self._lines.take(timeout)

    def wait(self, timeout: float) -> int | None:
        """Its exit code; None when it still runs after that time, in seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        while self.read_line(_END_SECONDS) is not None:
            pass
        if self._code is None:
            self._complaints.join(_END_SECONDS)
            raise connection_error(self._where, self._host, self._errors)
        return self._code

    def end(self) -> None:
        """Close its standard input, give it a moment, and end the connection."""
        end_process(self._process)

    def _listen_to_complaints(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it was asked for
        with self._process.stderr as errors:
            self._errors = errors.read()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        with self._process.stdout as output:
            for raw in output:
                if raw.rstrip() == BEGAN.encode():
                    break
            for raw in output:
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                code = exit_code(line.removeprefix(ENDED)) if line.startswith(ENDED) else None
                if code is not None:
                    self._code = code
                elif line:
                    self._lines.put(line)
        self._lines.close()


def exit_code(text: str) -> int | None:
    """The exit code that stands in a text; None when none does."""
    word = text.strip()
    return int(word) if re.fullmatch("[0-9]{1,3}", word) else None
