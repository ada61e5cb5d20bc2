"""``opscope init``: a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import STANDARD_OUTPUT, QuietOption, output_target, say, write
from opscope.core.printable import shell_command
from opscope.hosts.target_kinds import KINDS, LOCAL, names


def command(
    target: Annotated[
        str, typer.Option(help=f"Where it shall run: {names(kind for kind in KINDS if kind.template)}.")
    ] = LOCAL.name,
    out: Annotated[
        str,
        typer.Option(metavar="FILE|-", help="Where to write it; - is standard output.", callback=output_target),
    ] = "opscope.toml",
    quiet: QuietOption = False,
) -> None:
    """Write a commented configuration for `opscope run`. A file that is there is never overwritten.

    Example: opscope init --target local --out experiments.toml
    """
    from opscope.experiment.config_files import template
    from opscope.workflows.measure.configuration import write_new

    text = template(target)
    if out == STANDARD_OUTPUT:
        write(text.encode(), out)
        return
    write_new(Path(out), text)
    if not quiet:
        say(f"{out}: edit it, then: {shell_command(['opscope', 'run', str(out)])}")
