"""``opscope models``: the models that can be named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import say

ModelsOption = Annotated[
    Path | None,
    typer.Option(
        "--models", metavar="DIR", help="Your model directory. [default: $OPSCOPE_MODELS, else opscope-models]"
    ),
]


def command(models: ModelsOption = None) -> None:
    """List the models that can be profiled by name.

    Example: opscope models

    Your own models are files in a directory; the list shows their first docstring line and does not run them.
    """
    from opscope.runtimes.registry import EXPORTER

    known = EXPORTER.known_models(models)
    width = max(len(name) for name, _ in (*known.registered, *known.own))
    for name, summary in known.registered:
        say(f"{name:<{width}}  {summary}")
    if known.own:
        from opscope.reports.document.text import plain

        say()
        say(f"in {known.directory}:")
        for name, summary in known.own:
            say(f"{name:<{width}}  {plain(summary, 200)}")
    say()
    for line in known.elsewhere:
        say(line)
