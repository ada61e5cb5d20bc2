"""Hardware traces of AI Engine tiles: read, analysed, and written as reports and as the published tool's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opscope.core.errors import EmptyTraceError, IncompleteError, MismatchError, NotFoundError, UsageError
from opscope.measurements.notebook import NotebookResult
from opscope.npu.analysis.specification import NamedProduct

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from opscope.core.errors import OpscopeError
    from opscope.core.table.tiles import TileTraceSet
    from opscope.npu.analysis.tiles import Examined, TilesTerms
    from opscope.npu.analysis.tiles_result import TilesAnalysis
    from opscope.npu.cost_model import CostModel
    from opscope.npu.devices import AieDevice
    from opscope.npu.readers.words import Slots
    from opscope.npu.reports.published import Index
    from opscope.reports.notebook.card import Card

_SIZES = "give --M --K --N together, --m --k --n together, and --row with --col"
_MOST_ITERATIONS = 1 << 24
_LIMITS = {
    *("truncated", "no_core_trace", "times_backwards", "times_fractional", "tiles_repeated", "above_peak"),
    *("packets_lost", "core_left_out", "time_jumps"),
    *("cores_do_not_match", "cores_not_given", "sizes_do_not_divide", "several_multiplying_kinds"),
}
"""Findings that the published files, which have no place for findings, must tell in their notes."""


class TilesRequest(NamedProduct, frozen=True, kw_only=True):
    """What a user says of a traced run; None where nothing is said.

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
        predicted_step: a cost model's cycles from the start of an iteration to that of the next.
        predicted_overlap: its cycles in which two iterations run.
        predicted_latency: its cycles of an iteration.
        predicted_total: its cycles of all iterations.
        predicted_iterations: how many iterations that are.
        predicted_per: what the cost model calls an iteration: ``iteration``, the whole product, or ``call``; None: a
            call of ``predicted``, else the whole product.
        predicted: file of Stream's with the latencies of its cost model, in place of the numbers above.
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
    predicted_step: float | None = None
    predicted_overlap: float | None = None
    predicted_latency: float | None = None
    predicted_total: float | None = None
    predicted_iterations: int | None = None
    predicted_per: Literal["iteration", "call"] | None = None
    predicted: Path | None = None
    align: Literal["auto", "trace-start", "first-call"] = "auto"


class _ExaminedRequest(NamedTuple):
    """A result with its calls, and what was asked."""

    examined: Examined
    request: TilesRequest


class Tiles(NotebookResult, _ExaminedRequest):
    """An analysed trace: the result with its calls, and what was asked.

    Attributes:
        examined: the result, and the calls that it rests on.
        request: what was asked.
        analysis: the result alone.
    """

    __slots__ = ()

    @property
    def analysis(self) -> TilesAnalysis:
        """The result alone."""
        return self.examined.analysis

    def to_polars(self) -> pl.DataFrame:
        """Every traced unit in a row; cycles by category are null where the event was not traced."""
        from opscope.npu.reports.notebook import tiles_frame

        return tiles_frame(self.analysis)

    def _card(self) -> Card:
        from opscope.npu.reports.notebook import tiles_card

        return tiles_card(self.analysis)


_NOTHING = TilesRequest()


def analyze_tiles(path: str | Path, request: TilesRequest = _NOTHING) -> Tiles:
    """Whether the cores of a trace are busy, what stalls them, and how far they are from their peak.

    A trace that is cut off is analysed as far as it goes; see :func:`missing`.

    Args:
        path: trace in JSON or raw words, plain or compressed.
        request: what is known of the run.

    Raises:
        NotFoundError: there is no such file.
        TraceFormatError: it is damaged, empty, or no trace of AI Engine tiles.
        UsageError: what is said of the run cannot be true.
    """
    from opscope.npu.analysis.tiles import analyse_tiles
    from opscope.npu.analysis.tiles_result import TilesSource
    from opscope.npu.readers.files import read_tiles

    terms, place = _terms(request), Path(path)
    if place.is_dir():
        raise NotFoundError("a directory, not a trace", where=place, hint="name the trace inside it")
    traces, sha256 = read_tiles(place, _slots(request))
    _on(terms.said.device, traces, place)
    whole = all(warning.code != "truncated" for warning in traces.all_warnings)
    source = TilesSource(str(path), traces.format, sha256, traces.clock.value, traces.events, whole)
    return Tiles(analyse_tiles(traces, source, terms), request)


def _on(device: AieDevice | None, traces: TileTraceSet, path: Path) -> None:
    """Refuse tiles in columns that the device does not have."""
    if device is None or device.array_columns is None:
        return
    beyond = next((tile for tile in traces.tiles if tile.column >= device.array_columns), None)
    if beyond is not None:
        problem = f"tile {beyond.tile} is in the trace, {device.name} has columns 0 to {device.array_columns - 1}"
        raise MismatchError(problem, where=path, hint="check --arch and --hwid against the traced device")


