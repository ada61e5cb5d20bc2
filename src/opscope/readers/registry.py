"""Readers by content: the first that recognises the first bytes of a file reads it.

Other packages add formats through the entry-point group ``opscope.readers``: an object that satisfies
:class:`Reader`, or a class of such objects without arguments.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

from opscope.core.errors import EmptyTraceError, NotFoundError, StorageError, TraceFormatError, UsageError
from opscope.core.system.memory import limited
from opscope.core.table.ticks import OPTION, convert_ticks
from opscope.readers.compressed import PACKED, check_unchanged, first_bytes, inflated, mapped_file
from opscope.readers.other_files import not_recognised

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from fractions import Fraction
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from opscope.core.table import EventTable, TraceWarning

GROUP = "opscope.readers"
_RUNTIMES = "opscope.runtimes.registry"
_OF_NO_RUNTIME = (
    ("opscope.npu.readers.json", "AieJsonReader"),
    ("opscope.npu.readers.words", "AieWordsReader"),
    ("opscope.readers.events_table", "EventsCsvReader"),
    ("opscope.readers.events_table", "EventsParquetReader"),
    ("opscope.kit.readers.csv", "KitTimelineReader"),
)
_HEAD = 64
_FIRST_BRACKETS = {b"[", b"{", b"[]", b"{}"}
_START = 1 << 12


@runtime_checkable
class Reader(Protocol):
    """Turns the bytes of one trace format into an EventTable."""

    name: ClassVar[str]

    def sniff(self, head: bytes) -> bool:
        """Return whether a file that starts with these bytes (at most 64) is of this format."""
        ...

    def read(self, data: bytes, path: Path) -> EventTable:
        """Return all events of the file; ``path`` is for messages.

        Raises:
            TraceFormatError: naming file, offset and problem.
        """
        ...


@runtime_checkable
class MappedReader(Protocol):
    """A reader that looks at any buffer, so that a large file is mapped and never held; others are given bytes."""

    name: ClassVar[str]
    takes_views: ClassVar[bool]

    def sniff(self, head: bytes) -> bool:
        """Return whether a file is of this format, as a :class:`Reader` does."""
        ...

    def read(self, data: bytes | memoryview, path: Path) -> EventTable:
        """Return all events of the file, as a :class:`Reader` does."""
        ...


@runtime_checkable
class ConfirmingReader(Protocol):
    """A reader of a format whose first bytes others share, such as JSON."""

    def confirms(self, start: bytes) -> bool:
        """Return whether a file of a directory that was sniffed is a trace, by its first 4,096 bytes."""
        ...


@runtime_checkable
class SharedFormatReader(Protocol):
    """A reader of a format that many tools write, such as the JSON of Chrome's traces."""

    def holds_own(self, data: bytes | memoryview) -> bool:
        """Return whether a file that was sniffed has what this reader reads, anywhere in it."""
        ...


@runtime_checkable
class FindingReader(Protocol):
    """A reader of something that stands in a log behind other lines, of which no beginning is known."""

    def finds(self, data: bytes | memoryview) -> bool:
        """Return whether a file that no reader recognises by its beginning has it."""
        ...


@runtime_checkable
class NamedFormat(Protocol):
    """A reader of a format that has ends of file names to itself, such as ``.etdump``.

    A file of such a name in a directory is taken for a trace even when it is damaged or empty, so that it is refused
    instead of being overlooked.
    """

    suffixes: ClassVar[tuple[str, ...]]


@runtime_checkable
class TickReader(Protocol):
    """A reader of a format whose times are in units of the clock of whatever wrote the file, mostly nanoseconds."""

    def find_clock_problems(self, table: EventTable) -> list[TraceWarning]:
        """Return the reasons against nanoseconds in the times of a table."""
        ...


class TraceRead(NamedTuple):
    """A trace that was read."""

    table: EventTable
    format: str  # name of its reader
    sha256: str  # of the file as it is stored
    content_sha256: str  # of the file inflated: the same where it is not compressed


