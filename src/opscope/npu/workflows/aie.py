"""Hardware traces of AI Engine tiles: read, analysed, and written as reports and as the published tool's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opscope.core.errors import EmptyTraceError, IncompleteError, MismatchError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.errors import OpscopeError
    from opscope.npu.analysis.tiles import Examined, TilesTerms
    from opscope.npu.analysis.tiles_result import TilesAnalysis
    from opscope.npu.readers.words import Slots

_SIZES = "give --M --K --N together, --m --k --n together, and --row with --col"
_MOST_ITERATIONS = 1 << 24
_LIMITS = {
    *("truncated", "no_core_trace", "times_backwards", "tiles_repeated", "above_peak"),
    *("cores_do_not_match", "cores_not_given", "sizes_do_not_divide", "several_multiplying_kinds"),
}
"""Findings that the published files, which have no place for findings, must tell in their notes."""


class TilesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says of a traced run; None where nothing is said.

    Attributes:
        M: rows of A, of the whole matrix product.
        K: columns of A.
        N: columns of B.
        m: rows of A in one call.
        k: columns of A in one call.
        n: columns of B in one call.
        row: rows of cores that compute.
        col: columns of cores that compute.
        hwid: name of the hardware; one of an architecture names that as well.
        warmup: iterations to set aside.
        iterations: iterations after them that are measured.
        slots: of raw words, lists of event names as ``opscope.npu.readers.slots`` has them.
        slots_file: file of such lists.
        dtype: of the operands.
        arch: architecture, whose peak counts.
        clock_mhz: of the array during the run.
        predicted_step: a cost model's cycles from the start of an iteration to that of the next.
        predicted_overlap: its cycles in which two iterations run.
        predicted_latency: its cycles of an iteration.
        predicted_total: its cycles of all iterations.
        predicted_iterations: how many iterations that are.
        predicted_per: what the cost model calls an iteration: ``iteration``, the whole product, or ``call``.
    """

    M: int | None = None
    K: int | None = None
    N: int | None = None
    m: int | None = None
    k: int | None = None
    n: int | None = None
    row: int | None = None
    col: int | None = None
    hwid: str | None = None
    warmup: int | None = None
    iterations: int | None = None
    slots: tuple[str, ...] = ()
    slots_file: Path | None = None
    dtype: str | None = None
    arch: str | None = None
    clock_mhz: float | None = None
    predicted_step: float | None = None
    predicted_overlap: float | None = None
    predicted_latency: float | None = None
    predicted_total: float | None = None
    predicted_iterations: int | None = None
    predicted_per: Literal["iteration", "call"] = "iteration"


class Tiles(NamedTuple):
    """An analysed trace: the result with its calls, and what was asked."""

    examined: Examined
    request: TilesRequest

    @property
    def analysis(self) -> TilesAnalysis:
        """The result alone."""
        return self.examined.analysis


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
        raise NotFoundError("it is a directory, not a trace", where=place, hint="name the trace in it")
    found = read_tiles(place, _slots(request))
    traces = found.traces
    whole = all(warning.code != "truncated" for warning in traces.all_warnings)
    source = TilesSource(str(path), traces.format, found.sha256, traces.clock.value, traces.events, whole)
    return Tiles(analyse_tiles(traces, source, terms), request)


def missing(tiles: Tiles) -> OpscopeError | None:
    """What keeps a result from being whole, to be raised when it was written; None when nothing does."""
    analysis, path = tiles.analysis, tiles.analysis.trace.path
    cores = [row for row in analysis.tiles if row.unit == "core"]
    if not cores:
        hint = "trace a core as well, with INSTR_EVENT_0 and INSTR_EVENT_1"
        return EmptyTraceError("no core was traced, so there are no kernel calls to judge", where=path, hint=hint)
    if not any(row.calls.paired for row in cores):
        problem = "no kernel call in the trace: no INSTR_EVENT_0 is followed by an INSTR_EVENT_1"
        hint = "mark the kernel with event0() and event1(), and trace both events; of raw words name the --slots"
        return EmptyTraceError(problem, where=path, hint=hint)
    row, col = tiles.request.row, tiles.request.col
    if row is not None and col is not None and len(cores) > row * col:
        problem = f"{len(cores)} cores were traced, --row {row} --col {col} are {row * col}"
        return MismatchError(problem, where=path, hint="check --row and --col against the design that was traced")
    if not analysis.trace.complete:
        cut = next(found for found in analysis.findings if found.rule == "truncated")
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
    from opscope.npu.reports.page import tiles_html, tiles_markdown

    files = {
        "analysis.json": to_json(tiles.analysis),
        "report.md": tiles_markdown(tiles.examined).encode(),
        "report.html": tiles_html(tiles.examined).encode(),
        **published(tiles, str(out)),
    }
    return written(files, Path(out))


