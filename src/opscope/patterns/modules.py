"""Attention, norms, activations, padding and means of images, made of operators that XNNPACK delegates.

XNNPACK's partitioner has no rule for PyTorch's own activations, which become ``where``, ``gt`` and ``log1p``, or the
operator ``elu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable


MASKED = -1e4
"""Added to the product of a position that is masked: its weight is 0 in float32, and half precision can hold it."""


def additive_mask(keep: Tensor) -> Tensor:
    """Return the numbers to add to an attention's products, for a mask that is True where a position is attended to.

    Make it once, when the model is built, and keep it as a buffer.

    Returns:
        float32 of the same shape: 0 where ``keep`` is True, ``MASKED`` elsewhere.
    """
    return torch.zeros(keep.shape).masked_fill(~keep, MASKED)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute ``scaled_dot_product_attention``, without its guard for rows that are masked as a whole.

    Such a row gives the mean of ``value`` instead of 0.

    Returns:
        Shape (..., queries, width of the output).
    """
    products = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return torch.softmax(products if mask is None else products + mask, -1) @ value


def spatial_mean(image: Tensor) -> Tensor:
    """Return the mean over height and width, as ``image.mean((2, 3))``.

    Returns:
        Shape (batch, channels).
    """
    return image.mean((2, 3), keepdim=True).flatten(1)


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
        """Return a layer norm that computes what another one does; scale and shift are shared with it."""
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
        """Return a tensor of the same shape, of at least two dimensions."""
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


class ReflectionPad2d(nn.Module):
    """Mirrors the borders of images by slices and concatenations.

    Args:
        padding: columns on the left and on the right, rows at the top and at the bottom.
    """

    def __init__(self, padding: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, image: Tensor) -> Tensor:
        """Return a tensor of four dimensions, larger by the padding in the last two."""
        left, right, top, bottom = self.padding
        for dim, before, after in ((3, left, right), (2, top, bottom)):
            last = image.shape[dim] - 1
            first = [image.narrow(dim, at, 1) for at in range(before, 0, -1)]
            image = torch.cat([*first, image, *(image.narrow(dim, last - at, 1) for at in range(1, after + 1))], dim)
        return image


class InstanceNorm2d(nn.Module):
    """The norm of every channel of every image, by means that keep their dimensions.

    Args:
        channels: of the images.
        eps: added to the variance.
        affine: whether channels are scaled and moved afterwards, by ``weight`` and ``bias``.
    """

    def __init__(self, channels: int, eps: float = 1e-5, *, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, image: Tensor) -> Tensor:
        """Return a tensor of the same shape, of four dimensions."""
        centred = image - image.mean((2, 3), keepdim=True)
        variance = (centred * centred).mean((2, 3), keepdim=True)
        normed = centred * torch.rsqrt(variance + self.eps)
        if self.weight is None or self.bias is None:
            return normed
        return normed * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def replace_instance_norms(model: nn.Module) -> int:
    """Put a delegated norm in the place of every ``torch.nn.InstanceNorm2d`` that keeps no statistics.

    Returns:
        How many were replaced.
    """
    replaced = 0

    def made(norm: nn.InstanceNorm2d) -> nn.Module:
        nonlocal replaced
        if norm.track_running_stats:
            return norm
        replaced += 1
        new = InstanceNorm2d(norm.num_features, norm.eps, affine=norm.affine)
        new.weight, new.bias = norm.weight, norm.bias
        return new.train(norm.training)

    replace_modules(model, nn.InstanceNorm2d, made)
    return replaced


def replace_reflection_pads(model: nn.Module) -> int:
    """Put slices and concatenations in the place of every ``torch.nn.ReflectionPad2d``.

    Returns:
        How many were replaced.
    """
    return replace_modules(model, nn.ReflectionPad2d, lambda pad: ReflectionPad2d(pad.padding))


def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))``, which overflows for no input.

    Differs from ``torch.nn.functional.softplus`` by at most 1e-6 of the larger of 1 and the result in float32:
    below
    -17 it is 0 where PyTorch still gives ``exp(x)``.
    """
    return torch.clamp(x, min=0.0) + torch.log(torch.exp(-torch.abs(x)) + 1.0)


class Softplus(nn.Module):
    """``torch.nn.Softplus`` with its default options."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return softplus(x)


class Mish(nn.Module):
    """``torch.nn.Mish``: ``x * tanh(softplus(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
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
        """Return a tensor of the same shape."""
        return torch.clamp(x, min=0.0) + (torch.exp(torch.clamp(x, max=0.0)) - 1.0) * self.alpha


def replace_activations(model: nn.Module) -> int:
    """Put delegated ones in the place of every ``torch.nn.Softplus``, ``Mish`` and ``ELU`` of a model.

    Returns:
        How many were replaced.
    """
    plain = sum(_is_plain(module) for module in model.modules() if module is not model)
    replace_modules(model, nn.Softplus, lambda module: Softplus() if _is_plain(module) else module)
    mish = replace_modules(model, nn.Mish, lambda _: Mish())
    return plain + mish + replace_modules(model, nn.ELU, lambda module: ELU(module.alpha))


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module is a softplus with its default options."""
    return isinstance(module, nn.Softplus) and (module.beta, module.threshold) == (1, 20)


def replace_modules(root: nn.Module, kind: type[nn.Module], make: Callable[[nn.Module], nn.Module]) -> int:
    """Put another module in the place of every submodule of a class; the root itself stays.

    Returns:
        How many were replaced.
    """
    modules = [
        (parent, name, child)
        for parent in list(root.modules())
        for name, child in parent.named_children()
        if isinstance(child, kind)
    ]
    for parent, name, child in modules:
        setattr(parent, name, make(child))
    return len(modules)
