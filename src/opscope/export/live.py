"""A model that lives in this process becomes a program: for notebooks, where there is no name to export it by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opscope.errors import ExportError, UsageError
from opscope.export.lower import check_dtype, export
from opscope.export.process import check_installed

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class LiveModel:
    """A module in evaluation mode with the inputs that give its shapes."""

    module: Any
    inputs: tuple[Any, ...]


def export_live(module: Any, inputs: Any, dtype: str, directory: Path) -> Path:  # noqa: ANN401 - torch is not typed here
    """Export a PyTorch module in this process, from a copy; the module itself is left as it is.

    Args:
        module: a ``torch.nn.Module``.
        inputs: a tensor, or a tuple of tensors; they tell shapes and number types.
        dtype: one of ``opscope.export.lower.DTYPES``.
        directory: an existing one; gets ``CLASS_xnnpack_DTYPE.pte`` and its ``.etrecord``.

    Returns:
        The .pte.

    Raises:
        MissingDependencyError: torch or executorch is not installed.
        UsageError: it is no module, or there are no inputs.
        ExportError: a step of the export failed.
    """
    check_installed()
    check_dtype(dtype)
    name = re.sub(r"[^A-Za-z0-9_]", "_", type(module).__name__)
    program = directory / f"{name}_xnnpack_{dtype}.pte"
    export(_copied(module, inputs), dtype, program, program.with_suffix(".etrecord"))
    return program


def _copied(module: Any, inputs: Any) -> LiveModel:  # noqa: ANN401 - likewise
    import copy

    import torch

    if not isinstance(module, torch.nn.Module):
        hint = "give a torch.nn.Module, a registered name, or the path of a .pte"
        raise UsageError(f"a {type(module).__name__} is no model", where="model", hint=hint)
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    if not given or not all(isinstance(value, torch.Tensor) for value in given):
        raise UsageError("the inputs of a module are a tensor or a tuple of tensors", where="inputs")
    try:
        return LiveModel(copy.deepcopy(module).eval(), given)
    except (RuntimeError, TypeError) as error:
        hint = "build it anew without running it, or export it to a .pte yourself"
        raise ExportError(f"the module cannot be copied: {error}", where="model", hint=hint) from error
