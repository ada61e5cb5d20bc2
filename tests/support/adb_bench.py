"""The real ``adb`` with a server of its own, so that neither the user's devices nor other tests are met."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adb_endpoint import Endpoint
from adb_phone import NEEDS, Phone

if TYPE_CHECKING:
    from collections.abc import Iterator

MISSING = [name for name in NEEDS if shutil.which(name) is None]
ADB_REASON = f"needs {', '.join(MISSING)}: apt install {' '.join(MISSING)}"
"""Why a test of phones is skipped where something is missing."""
needs_adb = pytest.mark.skipif(bool(MISSING), reason=ADB_REASON)


@contextmanager
def adb_server(home: Path) -> Iterator[None]:
    """Every ``adb`` that is started within talks to a server that ends with it.

    Args:
        home: where it keeps its key.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDROID_ADB_SERVER_PORT", str(_free_port()))
        patch.setenv("HOME", str(home))
        patch.setenv("ADB_MDNS", "0")
        patch.delenv("ANDROID_SERIAL", raising=False)
        subprocess.run(["adb", "start-server"], capture_output=True, check=True)
        try:
            yield
        finally:
            subprocess.run(["adb", "kill-server"], capture_output=True, check=False)


@contextmanager
def plugged(directory: Path, **more: str) -> Iterator[Endpoint]:
    """A phone that can be reached; the server forgets it afterwards.

    Args:
        directory: new, for its files.
        more: as for :class:`Endpoint`.
    """
    endpoint = Endpoint(Phone(directory), **more)
    try:
        yield endpoint
    finally:
        subprocess.run(["adb", "disconnect", endpoint.address], capture_output=True, check=False)
        endpoint.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
