"""``opscope models``: the registered models."""

from __future__ import annotations

import typer

NAME = "models"


def command() -> None:
    """List the models that can be profiled by name.

    Example: opscope models
    """
    from opscope.export.registry import MODELS

    width = max(len(entry.name) for entry in MODELS)
    for entry in MODELS:
        typer.echo(f"{entry.name:<{width}}  {entry.summary}")
