"""``opscope aie``: hardware traces of AMD AI Engine cores."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opscope.cli.output import JsonOption, QuietOption, say, show, write_json
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from opscope.npu.workflows.aie import TilesRequest

_PRODUCT, _TRACE = "Matrix product", "Trace"


def command(
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="[TRACE]", help="Trace in JSON or raw words."),
    ] = None,
    M: Annotated[  # noqa: N803 - names of the published tool
        int | None, typer.Option("--M", help="Rows of A in the whole matrix product.", rich_help_panel=_PRODUCT)
    ] = None,
    K: Annotated[int | None, typer.Option("--K", help="Columns of A.", rich_help_panel=_PRODUCT)] = None,  # noqa: N803 - likewise
    N: Annotated[int | None, typer.Option("--N", help="Columns of B.", rich_help_panel=_PRODUCT)] = None,  # noqa: N803 - likewise
    m: Annotated[
        int | None, typer.Option("--m", help="Rows of A in one kernel call.", rich_help_panel=_PRODUCT)
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="Columns of A in one kernel call.", rich_help_panel=_PRODUCT)
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", help="Columns of B in one kernel call.", rich_help_panel=_PRODUCT)
    ] = None,
    row: Annotated[int | None, typer.Option(help="Rows of compute cores.", rich_help_panel=_PRODUCT)] = None,
    col: Annotated[int | None, typer.Option(help="Columns of compute cores.", rich_help_panel=_PRODUCT)] = None,
    hwid: Annotated[
        str | None,
        typer.Option(
            help="Hardware: npu1, npu2, a device of mlir-aie or Stream, or any label.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Warm-up iterations to skip.", hidden=True, rich_help_panel=_TRACE)
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations to measure after the warm-up.", hidden=True, rich_help_panel=_TRACE)
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[UNIT=]NAME,NAME,...",
            help="Trace slot events of raw words, in order; UNIT: core, mem, memtile, shim. Repeatable.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    slots_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trace slot events from a file.", hidden=True, rich_help_panel=_TRACE),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Operand type: int8, int16, bf16 or bfp16.", rich_help_panel=_TRACE)
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(metavar="npu1|npu2", help="Architecture that sets the peak rate.", rich_help_panel=_TRACE),
    ] = None,
    clock_mhz: Annotated[
        float | None,
        typer.Option(
            metavar="MHZ",
            help="Clock of the array during the run. [default: assumed, by --arch or --hwid]",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    no_assumed_clock: Annotated[
        bool,
        typer.Option(
            "--no-assumed-clock",
            help="Without --clock-mhz, give rates per second only as a range.",
            hidden=True,
            rich_help_panel=_TRACE,
        ),
    ] = False,
    align: Annotated[
        Literal["auto", "trace-start", "first-call"],
        typer.Option(
            help="How to align cores in time: auto uses a traced broadcast, else the timers of raw words, else the "
            "starts of the traces; first-call hides start skew between cores.",
            hidden=True,
            rich_help_panel=_TRACE,
        ),
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write reports and the published tool's files there.")
    ] = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Analyse an NPU trace: busy cores, stalls, rates.

    Example: opscope aie trace.json --M 256 --K 768 --N 768 --m 32 --k 64 --n 64 --dtype bf16 --arch npu1 --out aie

    Reads traces of AMD AI Engine (NPU1, NPU2) and needs no device.

    --out writes report.html, report.md, analysis.json and the files of the published post-processor: one JSON per
    core, details.md, index.json, aggregate_perf.json. Exit code 11: part of the trace is missing; the rest was
    analysed. Without TRACE, opscope looks where the published tool does, by --hwid, the sizes, --row and --col.
    """
    from opscope.core.errors import UsageError
    from opscope.npu.workflows.aie import TilesRequest, published_path

    request = TilesRequest(
        M=M,
        K=K,
        N=N,
        m=m,
        k=k,
        n=n,
        row=row,
        col=col,
        hwid=hwid,
        warmup=warmup,
        iterations=iterations,
        slots=tuple(slots or ()),
        slots_file=slots_file,
        dtype=dtype,
        arch=arch,
        clock_mhz=clock_mhz,
        assume_clock=not no_assumed_clock,
        align=align,
    )
    if trace is not None:
        _analyze_trace(trace, request, out, json, quiet=quiet)
        return
    usual = published_path(request)
    if usual is None:
        hint = "name it: opscope aie TRACE; or give --hwid --M --K --N --row --col to find the published tool's trace"
        raise UsageError("no trace given", hint=hint)
    _analyze_trace(usual, request, out or usual.parent, json, quiet=quiet)


def _analyze_trace(path: Path, request: TilesRequest, out: Path | None, json: str | None, *, quiet: bool) -> None:
    from opscope.core.errors import EmptyTraceError
    from opscope.core.tracebacks import tracebacks_kept
    from opscope.npu.workflows.aie import analyze_tiles, missing, write_empty, write_tiles

    with tracebacks_kept(out) if out else nullcontext():
        try:
            tiles = analyze_tiles(path, request)
        except EmptyTraceError as failure:
            if out:
                write_empty(failure, request, path, out)
            raise
        write_json(tiles.analysis, json)
        written = write_tiles(tiles, out) if out else []
    if not quiet and json != "-":
        from opscope.npu.reports.answer import tiles_screen
        from opscope.reports.document.terminal import terminal_document

        show(terminal_document(tiles_screen(tiles.analysis)))
        report = next((file for file in written if file.name == "report.html"), None)
        if report is not None:
            say()
            say(f"{report} and {counted_text(len(written) - 1, 'more file')}")
    problem = missing(tiles, out)
    if problem:
        raise problem
