"""A shell on a device through the system's own ssh and scp: what ``ssh HOST`` does in a terminal, this does too.

The user's configuration holds, host keys and jump hosts included; nothing is asked for on the way, so a login must
work without a password. One connection is kept open for all commands, where the device allows that. ssh ends with code
255 when the connection fails, and also when the command does; so every command ends with a line of ours that holds its
code, and one without that line did not end. Another line begins it: what a login shell says before is not ours.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Target
from opscope.errors import DeviceError, MissingDependencyError
from opscope.run.heard import end_process
from opscope.run.remote import Finished, safe_path
from opscope.run.ssh_errors import NO_SFTP, connection_error, copy_error
from opscope.run.ssh_process import BEGAN, ENDED, SshProcess, exit_code
from opscope.run.target_kinds import SSH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.run.ssh_address import SshAddress

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

    Args:
        address: of the device.

    Raises:
        MissingDependencyError: ssh or scp is not installed.
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
        weakref.finalize(self, _close, self._directory, self._masters)

    def describe(self) -> Target:
        """Kind and address as it was given."""
        return Target(SSH.name, self._address.text)

    def run(self, command: Sequence[str], timeout: float) -> Finished:
        """Run a command and wait for its end."""
        self._connect()
        try:
            done = subprocess.run(
                self._ssh(command), capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(f"no answer within {timeout:.0f} s", where=self.where, hint=_SLOW) from None
        told = done.stdout.partition(f"{BEGAN}\n".encode())[2]
        output, _, trailer = told.rpartition(f"\n{ENDED} ".encode())
        code = exit_code(trailer.decode("ascii", "replace"))
        if code is None:
            raise connection_error(self.where, self._address.host, done.stderr)
        return Finished(code, output, done.stderr)

    def spawn(self, command: Sequence[str]) -> SshProcess:
        """Start a command; its standard input ends with the connection."""
        self._connect()
        return SshProcess(self._ssh(command), self.where, self._address.host)

    def push(self, files: Sequence[Path], directory: str) -> None:
        """Copy files into a directory of the device, with their permissions."""
        place = f"{self._address.host}:{safe_path(directory, self.where)}/"
        self._copy([*map(str, files), place], sum(file.stat().st_size for file in files))

    def pull(self, directory: str, names: Sequence[str], into: Path) -> None:
        """Copy files from a directory of the device into one of ours."""
        for name in names:
            safe_path(name, self.where)
        place = f"{self._address.host}:{safe_path(directory, self.where)}"
        self._copy([*(f"{place}/{name}" for name in names), f"{into}/"], _UNKNOWN_SIZE)

    def close(self) -> None:
        """End the connection. The next command opens another."""
        end_process(self._master)
        self._master = None

    @property
    def where(self) -> str:
        """The device, for messages."""
        return f"{SSH.name}:{self._address.text}"

    def _connect(self) -> None:
        """Open the connection that all commands share, unless it stands.

        It is a command that ends when this process does, so that none is left behind.

        Raises:
            DeviceError: the device cannot be reached, or does not let us in.
        """
        if self._master is not None and self._master.poll() is None:
            return
        self.close()
        socket = self._directory / "master"
        socket.unlink(missing_ok=True)
        with (self._directory / "errors").open("wb") as errors:
            command = [*self._options("ssh"), "-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
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
            self.close()
            raise connection_error(self.where, self._address.host, (self._directory / "errors").read_bytes())

    def _options(self, program: str) -> list[str]:
        port = () if self._address.port is None else ("-o", f"Port={self._address.port}")
        given = shlex.split(os.environ.get(VARIABLE, ""))
        ours = (f"ControlPath={self._directory / 'master'}", *_OPTIONS)
        return [program, *given, *port, *(word for option in ours for word in ("-o", option))]

    def _ssh(self, command: Sequence[str]) -> list[str]:
        line = shlex.join(["exec", "sh", "-c", _TOLD, "opscope", *command])
        return [*self._options("ssh"), "-o", "ControlMaster=no", "--", self._address.host, line]

    def _copy(self, arguments: Sequence[str], size: int) -> None:
        self._connect()
        seconds = _COPY_SECONDS + size / _SLOWEST_COPY
        command = [*self._options("scp"), "-q", "-p", *(["-O"] if self._legacy_copy else []), "--", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise DeviceError(f"a copy did not end within {seconds:.0f} s", where=self.where, hint=_SLOW) from None
        if done.returncode and not self._legacy_copy and self._lacks_sftp(done.stderr):
            self._legacy_copy = True  # the older protocol of scp needs no server for files
            self._copy(arguments, size)
        elif done.returncode:
            raise copy_error(self.where, self._address.host, done.stderr)

    def _lacks_sftp(self, said: bytes) -> bool:
        """Whether a copy failed because small devices have no SFTP server; the connection stands then."""
        standing = self._master is not None and self._master.poll() is None
        return standing and NO_SFTP.search(said) is not None


_SLOW = "look whether the device and the network are busy; `ssh HOST true` should take a moment"
_UNKNOWN_SIZE = 1 << 30


def _close(directory: Path, masters: Sequence[subprocess.Popen[bytes]]) -> None:
    for master in masters:
        end_process(master)
    shutil.rmtree(directory, ignore_errors=True)
