"""``opscope init-model``: the former name of ``opscope init --model``, a file for a model of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.models import ModelsOption  # noqa: TC001 - typer reads the annotations at run time
from opscope.cli.output import QuietOption, say

if TYPE_CHECKING:
    from pathlib import Path


def command(
    name: Annotated[str, typer.Argument(help="Name of the model: letters, digits and _.")],
    models: ModelsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write a file with a model to start from; the same as `opscope init --model NAME`.

    Example: opscope init-model my_network

    The file holds a network, its example inputs, dynamic shapes and the choice of quantisation; it exports as it is.
    """
    write_model_file(name, models, quiet=quiet)


def write_model_file(name: str, models: Path | None, *, quiet: bool) -> None:
    """Write the file of a model to start from, and name the next step."""
    from opscope.api import write_model

    file = write_model(name, models)
    if not quiet:
        say(f"{file}: put your network in, then: opscope export {name}")
