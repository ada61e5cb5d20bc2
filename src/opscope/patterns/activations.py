"""Activations of operators that XNNPACK delegates.

Those of PyTorch become ``where``, ``gt`` and ``log1p``, or the operator ``elu``. XNNPACK's partitioner has no
rule for any of these.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.patterns.replacing import replace_modules


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, which overflows for no input.

    Differs from ``torch.nn.functional.softplus`` by at most 1e-6 of the larger of 1 and the result in float32: below
    -17 it is 0 where PyTorch still gives ``exp(x)``.
    """
    return torch.clamp(x, min=0.0) + torch.log(torch.exp(-torch.abs(x)) + 1.0)


class Softplus(nn.Module):
    """``torch.nn.Softplus`` with its default options."""

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same shape."""
        return softplus(x)


class Mish(nn.Module):
    """``torch.nn.Mish``: ``x * tanh(softplus(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same shape."""
        return x * torch.tanh(softplus(x))


class ELU(nn.Module):
    """``torch.nn.ELU``.

    Args:
        alpha: what large negative inputs approach, with a minus.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same shape."""
        return torch.clamp(x, min=0.0) + (torch.exp(torch.clamp(x, max=0.0)) - 1.0) * self.alpha


def replace_activations(model: nn.Module) -> int:
    """Put delegated ones in the place of every ``torch.nn.Softplus``, ``Mish`` and ``ELU`` of a model.

    Returns:
        How many were replaced.
    """
    plain = sum(_is_plain(module) for module in model.modules() if module is not model)
    replace_modules(model, nn.Softplus, lambda found: Softplus() if _is_plain(found) else found)
    mish = replace_modules(model, nn.Mish, lambda _: Mish())
    return plain + mish + replace_modules(model, nn.ELU, lambda found: ELU(found.alpha))


def _is_plain(module: nn.Module) -> bool:
    """Whether it is a softplus with the options that it has by default."""
    return isinstance(module, nn.Softplus) and (module.beta, module.threshold) == (1, 20)
