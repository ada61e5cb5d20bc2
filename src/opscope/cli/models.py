"""``opscope models``: the models that can be named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opscope.cli.output import say

ModelsOption = Annotated[
    Path | None,
    typer.Option(
        "--models", metavar="DIR", help="Your directory of models. [default: $OPSCOPE_MODELS, else opscope-models]"
    ),
]


def command(models: ModelsOption = None) -> None:
    """List the models that can be profiled by name.

    Example: opscope models

    Your own models are the files of a directory; their first docstring line is shown, and they are not run.
    """
    from opscope.runtimes.executorch.export.registry import MODELS
    from opscope.runtimes.executorch.export.sources import models_directory
    from opscope.runtimes.executorch.export.user_models import user_models

    directory = models_directory(models)
    own = user_models(directory)
    width = max([len(row.name) for row in MODELS] + [len(mine.name) for mine in own])
    for row in MODELS:
        say(f"{row.name:<{width}}  {row.summary}")
    if own:
        from opscope.reports.content.text import plain

        say()
        say(f"in {directory}:")
        for mine in own:
            say(f"{mine.name:<{width}}  {plain(mine.summary, 200)}")
    _tell_registries()


def _tell_registries() -> None:
    """What else can be named: ExecuTorch's examples with what they need, and architectures of transformers."""
    from opscope.runtimes.executorch.export.executorch_models import BUILT_HERE, NEEDS

    say()
    say(f"executorch:NAME, of ExecuTorch's example registry: {', '.join(BUILT_HERE)}")
    for needed, names in NEEDS.items():
        say(f"  with {needed}: {', '.join(names)}")
    say("transformers:CONFIGCLASS, as transformers:BertConfig: small, random weights, nothing is downloaded")
    say("MODULE:CALLABLE or FILE.py:CALLABLE: what your own function returns; opscope init --model writes one")
