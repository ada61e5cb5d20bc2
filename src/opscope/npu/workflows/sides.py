"""AI Engine traces as sides of a comparison (a trace, an analysis, a directory of either), and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.gate.decision import Decision
from opscope.core.errors import EmptyTraceError, MismatchError, NotFoundError, OpscopeError, TraceFormatError
from opscope.core.files import labels
from opscope.core.json import from_json
from opscope.core.system.memory import file_bytes
from opscope.measurements.notebook import NotebookResult, shown_as
from opscope.npu.analysis.compare import TilesComparison, TilesEvidence, TilesSide, TilesTraces, compare_sides
from opscope.readers.compressed import first_bytes
from opscope.readers.registry import trace_reader, traces_in
from opscope.runtimes.registry import runtime_of_format

if TYPE_CHECKING:
    import polars as pl

    from opscope.npu.analysis.tiles_result import TilesAnalysis
    from opscope.readers.registry import Reader
    from opscope.reports.document.blocks import Document


ANALYSIS = "analysis.json"
_HEAD = 64
_MARK = b'"schema"'
_SCHEMA = b"opscope.tiles/2"
_MOST_FILES = 10_000


def is_tiles(path: str | Path) -> bool:
    """Return whether a path is a trace of AI Engine tiles, an analysis of one, or a directory that holds such."""
    file = Path(path)
    if file.is_dir():
        return bool(_files_in(file))
    return file.is_file() and (_is_analysis(file) or _reads_tiles(trace_reader(file)))


def _reads_tiles(reader: Reader | None) -> bool:
    if reader is None or runtime_of_format(reader.name):
        return False  # the usual case, told before the readers of tiles are even imported
    from opscope.npu.readers.files import TilesReader

    return isinstance(reader, TilesReader)


def _is_analysis(path: Path) -> bool:
    """Return whether a file is an analysis of tiles; not of one that cannot be read."""
    try:
        head = first_bytes(path, 2 * _HEAD)
    except OpscopeError:
        return False
    return _MARK in head[:_HEAD] and _SCHEMA in head


def _files_in(directory: Path) -> list[Path]:
    """Return the traces of a directory; where `opscope aie --out` wrote it, or directories in it, their analyses."""
    if (directory / ANALYSIS).is_file():
        return [directory / ANALYSIS] if _is_analysis(directory / ANALYSIS) else []
    below = [file for file in sorted(directory.glob(f"*/{ANALYSIS}"))[:_MOST_FILES] if _is_analysis(file)]
    if below:
        return below
    try:
        files, reader, _ = traces_in(directory)
    except NotFoundError:
        return []
    return files if _reads_tiles(reader) else []


def _read_sides(baseline: str | Path, candidate: str | Path) -> tuple[TilesTraces, TilesTraces]:
    """Read both sides, with labels that differ unless it is one path."""
    paths = Path(baseline), Path(candidate)
    first, second = (path.name or str(path) for path in paths)
    if paths[0].resolve() != paths[1].resolve():
        first, second = labels(paths)
    return _read_side(paths[0], first), _read_side(paths[1], second)


def _read_side(path: Path, label: str) -> TilesTraces:
    """Read the side that a path names; files that hold the same trace count once."""
    if not path.exists():
        raise NotFoundError("no such file or directory", where=path)
    if not is_tiles(path):
        hint = "compare AI Engine traces with each other"
        raise MismatchError("not an AI Engine trace, but the other side is", where=path, hint=hint)
    analyses = [_read_analysis(file) for file in (_files_in(path) if path.is_dir() else [path])]
    distinct = list({analysis.trace.sha256: analysis for analysis in reversed(analyses)}.values())[::-1]
    return TilesTraces(TilesSide(label, str(path), len(distinct), len(analyses) - len(distinct)), distinct)


def _read_analysis(path: Path) -> TilesAnalysis:
    """Return the analysis that a file holds, or that of the trace in it."""
    from opscope.npu.analysis.tiles_result import TilesAnalysis
    from opscope.npu.workflows.aie import analyze_tiles

    if not _is_analysis(path):
        return analyze_tiles(path).analysis
    try:
        return from_json(file_bytes(path), TilesAnalysis)
    except msgspec.MsgspecError as error:
        hint = "rewrite it with opscope aie TRACE --out DIR"
        raise TraceFormatError(f"not an AI Engine analysis: {error}", where=path, hint=hint) from error


def compare_tiles(baseline: str | Path, candidate: str | Path) -> TilesComparisonResult:
    """Compare a candidate with a baseline on an AI Engine: verdict, calls, stalls and rates.

    Args:
        baseline: a trace of tiles, an analysis of one (``opscope aie --out``), or a directory of either. Each trace is
            a repetition, and one a side can never be more than undecidable.
        candidate: likewise.

    Raises:
        NotFoundError: there is no such file or directory.
        TraceFormatError: a file is damaged.
        MismatchError: one of the two is something else.
        EmptyTraceError: a side has no two calls that multiply, so there is nothing to compare.
    """
    return shown_as(TilesComparisonResult, _compare_sides(*_read_sides(baseline, candidate)))


def _compare_sides(baseline: TilesTraces, candidate: TilesTraces) -> TilesComparison:
    comparison = compare_sides(baseline, candidate)
    if comparison is None:
        problem = "a side has no call period: it needs INSTR_EVENT_0 and INSTR_EVENT_1 of two calls"
        hint = "for raw words, compare the directories that opscope aie --slots ... --out DIR writes"
        raise EmptyTraceError(problem, where=f"{baseline.side.path}, {candidate.side.path}", hint=hint)
    return comparison


def check_tiles(
    candidate: str | Path, against: str | Path, *, threshold: float | None = None, force: bool = False
) -> TilesGateResult:
    """Decide whether a candidate is slower than a baseline on an AI Engine by more than is let through.

    Args:
        candidate: what is judged: paths as of :func:`opscope.compare_tiles`.
        against: the baseline, likewise.
        threshold: the largest slowdown that is let through, as a fraction; None: 3 %.
        force: compare sides that are not comparable; the report then says why they are not.

    Raises:
        NotFoundError: there is no such file or directory.
        TraceFormatError: a file is damaged.
        MismatchError: the sides are not comparable, or one of the two is something else.
        EmptyTraceError: a side has no two calls that multiply, so there is nothing to compare.
    """
    from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
    from opscope.npu.analysis.compare import gate_tiles

    sides = _read_sides(against, candidate)
    problems = _find_mismatches([side.analyses for side in sides])
    if problems and not force:
        hint = "capture both in the same way, or compare them anyway with --force"
        raise MismatchError(f"cannot be compared with the baseline: {problems[0]}", where=candidate, hint=hint)
    limit = DEFAULT_THRESHOLD if threshold is None else threshold
    return shown_as(TilesGateResult, gate_tiles(_compare_sides(*sides), limit, problems))


def _find_mismatches(sides: list[list[TilesAnalysis]]) -> list[str]:
    """Return why two sides are not comparable; what neither tells is not a mismatch."""
    baseline, candidate = ([analysis.trace.sha256 for analysis in side] for side in sides)
    mismatches = ["both sides are the same traces"] if baseline == candidate else []
    devices = [{analysis.given.device.name for analysis in side if analysis.given.device} for side in sides]
    clocks = [{analysis.given.clock_mhz for analysis in side} - {None} for side in sides]
    for name, values in (("architecture", devices), ("clock", clocks)):
        if all(values) and values[0] != values[1]:
            mismatches.append(f"the {name} differs")
    return mismatches


class TilesComparisonResult(NotebookResult, TilesComparison, frozen=True):
    """Verdict on two sides of AI Engine traces, as :func:`opscope.compare_tiles` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return a row for each figure of both sides, the one that the verdict rests on first; ``part`` is its list."""
        from opscope.npu.reports.frames import tiles_comparison_frame

        return tiles_comparison_frame(self)

    def _build_document(self) -> Document:
        from opscope.npu.reports.comparison import tiles_comparison_document

        return tiles_comparison_document(self)


class TilesGateResult(NotebookResult, Decision[TilesEvidence], frozen=True):
    """The decision of a gate over AI Engine traces, as :func:`opscope.check_tiles` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return the figure that was judged, then those that are shown to be worse, a row each."""
        from opscope.npu.reports.frames import tiles_gate_frame

        return tiles_gate_frame(self)

    def _build_document(self) -> Document:
        from opscope.npu.reports.comparison import tiles_text
        from opscope.reports.document.blocks import NOTEBOOK_ROWS
        from opscope.reports.gate import gate_document

        return gate_document(self, tiles_text(self), NOTEBOOK_ROWS)
