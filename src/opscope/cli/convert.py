"""``opscope convert``: a trace or a bundle in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import (
    STANDARD_OUTPUT,
    QuietOption,
    TicksOption,
    WarmupOption,
    output_target,
    say,
    warmup_count,
    write,
)

_PERFETTO = "perfetto"


def command(
    path: Annotated[
        str,
        typer.Argument(help="A trace, a directory of traces, a bundle, an Arm kit run, or RUN#variant; a program."),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="csv, parquet, perfetto, speedscope, github-benchmark, model-explorer, tables, kit-csv, kit, or a "
            "format of a plug-in.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|-",
            help="File, or directory for formats with several files; - is standard output.",
            callback=output_target,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="operator|module", help="What the stacks of speedscope are built from."),
    ] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="MODEL.pte", help="The traced program; a bundle has its own.")
    ] = None,
    etrecord: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its export record (.etrecord): adds modules and source lines.")
    ] = None,
    opened: Annotated[
        bool, typer.Option("--open", help="With perfetto: open the file in ui.perfetto.dev, which reads it from here.")
    ] = False,
    warmup: WarmupOption = None,
    ticks: TicksOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Convert a trace or a bundle to another format.

    Example: opscope convert trace.etdump --to perfetto --open

    Example: opscope convert BUNDLE --to speedscope --by module

    Example: opscope convert BUNDLE#baseline --to model-explorer --out graphs

    Every event: csv and parquet, which opscope can read back; perfetto, for ui.perfetto.dev; kit-csv, for scripts
    written for Arm's profiling kit; kit, a whole run directory of it. Aggregated: speedscope, for flame graphs;
    model-explorer, the program's graph with values on its nodes; tables, operators and categories as CSV;
    github-benchmark, figures that github-action-benchmark follows.

    For a bundle, csv, parquet and kit-csv contain the accelerated variant, other formats all variants. Without --out,
    files go next to PATH.
    """
    from opscope.api import convert, converted
    from opscope.workflows.reports.conversion import ConvertOptions

    if opened and (to != _PERFETTO or out == STANDARD_OUTPUT):
        from opscope.core.errors import UsageError

        raise UsageError("only a perfetto file can be opened", where="--open", hint="leave it out, or --to perfetto")
    count, options = warmup_count(warmup), ConvertOptions(program, etrecord, by, ticks)
    if out == STANDARD_OUTPUT:
        write(converted(path, to, warmup=count, options=options), out)
        return
    place = Path(out) if out else None
    for file in convert(path, to, out=place, warmup=count, force=force, options=options):
        if not quiet:
            say(file)
        if opened:
            from opscope.workflows.reports.serving import open_in_perfetto

            open_in_perfetto(file, lambda link: say(f"open {link}", err=True))
