"""An Android device for one host: held with its settings, waited for when it was lost, read into the manifest."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from opscope.errors import DeviceError
from opscope.run.adb_guard import Hold
from opscope.run.adb_state import read_device, read_state
from opscope.run.remote_device import Device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.run.adb import AdbShell
    from opscope.run.adb_power import Power

DIRECTORY = "/data/local/tmp/opscope"
"""Where opscope keeps its files on a device; ``/data/local/tmp`` is where adb may write and execute."""
PATIENCE = 120.0
"""How long, in seconds, a device that was lost is waited for; a reboot takes most of it."""
_ASK_SECONDS, _BOOT_POLL = 30.0, 0.5


class AdbLock:
    """The hold on a device, made anew when it was lost.

    Args:
        shell: to the device.
        directory: where opscope keeps its files there.
        power: settings to make while it is held; None for none.

    Attributes:
        found: settings as they were before they were made, by name.
    """

    def __init__(self, shell: AdbShell, directory: str, power: Power | None) -> None:
        self._shell, self._directory, self._power = shell, directory, power
        self._hold: Hold | None = None
        self.found: dict[str, str | None] = {}

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
        self._hold = Hold(self._shell, self._directory, self._power)
        self.found = self._hold.saved
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
    """

    def __init__(
        self, shell: AdbShell, power: Power | None = None, directory: str = DIRECTORY, patience: float = PATIENCE
    ) -> None:
        self._hold = AdbLock(shell, directory, power)
        super().__init__(shell, directory, self._hold)
        self._adb, self._power, self._patience = shell, power, patience

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return self._adb.describe()

    def environment(self, features: list[str] | None, versions: Mapping[str, str]) -> Environment:
        """The device and its software; see :func:`opscope.run.adb_state.read_device`.

        Raises:
            DeviceError: it does not answer.
        """
        told = read_device(self._adb, self._power.name if self._power else None, features, versions)
        if told.phone is None:
            return told
        found = {**told.phone.settings, **self._hold.found}  # while it is held they are as we made them
        return msgspec.structs.replace(told, phone=msgspec.structs.replace(told.phone, settings=found))

    def state(self) -> Conditions:
        """The state it is in; one that was lost is waited for.

        Raises:
            DeviceError: it does not come back.
        """
        try:
            return read_state(self._adb)
        except DeviceError:
            self._await()
            return read_state(self._adb)

    def output_of(self, *command: str) -> str:
        """What a small command prints.

        Raises:
            DeviceError: the device was lost.
        """
        return self._adb.run(command, _ASK_SECONDS).stdout.decode("utf-8", "replace")

    def _await(self) -> None:
        """Wait until it answers and has started up; its services are not there before that."""
        patience, self._patience = self._patience, 0.0  # one that did not come back is not waited for again
        end = time.monotonic() + patience
        if not self._adb.wait(patience):
            hint = "plug it in or switch it on; what was measured is kept, finish with --resume"
            raise DeviceError(
                f"the device was lost and did not come back in {patience:.0f} s", where=self.name, hint=hint
            )
        while self.output_of("getprop", "sys.boot_completed").strip() != "1" and time.monotonic() < end:
            time.sleep(_BOOT_POLL)
        self._patience = patience
