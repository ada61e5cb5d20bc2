"""The models that can be named, without importing any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.runtimes.executorch.export.executorch_models import BUILT_HERE, NEEDS
from opscope.runtimes.executorch.export.registry import MODELS
from opscope.runtimes.executorch.export.sources import models_directory
from opscope.runtimes.executorch.export.user_models import user_models
from opscope.runtimes.runtime import KnownModels

if TYPE_CHECKING:
    from pathlib import Path


def known_models(models: Path | None) -> KnownModels:
    """Those of opscope, of the user, of ExecuTorch's registry with what they need, and of transformers."""
    directory = models_directory(models)
    elsewhere = [
        f"executorch:NAME, of ExecuTorch's example registry: {', '.join(BUILT_HERE)}",
        *(f"  with {needed}: {', '.join(names)}" for needed, names in NEEDS.items()),
        "transformers:CONFIGCLASS, as transformers:BertConfig: small, random weights, nothing is downloaded",
        "MODULE:CALLABLE or FILE.py:CALLABLE: what your own function returns; opscope init --model writes one",
    ]
    own = [(mine.name, mine.summary) for mine in user_models(directory)]
    return KnownModels([(row.name, row.summary) for row in MODELS], directory, own, elsewhere)
