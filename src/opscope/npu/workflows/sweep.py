"""A sweep: several traces of AI Engine tiles, each analysed by itself, and one table and picture over all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.errors import IncompleteError, OpscopeError, UsageError
from opscope.core.parts import PartFailure, explained
from opscope.measurements.notebook import NotebookResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from opscope.npu.analysis.sweep import Sweep, SweepRow
    from opscope.npu.analysis.tiles_result import TilesAnalysis
    from opscope.npu.workflows.aie import Tiles, TilesRequest
    from opscope.reports.notebook.card import Card

_RUN = re.compile(r"(?:\A|/)([^/]{1,80})-gemm_(\d{1,9})_(\d{1,9})_(\d{1,9})-(\d{1,4})_row_(\d{1,4})_col/")
_TRACE = re.compile(r"(?:\A|/)trace_mm_(\d{1,9})_(\d{1,9})_(\d{1,9})\.json(?:\.gz|\.zst)?\Z")
_FROM_NAMES = "sizes of the whole product come from the published tool's directory and trace names"


class _Together(NamedTuple):
    """A sweep, the analyses that it rests on, and the error of the first trace that has none."""

    sweep: Sweep
    analyses: list[TilesAnalysis]
    error: OpscopeError | None


class Swept(NotebookResult, _Together):
    """Several analysed traces of AI Engine tiles, as :func:`opscope.sweep_tiles` gives them.

    Attributes:
        sweep: a row for each trace.
        analyses: that the rows rest on.
        error: of the first trace that could not be analysed; None when all could.
    """

    __slots__ = ()

    def to_polars(self) -> pl.DataFrame:
        """Every trace in a row, in the order of their work; GMAC/s at the lowest and highest clock that is possible."""
        from opscope.npu.reports.notebook import sweep_frame

        return sweep_frame(self.sweep)

    def _card(self) -> Card:
        from opscope.npu.reports.notebook import sweep_card

        return sweep_card(self.sweep)


def sweep_tiles(
    paths: Sequence[str | Path], request: TilesRequest, each: Callable[[str, Tiles], None] = lambda _label, _tiles: None
) -> Swept:
    """Analyse several traces.

    Args:
        paths: traces; or directories that `opscope aie --out` wrote, whose analysis is taken as it is.
        request: what holds for all of them. Sizes of the whole product that it lacks are taken from the published
            tool's names of directories and traces.
        each: called with the label and the result of every trace, as soon as it is there.

    Raises:
        OpscopeError: that of the first trace, when none of them could be analysed.
    """
    from opscope.core.files import labels
    from opscope.npu.analysis.sweep import SweepRow, sweep, sweep_row

    rows: list[SweepRow] = []
    analyses: list[TilesAnalysis] = []
    errors: list[OpscopeError] = []
    named = False
    places = _once([Path(path) for path in paths])
    for label, path in zip(labels(places), places, strict=True):
        tiles_request = sized(request, path)
        named = named or tiles_request is not request
        try:
            analysis = _analysis(path, label, tiles_request, each)
        except OpscopeError as error:
            errors.append(error)
            rows.append(SweepRow(label=label, path=str(path), problem=error.problem, complete=False))
        else:
            analyses.append(analysis)
            rows.append(sweep_row(label, analysis))
    if not analyses:
        raise errors[0]
    return Swept(sweep(rows, [_FROM_NAMES] if named else []), analyses, errors[0] if errors else None)


def _once(paths: Sequence[Path]) -> list[Path]:
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UsageError("given twice", where=path, hint="give every trace once")
        seen.add(path.resolve())
    return list(paths)


def _analysis(path: Path, label: str, request: TilesRequest, each: Callable[[str, Tiles], None]) -> TilesAnalysis:
    from opscope.core.tracebacks import nothing_known
    from opscope.npu.workflows.aie import analyze_tiles
    from opscope.npu.workflows.sides import ANALYSIS, written_analysis

    file = path / ANALYSIS if path.is_dir() else path
    written = written_analysis(file)
    if written is not None:
        return written
    tiles = explained(f"the trace {label}", lambda: analyze_tiles(path, request), lambda failure: failure)
    if isinstance(tiles, PartFailure):
        raise nothing_known(tiles.because, path, None)
    each(label, tiles)
    return tiles.analysis


def sized(request: TilesRequest, path: Path) -> TilesRequest:
    """A request with the sizes that the published tool's names hold, where the user gave none.

    Its traces stand at ``HWID-gemm_M_K_N-ROWS_row_COLS_col/traces/trace_mm_M_K_N.json``.
    """
    if request.M is not None or request.m is None:
        return request
    text = path.as_posix()
    run, trace = _RUN.search(text), _TRACE.search(text)
    if run is None and trace is None:
        return request
    sizes = [int(number) for number in (run.groups()[1:4] if run else trace.groups() if trace else ())]
    found: dict[str, int | str | None] = dict(zip("MKN", sizes, strict=True))
    if run and request.row is None:
        found |= {"row": int(run[5]), "col": int(run[6])}
    if run and request.hwid is None:
        found["hwid"] = run[1]
    return msgspec.structs.replace(request, **found)


def published_path(request: TilesRequest) -> Path | None:
    """Where the published tool looks for the trace of a run; None unless all that it needs is given."""
    parts = (request.hwid, request.M, request.K, request.N, request.row, request.col)
    if any(part is None for part in parts):
        return None
    hwid, height, depth, width, row, col = parts
    run = f"{hwid}-gemm_{height}_{depth}_{width}-{row}_row_{col}_col"
    return Path("outputs") / run / "traces" / f"trace_mm_{height}_{depth}_{width}.json"


def write_sweep(sweep: Sweep, out: Path) -> list[Path]:
    """Write sweep.json, sweep.md and sweep.html."""
    from opscope.core.json import to_json
    from opscope.core.outputs import write_outputs
    from opscope.core.tracebacks import page, tracebacks_kept
    from opscope.npu.reports.sweep import sweep_html, sweep_markdown

    with tracebacks_kept(out):
        files = {
            "sweep.json": to_json(sweep),
            "sweep.md": page("sweep.md", lambda: sweep_markdown(sweep)),
            "sweep.html": page("sweep.html", lambda: sweep_html(sweep)),
        }
        return write_outputs({out / name: content for name, content in files.items()})


def sweep_problem(swept: Swept) -> OpscopeError | None:
    """What keeps a sweep from being whole; None when nothing does."""
    failed = [row for row in swept.sweep.rows if row.problem is not None]
    cut = [row for row in swept.sweep.rows if row.problem is None and not row.complete]
    if not failed and not cut:
        return None
    first = (failed or cut)[0]
    problem = first.problem or "part of the trace is missing"
    count = f"{len(failed)} of {len(swept.sweep.rows)} traces have no figures, {len(cut)} are truncated"
    hint = swept.error.hint if swept.error else "write or copy the trace again"
    return IncompleteError(f"{count}; the first: {first.label}: {problem}", hint=hint)