def written(files: dict[str, bytes], out: Path) -> list[Path]:
    """Write files by name into a directory; their paths."""
    from opscope.core.files import write_atomically

    for name, content in files.items():
        write_atomically(out / name, content)
    return [out / name for name in files]


def published(tiles: Tiles, out: str) -> dict[str, bytes]:
    """Name and content of the published tool's files.

    Args:
        tiles: an analysed trace.
        out: directory that the files name as their own.
    """
    from opscope.npu.reports.published import Index, published_files

    request = tiles.request
    run = Index(
        hwid=request.hwid,
        M=request.M,
        K=request.K,
        N=request.N,
        m=request.m,
        k=request.k,
        n=request.n,
        rows=request.row,
        cols=request.col,
        input_path=tiles.analysis.trace.path,
        output_dir=out,
        warmup=request.warmup,
        iterations=request.iterations,
        clock_GHz=None if request.clock_mhz is None else request.clock_mhz / 1e3,
        notes=[f"{one.title}: {one.evidence}" for one in tiles.analysis.findings if one.rule in _LIMITS],
        details_md=None,
    )
    return published_files(tiles.examined, run)


def _slots(request: TilesRequest) -> Slots | None:
    from opscope.npu.readers.slots import parse_slots, read_slots

    if request.slots and request.slots_file:
        raise UsageError("the slots are named already", where="--slots-file", hint="give one of the two")
    if request.slots_file:
        return read_slots(request.slots_file)
    return parse_slots(request.slots) if request.slots else None


def _terms(request: TilesRequest) -> TilesTerms:
    """What was said, checked.

    Raises:
        UsageError: part of the sizes is missing, or a value cannot be.
    """
    from opscope.npu.analysis.prediction import cost_model
    from opscope.npu.analysis.specification import run_specification
    from opscope.npu.analysis.tiles import TilesTerms
    from opscope.npu.devices import aie_devices
    from opscope.program.cost.gemm import tiling

    whole, tile = _all((request.M, request.K, request.N)), _all((request.m, request.k, request.n))
    cores = _all((request.row, request.col))
    if tile is None and whole is not None:
        raise UsageError("the sizes of one call are missing", where="--m --k --n", hint=_SIZES)
    for name, count in (("--warmup", request.warmup), ("--iterations", request.iterations)):
        if count is not None and not 0 <= count <= _MOST_ITERATIONS:
            raise UsageError(f"{count} is no number of iterations", where=name, hint="give a number from 0")
    if cores is not None and min(cores) < 1:
        raise UsageError(f"{cores[0]} x {cores[1]} cores cannot be", where="--row --col", hint=_SIZES)
    made = None if tile is None else tiling(_three(tile), _three(whole) if whole else None, _two(cores or [1, 1]))
    named = [device.name for device in aie_devices().devices]
    arch = request.arch or (request.hwid if request.hwid in named else None)
    warmup, measured = request.warmup or 0, request.iterations
    runs = None if measured is None else warmup + measured
    said = run_specification(tiling=made, arch=arch, dtype=request.dtype, clock_mhz=request.clock_mhz, runs=runs)
    model = cost_model(
        iteration_step=request.predicted_step,
        overlap=request.predicted_overlap,
        latency_per_iteration=request.predicted_latency,
        total=request.predicted_total,
        iterations=request.predicted_iterations,
    )
    return TilesTerms(said, cores is not None, warmup, measured, model, request.predicted_per == "call")


def _all(values: Sequence[int | None]) -> list[int] | None:
    """The values when all are given, None when none is.

    Raises:
        UsageError: only some are.
    """
    known = [value for value in values if value is not None]
    if known and len(known) < len(values):
        raise UsageError("only some of the sizes are given", where="--M --K --N --m --k --n --row --col", hint=_SIZES)
    return known or None


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


def _two(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[1]
