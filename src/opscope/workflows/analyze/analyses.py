"""Analysing what a path holds, and comparing two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from opscope.core.errors import UsageError
from opscope.measurements.analyses import analysis_of, comparison_of
from opscope.measurements.side import ProgramFiles, Warmup
from opscope.workflows.analyze.sides import side_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.measurements.results import AnalysisResult, ComparisonResult
    from opscope.npu.analysis.compare import TilesComparison

    Array: TypeAlias = NDArray[Any]


def analyze(
    path: str | Path,
    *,
    warmup: Warmup = None,
    program: str | Path | None = None,
    etrecord: str | Path | None = None,
) -> AnalysisResult:
    """Where the time goes in a trace, a directory of traces, or a variant of a bundle.

    Args:
        path: the trace, the directory, the bundle (its accelerated variant) or ``BUNDLE#variant``.
        warmup: inferences of each process to set aside; auto: where latencies settle; None: the bundle's plan, or auto.
        program: the .pte that was traced: operators then have shapes and costs. A bundle has its own.
        etrecord: of the same export: operators then have modules and source lines.

    >>> import opscope
    >>> where = opscope.analyze("trace.etdump", warmup=0)
    >>> where.latency.median_ns
    100000.0
    >>> sum(category.time_ns for category in where.categories) == where.latency.mean_ns
    True

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or no inference is left to measure.
        MismatchError: the program or the record is not the trace's.
        UsageError: a record without its program.
    """
    from opscope.measurements.results import AnalysisResult

    found = analysis_of(side_of(path, warmup, program_files(program, etrecord)))
    return AnalysisResult(**msgspec.structs.asdict(found))


def program_files(program: str | Path | None, etrecord: str | Path | None) -> ProgramFiles | None:
    """The files of a program that the user named, None when there are none.

    Raises:
        UsageError: a record without its program.
    """
    if program is None:
        if etrecord is not None:
            raise UsageError("a record tells nothing without its program", where="--etrecord", hint="add --program")
        return None
    return ProgramFiles(Path(program), Path(etrecord) if etrecord else None)


def compare(
    baseline: str | Path, candidate: str | Path, *, warmup: Warmup = None
) -> ComparisonResult | TilesComparison:
    """Is the candidate faster than the baseline, by how much, and which operators make the difference.

    Two variants of one bundle are compared round by round; other sides as independent groups of processes. Traces of
    AI Engine tiles are compared with each other, kind by kind and stall by stall.

    >>> import opscope
    >>> change = opscope.compare("out#baseline", "out#accelerated")
    >>> change.end_to_end.speedup > 1
    True
    >>> change.end_to_end.design
    'paired'

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or no inference is left to measure.
    """
    from opscope.npu.workflows.sides import is_tiles, tiles_comparison

    if is_tiles(baseline) or is_tiles(candidate):
        return tiles_comparison(baseline, candidate)
    from opscope.measurements.results import ComparisonResult

    found = comparison_of(side_of(baseline, warmup), side_of(candidate, warmup))
    return ComparisonResult(**msgspec.structs.asdict(found))
