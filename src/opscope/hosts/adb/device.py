"""An Android device for one host: held with its settings, waited for when it was lost, read into the manifest."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.errors import DeviceError
from opscope.hosts.adb.adb import DIRECTORY, PATIENCE, lines_about, runtime_lines
from opscope.hosts.adb.guard import Hold, owner_text
from opscope.hosts.adb.state import read_device, read_state
from opscope.hosts.device import Device
from opscope.hosts.host import PRINTED
from opscope.hosts.lock import DeviceLock
from opscope.hosts.own_directory import OWN
from opscope.hosts.scripts import START

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.hosts.adb.adb import AdbShell
    from opscope.hosts.adb.power import Power
    from opscope.hosts.host import ExitStatus, GuardedCommand

Told = TypeVar("Told")
LOGCAT = "logcat.txt"
"""What Android's log told of a process that failed."""
_ASK_SECONDS, _BOOT_POLL = 30.0, 0.5
# The script becomes the program, so its number is known; logcat is asked for what came after the time.
_NOTES = """echo $$ >pid
date '+%m-%d %H:%M:%S.000' >began
"""
_COME_BACK = "plug it in or switch it on; what was measured is kept, finish with --resume"


class AdbLock:
    """The lock of a device, and the hold on its settings, made anew when they were lost.

    Settings are those of who holds the lock: a run beside another one leaves them as they are.

    Args:
        shell: to the device.
        directory: where opscope keeps its files there.
        power: settings to make while it is held; None for none.
    """

    def __init__(self, shell: AdbShell, directory: str, power: Power | None) -> None:
        self._shell, self._directory, self._power = shell, directory, power
        self._lock = DeviceLock(shell)
        self._hold: Hold | None = None
        self._owner = f"{owner_text()}, {id(self):x}"
        self.found: dict[str, str | None] = {}
        self.restored: dict[str, str | None] = {}

    @property
    def holder(self) -> str | None:
        """Who holds the device while we measure beside; see :class:`opscope.hosts.lock.Lock`."""
        return self._lock.holder

    def take(self, *, beside: bool = False) -> None:
        """Hold the device and make the settings; see :class:`opscope.hosts.lock.Lock`."""
        with contextlib.suppress(DeviceError):
            self.release()
        self._lock.take(beside=beside)
        try:
            self._make_settings()
        except BaseException:
            self._lock.release()
            raise

    def renew(self) -> bool:
        """Hold it again as before, if that was lost; see :class:`opscope.hosts.lock.Lock`."""
        held = self._hold is None or self._hold.alive()
        if held and not self._lock.renew():
            return False
        with contextlib.suppress(DeviceError):
            self._end_settings()
        self._lock.renew()
        self._make_settings()
        return True

    def beside(self) -> list[str]:
        """Who measured beside us; see :class:`opscope.hosts.lock.Lock`."""
        return self._lock.beside()

    def release(self) -> None:
        """Put its settings back and let others have it; see :class:`opscope.hosts.lock.Lock`."""
        try:
            self._end_settings()
        finally:
            self._lock.release()

    def _make_settings(self) -> None:
        if self._lock.holder is not None:
            return
        self._hold = Hold(self._shell, self._directory, self._owner, self._power)
        self.found = self._hold.saved
        self.restored = {**self.restored, **self._hold.restored}

    def _end_settings(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.end()


class AdbDevice(Device):
    """An Android device.

    Args:
        shell: the way to it.
        power: settings to make while it is held; None leaves them as they are.
        directory: in which opscope keeps one of its own.
        patience: how long it is waited for after it was lost, in seconds.
        address: that a manifest has, by which it is found again; empty for its serial number.
    """

    _built, _build = "with the Android NDK", "build it with the Android NDK for {abi}"
    _start, _notes = f"{_NOTES}{START}", ("pid", "began")

    def __init__(
        self,
        shell: AdbShell,
        power: Power | None = None,
        directory: str = DIRECTORY,
        patience: float = PATIENCE,
        address: str = "",
    ) -> None:
        self._hold = AdbLock(shell, f"{directory}/{OWN}", power)
        super().__init__(shell, directory, self._hold)
        self._adb, self._power, self._patience, self._address = shell, power, patience, address
        self._gone = False

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        told = self._adb.describe()
        return msgspec.structs.replace(told, address=self._address or told.address)

    @property
    def restored(self) -> dict[str, str | None]:
        """Settings that an earlier run had left changed, and that were put back when the device was held."""
        return self._hold.restored

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """The device and its software; see :func:`opscope.hosts.adb.state.read_device`."""
        power = self._power.name if self._power and self._hold.holder is None else None
        told = self._patiently(lambda: read_device(self._adb, power, features, versions))
        if told.phone is None:
            return told
        found = {**told.phone.settings, **self._hold.found}  # while it is held they are as we made them
        return msgspec.structs.replace(told, phone=msgspec.structs.replace(told.phone, settings=found))

    def conditions(self) -> Conditions:
        """The state it is in; one that was lost is waited for."""
        return self._patiently(lambda: read_state(self._adb))

    def output_of(self, *command: str, timeout: float = _ASK_SECONDS) -> str:
        """What a small command prints; the device is waited for when it was lost."""
        return self._patiently(lambda: super(AdbDevice, self).output_of(*command, timeout=timeout))

    def _status(self, code: int | None, command: GuardedCommand) -> ExitStatus:
        """How a command ended, with what logcat tells of a foreign one."""
        if command.foreign:
            records = {LOGCAT: "\n".join(self._logcat(command.into))}
            return super()._status(code, command)._replace(records=records)
        return super()._status(code, command)

    def _logcat(self, into: Path) -> list[str]:
        """Lines of Android's log about a process; the runtime's own come before what it printed."""
        pid, began = (_taken(into / name) for name in self._notes)
        if not pid.isdecimal() or not began:
            return []
        asked = ("logcat", "-d", "-v", "threadtime", "-b", "main,system,crash", "-T", began)
        text = self.output_of(*asked)
        own = runtime_lines(text, int(pid))
        if own:
            log = into / PRINTED
            log.write_bytes("\n".join(own).encode() + b"\n" + log.read_bytes())
        return lines_about(text, int(pid))

    def _patiently(self, ask: Callable[[], Told]) -> Told:
        """An answer of the device, for which it is waited when it was lost."""
        try:
            return ask()
        except DeviceError:
            self._await()
            return ask()

    def _await(self) -> None:
        """Wait until it answers and has started up; its services are not there before that."""
        patience = 0.0 if self._gone else self._patience
        end, self._gone = time.monotonic() + patience, True
        if not self._adb.wait(patience):
            problem = f"the device was lost and did not come back in {self._patience:.0f} s"
            raise DeviceError(problem, where=self.name, hint=_COME_BACK)
        self._gone = False
        while super().output_of("getprop", "sys.boot_completed").strip() != "1" and time.monotonic() < end:
            time.sleep(_BOOT_POLL)


def _taken(path: Path) -> str:
    """Text of a small file, which is removed; empty when there is none."""
    text = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text
