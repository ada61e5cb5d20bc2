"""The name of a target, parsed: the same for the command line, configurations and manifests."""

from __future__ import annotations

from typing import NamedTuple

from opscope.core.errors import UsageError, did_you_mean
from opscope.hosts.target_kinds import ADB, KINDS, SSH, TargetKind

_WHERE = "--target"
_LONGEST = 60
_BY_NAME = {kind.name: kind for kind in KINDS}


class TargetName(NamedTuple):
    """The name of one target: its kind, and its address, empty where it has none."""

    kind: TargetKind
    address: str = ""

    @property
    def text(self) -> str:
        """The name as it is written."""
        return f"{self.kind.name}:{self.address}" if self.address else self.kind.name


def parse_target(text: str, *, builds_named: bool = False) -> TargetName:
    """The target of a name.

    Args:
        text: as it was typed.
        builds_named: whether builds of executor_runner are named elsewhere, so that the name needs none.

    Raises:
        UsageError: there is no such kind, or its address is missing or is none.
    """
    name, colon, address = text.partition(":")
    kind = _BY_NAME.get(name)
    if kind is None or (colon and not kind.address):
        raise UsageError(f'no target "{text[:_LONGEST]}"', where=_WHERE, hint=did_you_mean(text, _BY_NAME))
    if not address and kind.missing and (colon or not (builds_named and kind.only_builds)):
        raise UsageError(kind.missing, where=_WHERE, hint=f"name it: {kind.form}")
    _check_address(kind, address)
    return TargetName(kind, address)


def kind_named(text: str) -> TargetKind:
    """The kind of a target whose name was parsed before, whoever names its builds."""
    return parse_target(text, builds_named=True).kind


def _check_address(kind: TargetKind, address: str) -> None:
    """Refuse what is no address of a device.

    Raises:
        UsageError: saying what one looks like.
    """
    if kind is SSH:
        from opscope.hosts.ssh import parse_address  # noqa: PLC0415 - only who names a device needs it

        parse_address(address)
    elif kind is ADB:
        from opscope.hosts.adb.adb import parse_address as parse_serial  # noqa: PLC0415 - likewise

        parse_serial(address)
