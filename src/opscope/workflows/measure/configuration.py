"""Configurations to begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import BundleError
from opscope.core.files import storage_errors
from opscope.experiment.config_files import template

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["template", "write_new"]


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        BundleError: it is there; it stays as it is.
        StorageError: the system refused.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise BundleError("there is something already", where=path, hint="choose another --out") from None
