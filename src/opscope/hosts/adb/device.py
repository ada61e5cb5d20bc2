"""An Android device for one host: held with its settings, waited for when it was lost, read into the manifest."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.errors import DeviceError
from opscope.hosts.adb.adb import DIRECTORY, PATIENCE
from opscope.hosts.adb.guard import Hold, owner_text
from opscope.hosts.adb.state import read_device, read_state
from opscope.hosts.device import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.hosts.adb.adb import AdbShell
    from opscope.hosts.adb.power import Power

Told = TypeVar("Told")
_ASK_SECONDS, _BOOT_POLL = 30.0, 0.5
_COME_BACK = "plug it in or switch it on; what was measured is kept, finish with --resume"


class AdbLock:
    """The hold on a device, made anew when it was lost.

    Args:
        shell: to the device.
        directory: where opscope keeps its files there.
        power: settings to make while it is held; None for none.

    Attributes:
        found: settings as they were before they were made, by name.
        restored: settings that an earlier run had left changed and that were put back, by name.
    """

    def __init__(self, shell: AdbShell, directory: str, power: Power | None) -> None:
        self._shell, self._directory, self._power = shell, directory, power
        self._hold: Hold | None = None
        self._owner = f"{owner_text()}, {id(self):x}"
        self.found: dict[str, str | None] = {}
        self.restored: dict[str, str | None] = {}

    def take(self) -> bool:
        """Hold the device; whether it was not held by us already.

        Raises:
            DeviceError: another host holds it, it cannot be reached, or it refuses a setting.
        """
        if self._hold is not None and self._hold.alive():
            return False
        if self._hold is not None:
            with contextlib.suppress(DeviceError):
                self._hold.end()
        self._hold = None
        self._hold = Hold(self._shell, self._directory, self._owner, self._power)
        self.found = self._hold.saved
        self.restored = {**self.restored, **self._hold.restored}
        return True

    def release(self) -> None:
        """Put its settings back and let others have it; may be repeated.

        Raises:
            DeviceError: a setting could not be put back.
        """
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.end()


class AdbDevice(Device):
    """An Android device.

    Args:
        shell: the way to it.
        power: settings to make while it is held; None leaves them as they are.
        directory: where opscope keeps its files there.
        patience: how long it is waited for after it was lost, in seconds.
        address: that a manifest has, by which it is found again; empty for its serial number.
    """

    def __init__(
        self,
        shell: AdbShell,
        power: Power | None = None,
        directory: str = DIRECTORY,
        patience: float = PATIENCE,
        address: str = "",
    ) -> None:
        self._hold = AdbLock(shell, directory, power)
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
        """The device and its software; see :func:`opscope.hosts.adb.state.read_device`.

        Raises:
            DeviceError: it does not answer, and does not come back.
        """
        power = self._power.name if self._power else None
        told = self._patiently(lambda: read_device(self._adb, power, features, versions))
        if told.phone is None:
            return told
        found = {**told.phone.settings, **self._hold.found}  # while it is held they are as we made them
        return msgspec.structs.replace(told, phone=msgspec.structs.replace(told.phone, settings=found))

    def state(self) -> Conditions:
        """The state it is in; one that was lost is waited for.

        Raises:
            DeviceError: it does not come back.
        """
        return self._patiently(lambda: read_state(self._adb))

    def output_of(self, *command: str) -> str:
        """What a small command prints; a device that was lost is waited for.

        Raises:
            DeviceError: it does not come back.
        """
        return self._patiently(lambda: self._printed(*command))

    def _printed(self, *command: str) -> str:
        return self._adb.run(command, _ASK_SECONDS).stdout.decode("utf-8", "replace")

    def _patiently(self, ask: Callable[[], Told]) -> Told:
        """An answer of the device, for which it is waited when it was lost."""
        try:
            return ask()
        except DeviceError:
            self._await()
            return ask()

    def _await(self) -> None:
        """Wait until it answers and has started up; its services are not there before that.

        Raises:
            DeviceError: it does not come back; the next time it is not waited for.
        """
        patience = 0.0 if self._gone else self._patience
        end, self._gone = time.monotonic() + patience, True
        if not self._adb.wait(patience):
            problem = f"the device was lost and did not come back in {self._patience:.0f} s"
            raise DeviceError(problem, where=self.name, hint=_COME_BACK)
        self._gone = False
        while self._printed("getprop", "sys.boot_completed").strip() != "1" and time.monotonic() < end:
            time.sleep(_BOOT_POLL)
