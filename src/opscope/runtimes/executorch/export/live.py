"""A model that lives in this process becomes a program: for notebooks, where there is no name to export it by."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opscope.core.errors import ExportError, UsageError
from opscope.runtimes.executorch.export.eager import EagerModel
from opscope.runtimes.executorch.export.lower import Places, export
from opscope.runtimes.executorch.export.process import check_installed
from opscope.runtimes.export_choices import Choice, check_dtype

if TYPE_CHECKING:
    from pathlib import Path


def export_live(module: Any, inputs: Any, dtype: str, directory: Path) -> Path:  # noqa: ANN401 - torch is not typed here
    """Export a PyTorch module in this process, from a copy; the module itself is left unchanged.

    Returns:
        The .pte.
    """
    check_installed()
    check_dtype(dtype)
    name = re.sub(r"[^A-Za-z0-9_]", "_", type(module).__name__)
    choice = Choice(dtype)
    program = directory / f"{choice.stem(name)}.pte"
    places = Places(program, program.with_suffix(".etrecord"), directory / "graph.json")
    export(_copied(module, inputs), name, choice, places, lambda _: None)
    return program


def _copied(module: Any, inputs: Any) -> EagerModel:  # noqa: ANN401 - likewise
    import copy

    import torch

    if not isinstance(module, torch.nn.Module):
        hint = "give a torch.nn.Module, a registered name, or the path of a .pte"
        raise UsageError(f"a {type(module).__name__} is not a model", where="model", hint=hint)
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    if not given or not all(isinstance(value, torch.Tensor) for value in given):
        raise UsageError("the inputs of a module are a tensor or a tuple of tensors", where="inputs")
    try:
        return EagerModel.of(copy.deepcopy(module).eval(), given)
    except (RuntimeError, TypeError) as error:
        hint = "build it again without running it, or export it to a .pte yourself"
        raise ExportError(f"the module cannot be copied: {error}", where="model", hint=hint) from error
