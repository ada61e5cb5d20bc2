"""Configurations to begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import BundleError
from opscope.core.files import write_new as create
from opscope.experiment.config_files import decoded, template
from opscope.experiment.config_rules import read_own
from opscope.kit.config import is_kit_config, read_kit_config

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.experiment.planned import Experiments

__all__ = ["template", "write_new"]


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    if not create(path, text.encode()):
        raise BundleError("there is something already", where=path, hint="choose another --out")


def read_experiments(file: Path) -> Experiments:
    """The experiments that a file asks for."""
    raw = decoded(file, hint="write one with `opscope init --out FILE`")
    return read_kit_config(raw, file) if is_kit_config(raw) else read_own(raw, file)
