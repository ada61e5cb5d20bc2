"""``opscope analyze``: where the time goes in a trace or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.output import JsonOption, QuietOption, WarmupOption, show, warmup_count, write_json

if TYPE_CHECKING:
    from opscope.analyze.analysis import Analysis

NAME = "analyze"


def command(
    path: Annotated[
        str, typer.Argument(help="A trace, a directory of traces, a bundle, an Arm kit run, or RUN#variant.")
    ],
    warmup: WarmupOption = None,
    json: JsonOption = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the tables as CSV files.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Split end-to-end latency into operators, categories and backends.

    Example: opscope analyze trace.etdump --json analysis.json

    Needs neither torch nor executorch.
    """
    from opscope.api import analyze

    analysis = analyze(path, warmup=warmup_count(warmup))
    if json:
        write_json(analysis, json)
    if csv:
        _write_csv(analysis, csv)
    if not quiet and json != "-":
        from opscope.report.terminal import analysis_summary

        show(analysis_summary(analysis))


def _write_csv(analysis: Analysis, directory: Path) -> None:
    from opscope.bundle.files import write_atomically
    from opscope.report.tables import csv_files

    for name, text in csv_files(analysis).items():
        write_atomically(directory / name, text.encode())