def read_trace_in_ns(path: Path, tick_ns: Fraction | None) -> TraceRead:
    """Return a trace with times in nanoseconds where its format leaves the unit to the writer; see :func:`read_trace`.

    Args:
        path: the file.
        tick_ns: length of a tick of the writer's clock; None: nanoseconds, with a warning where they are impossible.

    Raises:
        UsageError: a tick is given for a format that states its unit.
    """
    trace, reader = _read_with_reader(path)
    if isinstance(reader, TickReader):
        if tick_ns is None:
            return trace._replace(table=trace.table.with_warnings(*reader.find_clock_problems(trace.table)))
        return trace._replace(table=convert_ticks(trace.table, tick_ns, str(path)))
    if tick_ns is not None:
        hint = f"leave out {OPTION}: it is for ETDumps, whose runner decides"
        raise UsageError(f"its times have a known unit, as all of the format {reader.name}", where=path, hint=hint)
    return trace


def built_in() -> list[tuple[str, str]]:
    """Return the readers of this package, module and class, the most common format first; also in the entry points."""
    from importlib import import_module  # noqa: PLC0415 - runtimes lie above, and are asked when a trace is read

    runtimes = import_module(_RUNTIMES).RUNTIMES
    return [
        *(module_and_class for runtime in runtimes for module_and_class in runtime.readers.values()),
        *_OF_NO_RUNTIME,
    ]


def readers() -> list[Reader]:
    """Return all installed readers that can be loaded, built-in ones first."""
    return [reader for reader in _load_readers() if not isinstance(reader, str)]


def first_reader() -> Reader:
    """Return the reader of the most common format, with which no other is loaded."""
    return next(reader for reader in _load_readers() if not isinstance(reader, str))


def _load_readers() -> Iterator[Reader | str]:
    """Yield the readers in the order in which they are asked, loaded one by one; for one that cannot be loaded, why.

    Those of opscope itself are found without asking what is installed, which takes longer than most files do.
    """
    from importlib import import_module  # noqa: PLC0415 - only for readers that are asked

    for module, name in built_in():
        yield _as_instance(getattr(import_module(module), name))
    from importlib.metadata import entry_points  # noqa: PLC0415 - looked up only when no format of ours is it

    points = (point for point in entry_points(group=GROUP) if not point.value.startswith("opscope."))
    yield from map(_load_reader, sorted(points, key=lambda point: point.name))


def _load_reader(point: EntryPoint) -> Reader | str:
    """Return a reader, or why it cannot be loaded: a fault of another package must not block the other formats."""
    try:
        return _as_instance(point.load())
    except Exception as error:  # noqa: BLE001 - loading runs code of any package
        return f"the reader {point.name} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"


def _as_instance(loaded: type[Reader] | Reader) -> Reader:
    """Return a reader, made where a class is given."""
    return loaded() if isinstance(loaded, type) else loaded


def reader_for(data: bytes | memoryview, path: Path) -> Reader:
    """Return the reader that recognises a file; the most common format is tried before others are looked up."""
    head = bytes(data[:_HEAD])
    if len(data) <= _HEAD and head.strip() in _FIRST_BRACKETS:
        hint = "the process was killed before it wrote a row: run it to its end, and end its profile"
        raise EmptyTraceError("the file ends at its first bracket", where=path, hint=hint)
    tried, broken = list[Reader](), list[str]()
    for reader in _load_readers():
        if isinstance(reader, str):
            broken.append(reader)
        elif reader.sniff(head):
            return reader
        else:
            tried.append(reader)
    finder = next((reader for reader in tried if isinstance(reader, FindingReader) and reader.finds(data)), None)
    if finder is not None:
        return finder
    raise _unrecognised_format(path, tried, broken)


def _unrecognised_format(path: Path, known: Iterable[Reader], broken: Iterable[str] = ()) -> TraceFormatError:
    """Return the error for a file that no reader recognises."""
    names = sorted((reader.name for reader in known), key=len)
    hint = "; ".join([f"supported formats: {', '.join(names)}", *broken])
    return not_recognised(path, "unrecognised format", hint)


