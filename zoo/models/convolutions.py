"""Convolutions of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.models.seeded import seeded

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

_IMAGE = (1, 8, 24, 24)


class Pyramid(nn.Module):
    """Dilated convolutions side by side, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=rate, dilation=rate) for rate in (1, 2, 4, 6))
        self.joined = nn.Conv2d(32, 8, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Features that see four scales."""
        return self.joined(torch.cat([branch(image).relu() for branch in self.branches], dim=1))


class Causal(nn.Module):
    """A convolution over what has been, beside a residual."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate, self.conv = rate, nn.Conv1d(16, 16, 3, dilation=rate)

    def forward(self, signal: Tensor) -> Tensor:
        """The signal and what its past adds."""
        return signal + self.conv(nn.functional.pad(signal, (2 * self.rate, 0))).relu()


def transposed() -> EagerModel:
    """Transposed convolutions: stride 2, an output padding, groups."""
    return seeded(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(12, 12, 2, stride=2, groups=3),
            nn.ConvTranspose2d(12, 4, 4, stride=1, padding=1),
            nn.BatchNorm2d(4),
        ),
        _IMAGE,
    )


def transposed_groups() -> EagerModel:
    """A transposed convolution in groups with a norm behind it."""
    return seeded(
        lambda: nn.Sequential(nn.ConvTranspose2d(8, 12, 2, stride=2, groups=2), nn.BatchNorm2d(12), nn.ReLU()), _IMAGE
    )


def grouped() -> EagerModel:
    """Grouped convolutions with a shuffle of channels between them, as in ShuffleNet."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1, groups=4), nn.ReLU(), nn.ChannelShuffle(4), nn.Conv2d(16, 16, 1, groups=2)
        ),
        _IMAGE,
    )


def dilated() -> EagerModel:
    """A pyramid of scales, as in DeepLab."""
    return seeded(Pyramid, _IMAGE)


def depthwise() -> EagerModel:
    """Depthwise convolutions of several sizes and strides, with a multiplier of channels."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.ReLU6(),
            nn.Conv2d(8, 16, 5, stride=2, padding=2, groups=8),
            nn.Hardswish(),
            nn.Conv2d(16, 8, 1),
        ),
        _IMAGE,
    )


def temporal() -> EagerModel:
    """Causal, dilated convolutions over time: a temporal convolutional network (Bai et al. 2018)."""
    return seeded(lambda: nn.Sequential(*(Causal(rate) for rate in (1, 2, 4))), (1, 16, 64))


def vocoder() -> EagerModel:
    """Transposed convolutions over time, as vocoders have them."""
    return seeded(
        lambda: nn.Sequential(
            nn.ConvTranspose1d(8, 8, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv1d(8, 1, 7, padding=3),
            nn.Tanh(),
        ),
        (1, 8, 32),
    )


def volume() -> EagerModel:
    """Convolutions over a volume."""
    return seeded(lambda: nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 1)), (1, 1, 8, 8, 8))
