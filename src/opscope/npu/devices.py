"""The AI Engine as data: numbers and names of its events, and what each device has and can do.

The tables stand in ``aie_events.json`` and ``aie_devices.json`` beside this module, each with its source.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TypeVar

import msgspec

from opscope.core.json import from_json

_Table = TypeVar("_Table")


class EventNames(msgspec.Struct, frozen=True):
    """Names of the events that a trace unit can record; the place in a list is the event's number."""

    core: tuple[str | None, ...]  # of a compute tile's processor
    mem: tuple[str | None, ...]  # of its memory module
    memtile: tuple[str | None, ...]  # of a memory tile
    shim: tuple[str | None, ...]  # of an interface tile
    earlier_names: dict[str, str]  # names that tools wrote before, and what they are called now

    def of(self, unit: str) -> tuple[str | None, ...]:
        """Return the events of a unit: ``core``, ``mem``, ``memtile`` or ``shim``."""
        return {"core": self.core, "mem": self.mem, "memtile": self.memtile, "shim": self.shim}[unit]

    def current(self, recorded: str) -> str:
        """Today's name of an event; a name that is not known stays as it is."""
        return self.earlier_names.get(recorded, recorded)


class AieDevice(msgspec.Struct, frozen=True):
    """An AI Engine array.

    Attributes:
        name: as given to ``--arch``.
        chips: products that it is part of.
        architecture: generation of its tiles.
        core_rows: rows of compute tiles.
        core_columns: columns of compute tiles that programs can use.
        core_memory_bytes: data memory of a compute tile.
        memtile_bytes: memory of a memory tile.
        stream_bytes_per_cycle: what one stream port moves in a cycle.
        clock_mhz: levels that the driver sets the array's clock to, lowest first; a level may have several values.
        mac_per_cycle: multiply-accumulates of one core in a cycle, by type of the operands.
        array_columns: columns of the array, from 0; a program need not use all of them.
        assumed_clock_mhz: the level that the driver sets unless a program asks for another.
    """

    name: str
    chips: tuple[str, ...]
    architecture: str
    core_rows: int
    core_columns: int
    core_memory_bytes: int
    memtile_bytes: int
    stream_bytes_per_cycle: int
    clock_mhz: tuple[tuple[int, ...], ...]
    mac_per_cycle: dict[str, int]
    array_columns: int
    assumed_clock_mhz: int

    @property
    def clock_levels(self) -> list[int]:
        """Clock levels in MHz, lowest first."""
        return [value for level in self.clock_mhz for value in level]


class AieDevices(msgspec.Struct, frozen=True):
    """All arrays that are known."""

    devices: tuple[AieDevice, ...]  # oldest first
    names: dict[str, str]  # further names of the arrays
    models: tuple[str, ...]  # names of hardware models that are of no one array
    models_clock_mhz: int  # clock that their tool supposes

    def named(self, name: str) -> AieDevice | None:
        """Return the array of this name; None when it is not known."""
        device_name = self.names.get(name, name)
        return next((device for device in self.devices if device.name == device_name), None)


@cache
def event_names() -> EventNames:
    """Return the names of events."""
    return _read_table("events.json", EventNames)


@cache
def aie_devices() -> AieDevices:
    """Return the arrays that are known."""
    return _read_table("devices.json", AieDevices)


def _read_table(name: str, kind: type[_Table]) -> _Table:
    return from_json(pkgutil.get_data("opscope.npu", f"data/{name}") or b"", kind)
