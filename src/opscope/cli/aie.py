"""``opscope aie``: hardware traces of AMD AI Engine cores."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opscope.cli.output import JsonOption, QuietOption, say, show, write_json
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from opscope.npu.workflows.aie import Tiles, TilesRequest

_PRODUCT, _TRACE, _PREDICTION = "Matrix product", "Trace", "Prediction"


def command(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TRACE]...",
            help="Trace in JSON or raw words; several make a sweep.",
        ),
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
    predicted: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prediction from Stream: slot_latency_breakdown.yaml, steady_state_trace.json, or its latency block.",
            rich_help_panel=_PREDICTION,
        ),
    ] = None,
    predicted_step: Annotated[
        float | None,
        typer.Option(
            metavar="CYCLES", help="Iteration step predicted by a cost model.", hidden=True, rich_help_panel=_PREDICTION
        ),
    ] = None,
    predicted_overlap: Annotated[
        float | None,
        typer.Option(
            metavar="CYCLES",
            help="Predicted overlap of an iteration with the next.",
            hidden=True,
            rich_help_panel=_PREDICTION,
        ),
    ] = None,
    predicted_latency: Annotated[
        float | None,
        typer.Option(
            metavar="CYCLES", help="Predicted latency of one iteration.", hidden=True, rich_help_panel=_PREDICTION
        ),
    ] = None,
    predicted_total: Annotated[
        float | None,
        typer.Option(
            metavar="CYCLES", help="Predicted cycles of all iterations.", hidden=True, rich_help_panel=_PREDICTION
        ),
    ] = None,
    predicted_iterations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of these iterations.", hidden=True, rich_help_panel=_PREDICTION),
    ] = None,
    predicted_per: Annotated[
        Literal["iteration", "call"] | None,
        typer.Option(
            help=(
                "What an iteration is in the prediction: the whole product or one kernel call. [default: iteration; "
                "for a FILE, call]"
            ),
            hidden=True,
            rich_help_panel=_PREDICTION,
        ),
    ] = None,
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
    from opscope.npu.workflows.aie import TilesRequest

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
        predicted=predicted,
        predicted_step=predicted_step,
        predicted_overlap=predicted_overlap,
        predicted_latency=predicted_latency,
        predicted_total=predicted_total,
        predicted_iterations=predicted_iterations,
        predicted_per=predicted_per,
        align=align,
    )
    chosen = _traces(traces, request)
    if len(chosen) == 1:
        _one(chosen[0], request, out if out or traces else chosen[0].parent, json, quiet=quiet)
    else:
        _sweep(chosen, request, out, json, quiet=quiet)


def _traces(traces: list[Path] | None, request: TilesRequest) -> list[Path]:
    """The traces that are named, or the one that the published tool would read."""
    from opscope.core.errors import UsageError
    from opscope.npu.workflows.sweep import published_path

    if traces:
        return traces
    usual = published_path(request)
    if usual is None:
        hint = "name it: opscope aie TRACE; or give --hwid --M --K --N --row --col to find the published tool's trace"
        raise UsageError("no trace given", hint=hint)
    return [usual]


def _one(path: Path, request: TilesRequest, out: Path | None, json: str | None, *, quiet: bool) -> None:
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
        from opscope.npu.reports.terminal import tiles_summary

        show(tiles_summary(tiles.analysis))
        _name(written, "report.html")
    problem = missing(tiles, out)
    if problem:
        raise problem


def _sweep(paths: list[Path], request: TilesRequest, out: Path | None, json: str | None, *, quiet: bool) -> None:
    from opscope.core.tracebacks import tracebacks_kept
    from opscope.npu.workflows.aie import write_tiles
    from opscope.npu.workflows.sweep import sweep_problem, sweep_tiles, write_sweep

    written: list[Path] = []
    used: set[str] = set()

    def keep(label: str, tiles: Tiles) -> None:
        if out:
            short = _directory(label)
            name = short if short not in used else label.replace("/", "-")
            used.add(name)
            written.extend(write_tiles(tiles, out / name))

    with tracebacks_kept(out) if out else nullcontext():
        swept = sweep_tiles(paths, request, keep)
        write_json(swept.sweep, json)
        if out:
            written.extend(write_sweep(swept.sweep, out))
    if not quiet and json != "-":
        from opscope.npu.reports.sweep import sweep_summary

        show(sweep_summary(swept.sweep))
        _name(written, "sweep.html")
    problem = sweep_problem(swept)
    if problem:
        raise problem


def _directory(label: str) -> str:
    """A trace's name as that of a directory: without the endings of its file."""
    name = label.replace("/", "-")
    while name.endswith((".gz", ".zst", ".json", ".txt", ".perfetto")):
        name = name.rpartition(".")[0]
    return name or "trace"


def _name(written: list[Path], first: str) -> None:
    """Say where the report is, and how many files are next to it."""
    report = next((path for path in written if path.name == first), None)
    if report is not None:
        say()
        say(f"{report} and {counted_text(len(written) - 1, 'more file')}")
