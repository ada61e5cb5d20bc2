"""The user's own models."""

from __future__ import annotations

from pathlib import Path


def write_model(name: str, models: str | Path | None = None) -> Path:
    """Write a file to begin with into the user's directory of models, and name it.

    Args:
        name: of the model and of the file.
        models: the directory; None: ``OPSCOPE_MODELS``, else ``opscope-models``.

    Raises:
        OpscopeError: the name is none of a model, or a file is there already.
    """
    from opscope.runtimes.registry import EXPORTER

    return EXPORTER.write_model(None if models is None else Path(models), name)
