"""Addresses of Android devices: ``[SERIAL|HOST:PORT][?power=PROFILE&dir=PATH&runner=PATH&patience=SECONDS]``."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlencode

from opscope.errors import UsageError
from opscope.run.adb_device import DIRECTORY, PATIENCE
from opscope.run.adb_power import power_named
from opscope.run.remote import address_options, safe_path

_OPTIONS = ("power", "dir", "runner", "patience")
_SERIAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-\[\]]*\Z")
_WHOLE = re.compile(r"\d{1,5}\Z")


class AdbAddress(NamedTuple):
    """Which device is meant, and how it is used.

    Attributes:
        serial: its serial number, or HOST:PORT; empty for the only one there is.
        power: name of the power profile that is set while something is measured; None leaves the settings as they are.
        directory: of the device, for what is kept and run there.
        runner: an executor_runner here, built with the NDK; None to bring the native runner.
        patience: how long the device is waited for after it was lost, in seconds.
    """

    serial: str = ""
    power: str | None = None
    directory: str = DIRECTORY
    runner: str | None = None
    patience: int = PATIENCE

    def text(self) -> str:
        """The address, with nothing in it that is the default."""
        told = (
            ("power", self.power),
            ("dir", None if self.directory == DIRECTORY else self.directory),
            ("runner", self.runner),
            ("patience", None if self.patience == PATIENCE else f"{self.patience}"),
        )
        options = {name: value for name, value in told if value}
        return self.serial + (f"?{urlencode(options, safe='/:')}" if options else "")


def parse_address(text: str) -> AdbAddress:
    """The parts of an address.

    Raises:
        UsageError: it is no address, has an unknown option, or names no power profile.
    """
    serial, _, query = text.partition("?")
    where = f"--target adb:{text}"
    if serial and not _SERIAL.match(serial):
        hint = "for example adb, adb:R5CT30ABCDE or adb:192.168.1.7:5555; `adb devices` lists them"
        raise UsageError("this is no serial number of a device", where=where, hint=hint)
    options = address_options(query, _OPTIONS, where, "power=boost")
    power = power_named(options["power"]).name if "power" in options else None
    directory = safe_path(options.get("dir", DIRECTORY), where).rstrip("/")
    if not directory.startswith("/"):
        raise UsageError("the directory must be absolute", where=where, hint=f"for example ?dir={DIRECTORY}")
    patience = options.get("patience", f"{PATIENCE}")
    if not _WHOLE.match(patience):
        raise UsageError(f"{patience!r} is no time", where=where, hint="a whole number of seconds: ?patience=60")
    return AdbAddress(serial, power, directory, options.get("runner"), int(patience))
