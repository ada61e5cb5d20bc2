"""``opscope convert``: a trace in another format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import QuietOption, WarmupOption, warmup_count

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "convert"


def command(
    trace: Annotated[str, typer.Argument(help="A trace, a directory of traces, a bundle, or BUNDLE#variant.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="One of csv, parquet, perfetto and kit-csv.")],
    out: Annotated[
        str | None,
        typer.Option(metavar="PATH|-", help="File, for kit-csv directory, to write; - is standard output."),
    ] = None,
    warmup: WarmupOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write a trace in another format, and print the names of the files.

    Example: opscope convert trace.etdump --to perfetto

    csv and parquet hold every event and can be analysed again. perfetto opens in ui.perfetto.dev. kit-csv is for
    scripts made for Arm's profiling kit. Without --out, files are written beside the trace.
    """
    from opscope.api import convert, converted

    count = warmup_count(warmup)
    if out == "-":
        _print(converted(trace, to, warmup=count))
        return
    for path in convert(trace, to, out=Path(out) if out else None, warmup=count, force=force):
        if not quiet:
            typer.echo(path)


def _print(content: Iterable[bytes]) -> None:
    sys.stdout.buffer.writelines(content)
    sys.stdout.buffer.flush()
