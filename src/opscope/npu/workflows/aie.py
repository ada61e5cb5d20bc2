"""Hardware traces of AI Engine tiles: read, analysed, and written as reports and as the published tool's files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from opscope.core.errors import EmptyTraceError, IncompleteError, MismatchError, NotFoundError, UsageError
from opscope.core.json import to_json
from opscope.core.outputs import write_outputs
from opscope.core.parts import part
from opscope.core.table.tiles import TraceMode
from opscope.core.tracebacks import nothing_known, page, tracebacks_kept
from opscope.measurements.notebook import NotebookResult
from opscope.npu.analysis.specification import NamedProduct, assumed_clock, run_specification
from opscope.npu.analysis.tiles import Examined, TilesTerms, analyse_tiles
from opscope.npu.analysis.tiles_result import TilesAnalysis, TilesSource
from opscope.npu.analysis.traced_units import divide_existing
from opscope.npu.devices import aie_devices
from opscope.npu.readers.files import read_tiles
from opscope.npu.readers.json import EmptyTilesError
from opscope.npu.readers.slots import parse_slots, read_slots
from opscope.program.cost.gemm import tiling

if TYPE_CHECKING:
    import polars as pl

    from opscope.core.errors import OpscopeError
    from opscope.npu.readers.slots import Slots
    from opscope.npu.reports.published import Index
    from opscope.reports.document.blocks import Document

_SIZES = "give --M --K --N together, --m --k --n together, and --row with --col"
_MOST_ITERATIONS = 1 << 24
_LIMITS = {
    *("truncated", "no_core_trace", "times_backwards", "times_fractional", "tiles_repeated", "above_peak"),
    *("packets_lost", "core_left_out", "time_jumps"),
    *("cores_do_not_match", "cores_not_given", "sizes_do_not_divide", "several_multiplying_kinds"),
}
"""Findings that the published files, which have no place for findings, must tell in their notes."""


class TilesRequest(NamedProduct, frozen=True, kw_only=True):
    """A user's statements on a traced run; None where there is none.

    Attributes:
        row: rows of cores that compute.
        col: columns of cores that compute.
        warmup: iterations to set aside.
        iterations: iterations after them that are measured.
        slots: of raw words, lists of event names as ``opscope.npu.readers.slots`` has them.
        slots_file: file of such lists.
        dtype: of the operands.
        arch: architecture, whose peak counts.
        clock_mhz: of the array during the run.
        assume_clock: whether a clock is assumed where none is given.
        align: what counts as one moment on all cores: ``auto``, a broadcast that was traced everywhere, else the
            timers of raw words, else the starts of the traces; ``trace-start`` or ``first-call``, these.
    """

    row: int | None = None
    col: int | None = None
    warmup: int | None = None
    iterations: int | None = None
    slots: tuple[str, ...] = ()
    slots_file: Path | None = None
    dtype: str | None = None
    arch: str | None = None
    clock_mhz: float | None = None
    assume_clock: bool = True
    align: Literal["auto", "trace-start", "first-call"] = "auto"


@dataclass(frozen=True, eq=False, repr=False)
class Tiles(NotebookResult):
    """An analysed trace: the result with its calls, and what was asked.

    Attributes:
        examined: the result, and the calls that it rests on.
        request: what was asked.
        analysis: the result alone.
    """

    examined: Examined
    request: TilesRequest

    @property
    def analysis(self) -> TilesAnalysis:
        """The result alone."""
        return self.examined.analysis

    def to_polars(self) -> pl.DataFrame:
        """Return every traced unit in a row; cycles by category are null where the event was not traced."""
        from opscope.npu.reports.frames import tiles_frame

        return tiles_frame(self.analysis)

    def _build_document(self) -> Document:
        from opscope.npu.reports.answer import tiles_screen

        return tiles_screen(self.analysis)


_NOTHING = TilesRequest()


def analyze_tiles(path: str | Path, request: TilesRequest = _NOTHING) -> Tiles:
    """Tell whether the cores of a trace are busy, what stalls them, and how far they are from their peak.

    A trace that is cut off is analysed as far as it goes; see :func:`missing`.

    Args:
        path: trace in JSON or raw words, plain or compressed.
        request: what is known of the run.

    Raises:
        NotFoundError: there is no such file.
        TraceFormatError: it is damaged, empty, or no trace of AI Engine tiles.
        UsageError: what is said of the run cannot be true.
    """
    terms, file = _check_terms(request), Path(path)
    if file.is_dir():
        raise NotFoundError("a directory, not a trace", where=file, hint="name the trace inside it")
    traces, sha256 = read_tiles(file, _name_slots(request))
    device = terms.specification.device
    tiles, left_out = divide_existing(traces.tiles, device)
    if not tiles:
        owner = device.name if device else "an AI Engine"
        problem = f"no traced tile exists on {owner}: tile {left_out[0].tile} (row, column) does not"
        raise MismatchError(problem, where=file, hint="check --arch and --hwid against the traced device")
    traces = replace(traces, tiles=tuple(tiles))
    is_whole = all(warning.code != "truncated" for warning in traces.all_warnings)
    source = TilesSource(str(path), traces.format, sha256, traces.clock.value, traces.events, is_whole)
    return Tiles(analyse_tiles(traces, source, terms._replace(left_out=left_out)), request)


def published_path(request: TilesRequest) -> Path | None:
    """Return where the published tool looks for the trace of a run. None unless all that it needs is given."""
    parts = (request.hwid, request.M, request.K, request.N, request.row, request.col)
    if any(part is None for part in parts):
        return None
    hwid, height, depth, width, row, col = parts
    run = f"{hwid}-gemm_{height}_{depth}_{width}-{row}_row_{col}_col"
    return Path("outputs") / run / "traces" / f"trace_mm_{height}_{depth}_{width}.json"


def missing(tiles: Tiles, out: Path | None = None) -> OpscopeError | None:
    """Return the error that a result which is not whole ends in, once it was written. None if it is whole."""
    analysis, path, cores = tiles.analysis, tiles.analysis.trace.path, tiles.analysis.cores
    if not cores:
        hint = "also trace a core, with INSTR_EVENT_0 and INSTR_EVENT_1"
        return EmptyTraceError("no core was traced, so there are no kernel calls to judge", where=path, hint=hint)
    if not any(row.calls.paired and row.mode is TraceMode.EVENT_TIME for row in cores):
        from opscope.npu.reports.answer import why_no_calls

        reason = why_no_calls(analysis, cores)
        if reason is None or analysis.bugs:
            return nothing_known("; ".join(analysis.bugs[:1]), path, out)
        return EmptyTraceError(reason.title, where=path, hint=reason.next_step)
    row, col = tiles.request.row, tiles.request.col
    if row is not None and col is not None and len(cores) > row * col:
        problem = f"{len(cores)} cores were traced, --row {row} --col {col} are {row * col}"
        return MismatchError(problem, where=path, hint="check --row and --col against the traced design")
    if not analysis.trace.complete:
        cut = next(message for message in analysis.findings if message.rule == "truncated")
        return IncompleteError(f"part of the trace is missing: {cut.title}", where=path, hint=cut.next_step)
    return None


def write_tiles(tiles: Tiles, out: str | Path) -> list[Path]:
    """Write analysis.json, report.md, report.html, and the files of the published tool.

    Args:
        tiles: an analysed trace.
        out: directory; it is made when it is missing.

    Returns:
        The files that were written.

    Raises:
        StorageError: the system refused.
    """
    from opscope.npu.reports.page import tiles_html, tiles_markdown

    with tracebacks_kept(Path(out)):
        files = {
            "analysis.json": to_json(tiles.analysis),
            "report.md": page("report.md", lambda: tiles_markdown(tiles.examined)),
            "report.html": page("report.html", lambda: tiles_html(tiles.examined)),
            **part("the published tool's files", lambda: published(tiles, str(out)), dict[str, bytes]()),
        }
        return write_outputs({Path(out) / name: content for name, content in files.items()})


def write_empty(failure: EmptyTraceError, request: TilesRequest, path: Path, out: Path) -> list[Path]:
    """Write what the published tool writes of a trace without events: its files, which say that there is nothing.

    Args:
        failure: why there is nothing.
        request: what is known of the run.
        path: the trace.
        out: directory; it is made when it is missing.

    Returns:
        The files that were written; none of a trace that is empty in a way that the published tool cannot read.

    Raises:
        StorageError: the system refused.
    """
    from opscope.npu.reports.published import files_without_calls

    if not isinstance(failure, EmptyTilesError):
        return []
    run = _published_index(request, str(path), str(out), [failure.problem], request.clock_mhz)
    files = files_without_calls(failure.tiles, run)
    return write_outputs({out / name: content for name, content in files.items()})


def published(tiles: Tiles, out: str) -> dict[str, bytes]:
    """Return name and content of the published tool's files."""
    from opscope.npu.reports.published import published_files

    analysis, assumed = tiles.analysis, tiles.analysis.given.assumed_clock
    notes = [f"{message.title}: {message.evidence}" for message in analysis.findings if message.rule in _LIMITS]
    mhz = assumed.mhz if assumed else analysis.given.clock_mhz
    run = _published_index(tiles.request, analysis.trace.path, out, notes, mhz)
    return published_files(tiles.examined, msgspec.structs.replace(run, assumed_clock=assumed or msgspec.UNSET))


