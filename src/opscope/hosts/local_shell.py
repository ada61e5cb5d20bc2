"""A shell on this machine, for what is the same here and on a device."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Target
from opscope.core.errors import DeviceError
from opscope.hosts.shell import ResponseLines, end_process

if TYPE_CHECKING:
    from collections.abc import Sequence
    from subprocess import CompletedProcess


class LocalProcess:
    """A command that runs here while we do something else; see :class:`opscope.hosts.shell.RemoteProcess`.

    ``command``: program and arguments; ``where``: this machine, for messages.

    Raises DeviceError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], where: str) -> None:
        self._lines, pipe = ResponseLines(), subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise DeviceError(f"{command[0]} cannot be started: {error.strerror}", where=where) from error
        threading.Thread(target=self._listen, daemon=True).start()

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def read_line(self, timeout: float) -> str | None:
        """The next line that it prints; None when there is none in time or it has ended."""
        return self._lines.take(timeout)

    def wait(self, timeout: float) -> int | None:
        """Its exit code; None when it still runs after that time, in seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Close its standard input and wait for its end."""
        end_process(self._process)

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        with self._process.stdout as output:
            for raw in output:
                self._lines.put(raw.decode("utf-8", "replace").rstrip("\n"))
        self._lines.close()


_NAME = "this machine"


class LocalShell:
    """A shell on this machine."""

    def describe(self) -> Target:
        """What messages call it."""
        return Target(_NAME, "")

    def run(self, command: Sequence[str], timeout: float) -> CompletedProcess[bytes]:
        """Run a command and wait for its end."""
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"{command[0]}: {error}", where=_NAME) from error

    def spawn(self, command: Sequence[str]) -> LocalProcess:
        """Start a command whose standard input stays open until it is ended, or this process ends."""
        return LocalProcess(command, _NAME)
