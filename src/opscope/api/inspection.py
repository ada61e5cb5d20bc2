"""What a path holds, whatever it is: an analysis of a trace, or a summary of a file that is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from opscope.analyze.analysis import Analysis
from opscope.analyze.contents import (
    KernelSummary,
    ProgramSummary,
    RecordSummary,
    summarise_kernels,
    summarise_program,
    summarise_record,
)
from opscope.api.analyses import analyze
from opscope.bundle.files import sha256_of

if TYPE_CHECKING:
    from opscope.api.sides import Warmup

Inspected: TypeAlias = Analysis | ProgramSummary | RecordSummary | KernelSummary
_HEAD = 1 << 16


def inspect(path: str | Path, *, warmup: Warmup = None) -> Inspected:
    """The analysis of a trace, bundle or run, or a summary of a .pte, an .etrecord or an XNNPACK log.

    Args:
        path: what to look into, see :func:`opscope.api.analyze` for traces.
        warmup: for traces, likewise.

    Raises:
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or of an unknown format.
    """
    place = Path(path)
    summary = _summary(place, _head(place)) if place.is_file() else None
    return analyze(path, warmup=warmup) if summary is None else summary


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _summary(path: Path, head: bytes) -> Inspected | None:
    from opscope.read.etdump import EtdumpReader

    if EtdumpReader().sniff(head):
        return None  # the usual case, told before other formats are even imported
    from opscope.read.etrecord import is_etrecord, read_etrecord
    from opscope.read.pte import is_program
    from opscope.read.xnnpack_log import is_kernel_log, read_kernel_log

    if is_program(head):
        return _program(path)
    if is_etrecord(head):
        return summarise_record(read_etrecord(path), str(path), sha256_of(path))
    if is_kernel_log(head):
        return summarise_kernels(read_kernel_log(path), str(path), sha256_of(path))
    return None


def _program(path: Path) -> ProgramSummary:
    from opscope.read.pte import read_executable
    from opscope.read.xnnpack_payload import read_xnn_graphs

    executable = read_executable(path)
    whole = all(delegate.data for plan in executable.plans for delegate in plan.delegates)
    graphs = read_xnn_graphs(path) if whole else ()  # a program may be kept without the payloads of its delegates
    return summarise_program(executable, graphs, str(path), sha256_of(path))
