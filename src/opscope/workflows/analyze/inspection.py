"""What a path holds, whatever it is: an analysis of a trace, or a summary of a file that is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.core.files import head_of, sha256_of
from opscope.measurements.analyses import analysis_of
from opscope.workflows.analyze.sides import program_files, side_of

if TYPE_CHECKING:
    from opscope.runtimes.side import Warmup
    from opscope.workflows.analyze.inspected import Inspected

_HEAD = 1 << 16


def inspect(
    path: str | Path,
    *,
    warmup: Warmup = None,
    program: str | Path | None = None,
    etrecord: str | Path | None = None,
) -> Inspected:
    """The analysis of a trace, bundle or run, or a summary of a .pte, a .tflite, an .etrecord or an XNNPACK log.

    Args:
        path: what to look into, see :func:`opscope.api.analyze` for traces.
        warmup: for traces, likewise.
        program: for traces, likewise.
        etrecord: for traces, likewise.

    Raises:
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or of an unknown format.
    """
    place = Path(path)
    summary = _summary(place, head_of(place, _HEAD)) if place.is_file() else None
    if summary is None:
        return analysis_of(side_of(path, warmup, program_files(program, etrecord)))
    if program or etrecord:
        problem = "a program applies only to traces, and this is not a trace"
        raise UsageError(problem, where=place, hint="leave out --program and --etrecord")
    return summary


def _summary(path: Path, head: bytes) -> Inspected | None:
    from opscope.readers.compressed import is_compressed
    from opscope.readers.registry import first_reader
    from opscope.runtimes.registry import RUNTIMES

    if is_compressed(head) or first_reader().sniff(head):
        return None  # the usual case, told before other formats are even imported
    from opscope.analysis.preflight.contents import summarise_kernels
    from opscope.readers.kernels import is_kernel_log, read_kernel_log

    for runtime in RUNTIMES:
        found = runtime.summary(path, head)
        if found is not None:
            return found
    if is_kernel_log(head):
        return summarise_kernels(read_kernel_log(path), str(path), sha256_of(path))
    return None
