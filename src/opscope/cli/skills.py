"""``opscope skills``: the agent skills and the recipes of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import QuietOption, say, write

app = typer.Typer(
    help="List, show or install skills for AI coding assistants.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("list")
def list_() -> None:
    """List the skills and the purpose of each.

    Example: opscope skills list
    """
    from opscope.api import skills

    listed = skills()
    width = max(len(skill.name) for skill in listed)
    for skill in listed:
        say(f"{skill.name:<{width}}  {skill.description}")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A skill, or a recipe that a finding names.")],
) -> None:
    """Print a skill, or a recipe: the code of a model before and after, and what changed.

    Example: opscope skills show layer-norm
    """
    from opscope.api import read_guide

    write(read_guide(name).encode(), "-")


@app.command("install")
def install(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the assistant looks for skills.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these. [default: all]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that differ.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write the skills into a directory, each as NAME/SKILL.md.

    Example: opscope skills install .claude/skills

    Nothing is overwritten unless --overwrite is given.
    """
    from opscope.api import install_skills

    for path in install_skills(directory, names or (), overwrite=overwrite):
        if not quiet:
            say(str(path))
