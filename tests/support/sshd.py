"""A real sshd on the loopback interface with keys and files of its own: the device of the tests.

It runs as whoever runs the tests, with the system's own binary, and knows one key. What it keeps lies in a directory
of the test; its lock too, so that no real device on this machine is touched.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import HANG

_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class Sshd:
    """A running server.

    Args:
        directory: for its files.
        environment: variables of its sessions.
        lines: more of its configuration.
        host: name by which ssh finds it.

    Attributes:
        home: directory for what opscope keeps on the device.
        port: that it listens on.
    """

    def __init__(
        self,
        directory: Path,
        environment: dict[str, str] | None = None,
        lines: tuple[str, ...] = (),
        host: str = "board",
    ) -> None:
        self._binary = shutil.which("sshd", path=_PLACES)
        if self._binary is None or shutil.which("ssh-keygen") is None:
            pytest.skip("needs sshd (Debian: apt install openssh-server)")
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                Path("/run/sshd").mkdir(exist_ok=True)  # where sshd shuts itself in
        self.home, self._directory, self._host = directory / "device", directory, host
        self.home.mkdir(parents=True)
        self.port = _free_port()
        self._environment, self._lines = environment or {}, lines
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(command, check=True)
        (directory / "authorized_keys").write_text((directory / "user_key.pub").read_text())
        self.client.write_text(self._client())
        self.start()

    @property
    def options(self) -> str:
        """Options that make ssh and scp find it, as the environment variable holds them."""
        return f"-F {self.client}"

    @property
    def client(self) -> Path:
        """What makes ssh find it, as a file of ssh's configuration."""
        return self._directory / "ssh_config"

    @property
    def address(self) -> str:
        """As it is given to ``--target``, ``ssh:`` left out."""
        return f"{self._host}?dir={self.home}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        (self._directory / "sshd_config").write_text(self._server())
        log = (self._directory / "sshd.log").open("ab")
        command = [str(self._binary), "-D", "-e", "-f", str(self._directory / "sshd_config")]
        self._process = subprocess.Popen(command, stderr=log, start_new_session=True)
        log.close()
        end = time.monotonic() + HANG
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        pytest.skip(f"sshd does not start here: {(self._directory / 'sshd.log').read_text()}")

    def stop(self) -> None:
        """End it with all its sessions, as a device does that is switched off."""
        for process in [*self.sessions(), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def cut(self) -> None:
        """End all sessions; the server goes on."""
        for process in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def waits_for_run(self) -> bool:
        """Whether a runner of opscope starts on the device in time, with a program to run."""
        end = time.monotonic() + HANG
        while time.monotonic() < end:
            if any(_works(pid) for pid in descendants(self._process.pid)):
                return True
            time.sleep(0.01)
        return False

    def sessions(self) -> list[int]:
        """Processes of the server's sessions."""
        return [pid for pid in descendants(self._process.pid) if _program(pid).startswith("sshd")]

    def _client(self) -> str:
        return "\n".join(
            [
                f"Host {self._host}",
                "  HostName 127.0.0.1",
                f"  Port {self.port}",
                f"  User {getpass.getuser()}",
                f"  IdentityFile {self._directory / 'user_key'}",
                "  IdentitiesOnly yes",
                "  IdentityAgent none",
                "  StrictHostKeyChecking no",
                f"  UserKnownHostsFile {self._directory / 'known_hosts'}",
                "",
            ]
        )

    def _server(self) -> str:
        variables = {"OPSCOPE_LOCK": str(self._directory / "lock"), **self._environment}
        return "\n".join(
            [
                "ListenAddress 127.0.0.1",
                f"Port {self.port}",
                f"HostKey {self._directory / 'host_key'}",
                f"AuthorizedKeysFile {self._directory / 'authorized_keys'}",
                f"PidFile {self._directory / 'sshd.pid'}",
                "UsePAM no",
                "StrictModes no",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "PermitRootLogin prohibit-password",
                f"SetEnv {' '.join(f'{name}={value}' for name, value in variables.items())}",
                *self._lines,
                *(() if any("sftp" in line for line in self._lines) else ("Subsystem sftp internal-sftp",)),
                "",
            ]
        )


@contextlib.contextmanager
def running(
    directory: Path, environment: dict[str, str] | None = None, lines: tuple[str, ...] = (), host: str = "board"
) -> Iterator[Sshd]:
    """A server for the time of a test."""
    server = Sshd(directory, environment, lines, host)
    try:
        yield server
    finally:
        server.stop()


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and they, and so on."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            if int(words[1]) == pid:
                own = int(stat.parent.name)
                found += [own, *descendants(own)]
    return found


def _works(pid: int) -> bool:
    """Whether a process is a runner that has begun."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[0].rpartition(b"/")[2].startswith(b"ld-linux") and any(b"num_executions" in w for w in words)
    return False


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
