"""The user's own models."""

from __future__ import annotations

from pathlib import Path


def write_model(name: str, models: str | Path | None = None) -> Path:
    """Write a file to begin with into the user's directory of models, and name it.

    Args:
        name: of the model and of the file.
        models: the directory; None: ``OPSCOPE_MODELS``, else ``opscope-models``.

    Raises:
        OpscopeError: as :func:`opscope.runtimes.executorch.export.user_models.write_model` says.
    """
    from opscope.runtimes.executorch.export.sources import models_directory
    from opscope.runtimes.executorch.export.user_models import write_model as write

    return write(models_directory(None if models is None else Path(models)), name)
