"""``opscope init-model``: a file for a model of your own."""

from __future__ import annotations

from typing import Annotated

import typer

from opscope.cli.models import ModelsOption  # noqa: TC001 - typer reads the annotations at run time
from opscope.cli.output import QuietOption, say


def command(
    name: Annotated[str, typer.Argument(help="Name of the model: letters, digits and _.")],
    models: ModelsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write a file with one model into your directory of models. A file that is there is never overwritten.

    Example: opscope init-model my_network

    The file holds a network, its example inputs, dynamic shapes and the choice of quantisation; it exports as it is.
    """
    from opscope.api import write_model

    file = write_model(name, models)
    if not quiet:
        say(f"{file}: put your network in, then: opscope export {name}")
