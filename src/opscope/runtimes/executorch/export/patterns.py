"""Replacements that make a model exportable, or keep more of it in the delegate; outputs stay the same.

They are for the file of a model (``opscope init --model``) and for the adapters here.
docs/how-to/profile-your-own-model.md shows when to use which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opscope.patterns.modules import replace_modules

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FixedValues", "NearestTwice", "NormInFp32", "recorded_values", "replace_modules"]

_PAIR = 2


class NormInFp32(nn.Module):
    """A layer norm that computes in single precision whatever its input is; scale and shift stay in the input's type.

    executorch 1.5.1's kernel gives wrong results in half precision for rows of 256 numbers or more (measured on x86-64:
    right up to 255, off by several units from 256 on). In a model of fp32 nothing changes.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape and type."""
        if x.dtype is torch.float32:
            result: Tensor = self.norm(x)
            return result
        normed = nn.functional.layer_norm(x.float(), self.norm.normalized_shape, eps=self.norm.eps).to(x.dtype)
        if self.norm.weight is not None:
            normed = normed * self.norm.weight
        return normed if self.norm.bias is None else normed + self.norm.bias


class NearestTwice(nn.Module):
    """Enlarges an image to twice its height and width, every pixel four times: a transposed convolution.

    XNNPACK's partitioner takes transposed convolutions, and no ``upsample_nearest2d``. The convolution mixes no
    channels; as it has one weight for each pair of them, it is worth it for few channels only.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        weight = torch.eye(channels)[:, :, None, None].repeat(1, 1, _PAIR, _PAIR)
        self.register_buffer("weight", weight)

    def forward(self, image: Tensor) -> Tensor:
        """Return an image of shape (batch, channels, 2 * height, 2 * width)."""
        return nn.functional.conv_transpose2d(image, self.weight, stride=_PAIR)


class FixedValues(nn.Module):
    """Returns values that depend on shapes only, computed once: position encodings, masks, grids.

    ``values``: by the shape of the input that asks for them.
    """

    def __init__(self, values: dict[tuple[int, ...], Tensor]) -> None:
        super().__init__()
        self._names = {}
        for number, (shape, value) in enumerate(values.items()):
            self._names[shape] = f"value_{number}"
            self.register_buffer(f"value_{number}", value.detach().clone())

    def forward(self, asking: Tensor) -> Tensor:
        """Return the values for an input of this shape."""
        value: Tensor = getattr(self, self._names[tuple(asking.shape)])
        return value


def recorded_values(module: nn.Module, run: Callable[[], object]) -> FixedValues:
    """Record what a module returns for every shape that it is called with in a run of the complete model."""
    values: dict[tuple[int, ...], Tensor] = {}

    def record(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values[tuple(inputs[0].shape)] = output

    handle = module.register_forward_hook(record)
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    return FixedValues(values)
