"""Addresses of devices that are reached by ssh: ``[USER@]HOST[:PORT][?python=PATH&dir=PATH]``."""

from __future__ import annotations

import re
from typing import NamedTuple

from opscope.errors import UsageError
from opscope.run.remote import address_options, safe_path

DIRECTORY = ".cache/opscope"
_OPTIONS = ("python", "dir")
_HOST = re.compile(r"(?P<host>(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>\d{1,5}))?\Z")
_HIGHEST_PORT = 65_535


class SshAddress(NamedTuple):
    """Where a device is, and what of it is used.

    Attributes:
        text: as it was given.
        host: name in the user's configuration or on the network, with a user before it where one was given.
        port: None for the usual one, or that of the configuration.
        directory: of the device, for what is kept and run there; relative to the user's home.
        python: of the device, that has executorch; None to bring the native runner.
    """

    text: str
    host: str
    port: int | None = None
    directory: str = DIRECTORY
    python: str | None = None


def parse_address(text: str) -> SshAddress:
    """The parts of an address.

    Raises:
        UsageError: it is no address, or has an unknown option.
    """
    place, _, query = text.partition("?")
    match = _HOST.match(place)
    where = f"--target ssh:{text}"
    if match is None or match["host"].startswith("-"):
        hint = "for example ssh:board, ssh:user@192.168.1.7:2222, or a Host of ~/.ssh/config"
        raise UsageError("this is no host that ssh could reach", where=where, hint=hint)
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port <= _HIGHEST_PORT:
        raise UsageError(f"{port} is no port", where=where)
    options = address_options(query, _OPTIONS, where, "python=venv/bin/python")
    directory = safe_path(options.get("dir", DIRECTORY), where).rstrip("/")
    python = safe_path(options["python"], where) if "python" in options else None
    return SshAddress(text, match["host"], port, directory, python)
