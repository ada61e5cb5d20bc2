"""The native runner on an Android device, with the C library it brings: experimental until seen on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.machine import environment, isa
from opscope.runtimes.executorch.runners.remote_native import RemoteNativeTarget

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.hosts.adb.adb import AdbShell
    from opscope.hosts.adb.device import AdbDevice

EXPERIMENTAL = "glibc of the bundle, experimental: not yet seen on a phone"
"""Stands in the manifest under ``c library``; Android has another one, which the runtime's wheel is not made for."""


class AdbNativeTarget(RemoteNativeTarget):
    """Runs jobs with the native runner on an Android device, from a folder with its own loader and C library.

    Args:
        shell: the way to the device.
        device: the device.
        cache: where runtimes are kept here; the user's cache directory when it is not given.
    """

    def __init__(self, shell: AdbShell, device: AdbDevice, cache: Path | None = None) -> None:
        super().__init__(shell, "", cache, device)
        self._phone = device

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return self._phone.describe()

    def environment(self) -> Environment:
        """The device and its software."""
        probed = self.probe()
        groups = [group.name for group in isa.present(probed.arch, frozenset(probed.fields))]
        own = {"opscope": environment.versions()["opscope"], "c library": EXPERIMENTAL}
        return self._phone.environment(groups, {**own, **self._runtime.versions})

    def conditions(self) -> Conditions:
        """The state of the device now.

        Raises:
            DeviceError: it was lost and does not come back.
        """
        return self._phone.conditions()
