"""Analysing or summing up what a path holds, whatever it is, and comparing two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.core.files import head_of, sha256_of
from opscope.core.table.ticks import OPTION
from opscope.measurements.analyses import analysis_of, comparison_of
from opscope.measurements.notebook import shown_as
from opscope.workflows.analyze.sides import program_files, side_of

if TYPE_CHECKING:
    from opscope.measurements.results import AnalysisResult, ComparisonResult
    from opscope.npu.workflows.sides import TilesComparisonResult
    from opscope.reports.inspected import Inspected
    from opscope.runtimes.side import Warmup

_HEAD = 1 << 16


def analyze(
    path: str | Path,
    *,
    warmup: Warmup = None,
    program: str | Path | None = None,
    etrecord: str | Path | None = None,
    ticks: str | None = None,
) -> AnalysisResult:
    """Analyse where the time goes in a trace, a directory of traces, or a variant of a bundle.

    Args:
        path: the trace, the directory, the bundle (its accelerated variant) or ``BUNDLE#variant``.
        warmup: inferences of each process to set aside; auto: where latencies settle; None: the bundle's plan, or auto.
        program: the .pte that was traced: operators then have shapes and costs. A bundle has its own.
        etrecord: of the same export: operators then have modules and source lines.
        ticks: clock of the runner that wrote an ETDump, ``200MHz`` or ``us``; None: its times are nanoseconds.

    >>> import opscope
    >>> where = opscope.analyze("trace.etdump", warmup=0)
    >>> where.latency.median_ns
    100000.0
    >>> sum(category.time_ns or 0.0 for category in where.categories) == where.latency.mean_ns
    True

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or no inference is left to measure.
        MismatchError: the program or the record is not the trace's.
        UsageError: a record without its program.
    """
    from opscope.measurements.results import AnalysisResult

    return shown_as(AnalysisResult, analysis_of(side_of(path, warmup, program_files(program, etrecord), ticks)))


def compare(
    baseline: str | Path, candidate: str | Path, *, warmup: Warmup = None, ticks: str | None = None
) -> ComparisonResult:
    """Is the candidate faster than the baseline, by how much, and which operators make the difference.

    Two variants of one bundle are compared round by round; other sides as independent groups of processes.

    Traces of AI Engine tiles have a function of their own, :func:`opscope.compare_tiles`, since their result is another
    one.

    >>> import opscope
    >>> change = opscope.compare("out#baseline", "out#accelerated")
    >>> change.end_to_end.verdict.value
    'faster'
    >>> change.end_to_end.design
    'paired'

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or no inference is left to measure.
        UsageError: the sides are traces of tiles.
    """
    from opscope.measurements.results import ComparisonResult

    result = compare_any(baseline, candidate, warmup=warmup, ticks=ticks)
    if not isinstance(result, ComparisonResult):
        raise of_tiles("compare", candidate)
    return result


def compare_any(
    baseline: str | Path, candidate: str | Path, *, warmup: Warmup = None, ticks: str | None = None
) -> ComparisonResult | TilesComparisonResult:
    """Compare as :func:`compare` does, or as :func:`opscope.compare_tiles` for traces of tiles, with their errors."""
    from opscope.npu.workflows.sides import compare_tiles, is_tiles

    for path in (baseline, candidate):
        _check_measured(path)
    if is_tiles(baseline) or is_tiles(candidate):
        if ticks is not None:
            raise UsageError("AI Engine traces are in cycles", where=OPTION, hint=f"leave out {OPTION}")
        return compare_tiles(baseline, candidate)
    from opscope.measurements.results import ComparisonResult

    return shown_as(
        ComparisonResult, comparison_of(*(side_of(path, warmup, ticks=ticks) for path in (baseline, candidate)))
    )


def _check_measured(path: str | Path) -> None:
    """Refuse a model, which holds no measurement."""
    from opscope.runtimes.registry import runtime_of_content

    file = Path(path)
    runtime = runtime_of_content(head_of(file, _HEAD)) if file.is_file() else None
    if runtime is not None:
        hint = "measure two models side by side with opscope check NEW --against OLD, or compare the bundles of both"
        raise UsageError(f"a model of {runtime.title}, which holds no measurement", where=path, hint=hint)


def of_tiles(function: str, path: str | Path) -> UsageError:
    """Return the error of a function that was given traces of tiles; it names the function that takes them."""
    return UsageError("AI Engine traces", where=path, hint=f"call opscope.{function}_tiles")


def inspect(
    path: str | Path,
    *,
    warmup: Warmup = None,
    program: str | Path | None = None,
    etrecord: str | Path | None = None,
    ticks: str | None = None,
) -> Inspected:
    """Analyse a trace, bundle or run, or summarise a .pte, a .tflite, an .etrecord or an XNNPACK log.

    Args:
        path: what to look into, see :func:`opscope.api.analyze` for traces.
        warmup: for traces, likewise.
        program: for traces, likewise.
        etrecord: for traces, likewise.
        ticks: for traces, likewise.

    Raises:
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or of an unknown format.
    """
    file = Path(path)
    summary = _summarise_file(file, head_of(file, _HEAD)) if file.is_file() else None
    if summary is None:
        return analysis_of(side_of(path, warmup, program_files(program, etrecord), ticks))
    if program or etrecord or ticks:
        problem = "a program and ticks apply only to traces, and this is not a trace"
        raise UsageError(problem, where=file, hint="leave out --program, --etrecord and --ticks")
    return summary


def _summarise_file(path: Path, head: bytes) -> Inspected | None:
    from opscope.readers.compressed import is_compressed
    from opscope.readers.registry import first_reader
    from opscope.runtimes.registry import RUNTIMES

    if is_compressed(head) or first_reader().sniff(head):
        return None  # the usual case, told before other formats are even imported
    from opscope.analysis.preflight.contents import summarise_kernels
    from opscope.readers.kernels import is_kernel_log, read_kernel_log

    for runtime in RUNTIMES:
        summary = runtime.summary(path, head)
        if summary is not None:
            return summary
    if is_kernel_log(head):
        return summarise_kernels(read_kernel_log(path), str(path), sha256_of(path))
    return None
