"""Every prefix of every fixture of every reader.

A file that was cut reads the same figures, or is refused, or says that it is cut; anything else is a finding. Fixtures
are the seeds of the fuzzer and the inputs that it keeps (``fuzz/corpus``), where they are read whole.
"""

from __future__ import annotations

import random
import time
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from fuzz.corpus import kept
from fuzz.targets import WHERE, target_named
from opscope.core.errors import TraceFormatError
from opscope.readers.registry import FindingReader, built_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opscope.core.table import EventTable
    from opscope.readers.registry import Reader

TARGETS = {
    "EtdumpReader": "etdump",
    "OnnxRuntimeProfileReader": "onnxruntime-profile",
    "LitertTraceReader": "litert-trace",
    "OpenVinoTraceReader": "openvino-trace",
    "OpenVinoCountersReader": "openvino-counters",
    "BenchmarkTextReader": "benchmark-text",
    "AieJsonReader": "aie-json",
    "AieWordsReader": "aie-words",
    "EventsCsvReader": "events-csv",
    "EventsParquetReader": "events-parquet",
    "KitTimelineReader": "kit-csv",
}
"""The target of each reader of the registry, which has its fixtures."""
SAYS_SO = {"truncated", "rows_lost", "unfinished_inference", "kit_percentages_wrong", "no_delegate_operators"}
"""Codes of warnings that say that something is missing."""
WITHOUT_END = {"AieWordsReader"}
"""Readers of raw buffers, which nothing ends: cut between two packets, one is a shorter buffer, and reads as that."""


class Cut(NamedTuple):
    """A prefix that reads other figures and says nothing: the reader, the fixture's size, and the prefix's."""

    reader: str
    size: int
    length: int


def read_fixtures(reader: str) -> Iterator[tuple[bytes, EventTable]]:
    """Yield the files that a reader reads whole, with their events."""
    name = TARGETS[reader]
    for data in [*target_named(name).seeds(), *kept(name)]:
        table = read_table(reader, data)
        if table is not None and not SAYS_SO & {warning.code for warning in table.warnings}:
            yield data, table


def read_table(reader: str, data: bytes) -> EventTable | None:
    """Return the events of a file; None where it is refused."""
    module = next(module for module, name in built_in() if name == reader)
    instance: Reader = getattr(import_module(module), reader)()
    if not instance.sniff(data[:64]) and not (isinstance(instance, FindingReader) and instance.finds(data)):
        return None
    try:
        return instance.read(data, WHERE)
    except TraceFormatError:
        return None


def find_silent_cuts(reader: str, data: bytes, whole: EventTable, lengths: Iterable[int]) -> list[Cut]:
    """Return the prefixes of a file that read other figures silently."""
    cuts = []
    for length in lengths:
        table = read_table(reader, data[:length])
        if table is None or SAYS_SO & {warning.code for warning in table.warnings}:
            continue
        if reader in WITHOUT_END and not _is_packet_cut(data, length):
            continue
        if not table.frame.equals(whole.frame):
            cuts.append(Cut(reader, len(data), length))
    return cuts


def _is_packet_cut(data: bytes, length: int) -> bool:
    """Tell whether a cut goes through a packet of eight words, in four bytes each or in lines of text."""
    if data.isascii() and b"\n" in data:
        return len(data[:length].split()) % 8 > 0
    return length % 32 > 0


def try_prefixes(seconds: float, seed: int) -> int:
    """Try prefixes of all fixtures in random order until the time is over; print and return what was found."""
    files = [(reader, *fixture) for reader in TARGETS for fixture in read_fixtures(reader)]
    places = [(number, length) for number, (_, data, _) in enumerate(files) for length in range(len(data))]
    random.Random(seed).shuffle(places)  # noqa: S311 - not secret
    end, tried, found = time.monotonic() + seconds, 0, 0
    for number, length in places:
        tried += 1
        for cut in find_silent_cuts(*files[number], [length]):
            found += 1
            print(f"  {cut.reader}: {cut.length:,} of {cut.size:,} bytes read other figures silently", flush=True)
        if time.monotonic() > end:
            break
    print(f"prefixes: {tried:,} of {len(places):,} prefixes of {len(files)} files, {found} findings", flush=True)
    return found
