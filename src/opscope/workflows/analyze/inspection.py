"""What a path holds, whatever it is: an analysis of a trace, a summary of a file that is none, a program beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import NotFoundError, UsageError
from opscope.core.files import head_of, sha256_of
from opscope.measurements.analyses import analysis_of
from opscope.workflows.analyze.sides import program_files, side_of

if TYPE_CHECKING:
    from opscope.measurements.results import PreflightResult
    from opscope.runtimes.runtime import Runtime
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


_IDENTIFIER = 8


def preflight(path: str | Path) -> PreflightResult:
    """What of a program XNNPACK will run, what share SME and SME2 can accelerate, what holds it back, and what to do.

    Nothing is measured and no device is needed. A delegate without a payload is counted, and its work stays unknown.
    An .onnx is run once, where ONNX Runtime is installed, since only that tells all shapes.

    Args:
        path: the program, a .pte, a .tflite or an .onnx.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is none of these, truncated, or damaged.
        UsageError: it cannot be run here whatever is asked, as `opscope profile` says.
        RunError: ONNX Runtime does not run it.
    """
    from opscope.measurements.notebook import shown_as
    from opscope.measurements.results import PreflightResult

    place = Path(path)
    runtime = _runtime(place)
    runtime.check(place)
    return shown_as(PreflightResult, runtime.preflight(place))


def _runtime(path: Path) -> Runtime:
    """The runtime of a program; what is none is refused with a word on what is expected."""
    from opscope.readers.compressed import mapped_file
    from opscope.readers.other_files import not_recognised
    from opscope.runtimes.registry import RUNTIMES

    if path.is_dir():
        hint = "name the program; in a bundle it is in model/"
        raise NotFoundError("a directory, not a program", where=path, hint=hint)
    mapped_file(path)
    found = next((one for one in RUNTIMES if one.holds(path)), None)
    if found is None:
        known = "a .pte as written by `opscope profile` or ExecuTorch's exporter, a .tflite or an .onnx"
        raise not_recognised(path, hint=f"give {known}; `opscope analyze` reads traces")
    return found
