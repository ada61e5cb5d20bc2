"""A shell on a device through the system's own ssh and scp: what ``ssh HOST`` does in a terminal, this does too.

The user's configuration holds, host keys and jump hosts included; nothing is asked for on the way, so a login must
work without a password. One connection is kept open for all commands, where the device allows that. ssh ends with code
255 when the connection fails, and also when the command does; so every command ends with a line of ours that holds its
code, and one without that line did not end. Another line begins it: what a login shell says before is not ours.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Target
from opscope.core.errors import DeviceError, MissingDependencyError, UsageError
from opscope.hosts.process import last_line
from opscope.hosts.shell import ShellProcess, address_options, end_process, safe_path
from opscope.hosts.target_kinds import SSH

if TYPE_CHECKING:
    from collections.abc import Sequence


DIRECTORY = ".cache"
_ADDRESS_OPTIONS = ("python", "dir", "runner")
_HOST = re.compile(r"(?P<host>(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>\d{1,5}))?\Z")
_HIGHEST_PORT = 65_535


class SshAddress(NamedTuple):
    """Address of a device, and how it is used."""

    text: str  # as it was given
    host: str  # name in the user's configuration or on the network, with a user before it where one was given
    port: int | None = None  # None for the usual one, or that of the configuration
    directory: str = DIRECTORY  # of the device, in which opscope keeps one of its own; relative to the user's home
    python: str | None = None  # of the device, that has executorch; None to bring a runner
    runner: str | None = None  # an executor_runner here, built for the device; None to bring the native runner


def parse_address(text: str) -> SshAddress:
    """Return the parts of an address."""
    host_part, _, query = text.partition("?")
    match = _HOST.match(host_part)
    where = f"--target ssh:{text}"
    if match is None or match["host"].startswith("-"):
        hint = "for example ssh:board, ssh:user@192.168.1.7:2222, or a Host of ~/.ssh/config"
        raise UsageError("not a valid ssh host", where=where, hint=hint)
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port <= _HIGHEST_PORT:
        raise UsageError(f"{port} is not a port", where=where)
    options = address_options(query, _ADDRESS_OPTIONS, where, "python=venv/bin/python")
    directory = safe_path(options.get("dir", DIRECTORY), where).rstrip("/")
    python = safe_path(options["python"], where) if "python" in options else None
    if python and "runner" in options:
        hint = "for both, name the device twice: ssh:HOST?python=PATH and ssh:HOST?runner=PATH"
        raise UsageError("a run uses either a Python or a runner", where=where, hint=hint)
    return SshAddress(text, match["host"], port, directory, python, options.get("runner"))


NO_SFTP = re.compile(rb"subsystem request failed|sftp-server|scp: Connection closed", re.IGNORECASE)
"""What scp says of a device without an SFTP server, and in part of a lost connection."""
_LOST = "the connection was lost"
_HINTS = (
    (re.compile("Permission denied|Too many authentication"), "the device refused the login", "ssh-copy-id {host}"),
    (re.compile("Host key verification|HOST IDENTIFICATION"), "its host key is not the known one", "ssh {host}"),
    (
        re.compile("resolve hostname|Name or service"),
        "there is no such host",
        "check ~/.ssh/config",
    ),
    (re.compile("refused|timed out|No route|unreachable"), "it is unreachable", "is it on, and on the network?"),
)


def connection_error(where: str, host: str, stderr: bytes) -> DeviceError:
    """Return the error for a command that did not come to its end."""
    message = _last_message(stderr)
    for pattern, problem, hint in _HINTS:
        if pattern.search(message):
            step = f"{hint.format(host=host)}; `ssh {host} true` must work without a prompt"
            return DeviceError(f"{problem}: {message}", where=where, hint=step)
    problem = f"{_LOST}: {message}" if message else _LOST
    return DeviceError(problem, where=where, hint=f"`ssh {host} true` shows whether it is back")


def copy_error(where: str, host: str, stderr: bytes) -> DeviceError:
    """Return the error for a file that could not be copied; asking the device tells apart what its files refused."""
    message = _last_message(stderr)
    if re.search("lost connection|closed by|Broken pipe|reset by|Connection ", message):
        return connection_error(where, host, stderr)
    return DeviceError(f"a file cannot be copied: {message or 'scp reported no reason'}", where=where)


def _last_message(stderr: bytes) -> str:
    """Return the last line of the errors."""
    return last_line(stderr.decode("utf-8", "replace"))


BEGAN, ENDED = "opscope-began", "opscope-ended"
"""Lines before and after what a command prints; the second holds its exit code."""
_END_SECONDS = 5.0


class SshProcess(ShellProcess):
    """A command on a device, heard while it runs.

    ``command``: ssh with all its arguments; ``where``: the device, for messages; ``host``: as ssh knows it, likewise.
    """

    errors = subprocess.PIPE

    def __init__(self, command: Sequence[str], where: str, host: str) -> None:
        self._host, self._errors = host, b""
        super().__init__(command, where)
        self._complaints = threading.Thread(target=self._listen_to_complaints, daemon=True)
        self._complaints.start()

    def wait(self, timeout: float) -> int | None:
        """Return the command's exit code; None if it still runs after so many seconds."""
        if super().wait(timeout) is None:
            return None
        while self.read_line(_END_SECONDS) is not None:
            pass
        if self._code is None:
            self._complaints.join(_END_SECONDS)
            raise connection_error(self._where, self._host, self._errors)
        return self._code

    def _listen_to_complaints(self) -> None:
        """Take the errors until they end."""
        assert self._process.stderr is not None  # noqa: S101 - it was asked for
        with self._process.stderr as errors:
            self._errors = errors.read()

    def _read_lines(self, output: IO[bytes]) -> None:
        """Take the lines between the one that begins the output and the one with the exit code."""
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


