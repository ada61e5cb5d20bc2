"""``opscope init``: a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.models import ModelsOption  # noqa: TC001 - typer reads the annotations at run time
from opscope.cli.output import STANDARD_OUTPUT, QuietOption, output_target, say, write
from opscope.core.printable import shell_command
from opscope.hosts.target_kinds import KINDS, LOCAL, names


def command(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write this model file into your model directory instead."),
    ] = None,
    models: ModelsOption = None,
    target: Annotated[
        str | None,
        typer.Option(help=f"Where to run: {names(kind for kind in KINDS if kind.template)}. [default: {LOCAL.name}]"),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TARGET", help="A device to run on instead, under a name you choose. Repeatable."),
    ] = None,
    github: Annotated[
        str | None,
        typer.Option(
            metavar="BASELINE",
            help="Write a GitHub workflow and its action: branch, artifact, cache or store.",
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option(metavar="FILE|-", help="Output file; - is standard output.", callback=output_target),
    ] = "opscope.toml",
    quiet: QuietOption = False,
) -> None:
    """Write a commented configuration or a starter model.

    Example: opscope init --target local --out experiments.toml

    Example: opscope init --device pixel8=adb --device rpi5=ssh:pi@rpi5 --out lab.toml

    Example: opscope init --model my_network

    Example: opscope init --github branch

    Existing files are never overwritten. A model file contains a network, its example inputs, dynamic shapes and the
    choice of quantisation; it exports as is.
    """
    if github is not None:
        from opscope.workflows.github import write_github

        workflow, action = write_github(github)
        if not quiet:
            say(f"{workflow}: commit it with {action}; both are complete")
        return
    if model is not None:
        from opscope.api import write_model

        file = write_model(model, models)
        if not quiet:
            say(f"{file}: put your network in, then: opscope export {model}")
        return
    from opscope.core.errors import UsageError
    from opscope.experiment.config import devices_template, template
    from opscope.workflows.measure.running import write_new

    if device and target is not None:
        raise UsageError("each --device names its own target", where="--target", hint="leave out --target or --device")
    text = devices_template(device) if device else template(target or LOCAL.name)
    if out == STANDARD_OUTPUT:
        write(text.encode(), out)
        return
    write_new(Path(out), text)
    if not quiet:
        say(f"{out}: edit it, then: {shell_command(['opscope', 'run', str(out)])}")
