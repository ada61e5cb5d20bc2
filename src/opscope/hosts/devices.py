"""Devices by their addresses: always the same object, so that all experiments on one share what is known of it."""

from __future__ import annotations

import functools

from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.adb import parse_address as parse_serial
from opscope.hosts.adb.device import AdbDevice
from opscope.hosts.adb.power import PROFILES
from opscope.hosts.device import Device
from opscope.hosts.ssh import SshShell, parse_address

PHONE_VERSIONS = {"c library": "glibc of the bundle, experimental: not yet seen on a phone"}
"""Stand in an Android device's manifest; the wheels of runtimes are not made for Android's own C library."""


@functools.cache
def ssh_device(address: str) -> Device:
    """The device of an address; all builds on it share one connection."""
    place = parse_address(address)
    return Device(SshShell(place), place.directory)


@functools.cache
def phone_device(address: str) -> AdbDevice:
    """The device of an address: always the same, so that all experiments on it share what is known of it."""
    asked = parse_serial(address)
    shell = AdbShell(asked.serial or None)
    power = PROFILES[asked.power] if asked.power else None
    told = asked._replace(serial=shell.serial).text()
    return AdbDevice(shell, power, asked.directory, asked.patience, told)