def exit_code(text: str) -> int | None:
    """Return the exit code that a text holds; None when it holds none."""
    word = text.strip()
    return int(word) if re.fullmatch("[0-9]{1,3}", word) else None


VARIABLE = "OPSCOPE_SSH_OPTIONS"
"""Environment variable with more options for ssh and scp alike, for example ``-F FILE``."""
# One line, and nothing in it that login shells other than sh would read in another way.
_TOLD = f'echo {BEGAN}; "$@"; printf "\\n{ENDED} %s\\n" $?'
_OPTIONS = (
    *("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=2", "LogLevel=ERROR"),
    *("RequestTTY=no", "RemoteCommand=none", "ClearAllForwardings=yes"),
)
_CONNECT_SECONDS, _POLL_SECONDS = 40.0, 0.01
_COPY_SECONDS, _SLOWEST_COPY = 60.0, 1 << 18


class SshShell:
    """A device that ssh reaches.

    ``address``: of the device.

    Raises MissingDependencyError: ssh or scp is not installed.
    """

    def __init__(self, address: SshAddress) -> None:
        for name in ("ssh", "scp"):
            if shutil.which(name) is None:
                raise MissingDependencyError(f"{name} is not installed", hint="Debian: apt install openssh-client")
        self._address = address
        # Sockets have short names only, so that a longer directory of temporary files is the second choice.
        short = "/tmp"  # noqa: S108 - what is made in it is ours alone
        usable = os.access(short, os.W_OK | os.X_OK)
        self._directory = Path(tempfile.mkdtemp(prefix="opscope-", dir=short if usable else None))
        self._master: subprocess.Popen[bytes] | None = None
        self._legacy_copy = False
        self._masters: list[subprocess.Popen[bytes]] = []  # the same, where the end of this object finds it
        weakref.finalize(self, _close_connection, self._directory, self._masters)

    def describe(self) -> Target:
        """Return kind and address as it was given."""
        return Target(SSH.name, self._address.text)

    def run(self, command: Sequence[str], timeout: float) -> CompletedProcess[bytes]:
        """Run a command and wait for its end."""
        self._open_connection()
        try:
            completed = _run_apart(self._remote_command(command), timeout)
        except subprocess.TimeoutExpired:
            raise DeviceError(f"no answer within {timeout:.0f} s", where=self.where, hint=_SLOW) from None
        output_and_code = completed.stdout.partition(f"{BEGAN}\n".encode())[2]
        output, _, trailer = output_and_code.rpartition(f"\n{ENDED} ".encode())
        code = exit_code(trailer.decode("ascii", "replace"))
        if code is None:
            raise connection_error(self.where, self._address.host, completed.stderr)
        return CompletedProcess(command, code, output, completed.stderr)

    def spawn(self, command: Sequence[str]) -> SshProcess:
        """Start a command; its standard input ends with the connection."""
        self._open_connection()
        return SshProcess(self._remote_command(command), self.where, self._address.host)

    def push(self, files: Sequence[Path], directory: str) -> None:
        """Copy files into a directory of the device, with their permissions."""
        destination = f"{self._address.host}:{safe_path(directory, self.where)}/"
        self._copy_files([*map(str, files), destination], sum(file.stat().st_size for file in files))

    def pull(self, directory: str, names: Sequence[str], into: Path) -> None:
        """Copy files from a directory of the device into one of ours."""
        for name in names:
            safe_path(name, self.where)
        source = f"{self._address.host}:{safe_path(directory, self.where)}"
        self._copy_files([*(f"{source}/{name}" for name in names), f"{into}/"], _UNKNOWN_SIZE)

    def close(self) -> None:
        """End the connection. The next command opens another."""
        end_process(self._master)
        self._master = None

    @property
    def where(self) -> str:
        """Return the device's name, for messages."""
        return f"{SSH.name}:{self._address.text}"

    def _open_connection(self) -> None:
        """Open the connection that all commands share, unless it stands.

        It is a command that ends when this process does, so that none is left behind.
        """
        if self._master is not None and self._master.poll() is None:
            return
        self.close()
        socket = self._directory / "master"
        socket.unlink(missing_ok=True)
        with (self._directory / "errors").open("wb") as errors:
            command = [*self._program_options("ssh"), "-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
            self._master = subprocess.Popen(
                [*command, "--", self._address.host, "exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self._masters[:] = [self._master]
        end = time.monotonic() + _CONNECT_SECONDS
        while not socket.exists() and self._master.poll() is None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        if not socket.exists():
            hung = self._master.poll() is None
            self.close()
            if hung:
                problem = f"no connection within {_CONNECT_SECONDS:.0f} s"
                raise DeviceError(problem, where=self.where, hint=_SLOW)
            raise connection_error(self.where, self._address.host, (self._directory / "errors").read_bytes())

    def _program_options(self, program: str) -> list[str]:
        """Return a program of ssh with the options of the environment and ours."""
        port = () if self._address.port is None else ("-o", f"Port={self._address.port}")
        from_environment = shlex.split(os.environ.get(VARIABLE, ""))
        ours = (f"ControlPath={self._directory / 'master'}", *_OPTIONS)
        return [program, *from_environment, *port, *(word for option in ours for word in ("-o", option))]

    def _remote_command(self, command: Sequence[str]) -> list[str]:
        """Return the ssh command that runs a command on the device."""
        line = shlex.join(["exec", "sh", "-c", _TOLD, "opscope", *command])
        return [*self._program_options("ssh"), "-o", "ControlMaster=no", "--", self._address.host, line]

    def _copy_files(self, arguments: Sequence[str], size: int) -> None:
        """Copy files with scp, with its older protocol where the device needs that."""
        self._open_connection()
        seconds = _COPY_SECONDS + size / _SLOWEST_COPY
        command = [*self._program_options("scp"), "-q", "-p", *(["-O"] if self._legacy_copy else []), "--", *arguments]
        try:
            completed = _run_apart(command, seconds)
        except subprocess.TimeoutExpired:
            raise DeviceError(f"a copy did not finish within {seconds:.0f} s", where=self.where, hint=_SLOW) from None
        if completed.returncode and not self._legacy_copy and self._lacks_sftp(completed.stderr):
            self._legacy_copy = True  # the older protocol of scp needs no server for files
            self._copy_files(arguments, size)
        elif completed.returncode:
            raise copy_error(self.where, self._address.host, completed.stderr)

    def _lacks_sftp(self, errors: bytes) -> bool:
        """Return whether a copy failed because small devices have no SFTP server; the connection stands then."""
        standing = self._master is not None and self._master.poll() is None
        return standing and NO_SFTP.search(errors) is not None


def _run_apart(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run ssh or scp apart from the terminal, whose Ctrl-C would look like a lost connection to a thread."""
    return subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False, start_new_session=True
    )


_SLOW = "check whether the device or network is busy; `ssh HOST true` should be fast"
_UNKNOWN_SIZE = 1 << 30


def _close_connection(directory: Path, masters: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the connections and remove their directory."""
    for master in masters:
        end_process(master)
    shutil.rmtree(directory, ignore_errors=True)
