"""Weights that are the same whenever a model is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opscope.runtimes.executorch.export.eager import EagerModel

if TYPE_CHECKING:
    from collections.abc import Callable


def seeded(module: Callable[[], torch.nn.Module], *inputs: Any, **options: Any) -> EagerModel:  # noqa: ANN401 - tensors and shapes
    """The model of a module that is built with seeded weights.

    Args:
        module: builds it.
        inputs: shapes of random inputs as tuples of numbers, or the inputs themselves.
        options: of :meth:`opscope.runtimes.executorch.export.eager.EagerModel.of`.
    """
    torch.manual_seed(0)
    built = module().eval()
    given = tuple(torch.randn(each) if isinstance(each, tuple) else each for each in inputs)
    return EagerModel.of(built, given, **options)
