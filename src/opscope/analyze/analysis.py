"""The analysis of one trace or of one variant of a bundle: schema ``opscope.analysis/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analyze.latency import Latency, latency
from opscope.analyze.operators import (
    UNKNOWN_METHOD,
    BackendTime,
    CategoryTime,
    Operator,
    backends,
    categories,
    operators,
)
from opscope.analyze.rules import Finding, RuledOut, examine
from opscope.errors import TraceFormatError
from opscope.table import Clock, TraceWarning

if TYPE_CHECKING:
    from opscope.table import EventTable


class TraceFile(msgspec.Struct, frozen=True):
    """One file that was read: its path, hash, and number of inferences and of warm-up inferences."""

    path: str
    sha256: str
    inferences: int
    warmup: int


class TraceInfo(msgspec.Struct, frozen=True):
    """What was read.

    Attributes:
        path: the file, or the directory of several files.
        format: name of the reader.
        sha256: of the file; null when there are several, see ``files``.
        clock: unit of the trace's times.
        inferences: inferences in all files, warm-up included.
        warmup: how many of them are warm-up.
        methods: methods of the program that were run.
        warnings: what limits the meaning of the figures.
        files: every file.
    """

    path: str
    format: str
    sha256: str | None
    clock: Clock
    inferences: int
    warmup: int
    methods: list[str]
    warnings: list[TraceWarning]
    files: list[TraceFile]


class Analysis(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.analysis/1"):
    """Where the time of one variant goes. Times in ns; ``time_ns`` is the mean per measured inference."""

    variant: str | None
    trace: TraceInfo
    latency: Latency
    categories: list[CategoryTime]
    backends: list[BackendTime]
    operators: list[Operator]
    findings: list[Finding]
    ruled_out: list[RuledOut]


class Source(msgspec.Struct, frozen=True):
    """Where a table came from: path, format, and the hash of each file in order of process."""

    path: str
    format: str
    files: list[tuple[str, str]]


def analyse(table: EventTable, source: Source, variant: str | None = None) -> Analysis:
    """Analyse the measured inferences of a table.

    Args:
        table: one process or more, warm-up marked.
        source: where it came from.
        variant: name of the variant in its bundle.

    Raises:
        TraceFormatError: no inference is left to measure.
    """
    measured = latency(table)
    if measured is None:
        raise TraceFormatError(
            "no complete inference is left to measure",
            where=source.path,
            hint="run more inferences than warm-up ones, or count them all with --warmup 0",
        )
    rows = operators(table)
    info = _trace_info(table, source)
    by_category, by_backend = categories(rows), backends(rows)
    findings, ruled_out = examine(measured, rows, by_category, by_backend)
    return Analysis(variant, info, measured, by_category, by_backend, rows, findings, ruled_out)


def _trace_info(table: EventTable, source: Source) -> TraceInfo:
    found = table.inference_times()
    files = [
        TraceFile(path, sha256, int((found.process == p).sum()), int(found.warmup[found.process == p].sum()))
        for p, (path, sha256) in enumerate(source.files)
    ]
    named = [None if code < 0 else found.method.texts[code] for code in np.unique(found.method.codes).tolist()]
    methods = [UNKNOWN_METHOD if name is None else name for name in named]
    return TraceInfo(
        path=source.path,
        format=source.format,
        sha256=files[0].sha256 if len(files) == 1 else None,
        clock=table.clock,
        inferences=sum(file.inferences for file in files),
        warmup=sum(file.warmup for file in files),
        methods=methods,
        warnings=list(table.warnings),
        files=files,
    )
