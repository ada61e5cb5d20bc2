"""Holding an Android device for one host, with its power settings as that host wants them.

``guard.sh`` runs on the device as long as its standard input is open. When this process ends, however it ends, or the
cable is pulled, it puts the settings back itself and lets go of the device. What it changed also stands in a file on
the device until it was put back: after a reboot the next one to hold the device does it.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import DeviceError
from opscope.hosts.adb.errors import refusal, storage_error
from opscope.hosts.own_directory import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.hosts.adb.power import Power
    from opscope.hosts.shell import RemoteShell

_SCRIPT = Path(__file__).with_name("guard.sh")
_READY_SECONDS = 120.0
_PRINTABLE = re.compile(r"[^\x20-\x7e]")
_MOST_SHOWN = 100
_SETTING = re.compile(r"(saved|restored|stuck) (\w+) (.*)\Z")
_SECURITY = (
    "the device does not let adb change settings: some makers have a separate switch for it in the developer "
    "options (Xiaomi: USB debugging (Security settings)); or leave out --power"
)


class Hold:
    """A device that is held.

    Args:
        shell: to it.
        directory: where opscope keeps its files there.
        owner: who holds it, as :func:`owner_text` tells it; a hold of the same owner is taken over.
        power: settings to make; None for none.

    Raises:
        OverwriteError: the directory is somebody else's.
        DeviceError: another host holds it, it cannot be written to, or it refuses a setting.
    """

    def __init__(self, shell: RemoteShell, directory: str, owner: str, power: Power | None = None) -> None:
        self._where = f"{shell.describe().kind}:{shell.describe().address}"
        self.saved: dict[str, str | None] = {}
        self.restored: dict[str, str | None] = {}
        words = power.words() if power else []
        prepare(shell, directory)
        script = _SCRIPT.read_text(encoding="utf-8")
        self._process = shell.spawn(["sh", "-c", script, "opscope-guard", directory, owner, *words])
        try:
            self._begin()
        except BaseException:
            self._process.end()
            raise

    def alive(self) -> bool:
        """Whether the device is still held, as far as can be told from here."""
        return self._process.alive()

    def end(self) -> None:
        """Put the settings back and let go of the device; may be repeated."""
        self._process.end()
        stuck = [match for match in map(_SETTING.match, self._lines(0)) if match and match[1] == "stuck"]
        if stuck:
            raise self._stuck(stuck[0])

    def _begin(self) -> None:
        said = []
        for line in self._lines(_READY_SECONDS):
            match = _SETTING.match(line)
            if line == "ready":
                return
            if line.startswith("held "):
                raise self._held(line.removeprefix("held "))
            if line.startswith("refused "):
                raise DeviceError(f"it refused to change {_shown(line[8:])}", where=self._where, hint=_SECURITY)
            if match and match[1] == "stuck":
                raise self._stuck(match)
            if match:
                (self.saved if match[1] == "saved" else self.restored)[match[2]] = _value(match[3])
            else:
                said.append(line)
        raise self._not_held("\n".join(said).encode())

    def _not_held(self, said: bytes) -> DeviceError:
        """Why the guard ended before it was ready, or did not become ready in time."""
        try:
            code = self._process.wait(0)
        except DeviceError as error:
            return storage_error(self._where, said) if said else error
        if code is None:
            hint = "see what `adb shell settings list global` does, and run again"
            return DeviceError(f"it was not ready within {_READY_SECONDS:.0f} s", where=self._where, hint=hint)
        return refusal(self._where, said)

    def _lines(self, timeout: float) -> Iterator[str]:
        """What the guard prints, until it ends or a time, in seconds, is up."""
        end = time.monotonic() + timeout
        while (line := self._process.read_line(max(0.0, end - time.monotonic()))) is not None:
            yield line

    def _held(self, owner: str) -> DeviceError:
        pid, _, name = _shown(owner).partition(" ")
        hint = "wait until that run ends"
        if pid.isdecimal():
            kill = f"adb -s {self._where.partition(':')[2]} shell kill {pid}"
            hint += f"; when its computer is gone, `{kill}` ends it, and restores its settings"
        return DeviceError(f"it is in use by {name or 'another host'}", where=self._where, hint=hint)

    def _stuck(self, match: re.Match[str]) -> DeviceError:
        name, value = match[2], _shown(match[3])
        put = f"settings delete global {name}" if value == "null" else f"settings put global {name} {value}"
        hint = f"adb shell {put}; or run again when the device has started up: it is tried again"
        return DeviceError(f"the setting {name} could not be restored", where=self._where, hint=hint)


def owner_text() -> str:
    """Who holds a device from now on, for whoever else wants it."""
    since = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no name for this user's number
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()}, since {since})"


def _value(text: str) -> str | None:
    return None if text == "null" else _shown(text)


def _shown(text: str) -> str:
    """A device's word for a message."""
    return _PRINTABLE.sub("?", text)[:_MOST_SHOWN]
