"""Names of targets, parsed: the same for the command line, configurations and manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlencode

from opscope.core.errors import UsageError, did_you_mean
from opscope.hosts.target_kinds import ADB, KINDS, SSH, TargetKind

if TYPE_CHECKING:
    from pathlib import Path

_WHERE = "--target"
_LONGEST = 60
_RUNNER = "runner"
_BY_NAME = {kind.name: kind for kind in KINDS}


class TargetName(NamedTuple):
    """Name of a target: its kind, and its address, empty if it has none."""

    kind: TargetKind
    address: str = ""

    @property
    def text(self) -> str:
        """Name as it is written."""
        return f"{self.kind.name}:{self.address}" if self.address else self.kind.name

    @property
    def runner(self) -> str:
        """Path of the build of executor_runner in the name; empty if it has none."""
        if self.kind.only_builds:
            return self.address
        return self._address_options.get(_RUNNER, "") if self.kind.builds else ""

    def beside(self, directory: Path) -> TargetName:
        """Return the name with the path of its build or Python taken relative to a directory."""
        if self.kind.here and self.address:
            return self._replace(address=str(directory / self.address))
        return self.running(str(directory / self.runner)) if self.runner else self

    def running(self, path: str) -> TargetName:
        """Return the name with another path of its build."""
        if self.kind.only_builds:
            return self._replace(address=path)
        options = urlencode({**self._address_options, _RUNNER: path}, safe="/:")
        return self._replace(address=f"{self.address.partition('?')[0]}?{options}")

    @property
    def _address_options(self) -> dict[str, str]:
        return dict(parse_qsl(self.address.partition("?")[2]))


def parse_target(text: str, *, builds_named: bool = False) -> TargetName:
    """Parse the name of a target."""
    name, colon, address = text.partition(":")
    kind = _BY_NAME.get(name)
    if kind is None or (colon and not kind.address):
        raise UsageError(f'no target "{text[:_LONGEST]}"', where=_WHERE, hint=did_you_mean(text, _BY_NAME))
    if not address and kind.missing and (colon or not (builds_named and kind.only_builds)):
        raise UsageError(kind.missing, where=_WHERE, hint=f"name it: {kind.form}")
    if kind is SSH:
        from opscope.hosts.ssh import parse_address  # noqa: PLC0415 - only who names a device needs it

        parse_address(address)
    elif kind is ADB:
        from opscope.hosts.adb.adb import parse_address as parse_serial  # noqa: PLC0415 - likewise

        parse_serial(address)
    return TargetName(kind, address)


def kind_named(text: str) -> TargetKind:
    """Return the kind of a target whose name was parsed before, even if it names no build."""
    return parse_target(text, builds_named=True).kind
