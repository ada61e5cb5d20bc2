"""``opscope report``: write the reports of a bundle, or of a run of the Arm kit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import QuietOption, split_words

NAME = "report"


def command(
    bundle: Annotated[Path, typer.Argument(help="The directory that `opscope profile` or the Arm kit wrote.")],
    formats: Annotated[
        str, typer.Option("--format", metavar="FORMAT,...", help="Any of html, md and json.")
    ] = "html,md,json",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write instead.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the reports of a bundle into it, computed anew from its traces.

    Those of a run directory of the Arm kit go to opscope/ in it.

    Example: opscope report opscope-out/mobilenet_v3_small-20260102-101500 --format html
    """
    from opscope.api import report

    for path in report(bundle, split_words(formats), out=out):
        if not quiet:
            typer.echo(path)
