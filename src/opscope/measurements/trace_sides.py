"""Sides from traces alone: one trace, or a directory of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import MismatchError
from opscope.runtimes.side import Side, Warmup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.core.table import EventTable
    from opscope.core.table.events import CallWork


def trace_side(path: Path, warmup: Warmup) -> Side:
    """The side that a trace is, or a directory of traces, each of them a process."""
    from opscope.core.table import EventTable
    from opscope.readers.registry import read_trace, traces_in

    files, other_formats = [path], dict[str, int]()
    if path.is_dir():
        files, _, other_formats = traces_in(path)
    read_files = [read_trace(file) for file in files]
    clocks = sorted({one.table.clock.value for one in read_files})
    if len(clocks) > 1:
        hint = "give traces of each clock their own directory"
        raise MismatchError(f"its traces use different clocks: {' and '.join(clocks)}", where=path, hint=hint)
    _check_settings([one.table for one in read_files], path)
    table = EventTable.concat([one.table for one in read_files])
    table = marked(table, warmup)
    if other_formats:
        from opscope.core.table import TraceWarning

        others = " and ".join(f"{count:,} of the format {name}" for name, count in other_formats.items())
        message = f"the directory has traces in other formats, which were not read: {others}"
        table = table.with_warnings(TraceWarning("other_formats", message, "give every format its own directory"))
    hashes = [(str(file), one.sha256) for file, one in zip(files, read_files, strict=True)]
    return Side(table, str(path), read_files[0].format, hashes, path.name, None, None)


def _check_settings(tables: Sequence[EventTable], path: Path) -> None:
    """Calls of one name in several files must be of one model that ran in one way."""
    known: dict[str, CallWork] = {}
    for method, work in (item for table in tables for item in table.work.items()):
        if known.setdefault(method, work) != work:
            parts = [dict.fromkeys(one.setting.split()) for one in (known[method], work)]
            text = " and ".join(" ".join(one for one in parts[n] if one not in parts[1 - n]) for n in (0, 1))
            raise MismatchError(
                f"its files are of different models or settings: {text}", where=path, hint="analyse them one by one"
            )


def marked(table: EventTable, warmup: Warmup) -> EventTable:
    """The table with its warm-up inferences marked.

    A number counts for every process; without one, marks that the file itself holds are kept, and else they are found
    in the latencies. Tools that time phases of a language model leave their warm-up out of their reports.
    """
    from opscope.analysis.latency.latency import auto_warmup

    kept_by_tool = any(one.code == "phases_only" for one in table.warnings) and not isinstance(warmup, int)
    if (warmup is None and any(table.warmup)) or kept_by_tool:
        return table
    return table.with_warmup(warmup if isinstance(warmup, int) else auto_warmup(table))
