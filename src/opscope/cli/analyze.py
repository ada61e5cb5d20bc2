"""``opscope analyze``: where the time goes in a trace or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, TicksOption, WarmupOption, say, show, warmup_count, write_json

if TYPE_CHECKING:
    from opscope.api import Inspected


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="A trace, a directory of traces, a bundle, an Arm kit run, or RUN#variant; also a .pte, a .tflite, an "
            ".etrecord or an XNNPACK log.",
        ),
    ],
    warmup: WarmupOption = None,
    program: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="The traced program (.pte, .tflite, .onnx): adds shapes, costs."),
    ] = None,
    etrecord: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its export record (.etrecord): adds modules and source lines.")
    ] = None,
    ticks: TicksOption = None,
    json: JsonOption = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the tables as CSV files.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Split latency into operators, categories and backends.

    Example: opscope analyze trace.etdump --json analysis.json

    No torch needed. A bundle contains its program; for a trace alone, name it with --program. Several paths are
    analysed separately; JSON is then a list. For other files, prints their contents.
    """
    from opscope.api import inspect

    count = warmup_count(warmup)
    found = [inspect(path, warmup=count, program=program, etrecord=etrecord, ticks=ticks) for path in paths]
    write_json(found[0] if len(found) == 1 else found, json)
    if csv:
        _write_all_csv(found, csv)
    if not quiet and json != "-":
        from opscope.reports.document.terminal import terminal_document
        from opscope.reports.inspected import inspected_document

        for number, value in enumerate(found):
            if number:
                say()
            show(terminal_document(inspected_document(value)))


def _write_all_csv(found: list[Inspected], directory: Path) -> None:
    """Tables of every trace; of several, each in its own directory, numbered as they were given."""
    from opscope.analysis.analysis import Analysis
    from opscope.core.outputs import write_outputs
    from opscope.reports.formats.tables import csv_files

    for number, value in enumerate(found):
        if isinstance(value, Analysis):
            place = directory if len(found) == 1 else directory / f"{number}-{Path(value.trace.path).stem}"
            write_outputs({place / name: text.encode() for name, text in csv_files(value).items()})
