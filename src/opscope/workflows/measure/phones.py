"""Android devices, by their addresses, their settings and the options of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import UsageError
from opscope.experiment.target_names import kind_named, parse_target
from opscope.hosts.adb.adb import parse_address
from opscope.hosts.target_kinds import ADB

if TYPE_CHECKING:
    from opscope.experiment.planned import Experiments


def phone_settings(address: str) -> dict[str, str | None]:
    """Settings that an earlier run had left changed on a device, as they were put back by holding it for a moment."""
    from opscope.hosts.devices import phone_device

    device = phone_device(address)
    with device.reserved():
        return device.restored


def phone_name(target: str | None, remote_device: str | None, power: str | None) -> str | None:
    """The name of a target, from what the command line says in several options."""
    name = target
    if remote_device is not None:
        if target not in {None, ADB.name}:
            raise UsageError("it is an Android device", where="--remote-device", hint="leave out --target")
        name = f"{ADB.name}:{remote_device}"
    if power is None:
        return name
    named = parse_target(name) if name else None
    if named is None or not named.kind.android:
        raise UsageError("only Android devices have power profiles", where="--power", hint="--target adb")
    return f"{ADB.name}:{parse_address(named.address)._replace(power=power).text()}"


def on_phone(asked: Experiments, name: str) -> Experiments:
    """Experiments as they run on another device than their file says."""
    if not parse_target(name).kind.android:
        raise UsageError("only an Android device can be named here", where="--target", hint=ADB.form)
    named = next((one.device for one in asked.experiments if one.device and not one.needs_worker), None)
    if named:
        hint = f'leave it out, and name the address in the file: [devices.{named}] and below it target = "{name}"'
        raise UsageError("the devices of the file say their own targets", where="--target", hint=hint)
    kinds = [kind_named(one.target) for one in asked.experiments]
    movable = [one for one, kind in zip(asked.experiments, kinds, strict=True) if kind.only_builds or kind.android]
    if not movable:
        hint = "leave it out; experiments with runners, or of the target adb, can run on a device that is named"
        raise UsageError("no experiment of the file runs on Android", where="--target", hint=hint)
    moved = tuple(msgspec.structs.replace(one, target=name) if one in movable else one for one in asked.experiments)
    return msgspec.structs.replace(asked, experiments=moved)