def trace_reader(path: Path) -> Reader | None:
    """Return the reader of a file of a directory, which may be compressed; None when it is not a readable trace."""
    return _reader_of(_read_start(path), _load_readers())


def _reader_of(start: bytes, candidates: Iterable[Reader | str]) -> Reader | None:
    """Return the first candidate that recognises the start of a file, if any."""
    for reader in candidates if start else ():
        sniffed = not isinstance(reader, str) and reader.sniff(start[:_HEAD])
        if sniffed and (not isinstance(reader, ConfirmingReader) or reader.confirms(start)):
            return reader if not isinstance(reader, str) else None
    return None


def _read_start(path: Path) -> bytes:
    """Return the first bytes of a file; none where it cannot be read."""
    try:
        return first_bytes(path, _START)
    except (NotFoundError, StorageError, TraceFormatError):
        return b""


def traces_in(directory: Path) -> tuple[list[Path], Reader, dict[str, int]]:
    """Return the traces of a directory, whatever their format; of several formats, those of the first reader.

    The order is that of :func:`readers`. Files that are no traces are passed over; those that are named like the
    traces
    and have no content are not, nor those with a name that only traces have: reading them says what is wrong.
    """
    known = readers()
    try:
        files = sorted(file for file in directory.iterdir() if file.is_file() and not file.name.startswith("."))
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=directory) from error
    paths: dict[str, list[Path]] = {reader.name: [] for reader in known}
    hollow: list[Path] = []
    for file in files:
        start = _read_start(file)
        by_suffix = (
            candidate
            for candidate in known
            if isinstance(candidate, NamedFormat) and _format_suffix(file) in candidate.suffixes
        )
        reader = _reader_of(start, known) or next(by_suffix, None)
        if reader is not None:
            paths[reader.name].append(file)
        elif not start:
            hollow.append(file)
    present = [reader for reader in known if paths[reader.name]]
    if not present:
        hint = f"give a trace, a directory of traces, or a bundle; supported formats: {', '.join(paths)}"
        raise NotFoundError("no traces in this directory", where=directory, hint=hint)
    chosen = paths.pop(present[0].name)
    suffixes = {_format_suffix(file) for file in chosen}
    chosen += [file for file in hollow if _format_suffix(file) in suffixes]
    return sorted(chosen), present[0], {name: len(ignored) for name, ignored in paths.items() if ignored}


def _format_suffix(file: Path) -> str:
    """Return the end of a file's name that tells its format, without that of its compression."""
    return (file.with_suffix("") if file.suffix in PACKED else file).suffix


def read_trace(path: Path) -> TraceRead:
    """Return the events of a file, which may be compressed with gzip or zstd, the name of its format, and its hash."""
    return _read_with_reader(path)[0]


def _read_with_reader(path: Path) -> tuple[TraceRead, Reader]:
    """Return a trace, and the reader that read it."""
    stored = mapped_file(path)
    if not len(stored):
        hint = "the run failed, or its runtime was built without event tracing (executorch before 1.5)"
        raise EmptyTraceError("the file is empty", where=path, hint=hint)
    digest = hashlib.sha256()
    # Hashing releases the interpreter, so it runs beside the decoding.
    hashing = threading.Thread(target=digest.update, args=(stored,))
    hashing.start()
    try:
        with limited(path):
            data = inflated(stored, path)
            content = None if data is stored else hashlib.sha256(data).hexdigest()
            reader = reader_for(data, path)
            if isinstance(reader, SharedFormatReader) and not reader.holds_own(data):
                raise _unrecognised_format(path, readers())
            table = reader.read(data, path) if isinstance(reader, MappedReader) else reader.read(bytes(data), path)
    finally:
        hashing.join()
    check_unchanged(stored, path)
    return TraceRead(table, reader.name, digest.hexdigest(), content or digest.hexdigest()), reader
