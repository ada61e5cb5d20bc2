"""Readers by content: the first that recognises the first bytes of a file reads it.

Other packages add formats through the entry-point group ``opscope.readers``: an object that satisfies
:class:`Reader`, or a class of such objects without arguments.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

from opscope.errors import EmptyTraceError, NotFoundError, StorageError, TraceFormatError
from opscope.read.compressed import inflated

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from opscope.table import EventTable

GROUP = "opscope.readers"
_COMMON = "etdump"
_HEAD = 64


@runtime_checkable
class Reader(Protocol):
    """Turns the bytes of one trace format into an EventTable."""

    name: ClassVar[str]

    def sniff(self, head: bytes) -> bool:
        """Whether a file that starts with these bytes (at most 64) is of this format."""
        ...

    def read(self, data: bytes, path: Path) -> EventTable:
        """All events of the file; ``path`` is for messages.

        Raises:
            TraceFormatError: naming file, offset and problem.
        """
        ...


class TraceRead(NamedTuple):
    """A trace that was read: its events, the name of its format, and the hash of the file as it is stored."""

    table: EventTable
    format: str
    sha256: str


def readers() -> list[Reader]:
    """All installed readers that can be loaded, built-in ones first."""
    return [reader for reader in map(_loaded, _points()) if not isinstance(reader, str)]


def _points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - looked up only when the common format is not it

    found = entry_points(group=GROUP)
    return sorted(found, key=lambda point: (point.name != _COMMON, not point.value.startswith("opscope."), point.name))


def _loaded(point: EntryPoint) -> Reader | str:
    """A reader, or why it cannot be had: another package's fault must not keep the other formats from being read."""
    try:
        return _instance(point.load())
    except Exception as error:  # noqa: BLE001 - loading runs code of any package
        return f"the reader {point.name} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"


def _instance(loaded: type[Reader] | Reader) -> Reader:
    return loaded() if isinstance(loaded, type) else loaded


def reader_for(head: bytes, path: Path) -> Reader:
    """The reader that recognises a file; the most common format is tried before others are even looked up.

    Raises:
        TraceFormatError: none does; the formats that are known are listed.
    """
    from opscope.read.etdump import EtdumpReader  # noqa: PLC0415 - it imports nothing that needs this module

    if EtdumpReader().sniff(head):
        return EtdumpReader()
    names, broken = [], []
    for point in _points():
        reader = _loaded(point)
        if isinstance(reader, str):
            broken.append(reader)
        elif reader.sniff(head):
            return reader
        else:
            names.append(reader.name)
    hint = "; ".join([f"formats that are read: {', '.join(names)}", *broken])
    raise TraceFormatError("the format is not recognised", where=path, hint=hint)


def read_trace(path: Path) -> TraceRead:
    """The events of a file, which may be compressed with gzip or zstd, the name of its format, and its hash.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is empty, damaged or of an unknown format.
    """
    stored = file_bytes(path)
    if not stored:
        hint = "the run failed, or its runtime was built without event tracing (executorch before 1.5)"
        raise EmptyTraceError("the file has no bytes", where=path, hint=hint)
    digest = hashlib.sha256()
    # Hashing releases the interpreter, so it runs beside the decoding.
    beside = threading.Thread(target=digest.update, args=(stored,))
    beside.start()
    try:
        data = inflated(stored, path)
        reader = reader_for(data[:_HEAD], path)
        table = reader.read(data, path)
    finally:
        beside.join()
    return TraceRead(table, reader.name, digest.hexdigest())


def file_bytes(path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError("no such file", where=path) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=path) from error
