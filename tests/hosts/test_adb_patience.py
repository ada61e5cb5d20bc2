"""How long a device that was lost is waited for."""

from __future__ import annotations

from typing import NoReturn

import pytest

from opscope.core.errors import DeviceError
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import AdbDevice


class _LostShell(AdbShell):
    """A way to a device that does not come back."""

    def __init__(self) -> None:
        self.serial = "lost"
        self.waits: list[float] = []

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        return False


def _gone() -> NoReturn:
    raise DeviceError("gone")


def test_a_device_that_did_not_come_back_is_not_waited_for_again() -> None:
    """With all patience at first, then without; each failure is told."""
    shell = _LostShell()
    device = AdbDevice(shell, patience=60.0)
    for _ in range(2):
        with pytest.raises(DeviceError):
            device._ask_patiently(_gone)
    assert shell.waits == [60.0, 0.0]
    assert device._ask_patiently(lambda: "an answer") == "an answer"
