"""What a switch library counted, from the file that it shares with us: ``c/report.h`` says how it is laid out."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError
from opscope.core.files import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = struct.Struct("<8sIIII")
_LIBRARY = struct.Struct("<IIIiIIQQ")
_ROW = struct.Struct("<IIQ")
_MAGIC = b"opswtch2"
_MOST_LIBRARIES, MOST_ROWS = 64, 64
_ONE = _LIBRARY.size + MOST_ROWS * _ROW.size
_SIZE = _HEAD.size + _MOST_LIBRARIES * _ONE


class SwitchedRow(NamedTuple):
    """What was cleared in the answers of one kind."""

    cleared: int  # bits that were set in an answer of the processor, and were cleared; 0 for hardware capabilities
    answers: int  # in which some were


class SwitchedLibrary(NamedTuple):
    """What became of one library."""

    loaded: int  # times that it was loaded
    sites: int  # places that were switched in it
    problem: int  # number of the reason why it could not be switched; 0 for none
    detail: int  # error number of the system, where that is the reason
    executed: int  # places that were switched and asked at least once; 0 for hardware capabilities
    executions: int  # questions that it asked
    masked: int  # of them, those that were answered with fewer features
    rows: tuple[SwitchedRow, ...]  # in the order in which they were asked for


class SwitchReport(NamedTuple):
    """What a switch library counted."""

    process: int  # number of the process that it was loaded into
    libraries: tuple[SwitchedLibrary, ...]  # in the order in which they were asked for


def read_report(file: Path) -> SwitchReport:
    """What was counted so far; the process may still run."""
    with storage_errors(file):
        data = file.read_bytes()
    if len(data) != _SIZE:
        raise FeatureError(f"the report of the switch has {len(data)} bytes instead of {_SIZE}", where=file)
    magic, size, process, libraries, rows = _HEAD.unpack_from(data)
    if magic != _MAGIC or size != _SIZE or libraries > _MOST_LIBRARIES or rows > MOST_ROWS:
        raise FeatureError("the report of the switch is damaged, or of another version", where=file)
    return SwitchReport(process, tuple(_library(data, number, rows) for number in range(libraries)))


def _library(data: bytes, number: int, rows: int) -> SwitchedLibrary:
    at = _HEAD.size + number * _ONE
    own = [_ROW.unpack_from(data, at + _LIBRARY.size + row * _ROW.size) for row in range(rows)]
    told = tuple(SwitchedRow(cleared, count) for cleared, _, count in own)
    loaded, sites, problem, detail, executed, _, executions, masked = _LIBRARY.unpack_from(data, at)
    return SwitchedLibrary(loaded, sites, problem, detail, executed, executions, masked, told)
