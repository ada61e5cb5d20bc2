"""Read every prefix of every fixture of every reader: ``python -m fuzz.prefixes``.

A file that was cut reads the same figures, or is refused, or says that it is cut; anything else is a finding. Fixtures
are the seeds of the fuzzer and the inputs that it keeps (``fuzz/corpus``), where they are read whole.
"""

from __future__ import annotations

import argparse
import sys
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
    "BenchmarkTextReader": "benchmark-text",
    "BenchmarkProtoReader": "benchmark-proto",
    "LlamaBenchReader": "llama-bench",
    "ObserverReader": "pytorch-observer",
    "LitertLmReader": "litert-lm",
    "GenAiReader": "genai-benchmark",
    "AieJsonReader": "aie-json",
    "AieWordsReader": "aie-words",
    "EventsCsvReader": "events-csv",
    "EventsParquetReader": "events-parquet",
    "KitTimelineReader": "kit-csv",
}
"""The target of each reader of the registry, which has its fixtures."""
SAYS_SO = {"truncated", "unfinished_inference", "kit_percentages_wrong", "no_delegate_operators"}
"""Codes of warnings that say that something is missing."""
WITHOUT_END = {"AieWordsReader"}
"""Readers of raw buffers, which nothing ends: cut between two packets, one is a shorter buffer, and reads as that."""
OF_LINES = {"LlamaBenchReader", "ObserverReader", "LitertLmReader", "GenAiReader"}
"""Readers of logs and of tables in lines, which nothing ends either; a list in JSON has an end."""


class Cut(NamedTuple):
    """A prefix that reads other figures and says nothing: the reader, the fixture's size, and the prefix's."""

    reader: str
    size: int
    length: int


def fixtures(reader: str) -> Iterator[tuple[bytes, EventTable]]:
    """Files that a reader reads whole, with their events."""
    name = TARGETS[reader]
    for data in [*target_named(name).seeds(), *kept(name)]:
        table = read(reader, data)
        if table is not None and not SAYS_SO & {warning.code for warning in table.warnings}:
            yield data, table


def read(reader: str, data: bytes) -> EventTable | None:
    """The events of a file; None where it is refused."""
    module = next(module for module, name in built_in() if name == reader)
    instance: Reader = getattr(import_module(module), reader)()
    if not instance.sniff(data[:64]) and not (isinstance(instance, FindingReader) and instance.finds(data)):
        return None
    try:
        return instance.read(data, WHERE)
    except TraceFormatError:
        return None


def silently_other(reader: str, data: bytes, whole: EventTable, lengths: Iterable[int]) -> list[Cut]:
    """The prefixes of a file that read other figures silently."""
    found = []
    for length in lengths:
        table = read(reader, data[:length])
        if table is None or SAYS_SO & {warning.code for warning in table.warnings}:
            continue
        if reader in WITHOUT_END and not _packet_is_cut(data, length):
            continue
        if reader in OF_LINES and data[:1] != b"[" and data[:length].endswith(b"\n"):
            continue
        if not table.frame.equals(whole.frame):
            found.append(Cut(reader, len(data), length))
    return found


def _packet_is_cut(data: bytes, length: int) -> bool:
    """Whether a cut goes through a packet of eight words, in four bytes each or in lines of text."""
    if data.isascii() and b"\n" in data:
        return len(data[:length].split()) % 8 > 0
    return length % 32 > 0


def main(arguments: list[str] | None = None) -> int:
    """Try all prefixes and print what came of them; 1 when one reads other figures silently."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.prefixes", description="Read every prefix of every fixture.")
    parser.add_argument("--only", action="append", choices=TARGETS, help="one of the readers; may be repeated")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try every N-th length")
    options = parser.parse_args(arguments)
    failed = 0
    for reader in options.only or TARGETS:
        files = list(fixtures(reader))
        found = [
            cut
            for data, whole in files
            for cut in silently_other(reader, data, whole, range(0, len(data), options.every))
        ]
        tried = sum(len(range(0, len(data), options.every)) for data, _ in files)
        done = f"{tried:,} prefixes of {len(files)} files"
        print(f"{reader}: {done}, {len(found)} read other figures silently", flush=True)
        for cut in found[:10]:
            print(f"  {cut.length:,} of {cut.size:,} bytes", flush=True)
        failed += len(found)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
