"""Resizes: nearest, bilinear and bicubic, by scale and by size, and those that move channels into space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from zoo.models.seeded import seeded

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

_IMAGE = (1, 3, 20, 24)


class _Resized(nn.Module):
    """A resize between two convolutions."""

    def __init__(self, **how: Any) -> None:  # noqa: ANN401 - options of interpolate
        super().__init__()
        self.how, self.before, self.after = how, nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        """The image in another size."""
        return self.after(interpolate(self.before(image).relu(), **self.how))


def nearest() -> EagerModel:
    """Nearest neighbours, twice the size."""
    return seeded(lambda: _Resized(scale_factor=2.0, mode="nearest"), _IMAGE)


def bilinear() -> EagerModel:
    """Bilinear, to a size that is no multiple."""
    return seeded(lambda: _Resized(size=(30, 50), mode="bilinear", align_corners=False), _IMAGE)


def bilinear_scaled() -> EagerModel:
    """Bilinear, twice the size."""
    return seeded(lambda: _Resized(scale_factor=2.0, mode="bilinear", align_corners=False), _IMAGE)


def bilinear_corners() -> EagerModel:
    """Bilinear with aligned corners."""
    return seeded(lambda: _Resized(size=(40, 40), mode="bilinear", align_corners=True), _IMAGE)


def bicubic() -> EagerModel:
    """Bicubic, twice the size."""
    return seeded(lambda: _Resized(scale_factor=2.0, mode="bicubic", align_corners=False), _IMAGE)


def pooled() -> EagerModel:
    """Pooling of every kind: maxima, means, to a size."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d((5, 3))
        ),
        _IMAGE,
    )


def super_resolution() -> EagerModel:
    """Sub-pixel super-resolution: convolutions and a pixel shuffle (Shi et al. 2016)."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
        ),
        _IMAGE,
    )


def space_to_depth() -> EagerModel:
    """A pixel unshuffle before the first convolution."""
    return seeded(lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 8, 3, padding=1), nn.SiLU()), _IMAGE)
