"""One host at a time on a device: a lock that lives in the device as long as the connection that took it."""

from __future__ import annotations

import getpass
import os
import platform
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from opscope.errors import DeviceError
from opscope.run.remote_scripts import LOCK

if TYPE_CHECKING:
    from opscope.run.remote import RemoteProcess, RemoteShell

_LOCK_SECONDS = 60.0
_BUSY = "wait until that run ends, or stop it; its lock goes with it"
_REFUSED = "its directory must be writable by everyone, as /tmp is"


class Lock(Protocol):
    """What lets one host at a time use a device."""

    def take(self) -> bool:
        """Hold the device; whether it was not held by us already, which is so after a connection was lost.

        Raises:
            DeviceError: another host holds it, or it cannot be reached.
        """
        ...

    def release(self) -> None:
        """Let others have it. May be repeated.

        Raises:
            DeviceError: it cannot be left as it was found.
        """
        ...


class DeviceLock:
    """The lock of a device.

    Args:
        shell: the way to the device.
    """

    def __init__(self, shell: RemoteShell) -> None:
        self._shell, self._holder = shell, _holder()
        self._process: RemoteProcess | None = None

    def take(self) -> bool:
        """Hold the device; whether it was not held by us already, which is so after a connection was lost.

        Raises:
            DeviceError: another host holds it, or it cannot be reached.
        """
        if self._process is not None and self._process.alive():
            return False
        self.release()
        self._process = self._shell.spawn(["sh", "-c", LOCK, "opscope-lock", self._holder])
        told = self._process.read_line(_LOCK_SECONDS)
        if told == "taken":
            return True
        lost = self._process
        try:
            if told is None:
                lost.wait(0.0)
            raise self._not_taken(told or "")
        finally:
            self.release()

    def release(self) -> None:
        """Let others have it. May be repeated."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _not_taken(self, told: str) -> DeviceError:
        target = self._shell.describe()
        where = f"{target.kind}:{target.address}"
        verdict, _, rest = told.partition(" ")
        if verdict == "held":
            return DeviceError(f"the device is in use {rest}", where=where, hint=_BUSY)
        if verdict == "left":
            lock, _, who = rest.partition(" ")
            problem = f"a run that has ended left its lock behind ({who or 'by nobody known'})"
            return DeviceError(problem, where=where, hint=f"remove it on the device: rm -r {lock}")
        if verdict == "refused":
            return DeviceError(f"the device lets us write no lock: {rest}", where=where, hint=_REFUSED)
        return DeviceError("the device did not say whether it is free", where=where, hint="try again")


def _holder() -> str:
    """Who we are, for another host that finds the device in use."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")  # fine enough to tell two of one process apart
    return f"by {getpass.getuser()}@{platform.node()}, process {os.getpid()}, since {now}"
