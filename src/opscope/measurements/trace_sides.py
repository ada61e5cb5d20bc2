"""Sides from traces alone: one trace, or a directory of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import MismatchError
from opscope.measurements.populations import with_populations
from opscope.runtimes.side import Side, Warmup

if TYPE_CHECKING:
    from fractions import Fraction
    from pathlib import Path

    from opscope.core.table import EventTable


def trace_side(path: Path, warmup: Warmup, tick_ns: Fraction | None = None) -> Side:
    """Return the side of a trace, or of a directory of traces, each of which is a process.

    ``tick_ns``: length of a tick of the clock that the traces were written by; None: they are in nanoseconds.
    """
    from opscope.core.table import EventTable
    from opscope.readers.registry import read_trace_in_ns, traces_in

    files, other_formats = [path], dict[str, int]()
    if path.is_dir():
        files, _, other_formats = traces_in(path)
    read_files = [read_trace_in_ns(file, tick_ns) for file in files]
    clocks = sorted({trace.table.clock.value for trace in read_files})
    if len(clocks) > 1:
        hint = "give traces of each clock their own directory"
        raise MismatchError(f"its traces use different clocks: {' and '.join(clocks)}", where=path, hint=hint)
    table = EventTable.concat([trace.table for trace in read_files])
    table = mark_warmup(with_populations(table), warmup)
    if other_formats:
        from opscope.core.table import TraceWarning

        others_text = " and ".join(f"{count:,} of the format {name}" for name, count in other_formats.items())
        message = f"the directory has traces in other formats, which were not read: {others_text}"
        table = table.with_warnings(TraceWarning("other_formats", message, "give every format its own directory"))
    hashes = [(str(file), trace.sha256) for file, trace in zip(files, read_files, strict=True)]
    return Side(table, str(path), read_files[0].format, hashes, path.name, None, None)


def mark_warmup(table: EventTable, warmup: Warmup) -> EventTable:
    """Mark the warm-up inferences of a table.

    A number counts for every process; without one, marks that the file itself holds are kept, and else they are found
    in the latencies.
    """
    from opscope.analysis.latency.latency import auto_warmup

    if warmup is None and any(table.warmup):
        return table
    return table.with_warmup(warmup if isinstance(warmup, int) else auto_warmup(table))
