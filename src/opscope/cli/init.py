"""``opscope init``: a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import QuietOption  # noqa: TC001 - typer reads the annotations at run time
from opscope.hosts.target_kinds import KINDS, LOCAL, names


def command(
    target: Annotated[
        str, typer.Option(help=f"Where it shall run: {names(kind for kind in KINDS if kind.template)}.")
    ] = LOCAL.name,
    out: Annotated[Path, typer.Option(metavar="FILE|-", help="Where to write it; - is standard output.")] = Path(
        "opscope.toml"
    ),
    quiet: QuietOption = False,
) -> None:
    """Write a commented configuration for `opscope run`. A file that is there is never overwritten.

    Example: opscope init --target local --out experiments.toml
    """
    from opscope.experiment.config_files import template
    from opscope.workflows.measure.configuration import write_new

    text = template(target)
    if str(out) == "-":
        typer.echo(text, nl=False)
        return
    write_new(out, text)
    if not quiet:
        typer.echo(f"{out}: edit it, then: opscope run {out}")
