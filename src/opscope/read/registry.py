"""Readers by content: the first that recognises the first bytes of a file reads it.

Other packages add formats through the entry-point group ``opscope.readers``: an object that satisfies
:class:`Reader`, or a class of such objects without arguments.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from opscope.errors import EmptyTraceError, NotFoundError, StorageError, TraceFormatError

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.table import EventTable

GROUP = "opscope.readers"
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


def readers() -> list[Reader]:
    """All installed readers, built-in ones first."""
    found = sorted(entry_points(group=GROUP), key=lambda point: (not point.value.startswith("opscope."), point.name))
    return [_instance(point.load()) for point in found]


def _instance(loaded: type[Reader] | Reader) -> Reader:
    return loaded() if isinstance(loaded, type) else loaded


def reader_for(head: bytes, path: Path) -> Reader:
    """The reader that recognises a file.

    Raises:
        TraceFormatError: none does; the formats that are known are listed.
    """
    known = readers()
    for reader in known:
        if reader.sniff(head):
            return reader
    names = ", ".join(reader.name for reader in known)
    raise TraceFormatError("the format is not recognised", where=path, hint=f"formats that are read: {names}")


def read_trace(path: Path) -> tuple[EventTable, str]:
    """The events of a file and the name of its format.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is empty, damaged or of an unknown format.
    """
    data = file_bytes(path)
    if not data:
        hint = "the run failed, or its runtime was built without event tracing (executorch before 1.5)"
        raise EmptyTraceError("the file has no bytes", where=path, hint=hint)
    reader = reader_for(data[:_HEAD], path)
    return reader.read(data, path), reader.name


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
