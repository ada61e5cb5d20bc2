"""A layer norm of operators that XNNPACK delegates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.patterns.replacing import replace_modules


class LayerNorm(nn.Module):
    """``torch.nn.LayerNorm`` over the last dimension, of matrix products and arithmetic.

    ExecuTorch keeps ``native_layer_norm`` as one operator, which XNNPACK's partitioner does not take, so each one ends
    a delegate. Here means are products with a column of 1 / width, and everything else is arithmetic. The column is
    not in the ``state_dict``, which has ``weight`` and ``bias`` as that of ``torch.nn.LayerNorm``.

    Args:
        width: size of the last dimension.
        eps: added to the variance.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("column", torch.full((width, 1), 1 / width), persistent=False)

    @classmethod
    def from_module(cls, norm: nn.LayerNorm) -> LayerNorm:
        """A layer norm that computes what another one does; scale and shift are shared with it."""
        if len(norm.normalized_shape) != 1:
            raise ValueError(f"normalises over {len(norm.normalized_shape)} dimensions, only one is supported")
        made = cls(norm.normalized_shape[0], norm.eps)
        if norm.weight is not None:
            made = made.to(device=norm.weight.device, dtype=norm.weight.dtype)
            made.weight = norm.weight
        if norm.bias is not None:
            made.bias = norm.bias
        made.train(norm.training)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same shape, of at least two dimensions."""
        centred = x - x @ self.column
        variance = (centred * centred) @ self.column
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def replace_layer_norms(model: nn.Module) -> int:
    """Put a delegated layer norm in the place of every ``torch.nn.LayerNorm`` of a model over one dimension.

    Returns:
        How many were replaced.
    """
    replaced = 0

    def made(norm: nn.LayerNorm) -> nn.Module:
        nonlocal replaced
        if len(norm.normalized_shape) != 1:
            return norm
        replaced += 1
        return LayerNorm.from_module(norm)

    replace_modules(model, nn.LayerNorm, made)
    return replaced