def _published_index(request: TilesRequest, path: str, out: str, notes: list[str], mhz: float | None) -> Index:
    from opscope.npu.reports.published import Index

    return Index(
        **{name: getattr(request, name) for name in (*NamedProduct.__struct_fields__, "warmup", "iterations")},
        rows=request.row,
        cols=request.col,
        input_path=path,
        output_dir=out,
        clock_GHz=None if mhz is None else mhz / 1e3,
        notes=notes,
        details_md=None,
    )


def _name_slots(request: TilesRequest) -> Slots | None:
    if request.slots and request.slots_file:
        raise UsageError("the slots are named already", where="--slots-file", hint="give one of the two")
    if request.slots_file:
        return read_slots(request.slots_file)
    return parse_slots(request.slots) if request.slots else None


def _check_terms(request: TilesRequest) -> TilesTerms:
    product, tile = _all_or_none(request.M, request.K, request.N), _all_or_none(request.m, request.k, request.n)
    cores = _all_or_none(request.row, request.col)
    if not tile and product:
        raise UsageError("the sizes of one call are missing", where="--m --k --n", hint=_SIZES)
    for name, count in (("--warmup", request.warmup), ("--iterations", request.iterations)):
        if count is not None and not 0 <= count <= _MOST_ITERATIONS:
            raise UsageError(f"{count} is not a number of iterations", where=name, hint="give a number from 0")
    rows, columns = cores or (1, 1)
    if min(rows, columns) < 1:
        raise UsageError(f"{rows} x {columns} cores is impossible", where="--row --col", hint=_SIZES)
    device, warmup = aie_devices().named(request.arch or request.hwid or ""), request.warmup or 0
    specification = run_specification(
        tiling=tiling(_as_triple(tile), _as_triple(product) if product else None, (rows, columns)) if tile else None,
        arch=request.arch or (device.name if device else None),
        dtype=request.dtype,
        clock_mhz=request.clock_mhz,
        runs=None if request.iterations is None else warmup + request.iterations,
        assumed=assumed_clock(device, request.hwid) if request.assume_clock else None,
    )
    return TilesTerms(specification, bool(cores), warmup, request.iterations, request.align)


def _all_or_none(*sizes: int | None) -> list[int]:
    """Return sizes of which all are given, or none."""
    known = [size for size in sizes if size is not None]
    if known and len(known) < len(sizes):
        raise UsageError("only some of the sizes are given", where="--M --K --N --m --k --n --row --col", hint=_SIZES)
    return known


def _as_triple(sizes: list[int]) -> tuple[int, int, int]:
    return sizes[0], sizes[1], sizes[2]
