"""Reductions of images that XNNPACK delegates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def spatial_mean(image: Tensor) -> Tensor:
    """The mean over height and width, as ``image.mean((2, 3))``.

    Returns:
        Shape (batch, channels).
    """
    return image.mean((2, 3), keepdim=True).flatten(1)
