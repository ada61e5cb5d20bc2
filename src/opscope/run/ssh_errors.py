"""What ssh and scp say when something is wrong, and what to do about it."""

from __future__ import annotations

import re

from opscope.errors import DeviceError
from opscope.run.process import last_line

NO_SFTP = re.compile(rb"subsystem request failed|sftp-server|scp: Connection closed", re.IGNORECASE)
"""What scp says of a device without an SFTP server, and in part of a lost connection."""
_LOST = "the connection was lost"
_HINTS = (
    (re.compile("Permission denied|Too many authentication"), "the device does not let us in", "ssh-copy-id {host}"),
    (re.compile("Host key verification|HOST IDENTIFICATION"), "its host key is not the known one", "ssh {host}"),
    (
        re.compile("resolve hostname|Name or service"),
        "there is no such host",
        "look at ~/.ssh/config",
    ),
    (re.compile("refused|timed out|No route|unreachable"), "it cannot be reached", "is it on, and on the network?"),
)


def connection_error(where: str, host: str, stderr: bytes) -> DeviceError:
    """Why a command did not come to its end.

    Args:
        where: the device, for the message.
        host: as ssh knows it.
        stderr: what ssh said.
    """
    said = _said(stderr)
    for pattern, problem, hint in _HINTS:
        if pattern.search(said):
            step = f"{hint.format(host=host)}; `ssh {host} true` must work without a question"
            return DeviceError(f"{problem}: {said}", where=where, hint=step)
    problem = f"{_LOST}: {said}" if said else _LOST
    return DeviceError(problem, where=where, hint=f"`ssh {host} true` tells whether it is back")


def copy_error(where: str, host: str, stderr: bytes) -> DeviceError:
    """Why a file could not be copied; what the device's files refused is told apart by asking the device."""
    said = _said(stderr)
    if re.search("lost connection|closed by|Broken pipe|reset by|Connection ", said):
        return connection_error(where, host, stderr)
    return DeviceError(f"a file cannot be copied: {said or 'scp gave no reason'}", where=where)


def _said(stderr: bytes) -> str:
    return last_line(stderr.decode("utf-8", "replace"))
