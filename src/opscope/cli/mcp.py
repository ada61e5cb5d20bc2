"""``opscope mcp``: tools for AI assistants, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    root: Annotated[
        list[Path] | None,
        typer.Option("--root", metavar="DIR", help="Directory that assistants may read; repeatable. [default: .]"),
    ] = None,
    allow_run: Annotated[
        bool,
        typer.Option("--allow-run", help="Also offer count, profile and tune, which run programs and write bundles."),
    ] = False,
) -> None:
    """Serve tools to AI assistants over the Model Context Protocol.

    Example: opscope mcp --root results

    An assistant starts it and talks to it on standard input and output. The tools list and read bundles, analyze
    traces, find operators, compare, check and preflight. Paths stay below the roots, links followed. Needs
    opscope[mcp].
    """
    from opscope.assistants.server import serve

    serve(root or [Path()], allow_run=allow_run)
