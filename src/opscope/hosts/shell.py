"""A shell on a device: commands run there, files go there and come back, whatever carries them (ssh, adb).

A shell on this machine is for what is the same here and on a device.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
from typing import IO, TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

from opscope.bundle.manifest import Target
from opscope.core.errors import DeviceError, UsageError, did_you_mean
from opscope.core.system.stop import waiting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from subprocess import CompletedProcess


_END_SECONDS = 5.0


class ResponseLines:
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
        """Return the next line; None when there is none within so many seconds, or none follows."""
        for part in waiting(timeout):
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=part)
                if line is None:
                    self._lines.put(None)
                return line
        return None


def end_process(process: subprocess.Popen[bytes] | None, seconds: float = _END_SECONDS) -> None:
    """Close the standard input of a process and wait for it; after so many seconds kill it with its group."""
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and what it started where it leads a group of its own, such as the ProxyCommand of ssh."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


_SAFE_PATH = re.compile(r"[A-Za-z0-9_./+@%,=:-]*\Z")


class ShellProcess:
    """A command that runs on a device, or here, while we do something else; its lines are heard.

    ``command``: program with all its arguments; ``where``: the device, for messages.

    Raises DeviceError: the program cannot be started.
    """

    errors: int = subprocess.DEVNULL
    """Where its standard error goes, as :class:`subprocess.Popen` takes it."""
    end_seconds = _END_SECONDS
    """How long it may take to end, once its standard input is closed."""

    def __init__(self, command: Sequence[str], where: str) -> None:
        self._where, self._lines, pipe = where, ResponseLines(), subprocess.PIPE
        self._code: int | None = None
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self.errors, start_new_session=True
            )
        except OSError as error:
            raise DeviceError(f"{command[0]} cannot be started: {error.strerror}", where=where) from error
        self._listener = threading.Thread(target=self._read_output, daemon=True)
        self._listener.start()

    def alive(self) -> bool:
        """Return whether the connection to it still stands, as far as can be told from here."""
        return self._process.poll() is None

    def read_line(self, timeout: float) -> str | None:
        """Return the next line that it prints, without its end; None if there is none in time, or it has ended."""
        return self._lines.take(timeout)

    def wait(self, timeout: float) -> int | None:
        """Return the command's exit code; None if it still runs after so many seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Close its standard input and the connection to it; commands of ours end themselves then. May be repeated."""
        end_process(self._process, self.end_seconds)

    def _read_output(self) -> None:
        """Take the output until it ends."""
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        with self._process.stdout as output:
            self._read_lines(output)
        self._lines.close()

    def _read_lines(self, output: IO[bytes]) -> None:
        """Take the lines of the output."""
        for raw in output:
            self._lines.put(raw.decode("utf-8", "replace").rstrip("\n"))


class Shell(Protocol):
    """A way to a machine. Paths there are made of :func:`safe_path` characters, relative ones begin at its home."""

    def describe(self) -> Target:
        """Return kind and address, for the manifest and for messages."""

    def run(self, command: Sequence[str], timeout: float) -> CompletedProcess[bytes]:
        """Run a command and wait for its end; a code above 128, as shells tell it, is of the signal ``code - 128``."""

    def spawn(self, command: Sequence[str]) -> ShellProcess:
        """Start a command whose standard input stays open as long as the connection stands."""


class RemoteShell(Shell, Protocol):
    """A way to a device, which files are copied to and from."""

    def push(self, files: Sequence[Path], directory: str) -> None:
        """Copy files into a directory of the device, under their own names, with their permissions."""

    def pull(self, directory: str, names: Sequence[str], into: Path) -> None:
        """Copy files from a directory of the device into one of ours, under their own names."""


def address_options(query: str, known: Sequence[str], where: str, example: str) -> dict[str, str]:
    """Return the options at the end of an address: ``NAME=VALUE``, with & between them."""
    try:
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise UsageError(f"{query!r} are not options", where=where, hint=f"for example ?{example}") from None
    for name in options:
        if name not in known:
            raise UsageError(f"unknown option {name!r}", where=where, hint=did_you_mean(name, known))
    return options


def safe_path(path: str, where: str) -> str:
    """Return a path on a device that no program on the way can misread.

    The copying programs quote in different ways.
    """
    if not path or path.startswith("-") or not _SAFE_PATH.match(path):
        problem = f"{path!r} cannot be a directory of the device"
        raise UsageError(problem, where=where, hint="use only letters, digits and _ . / + @ % , = : -")
    return path


_NAME = "this machine"


class LocalShell:
    """A shell on this machine."""

    def describe(self) -> Target:
        """Return the name in messages."""
        return Target(_NAME, "")

    def run(self, command: Sequence[str], timeout: float) -> CompletedProcess[bytes]:
        """Run a command and wait for its end."""
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"{command[0]}: {error}", where=_NAME) from error

    def spawn(self, command: Sequence[str]) -> ShellProcess:
        """Start a command whose standard input stays open until it is ended, or this process ends."""
        return ShellProcess(command, _NAME)