def missing(tiles: Tiles, out: Path | None = None) -> OpscopeError | None:
    """What keeps a result from being whole, to be raised when it was written; None when nothing does."""
    analysis, path = tiles.analysis, tiles.analysis.trace.path
    cores = [row for row in analysis.tiles if row.unit == "core"]
    if not cores:
        hint = "also trace a core, with INSTR_EVENT_0 and INSTR_EVENT_1"
        return EmptyTraceError("no core was traced, so there are no kernel calls to judge", where=path, hint=hint)
    if not any(row.calls.paired for row in cores):
        from opscope.core.tracebacks import nothing_known
        from opscope.npu.reports.answer import without_calls

        if analysis.bugs:
            return nothing_known(analysis.bugs[0], path, out)
        problem, why, hint = without_calls(cores)
        return EmptyTraceError(f"{problem}: {why}", where=path, hint=hint)
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
    from opscope.core.json import to_json
    from opscope.core.outputs import write_outputs
    from opscope.core.parts import part
    from opscope.core.tracebacks import page, tracebacks_kept
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
    from opscope.core.outputs import write_outputs
    from opscope.npu.readers.json import EmptyTilesError
    from opscope.npu.reports.published import files_without_calls

    if not isinstance(failure, EmptyTilesError):
        return []
    files = files_without_calls(failure.tiles, _index(request, path, out, [failure.problem], request.clock_mhz))
    return write_outputs({out / name: content for name, content in files.items()})


def published(tiles: Tiles, out: str) -> dict[str, bytes]:
    """Name and content of the published tool's files."""
    from opscope.npu.reports.published import published_files

    given = tiles.analysis.given
    notes = [f"{one.title}: {one.evidence}" for one in tiles.analysis.findings if one.rule in _LIMITS]
    mhz = given.assumed_clock.mhz if given.assumed_clock else given.clock_mhz
    run = _index(tiles.request, tiles.analysis.trace.path, out, notes, mhz)
    assumed = given.assumed_clock or msgspec.UNSET
    return published_files(tiles.examined, msgspec.structs.replace(run, assumed_clock=assumed))


def _index(request: TilesRequest, path: str | Path, out: str | Path, notes: list[str], mhz: float | None) -> Index:
    """What was said of a run, as the published tool's files hold it."""
    from opscope.npu.reports.published import Index

    return Index(
        **{name: getattr(request, name) for name in (*NamedProduct.__struct_fields__, "warmup", "iterations")},
        rows=request.row,
        cols=request.col,
        input_path=str(path),
        output_dir=str(out),
        clock_GHz=None if mhz is None else mhz / 1e3,
        notes=notes,
        details_md=None,
    )


def _slots(request: TilesRequest) -> Slots | None:
    from opscope.npu.readers.slots import parse_slots, read_slots

    if request.slots and request.slots_file:
        raise UsageError("the slots are named already", where="--slots-file", hint="give one of the two")
    if request.slots_file:
        return read_slots(request.slots_file)
    return parse_slots(request.slots) if request.slots else None


def _terms(request: TilesRequest) -> TilesTerms:
    """What was said, checked."""
    from opscope.npu.analysis.specification import assumed_clock, run_specification
    from opscope.npu.analysis.tiles import TilesTerms
    from opscope.npu.devices import aie_devices
    from opscope.program.cost.gemm import tiling

    whole, tile = _all((request.M, request.K, request.N)), _all((request.m, request.k, request.n))
    cores = _all((request.row, request.col))
    if tile is None and whole is not None:
        raise UsageError("the sizes of one call are missing", where="--m --k --n", hint=_SIZES)
    for name, count in (("--warmup", request.warmup), ("--iterations", request.iterations)):
        if count is not None and not 0 <= count <= _MOST_ITERATIONS:
            raise UsageError(f"{count} is not a number of iterations", where=name, hint="give a number from 0")
    if cores is not None and min(cores) < 1:
        raise UsageError(f"{cores[0]} x {cores[1]} cores is impossible", where="--row --col", hint=_SIZES)
    rows, columns = cores or (1, 1)
    made = None if tile is None else tiling(_three(tile), _three(whole) if whole else None, (rows, columns))
    device = aie_devices().named(request.arch or request.hwid or "")
    arch = request.arch or (device.name if device else None)
    assumed = assumed_clock(device, request.hwid) if request.assume_clock else None
    warmup, measured = request.warmup or 0, request.iterations
    runs = None if measured is None else warmup + measured
    said = run_specification(
        tiling=made, arch=arch, dtype=request.dtype, clock_mhz=request.clock_mhz, runs=runs, assumed=assumed
    )
    of_calls = (request.predicted_per or ("call" if request.predicted else "iteration")) == "call"
    return TilesTerms(said, cores is not None, warmup, measured, _model(request), of_calls, request.align)


def _model(request: TilesRequest) -> CostModel | None:
    """The cost model, as given in numbers or by a file of Stream's."""
    from opscope.npu.cost_model import cost_model
    from opscope.npu.readers.stream_model import read_stream_model

    given = cost_model(
        iteration_step=request.predicted_step,
        overlap=request.predicted_overlap,
        latency_per_iteration=request.predicted_latency,
        total=request.predicted_total,
        iterations=request.predicted_iterations,
    )
    if request.predicted is None:
        return given
    if given is not None:
        hint = "give the file, or the numbers with --predicted-step and the other options"
        raise UsageError("the file already has the cost model's numbers", where="--predicted", hint=hint)
    return read_stream_model(request.predicted)


def _all(values: Sequence[int | None]) -> list[int] | None:
    """The values when all are given, None when none is."""
    known = [value for value in values if value is not None]
    if known and len(known) < len(values):
        raise UsageError("only some of the sizes are given", where="--M --K --N --m --k --n --row --col", hint=_SIZES)
    return known or None


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    return values[0], values[1], values[2]
